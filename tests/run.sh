#!/bin/sh
# Runs every test program and script; ends with "N passed, N failed, N skipped".
build=${BUILD:-build}
passed=0 failed=0 skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for test in $(cd tests && ls unit/test_*.c prop/test_*.c cli/test_*.sh emulator/test_*.sh 2>/dev/null); do
    case $test in
        *.c) command="$build/tests/${test%.c}" ;;
        *) command="tests/$test" ;;
    esac
    BUILD=$build $command >"$log" 2>&1
    code=$?
    ok=$(grep -c '^\[       OK \]\|^ok ' "$log")
    bad=$(grep -c '^\[  FAILED  \] [a-z]\|^not ok ' "$log")
    skip=$(grep '^\[  SKIPPED \] [a-z]\|^skip ' "$log" | sort -u | wc -l)
    passed=$((passed + ok)) skipped=$((skipped + skip))
    if [ $code -ne 0 ]; then
        [ "$bad" -eq 0 ] && bad=1
        failed=$((failed + bad))
        echo "FAILED $test (rerun: $command)"
        grep -v '^\[ RUN\|^\[       OK' "$log" | tail -n 40
    else
        echo "ok     $test ($ok passed)"
        grep '^skip ' "$log"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
