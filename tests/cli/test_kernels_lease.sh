#!/bin/sh
# bench/kernels_lease.sh: missing programs, its table, and that it says what it did not measure; scripts stand in for
# the programs and for ncu.
. tests/cli/lib.sh
not_sanitized "scripts stand in for the programs"
export BUILD="$scratch/made" OUT="$scratch/out.d"
gpu=$BUILD/gpu
mkdir -p "$gpu" "$OUT" "$scratch/bin"
export PATH="$scratch/bin:$PATH"
expect nothing-built 2 "not in $gpu: cuda_step" bench/kernels_lease.sh
# program FILE: a script that reads its lines from stdin.
program() {
    { echo '#!/bin/sh' && cat; } >"$1"
    chmod +x "$1"
}
for name in cuda_step cuda_loop node_benchmark test_cuda_ops test_cuda_field; do
    echo "echo '$name        1.5'" | program "$gpu/$name"
done
printf 'echo "FAILED M2"\necho "F0       28.0   19.7   20    25  go"\nexit 1\n' | program "$gpu/edge_benchmark"
program "$scratch/bin/ncu" <<'P'
echo "==PROF== Profiling"
echo '"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct","launch__registers_per_thread"'
echo '"","","ns","%","register/thread"'
echo '"0","void wf_gpu::(anonymous namespace)::lean_kernel<(int)64, (bool)1>(args)","1,500","40","128"'
echo '"1","void wf_gpu::(anonymous namespace)::lean_kernel<(int)64, (bool)1>(args)","2,500","40","128"'
P
expect table 0 "F0       28.0   19.7   20    25  go" bench/kernels_lease.sh
check kernels grep -q "^      4    2     2.0  lean_kernel<64, 1>" "$scratch/out"
check details grep -q "^    1.5 .* 40 .* 128  lean_kernel" "$scratch/out"
check wrong-stage grep -q "^FAILED M2" "$scratch/out"
check failures-are-named sh -c "tail -n 1 $scratch/out | grep -q 'not measured: $gpu/edge_benchmark (failed, or'"
check eight-files test "$(find "$OUT" -type f | wc -l)" = 8
rm "$OUT"/*
expect no-time 0 "not measured: $gpu/edge_benchmark; $gpu/node_benchmark; $gpu/cuda_step lean" env LEASE=2 bench/kernels_lease.sh
unset OUT
expect no-folder 0 "F0       28.0" bench/kernels_lease.sh
finish
