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

# environment FOLDER OPTION... : made once, and again when what it is to hold has changed
environment() {
    local folder=$1 wanted
    wanted=$(cat python/tests/requirements.txt; "$python" --version)
    [ "$(cat "$folder/made-of" 2>/dev/null)" = "$wanted" ] && return
    rm -rf "$folder"
    "$python" -m venv "${@:2}" "$folder"
    if [ "$folder" = "$full" ]; then "$folder/bin/pip" install -r python/tests/requirements.txt
    else "$folder/bin/pip" install numpy pytest; fi
    printf '%s\n' "$wanted" >"$folder/made-of"
}

tools/need.sh python3-venv python3-torch
environment "$full" --system-site-packages
environment "$empty"

echo "types"
"$full/bin/mypy"

echo "the wheel, in an environment with numpy alone"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
export WEFT_LIBRARY=$build/libweft.so
"$full/bin/pip" wheel --no-build-isolation --no-deps -w "$wheels/plain" .
wheel=$(echo "$wheels"/plain/weft-*-py3-none-linux_*.whl)
# auditwheel puts in the libraries that libweft.so needs; where it cannot, the wheel stays as it is.
if PATH=$full/bin:$PATH auditwheel repair -w "$wheels/repaired" "$wheel" >"$wheels/log" 2>&1; then
    wheel=$(echo "$wheels"/repaired/weft-*.whl)
fi
echo "$(basename "$wheel"), $(du -k "$wheel" | cut -f1) KiB"
"$empty/bin/pip" install --force-reinstall --no-deps "$wheel"
(cd "$wheels" && env -u WEFT_LIBRARY "$empty/bin/python" -m pytest -q -p no:cacheprovider \
    "$OLDPWD"/python/tests/test_{library,zoo,data}.py)

echo "all tests"
PYTHONPATH=python "$full/bin/python" -m pytest -q -p no:cacheprovider "$@"
