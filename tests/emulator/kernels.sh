#!/bin/sh
# Kernels of the field on the emulated device, against the CPU. The programs are those that test a
# GPU; threads and launches run in an order shuffled by a seed.
#   kernels.sh --list   names of the runs, the longest first; WEFT_LONG_TESTS=1: of all small cases
#   kernels.sh NAME     one of them; WEFT_EMULATOR_SEED is the seed of the long ones
programs=${BUILD:-build}/emulated

# NAME SEED PROGRAM TEST CASES [VARIABLE=VALUE]: the cases of PROGRAM's test_TEST whose names match
# CASES (tests/named_cases.h); "-" where a test has no cases. WEFT_CUDA_SMALL: memory is
# not poisoned before kernels run.
# many-nodes, nodes-*: products of many rows, with many processors in narrow tiles, with few in wide
# ones.
few_cases() {
    cat <<END
phase-resume        5  phases resume      *
loop-pace           3  loops pace         -
draws               1  fit   draws        -
optimisers          1  optim updates      -
phase-bf16          4  phases bf16        *
wide-replays        3  field wide_nodes   lean-sum-384x32-two-replays
many-nodes          20 field many_nodes   *-bf16        WEFT_EMULATOR_PROCESSORS=20
nodes-100-narrow    2  nodes block        nodes-100     WEFT_EMULATOR_PROCESSORS=132
nodes-100-wide      9  nodes block        nodes-100     WEFT_EMULATOR_PROCESSORS=9
phase-sane-kde      2  phases fits        sane-kde
contexts            1  contexts at_once -
contexts-2-gpus     2  contexts at_once -             WEFT_EMULATOR_DEVICES=2
loop-fresh          2  loops fresh        -
phase-pdiff         1  phases fits        pdiff
edge-benchmark-1    1  edge_benchmark all -
nodes-64            5  nodes block        nodes-64      WEFT_EMULATOR_PROCESSORS=20
nodes-32            1  nodes block        nodes-32      WEFT_EMULATOR_PROCESSORS=9
nodes-1             3  nodes block        nodes-1       WEFT_EMULATOR_PROCESSORS=9
wide-nodes-256      2  field wide_nodes   lean-sum-256x64-two-bf16
wide-nodes-192      1  field wide_nodes   lean-sum-192x64-two-bf16
wide-weights        1  ops   wide         linear-97x105-2                WEFT_EMULATOR_PROCESSORS=70
wide-norms-1        1  ops   wide         norm-256x105-2
wide-norms-2        2  ops   wide         norm-510x105-1
lean-field-1        1  field against_cpu  lean-sum-*-folded-bf16
lean-field-2        2  field against_cpu  lean-sum-*-folded-bf16
lstar-field-1       1  field against_cpu  lstar-sum-*-folded-bf16
lstar-field-2       2  field against_cpu  lstar-sum-*-folded-bf16
lean-fused-field-1  1  field fused        lean-sum-*-two-bf16
lean-fused-field-2  2  field fused        lean-sum-*-two-bf16
lean-nodes-field-1  1  field lean_nodes   lean-sum-*-two-bf16
lean-nodes-field-2  2  field lean_nodes   lean-mean-*-folded-bf16
kernel-field        2  field kernels      lean-sum-20x34-kernels-bf16
kernel-field-64     4  field kernels      lean-sum-64x64-kernels-bf16
kernel-field-128    1  field kernels      lean-sum-128x128-kernels-bf16
lstar-fused-field-1 1  field fused        lstar-sum-*-two-bf16
lstar-fused-field-2 2  field fused        lstar-sum-*-two-bf16
float-field         3  field against_cpu  lean-sum-*-folded-float
equivariance        4  field equivariance lean-sum-*-bf16
lean-64             1  ops   bf16         lean_edges-64x9-fused-sum-silu-64 WEFT_CUDA_SMALL=1
lean-64-mean        2  ops   bf16         lean_edges-64x9-fused-mean-silu-64 WEFT_CUDA_SMALL=1
lean-64-saturated   4  ops   bf16         lean_edges-64x9-fused-saturated WEFT_CUDA_SMALL=1
lean-128            3  ops   bf16         lean_edges-128x33-fused-sum    WEFT_CUDA_SMALL=1
lean-64-90a         1  ops_90a bf16      lean_edges-64x9-fused-sum-silu-64 WEFT_CUDA_SMALL=1
lean-128-90a        3  ops_90a bf16      lean_edges-128x33-fused-sum    WEFT_CUDA_SMALL=1
attention-64-90a    1  ops_90a attention lean_edges-64x33-fused-attention WEFT_CUDA_SMALL=1
many-rows-90a       5  ops_90a bf16      linear-70x105-1
node-tables-90a     2  ops_90a bf16      node_tables-64x9-*,node_tables-64x700-0
lean-nodes-90a      4  ops_90a bf16      lean_nodes-64x9-*,lean_nodes-64x700-0
attention-32        2  ops   attention    lean_edges-32x1-fused-attention-silu WEFT_CUDA_SMALL=1
attention-64        1  ops   attention    lean_edges-64x33-fused-attention WEFT_CUDA_SMALL=1
attention-64-logits 3  ops   attention    lean_edges-64x33-fused-large-logits WEFT_CUDA_SMALL=1
attention-128       4  ops   attention    lean_edges-128x9-fused-attention WEFT_CUDA_SMALL=1
lstar-messages      1  lstar messages     *-64x9-sum-silu-*              WEFT_CUDA_SMALL=1
lstar-messages-128  2  lstar messages     *-128x9-mean-silu-*            WEFT_CUDA_SMALL=1
lstar-attention     3  lstar messages     *-64x9-attention-silu-*        WEFT_CUDA_SMALL=1
lstar-attention-128 4  lstar messages     *-128x9-attention-silu-*       WEFT_CUDA_SMALL=1
lstar-edges         3  lstar edges        *-64x9-*                       WEFT_CUDA_SMALL=1
lstar-logits        5  lstar large_logits *x9-*                          WEFT_CUDA_SMALL=1
lstar-rounding      1  ops   bf16         lstar_messages-70x105-mean-gelu
many-rows-1         5  ops   bf16         linear-70x105-1
many-rows-2         6  ops   bf16         linear-70x105-2
many-rows-3         7  ops   bf16         linear-70x105-0
few-rows            1  ops   bf16         linear-*                       WEFT_CUDA_SMALL=1
shared-table        1  ops   shared_table -                              WEFT_CUDA_SMALL=1
instructions        0  instructions all -
edge-benchmark-2    2  edge_benchmark all -
node-benchmark-1    1  node_benchmark all -
node-benchmark-2    2  node_benchmark all -
contexts-in-turn    3  contexts in_turn -             WEFT_EMULATOR_DEVICES=2
net-fields          1  net   programs     *
training-stops      1  loops training_stops -
training-gives-up   1  loops training_gives_up -
sampling-stops      1  loops sampling_stops -
loop-training       1  loops training     -
loop-without        4  loops without      -
convs-update        1  convs networks     one-update
convs-updates       5  convs networks     six-updates,adam
convs-paper         6  convs networks     paper
convs-paper-adam    7  convs networks     paper-adam
convs-paper-updates 1  convs networks     paper-updates
convs-odd           2  convs networks     odd
convs-wide          3  convs networks     wide
convs-deep          4  convs networks     deep
execute             3  execute forward    *
convs-scores        7  convs scores       general
convs-scores-paper  2  convs scores       paper
match-convs         1  match same_as_cpu  *conv*                         WEFT_CUDA_SMALL=1
convs-elsewhere     1  convs others       *
phase-draws         1  phases draws       -
phase-sane-gauss    3  phases fits        sane-gauss
phase-without       1  phases without     -
self-attention      1  ops   float        attention-3x3-*,attention-33x33-*,attention-130x5-* WEFT_CUDA_SMALL=1
self-attention-128  2  ops   bf16         attention-100x33-1
convolution-nans    3  ops   bf16         conv1d*-33x33-0
node-tables         1  ops   bf16         node_tables-*                  WEFT_CUDA_SMALL=1
lean-nodes          3  ops   bf16         lean_nodes-*                   WEFT_CUDA_SMALL=1
encoder             1  ops   bf16         edge_encoder-1x1-*,edge_encoder-64x9-* WEFT_CUDA_SMALL=1
readout             2  ops   bf16         edge_readout-1x1-*,edge_readout-64x9-* WEFT_CUDA_SMALL=1
END
    for op in activation norm residual mean gather insert fold_pack edge_features velocity \
        layer_norm gated_residual dropout add_table add_column concat to_tokens from_tokens \
        batch_norm conv1d conv1d_transposed mse nt_xent; do
        echo "$op 5 ops bf16 $op-1x1-*,$op-33x33-*,$op-64x9-* WEFT_CUDA_SMALL=1"
    done
}
all_small() {
    for test in field:against_cpu field:fused field:lean_nodes field:many_nodes field:split_chains \
        field:wide_nodes \
        field:equivariance field:equal_bits field:training nodes:block net:programs lstar:messages \
        lstar:edges lstar:large_logits ops:float ops:bf16 ops:attention ops:wide; do
        name=${test%:*}-${test#*:} order=${WEFT_EMULATOR_SEED:-1}
        echo "$name $order ${test%:*} ${test#*:} * WEFT_CUDA_SMALL=1"
    done
}
runs=few_cases
[ -z "${WEFT_LONG_TESTS:-}" ] || runs=all_small

if [ ! -x "$programs/test_cuda_ops" ]; then # sanitizers do not know fibers
    [ "${1:-}" = --list ] && echo kernels || echo "skip kernels: not built under sanitizers"
    exit 0
fi
if [ "${1:-}" = --list ]; then
    $runs | cut -d ' ' -f 1
    exit 0
fi
set -f # patterns are for the program
name=${1:-}
# shellcheck disable=SC2046
set -- $($runs | grep "^$name ")
if [ $# -lt 5 ]; then
    echo "usage: tests/emulator/kernels.sh --list | NAME of that list" >&2
    exit 2
fi
program=$programs/test_cuda_$3 choice="WEFT_EMULATOR_SEED=$2 WEFT_TEST_FILTER=test_$4"
[ "$5" = - ] || choice="$choice WEFT_TEST_CASES=$5"
shift 5
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086
if env $choice "$@" "$program" >"$log" 2>&1 && grep -q '^\[       OK\|^ok ' "$log"; then
    echo "ok $name"
    exit 0
fi
echo "not ok $name (rerun: $choice $* $program)"
grep -v '^\[ RUN\|^\[       OK' "$log" | tail -n 20
exit 1
