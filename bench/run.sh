#!/bin/sh
# weft beside PyTorch in one run, on the same cores: bench/run.sh [SECONDS], 3 for each measurement.
# Without SKYLAKEX OpenBLAS 0.3.21 takes new CPUs for old ones; the name is harmless where there is
# no AVX-512.
build=${BUILD:-build} python=${PYTHON:-/usr/bin/python3}
seconds=${1:-3} threads=${WEFT_THREADS:-$(nproc)}
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
if grep -q avx512f /proc/cpuinfo 2>/dev/null; then export OPENBLAS_CORETYPE=SKYLAKEX; fi
export OMP_NUM_THREADS="$threads"
if ! ldconfig -p | grep -q libopenblas && [ -z "$LD_LIBRARY_PATH" ]; then
    echo "bench: OpenBLAS is missing (libopenblas0-pthread);" \
        "PyTorch would run on the reference BLAS" >&2
    exit 1
fi
grep -m 1 'model name' /proc/cpuinfo 2>/dev/null
uptime
"$build/weft" bench --seconds "$seconds" --threads "$threads" --json -q >"$out/weft.json" || exit 1
{
    "$python" bench/torch_zoo.py "$seconds" "$threads" &&
        "$python" bench/torch_wcs.py "$seconds" &&
        "$python" bench/torch_step.py lstar "$seconds" "$threads" &&
        "$python" bench/torch_step.py lean "$seconds" "$threads"
} >"$out/torch.jsonl" || exit 1
"$python" bench/compare.py "$out/weft.json" "$out/torch.jsonl"
