#!/bin/sh
# A few cases of each fault of tests/chaos, so that the campaign itself stays sound.
. tests/cli/lib.sh
# Failures last, where they are shown.
campaign() {
    "${PYTHON:-/usr/bin/python3}" tests/chaos/chaos.py --build "$build" --jobs 1 --seconds 60 "$@" \
        >"$scratch/campaign"
    code=$?
    grep -A 2 FAILED "$scratch/campaign"
    return $code
}
build=${BUILD:-build}
not_sanitized "make chaos-long runs one under faults"
if [ "$(uname -m)" != x86_64 ]; then
    echo "skip chaos: the shim knows x86-64 alone"
elif ! make -s NVCC= BUILD="$build" "$build/chaos/shim.so" "$build/weft-cpu" >"$scratch/check.out" \
    2>&1; then
    fail "the shim" "$(cat "$scratch/check.out")"
else
    check "a few cases of each fault" campaign --commands zoo-export,sample --each 4
    check "files that name their folder" \
        campaign --commands train-mlp,fit --faults kill-call --each 2
    check "a file made empty while it is read" \
        campaign --commands zoo-info,zoo-export --faults cut --each 28
    if ! "$build/weft-cpu" version | grep -q "downloads: none"; then
        check "downloads" campaign --commands data-fetch \
            --faults kill-call,together,power --each 200
        check "a file that was fetched before" campaign --commands data-fetched \
            --faults memory,bad-file --each 40
    fi
    full="--commands data-npz --faults short --full $scratch/tried"
    # shellcheck disable=SC2086
    check "a full list" campaign $full
    sort "$scratch/tried" >"$scratch/first"
    sed -i '$d' "$scratch/tried"
    # shellcheck disable=SC2086
    check "which goes on where it was stopped" campaign $full
    sort "$scratch/tried" >"$scratch/second"
    check "to the same end" cmp "$scratch/first" "$scratch/second"
    TMPDIR=$scratch campaign --repeat zoo-info:cut:0:5
    check "a case again" grep -q "all is well" "$scratch/campaign"
fi
finish
