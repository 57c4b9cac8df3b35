#!/usr/bin/env bash
# Tests of the Python package: types, the wheel in an empty environment, then all of python/tests.
#   PYTHON  that makes the environments     BUILD  folder of libweft.so, and of the environments
# Arguments go to the last pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}
build=$(realpath "${BUILD:-build}")
full=$build/python-tests empty=$build/python-empty
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1

# environment FOLDER NAME OPTION...: a virtual environment with what python/tests/NAME.txt asks for,
# made once, and again when that changes. NAME.lock has the exact versions, for the Python of CI;
# others take what NAME.txt allows.
environment() {
    local folder=$1 name=python/tests/$2 wanted
    local install=("$folder/bin/pip" install -r "$name.txt")
    ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || install+=(-c "$name.lock")
    wanted=$(cat "$name".*; "$python" --version)
    [ "$(cat "$folder/made-of" 2>/dev/null)" = "$wanted" ] && return
    rm -rf "$folder"
    "$python" -m venv "${@:3}" "$folder"
    "${install[@]}"
    printf '%s\n' "$wanted" >"$folder/made-of"
}

# step NAME: what comes now, and when it began
step() { printf '%s (%d s)\n' "$1" "$SECONDS"; }

step "environments"
tools/need.sh python3-venv python3-torch
environment "$full" requirements --system-site-packages
environment "$empty" requirements-empty

step "types"
"$full/bin/mypy"

# As people build it to hand on: no CUDA, no downloads, so that it needs little of a machine.
step "the wheel, in an environment with numpy alone"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS WEFT_MAKE="NVCC= CURL=" \
    "$full/bin/pip" wheel --no-build-isolation --no-deps -w "$wheels/plain" .
if ! PATH=$full/bin:$PATH auditwheel repair -w "$wheels" "$wheels"/plain/*.whl >"$wheels/log" 2>&1; then
    cat "$wheels/log"
    exit 1
fi
wheel=$(echo "$wheels"/weft-*-py3-none-manylinux_*.whl)
echo "$(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"
"$empty/bin/pip" install --force-reinstall --no-deps "$wheel"
(cd "$wheels" && "$empty/bin/python" -m pytest -q -p no:cacheprovider \
    "$OLDPWD"/python/tests/test_{library,zoo,data}.py)

step "all tests"
PYTHONPATH=python WEFT_LIBRARY=$build/libweft.so \
    "$full/bin/python" -m pytest -q -p no:cacheprovider "$@"
step "done"
