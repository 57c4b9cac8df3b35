#!/bin/sh
# bench/cuda_check.sh as far as it goes without a GPU: arguments, missing programs, time limits,
# table and continuation of `lease`, with scripts in place of the programs; with nvcc, the machine
# code of the benchmark.
. tests/cli/lib.sh
not_sanitized "scripts stand in for the programs"
script=$root/bench/cuda_check.sh
export BUILD="$scratch/made"
gpu=$BUILD/gpu
cd "$scratch" || exit 1
nvcc=$(command -v nvcc)
export NVCC="$scratch/no-nvcc" PATH="$scratch:$PATH"
expect usage 2 "usage: bench/cuda_check.sh" "$script" leese
expect usage-of-build 2 "usage: bench/cuda_check.sh" "$script" build all
expect nothing-built 2 "not in $gpu: weft edge_benchmark node_benchmark" "$script" lease
expect no-nvcc 2 "no nvcc" "$script" build

# program NAME: a script that reads its lines from stdin.
program() {
    { echo '#!/bin/sh' && cat; } >"$gpu/$1"
    chmod +x "$gpu/$1"
}
mkdir -p "$gpu"
for name in weft test_instructions node_benchmark cuda_loop test_cuda_ops test_cuda_nodes \
    test_cuda_match test_cuda_eval \
    test_cuda_optim test_cuda_field test_cuda_lstar test_cuda_fit test_cuda_sample \
    test_cuda_contexts \
    test_cuda_loops test_cuda_convs test_cuda_execute test_cuda_phases test_zoo_cuda; do
    echo "echo $name \$1 >>$scratch/ran" | program $name
done
# --tool T --error-exitcode 9 --print-limit 5 PROGRAM
{ echo '#!/bin/sh' && echo 'test -x "$7"'; } >compute-sanitizer
chmod +x compute-sanitizer
program cuda_step <<'P'
echo "B = 256; ms  step"
echo "karhunen $1 6.60"
P
program edge_benchmark <<'P'
echo "ok F0"
echo "stage      us    cyc   go  stop  verdict"
echo "F0       28.0   19.7   20    25  go"
P
expect one-missing 2 "not in $gpu: test_cuda_net; make them where nvcc is" "$script" lease
echo 'echo "[       OK ] all"' | program test_cuda_net
echo 'echo "cuda: no device"' | program weft
expect no-gpu 1 "no GPU that this build can use" "$script" lease
echo 'echo "[  SKIPPED ] test_absent"' | program test_cuda_ops
: >ran
expect lease 0 "F0       28.0   19.7   20    25  go" "$script" lease
"$script" lease >table 2>&1
check table-is-last sh -c 'tail -n 1 table | grep -q "^F0 "'
check step-times sh -c 'grep -q "karhunen lean 6.60" table && grep -q "karhunen lstar 6.60" table'
check head-once sh -c '[ "$(grep -c "^B = 256" table)" = 1 ]'
check all-listed sh -c '[ "$(grep -c "^ok " table)" = 76 ]'
mkdir kept
OUT="$scratch/kept" "$script" lease >table 2>&1
check its-logs test "$(ls kept | tr '\n' ' ')" = \
    "benchmarks loop memcheck racecheck steps synccheck tests "
check log-of-edges grep -q '^F0 ' kept/benchmarks
check ran-once sh -c '[ "$(sort ran | uniq -d | wc -l)" = 0 ] && [ "$(wc -l <ran)" = 18 ]'

# The next call runs what failed, and all of it when a program is another one.
program test_cuda_field <<P
[ -e $scratch/field_is_right ] || { echo "field is wrong" && exit 1; }
P
expect a-test-fails 1 "FAILED  test_cuda_field" "$script" lease
check its-log-is-shown grep -q "^field is wrong" "$scratch/out"
: >ran && touch field_is_right
expect goes-on 0 "ok      test_cuda_field" "$script" lease
check no-more-than-that test ! -s ran
# A program that hangs is ended, and what follows is said not to have run.
program edge_benchmark <<'P'
exec sleep 60
P
begin=$(date +%s)
expect limit 1 "KILLED  edges" env LEASE=8 "$script" lease
check within-limit test $(($(date +%s) - begin)) -lt 30
check not-run grep -q "not run  step_lean: no time left" "$scratch/out"
expect no-time 1 "not run  edges: no time left" env LEASE=3 "$script" lease

if [ -n "$nvcc" ]; then
    # In a folder of its own: scripts in place of programs are younger than the sources.
    expect machine-code 0 "test_instructions.cu" env BUILD="$scratch/compiled" NVCC="$nvcc" \
        "$script" build edges
else
    echo "skip machine-code: no nvcc"
fi
finish
