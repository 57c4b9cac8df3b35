#!/bin/sh
# Several ranks and one GPU: what NCCL's way costs one rank, what a sum over ranks costs, two ranks
# that share the GPU.
#
#     bench/cuda_check.sh build ranks      where nvcc and mpicc are: makes $BUILD/gpu_ranks, which
#                                          may be carried elsewhere
#     bench/gpu_ranks.sh                   needs that folder, a GPU, mpirun and libnccl.so.2
#                                          (PyTorch's will do); no data; under 90 s, one table last
#
# Ends with 1 where a row is not ok. Logs stay in $BUILD/gpu_ranks.log. For tests: PROGRAMS, RECIPE,
# BATCH, UPDATES, PRECISION.
set -u
programs=${PROGRAMS:-${BUILD:-build}/gpu_ranks}
logs=${BUILD:-build}/gpu_ranks.log
batch=${BATCH:-256} updates=${UPDATES:-200} precision=${PRECISION:-bf16}
[ -z "${RECIPE:-}" ] || recipe=$(cat "$RECIPE") || exit 2
for name in weft cuda_loop cuda_ranks; do
    [ -x "$programs/$name" ] && continue
    printf 'gpu_ranks.sh: no %s; make it where nvcc and mpicc are: %s\n' "$programs/$name" \
        "bench/cuda_check.sh build ranks" >&2
    exit 2
done
command -v mpirun >/dev/null || { echo "gpu_ranks.sh: no mpirun" >&2; exit 2; }
programs=$(cd "$programs" && pwd)
theirs=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib:/usr/local/cuda/lib64:$theirs"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
export WEFT_RANK_TIMEOUT="${WEFT_RANK_TIMEOUT:-20}"
rm -rf "$logs"
mkdir -p "$logs" && cd "$logs" || exit 1
begun=$(date +%s)
"$programs/weft" version >version 2>&1 || { cat version >&2; exit 1; }
grep -E '^(cuda|mpi|nccl):' version
# The field of karhunen's recipe and its networks, on data that weft brings.
echo "${recipe-[data]
name = digits
[zoo]
arch = 64-16-8-10
count = 512
held_out = 0
epochs = 2
[model]
layout = lean
node = 64
edge = 64
time = 64
blocks = 8}" >ranks.conf
status=0 may_fail=
: >table
# row VERDICT WORDS
row() {
    printf '%-7s %s\n' "$1" "$2" >>table
    [ "$1" != FAILED ] || status=1
}
# run NAME COMMAND...: a minute at most, its words in NAME.said
run() {
    name=$1
    shift
    timeout -k 2 60 "$@" >"$name.said" 2>&1
    code=$?
    [ $code -eq 0 ] || [ -n "$may_fail" ] ||
        row FAILED "$name: exit code $code: $(tail -n 1 "$name.said" | cut -c 1-200)"
    return $code
}
# train NAME RANKS OPTION...: a flow NAME.safetensors
train() {
    label=$1 ranks=$2
    shift 2
    run "$label" mpirun -n "$ranks" "$programs/weft" train ranks.conf -z zoo.safetensors \
        -o "$label.safetensors" \
        --device cuda --threads 2 -q --set train.optimizer=muon --set train.ema=0.999 \
        --set train.log_every=1 "$@"
}
fp32="--set train.precision=fp32 --set train.updates=$((updates / 10))"
fp32="$fp32 --set train.batch=$((batch / 4 + 1))"
bf16="--set train.precision=$precision --set train.updates=$updates --set train.batch=$batch"
long="--set train.precision=$precision --set train.schedule_updates=100000 --set train.batch=$batch"
# per_update NAME: milliseconds of an update, over the second half of the log
per_update() {
    sed -n 's/.*"update":\([0-9]*\),.*"seconds":\([0-9.]*\).*/\1 \2/p' "$1.safetensors.log.jsonl" \
        2>/dev/null |
        awk '{ u[NR] = $1; s[NR] = $2 }
            END { h = int((NR + 1) / 2)
                if (NR > 1) printf "%.2f", 1000 * (s[NR] - s[h]) / (u[NR] - u[h]) }'
}
losses() { sed -n 's/.*"update":\([0-9]*\),"loss":\([-0-9.e+]*\),.*/\1 \2/p' \
    "$1.safetensors.log.jsonl" 2>/dev/null; }
# near A B MOST: the largest relative difference of their losses; fails where it is more than MOST
# or they have not equal updates
near() {
    losses "$1" >a && losses "$2" >b
    awk -v most="$3" 'NR == FNR { a[$1] = $2; n++; next }
        { d = ($2 - a[$1]) / ($2 == 0 ? 1 : $2); if (d < 0) d = -d; if (d > worst) worst = d; m++ }
        END { if (n > 0 && n == m) printf "%.1e", worst
            else printf "no equal number of updates: %d, %d;", n, m
            exit !(n > 0 && n == m && worst <= most) }' a b
}

# --- one rank over NCCL
if run loop "$programs/cuda_loop" nccl karhunen-lean; then
    awk 'NR > 1 && NF >= 5 {
        printf "%s %s: %s ms alone, %s ms over NCCL, %s %%\n", $1, $2, $3, $4, $5
    }' loop.said >costs
    [ -s costs ] || row FAILED "cuda_loop nccl: no times"
    while read -r line; do
        verdict=ok
        echo "$line" | awk '{ exit !($(NF - 1) <= 1.0) }' || verdict=FAILED
        row "$verdict" "one rank, $line (at most 1 wanted)"
    done <costs
fi
run "sums of one" env WEFT_NCCL=on "$programs/cuda_ranks" &&
    row ok "sums of one rank over NCCL: below"
run "sums of two" mpirun -n 2 "$programs/cuda_ranks" &&
    row ok "sums of two ranks that share the GPU: below"

# --- an update by the size of its batch: what does not shrink with it (tools/scaling_model.py)
batches="karhunen-lean:8 karhunen-lean:32 karhunen-lean:56 karhunen-lean:128 karhunen-lean:256"
# shellcheck disable=SC2086
if run batches "$programs/cuda_loop" brief $batches; then
    said=$(awk 'NR > 1 && NF >= 3 { printf "%s%s %s", comma, $1, $3; comma = ", " }' batches.said)
    row - "an update of N networks, ms: $said"
fi

# --- flows of one rank, and of two that share the GPU
if run zoo "$programs/weft" zoo train ranks.conf -o zoo.safetensors --device cuda -q; then
    # shellcheck disable=SC2086
    { train alone-32 1 $fp32 && WEFT_NCCL=on train nccl-32 1 $fp32 && train two-32 2 $fp32 &&
        train again-32 2 $fp32; }
    verdict=ok said=$(near alone-32 nccl-32 0) || verdict=FAILED
    row "$verdict" "one rank over NCCL, fp32: losses differ by $said (0 wanted)"
    verdict=ok said=$(near alone-32 two-32 1e-3) || verdict=FAILED
    row "$verdict" \
        "two ranks on the GPU, fp32: losses differ from those of one by $said (1e-3 at most)"
    verdict=ok said=$(near two-32 again-32 0) || verdict=FAILED
    row "$verdict" "two ranks again: losses differ by $said (0 wanted)"
    verdict=ok
    grep -q "share a GPU on .*, which NCCL refuses: gradients go through host memory and MPI" \
        two-32.said || verdict=FAILED
    row "$verdict" "two ranks say that they go through host memory"
    # shellcheck disable=SC2086
    { train alone-16 1 $bf16 && WEFT_NCCL=on train nccl-16 1 $bf16 && train two-16 2 $bf16; }
    row - "an update of $batch, ms: $(per_update alone-16) alone, $(per_update \
        nccl-16) over NCCL, $(per_update two-16) by two ranks on the GPU"
    row - "losses of two in bf16 differ from those of one by $(near alone-16 two-16 1e9)"

    # --- faults: a run of two is stopped, then one of its ranks killed; one goes on, then three
    # rank_of RANK: its process, of this folder's run
    rank_of() {
        grep -slxz "OMPI_COMM_WORLD_RANK=$1" /proc/[0-9]*/environ |
            while IFS=/ read -r _ _ process _; do
                grep -sqxz stopped.safetensors "/proc/$process/cmdline" &&
                    [ "$(readlink "/proc/$process/cwd")" = "$(pwd -P)" ] && echo "$process"
            done
    }
    # fault NAME SIGNAL MOST RANK...: begins a long run, waits for its next update, signals those
    # ranks
    fault() {
        case=$1 signal=$2 most=$3 before=$(losses stopped | wc -l) tries=0
        shift 3
        # shellcheck disable=SC2086
        { may_fail=yes; train stopped 2 $long --set train.updates=100000
            cp stopped.said "$case.said"; } &
        job=$!
        while [ "$(losses stopped | wc -l)" -le "$before" ] && [ $tries -lt 400 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        processes=$(for rank; do rank_of "$rank"; done)
        start=$(date +%s%N)
        # shellcheck disable=SC2086
        kill -"$signal" $processes
        wait $job
        took=$((($(date +%s%N) - start) / 1000000))
        verdict=ok
        [ $took -le "$most" ] || verdict=FAILED
        "$programs/weft" verify stopped.safetensors >"$case.verified" 2>&1 || verdict=FAILED
        row "$verdict" \
            "$case: all have ended after $took ms ($most at most), the checkpoint is whole"
    }
    # says NAME WORDS: in what that run said
    says() {
        verdict=ok said=$(grep -h -o "$2" "$1.said" | head -n 1)
        [ -n "$said" ] || verdict=FAILED
        row "$verdict" "$1: ${said:-does not say "$2"}"
    }
    fault "SIGTERM to both ranks" TERM 5000 0 1
    says "SIGTERM to both ranks" "interrupted after update.*"
    fault "kill -9 of rank 1" KILL 30000 1
    says "kill -9 of rank 1" "rank 1 .*on .*"
    made=$(losses stopped | tail -n 1 | cut -d ' ' -f 1)
    for ranks in 1 3; do
        made=$((made + updates / 10))
        # shellcheck disable=SC2086
        train stopped "$ranks" $long --set train.updates=$made || continue
        verdict=ok said=$(losses stopped | tail -n 1)
        [ "${said% *}" = "$made" ] || verdict=FAILED
        row "$verdict" "the same run goes on with $ranks: to update $made, loss ${said#* }"
    done
fi

for name in "sums of one" "sums of two"; do
    echo "$name"
    cat "$name.said"
done
echo "=== $(($(date +%s) - begun)) s; logs in $logs"
cat table
exit $status
