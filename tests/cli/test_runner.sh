#!/bin/sh
# The tests' own tools: a choice that nothing matches fails, for run.sh, the emulator and programs.
. tests/cli/lib.sh
ops=${BUILD:-build}/tests/unit/test_cuda_ops
expect "run.sh: unknown test" 2 "unit/nonsense.c: no such test" tests/run.sh unit/nonsense.c
expect "run.sh: a test by name" 0 "unit/test_rng.c (4 passed)" tests/run.sh unit/test_rng.c
expect "a program: no such test" 2 "WEFT_TEST_FILTER=nonsense matches no test" \
    env WEFT_TEST_FILTER=nonsense "$ops"
expect "a program: no such case" 2 "WEFT_TEST_CASES=nonsense matches no case" \
    env WEFT_TEST_FILTER=test_bf16 WEFT_TEST_CASES=nonsense "$ops"
if [ -x "${BUILD:-build}/emulated/test_cuda_ops" ]; then
    expect "emulator: unknown name" 2 "usage:" tests/emulator/kernels.sh nonsense
    expect "emulator: a case by name" 0 "ok norm" tests/emulator/kernels.sh norm
    names=$(tests/emulator/kernels.sh --list)
    check "emulator: names are unique" [ -z "$(echo "$names" | sort | uniq -d)" ]
fi
finish
