#!/bin/sh
# Runs the test programs and scripts side by side, one per core, and reports them in a fixed order:
# time, seconds on a core, result, what was skipped and why. Ends with "N passed, N failed, N skipped".
#   tests/run.sh [NAME...]    NAME as in the report: unit/test_graph.c cli/test_run.sh emulator/norm
#                             oracle/test_*.py, comparisons with PyTorch, run where they are named
#   JOBS=1 tests/run.sh       one after the other
build=${BUILD:-build}

# run.sh --one FOLDER NAME: runs one test. Writes its report and its counts to files in FOLDER.
if [ "${1:-}" = --one ]; then
    report=$2/$(echo "$3" | tr / +) name=$3
    case $name in
        *.c) command="$build/tests/${name%.c}" ;;
        *.py) command="${PYTHON:-/usr/bin/python3} tests/$name" ;;
        emulator/*) command="tests/emulator/kernels.sh ${name#*/}" ;;
        *) command="tests/$name" ;;
    esac
    # Programs that would fill a GPU take turns.
    case $name in
        *cuda*) [ ! -e /dev/nvidia0 ] || command="flock $2/gpu $command" ;;
    esac
    start=$(date +%s%N)
    BUILD=$build $command >"$report.log" 2>&1
    code=$?
    milliseconds=$((($(date +%s%N) - start) / 1000000))
    times >"$report.times" # "0m0.01s 0m0.02s" of this shell, and a line of what it ran
    core=$(awk 'function seconds(t) { split(t, part, "[ms]"); return 60 * part[1] + part[2] }
        NR == 2 { printf "%.1f", seconds($1) + seconds($2) }' "$report.times")
    # "REASON<tab>NAME" for each skip. wf_test.h prints the reason before cmocka prints the name.
    awk '/^\[ RUN/ { running = $4; reason = "no reason given" }
        /^reason: / { reason = substr($0, 9) }
        /^\[  SKIPPED \]/ && $4 == running { print reason "\t" running; running = "" }
        /^skip / { name = why = substr($0, 6); sub(/: .*/, "", name); sub(/^[^:]*: /, "", why)
                   print why "\t" name }' "$report.log" >"$report.skipped"
    ok=$(grep -c '^\[       OK \]\|^ok ' "$report.log")
    bad=$(grep -c '^\[  FAILED  \] [a-z]\|^not ok ' "$report.log")
    skipped=$(wc -l <"$report.skipped")
    [ $code -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ $code -ne 0 ] || bad=0
    echo "$ok $bad $skipped $core" >"$report.counts"
    result=ok
    [ $code -eq 0 ] || result=FAILED
    {
        printf '%-6s %6d.%d s, %5s of a core  %s (%d passed)\n' $result $((milliseconds / 1000)) \
            $((milliseconds % 1000 / 100)) "$core" "$name" "$ok"
        awk -F '\t' '!names[$1] { order[++n] = $1 } { names[$1] = names[$1] " " $2 }
            END { for (i = 1; i <= n; i++)
                      print "       skipped, " order[i] ":" names[order[i]] }' "$report.skipped"
        [ $code -eq 0 ] || {
            echo "       rerun: BUILD=$build $command"
            grep -v '^\[ RUN\|^\[       OK\|^ok ' "$report.log" | tail -n 40
        }
    } >"$report.tmp"
    mv "$report.tmp" "$report.done"
    echo "$name"
    exit 0
fi

# The longest kinds first, so that no core waits for a last long one.
all=$(ls tests/cli/test_*.sh | cut -d / -f 2-
    BUILD=$build tests/emulator/kernels.sh --list | sed 's|^|emulator/|'
    ls tests/prop/test_*.c tests/unit/test_*.c | cut -d / -f 2-)
tests=${*:-$all}
for name in $tests; do
    case $name in
        oracle/test_*.py) [ -e "tests/$name" ] ;;
        *) echo "$all" | grep -qxF "$name" ;;
    esac || { echo "$name: no such test" >&2; exit 2; }
done
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
# Each finished program sends its name; whatever is done and next in order is printed.
# shellcheck disable=SC2086
printf '%s\n' $tests | xargs -P "${JOBS:-$(nproc)}" -n 1 "$0" --one "$folder" | {
    set -- $tests
    while read -r _; do
        while [ $# -gt 0 ] && [ -e "$folder/$(echo "$1" | tr / +).done" ]; do
            cat "$folder/$(echo "$1" | tr / +).done"
            shift
        done
    done
}
# A program without counts was killed together with its script: it counts as failed.
for name in $tests; do
    cat "$folder/$(echo "$name" | tr / +).counts" 2>/dev/null || {
        echo "FAILED $name: no result" >&2
        echo "0 1 0 0"
    }
done | awk '{ passed += $1; failed += $2; skipped += $3; core += $4 }
    END { printf "%.0f s of a core\n", core
          print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"
          exit failed > 0 }'
