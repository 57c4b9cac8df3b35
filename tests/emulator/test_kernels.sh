#!/bin/sh
# The kernels of the field on the emulated device, against the CPU: a few cases of each, threads and launches in shuffled
# orders. The programs are those that test a GPU; WEFT_LONG_TESTS=1 takes all their small cases, in the order of
# WEFT_EMULATOR_SEED.
programs=${BUILD:-build}/emulated
if [ "${1:-all}" = one ]; then # one NAME SEED PROGRAM TEST SHARE VARIABLE=VALUE...
    name=$2 order="WEFT_EMULATOR_SEED=$3" program=$programs/test_cuda_$4
    cases="WEFT_TEST_FILTER=test_$5 WEFT_CUDA_SHARE=$6"
    shift 6
    log=$(mktemp) || exit 1
    trap 'rm -f "$log"' EXIT
    # shellcheck disable=SC2086
    if env $order $cases "$@" "$program" >"$log" 2>&1 && grep -q '^\[       OK' "$log"; then
        echo "ok $name"
        exit 0
    fi
    # in one piece, for others print too
    printf '%s\n' "not ok $name (rerun: $order $cases $* $program)" \
        "$(grep -v '^\[ RUN\|^\[       OK' "$log" | tail -n 20)"
    exit 1
fi
if [ ! -x "$programs/test_cuda_ops" ]; then
    echo "skip emulated kernels: not built under sanitizers"
    exit 0
fi

# The longest first. SHARE picks one case of a test: of fields a folded one and one whose edge kernels are fused, in bf16.
# Products of many rows: with many processors in narrow tiles, with few in wide ones.
few_cases() {
    cat <<END
many-nodes          20 field many_nodes   1/2   WEFT_CUDA_SMALL=1 WEFT_EMULATOR_PROCESSORS=20
nodes-100-wide      9  nodes block        3/7   WEFT_EMULATOR_PROCESSORS=9
nodes-100-narrow    2  nodes block        3/7   WEFT_EMULATOR_PROCESSORS=132
nodes-64            5  nodes block        2/7   WEFT_EMULATOR_PROCESSORS=20
nodes-32            1  nodes block        1/7   WEFT_EMULATOR_PROCESSORS=9
nodes-1             3  nodes block        0/7   WEFT_EMULATOR_PROCESSORS=9
wide-replays        3  field wide_nodes   11/12 WEFT_CUDA_SMALL=1
wide-nodes-256      2  field wide_nodes   4/12  WEFT_CUDA_SMALL=1
wide-nodes-192      1  field wide_nodes   1/12  WEFT_CUDA_SMALL=1
wide-weights        1  ops   wide         2/27  WEFT_EMULATOR_PROCESSORS=70
wide-norms-1        1  ops   wide         11/27
wide-norms-2        2  ops   wide         19/27
lean-field-1        1  field against_cpu  3/24  WEFT_CUDA_SMALL=1
lean-field-2        2  field against_cpu  3/24  WEFT_CUDA_SMALL=1
lstar-field-1       1  field against_cpu  15/24 WEFT_CUDA_SMALL=1
lstar-field-2       2  field against_cpu  15/24 WEFT_CUDA_SMALL=1
lean-fused-field-1  1  field fused        1/12  WEFT_CUDA_SMALL=1
lean-fused-field-2  2  field fused        1/12  WEFT_CUDA_SMALL=1
lstar-fused-field-1 1  field fused        7/12  WEFT_CUDA_SMALL=1
lstar-fused-field-2 2  field fused        7/12  WEFT_CUDA_SMALL=1
float-field         3  field against_cpu  2/24  WEFT_CUDA_SMALL=1
equivariance        4  field equivariance 3/12  WEFT_CUDA_SMALL=1
lean-64             1  ops   bf16         29/34 WEFT_CUDA_SMALL=8 WEFT_CUDA_OP=lean_edges
lean-64-mean        2  ops   bf16         30/34 WEFT_CUDA_SMALL=8 WEFT_CUDA_OP=lean_edges
lean-64-saturated   4  ops   bf16         31/34 WEFT_CUDA_SMALL=8 WEFT_CUDA_OP=lean_edges
lean-128            3  ops   bf16         26/34 WEFT_CUDA_SMALL=13 WEFT_CUDA_OP=lean_edges
attention-32        2  ops   attention    1/7   WEFT_CUDA_SMALL=13
attention-64        1  ops   attention    4/8   WEFT_CUDA_SMALL=8
attention-64-logits 3  ops   attention    7/8   WEFT_CUDA_SMALL=8
attention-128       4  ops   attention    4/7   WEFT_CUDA_SMALL=13
contexts            1  contexts at_once   0/1
contexts-2-gpus     2  contexts at_once   0/1   WEFT_EMULATOR_DEVICES=2
contexts-in-turn    3  contexts in_turn   0/1   WEFT_EMULATOR_DEVICES=2
lstar-messages      1  lstar messages     0/6   WEFT_CUDA_SMALL=1
lstar-messages-128  2  lstar messages     4/6   WEFT_CUDA_SMALL=1
lstar-attention     3  lstar messages     2/6   WEFT_CUDA_SMALL=1
lstar-attention-128 4  lstar messages     5/6   WEFT_CUDA_SMALL=1
lstar-edges         3  lstar edges        0/2   WEFT_CUDA_SMALL=1
lstar-logits        5  lstar large_logits 0/1  WEFT_CUDA_SMALL=1
lstar-rounding      1  ops   bf16         102/105 WEFT_CUDA_OP=lstar_messages
many-rows-1         5  ops   bf16         43/45 WEFT_CUDA_OP=linear
many-rows-2         6  ops   bf16         44/45 WEFT_CUDA_OP=linear
many-rows-3         7  ops   bf16         42/45 WEFT_CUDA_OP=linear
few-rows            1  ops   bf16         0/1   WEFT_CUDA_SMALL=1 WEFT_CUDA_OP=linear
shared-table        1  ops   shared_table 0/1   WEFT_CUDA_SMALL=1
encoder             1  ops   bf16         0/1   WEFT_CUDA_SMALL=8 WEFT_CUDA_OP=edge_encoder
readout             2  ops   bf16         0/1   WEFT_CUDA_SMALL=8 WEFT_CUDA_OP=edge_readout
END
    for op in activation norm residual mean gather insert fold_pack edge_features velocity; do
        echo "$op 5 ops bf16 0/1 WEFT_CUDA_SMALL=4 WEFT_CUDA_OP=$op"
    done
}
all_small() {
    for test in field:against_cpu field:fused field:many_nodes field:split_chains field:wide_nodes field:equivariance \
        field:equal_bits field:training nodes:block lstar:messages lstar:edges ops:float ops:bf16 ops:attention ops:wide \
        ops:shared_table; do
        for share in 0 1 2 3; do
            echo "$test-$share ${WEFT_EMULATOR_SEED:-1} ${test%:*} ${test#*:} $share/4 WEFT_CUDA_SMALL=1"
        done
    done
}
{ if [ -n "${WEFT_LONG_TESTS:-}" ]; then all_small; else few_cases; fi; } | xargs -L 1 -P "$(nproc)" "$0" one
