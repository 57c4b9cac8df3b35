#!/bin/sh
# Runs the fuzz targets of $BUILD one after another, MINUTES in all, and prints one line for each.
#
#     run.sh smoke       every kept input, and a few thousand mutations; no libFuzzer needed
#     run.sh [TARGET]... MINUTES, or EACH seconds a target; with libFuzzer the inputs that it finds
#                        are kept in $BUILD/corpus
# A failure leaves its input beside the target (TARGET.crash, or crash-* with libFuzzer) and ends
# with 1.
build=${BUILD:-build}
here=tests/fuzz
smoke=
if [ "$1" = smoke ]; then
    smoke=yes
    shift
fi
targets=$*
if [ -z "$targets" ]; then
    for source in $here/fuzz_*.c; do targets="$targets $(basename "$source" .c)"; done
fi
set -- $targets
minutes=${MINUTES:-15}
seconds=${EACH:-$((minutes * 60 / $#))}
[ $seconds -gt 0 ] || seconds=1
failed=0
# Sanitizers must leave memory to the kernel's account, and a refusal of memory is an answer, not a
# failure.
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1:$ASAN_OPTIONS
for target in "$@"; do
    program=$build/tests/fuzz/$target
    kept=$here/corpus/${target#fuzz_}
    [ -d "$kept" ] || kept=
    begun=$(date +%s)
    if [ -n "$smoke" ]; then
        runs=3000
        [ "$target" != fuzz_run_files ] || runs=300 # each runs the program twice
        # shellcheck disable=SC2086
        FUZZ_RUNS=${FUZZ_RUNS:-$runs} "$program" tests/golden $kept >"$program.log" 2>&1
    elif nm "$program" | grep -q LLVMFuzzerRunDriver; then
        mkdir -p "$build/corpus/$target"
        # The timeout goes by the clock, and inputs take a third of a second at most: on a busy
        # machine one of 60 s was reported for inputs that took 0.03 s of CPU time.
        # shellcheck disable=SC2086
        "$program" -max_total_time=$seconds -timeout=600 -rss_limit_mb=1024 -max_len=65536 \
            -print_final_stats=1 \
            -artifact_prefix="$program." "$build/corpus/$target" $kept >"$program.log" 2>&1
    else
        # shellcheck disable=SC2086
        FUZZ_SECONDS=$seconds FUZZ_SEED=${FUZZ_SEED:-$begun} "$program" tests/golden $kept \
            >"$program.log" 2>&1
    fi
    code=$?
    runs=$(sed \
        -n 's/^stat::number_of_executed_units: *//p; s/.* inputs, \([0-9]*\) mutations.*/\1/p' \
        "$program.log")
    if [ $code -eq 0 ]; then
        printf 'ok     %-20s %10s runs in %s s\n' "$target" "${runs:--}" $(($(date +%s) - begun))
    else
        failed=$((failed + 1))
        echo "FAILED $target: $program.log"
        grep -E 'ERROR|SUMMARY|runtime error|in this failure|Test unit written' "$program.log" |
            head -n 5
    fi
done
[ $failed -eq 0 ]
