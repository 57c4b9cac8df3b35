#!/bin/sh
# Runs every comparison with PyTorch, SciPy and scikit-learn; ends with "N passed, N failed".
build=${BUILD:-build} python=${PYTHON:-/usr/bin/python3}
passed=0 failed=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for test in tests/oracle/test_*.py; do
    if BUILD=$build "$python" "$test" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok     $test"
        grep '^skip' "$log"
    else
        failed=$((failed + 1))
        echo "FAILED $test (rerun: BUILD=$build $python $test)"
        tail -n 30 "$log"
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
