#!/bin/sh
# The CUDA backend on this machine's GPU: tests, compute-sanitizer, times of a training step.
#
#     bench/cuda_check.sh build     compile what it runs, and weft, into $BUILD/gpu (needs nvcc, the test libraries)
#     bench/cuda_check.sh           run from there; needs the folder and a GPU only, so it may be carried elsewhere
#
# The programs are linked statically where they can be. CHECKS picks what is run: "tests memcheck racecheck synccheck times torch profile".
# Tests and sanitizers run side by side, a log each in the folder; LIMIT is the most seconds one of them may take.
set -u
build=${BUILD:-build}
gpu=$build/gpu
cd "$(dirname "$0")/.." || exit 1
if [ "${1:-run}" = build ]; then
    rm -f "$build/libweft.a" # it may hold what uses libcurl
    make BUILD="$build" CURL= "$build/libweft.a" || exit 1
    mkdir -p "$gpu"
    nvcc=${NVCC:-$(command -v nvcc)}
    jansson=$(grep -q ljansson Makefile && echo -l:libjansson.a)
    link="-L$(dirname "$nvcc")/../lib64 -lcudart_static -l:libz.a -lm -lpthread -ldl -lrt -lstdc++"
    flags="-std=gnu11 -O2 -g -D_GNU_SOURCE -Iinclude -Isrc -Itests -I$(dirname "$nvcc")/../include"
    for source in tests/unit/test_cuda_*.c tests/unit/test_zoo_cuda.c bench/cuda_*.c; do
        name=$(basename "$source" .c)
        case $name in test_*) cmocka=-lcmocka ;; *) cmocka= ;; esac
        ${CC:-gcc} $flags "$source" "$build/libweft.a" $cmocka $link $jansson \
            -Wl,-rpath,'$ORIGIN' -o "$gpu/$name" || exit 1
    done
    make BUILD="$build" CURL= "$build/weft" || exit 1
    ${CC:-gcc} "$build"/src/cli/*.o "$build/libweft.a" $link $jansson -o "$gpu/weft" || exit 1
    cp -L "$(${CC:-gcc} -print-file-name=libcmocka.so)" "$gpu/libcmocka.so.0"
    rm -f "$build/libweft.a" "$build/weft" # the next make puts libcurl back
    exit 0
fi
checks=${CHECKS:-tests memcheck racecheck times}
limit=${LIMIT:-600} # seconds for one program
status=0
note() { echo "$*"; }
# Programs of one check run side by side: piece NAME COMMAND..., then gather, which shows the output of those that failed.
pieces=
piece() {
    name=$1
    shift
    pieces="$pieces $name"
    (
        begin=$(date +%s)
        timeout -s KILL "$limit" "$@" >"$gpu/$name.log" 2>&1
        code=$?
        [ $code -eq 0 ] && word="ok     " || word="FAILED "
        [ $code -eq 137 ] && word="KILLED " # at its limit
        echo "$word $name ($(($(date +%s) - begin)) s)" >"$gpu/$name.end"
    ) &
}
gather() {
    wait
    for name in $pieces; do
        cat "$gpu/$name.end"
        grep -q '^ok' "$gpu/$name.end" && continue
        grep -v '^\[ RUN\|^\[       OK\|Host Frame' "$gpu/$name.log" | head -n 40
        status=1
    done
    pieces=
}
# sanitize NAME FILTER PROGRAM CASES: small cases of a program's tests under the tool, in one process (tests/named_cases.h).
# Blocks of memory are exact, so that the tool sees objects. CASES: patterns, or - where a test has no cases.
sanitize() {
    choice=WEFT_TEST_CASES=$4
    [ "$4" != - ] || choice=WEFT_CUDA_SMALL=1
    piece "$check-$1" env WEFT_EXACT_BLOCKS=1 WEFT_TEST_FILTER="$2" WEFT_CUDA_SMALL=1 "$choice" \
        compute-sanitizer --tool "$check" --error-exitcode 9 --print-limit 5 "$gpu/$3"
}
# Without a GPU most tests are skipped, which is no success here.
if ! WEFT_TEST_FILTER=test_absent "$gpu/test_cuda_ops" 2>&1 | grep -q SKIPPED; then
    note "no GPU that this build can use: $("$gpu/weft" version | grep "^cuda")"
    exit 1
fi
for check in $checks; do
    case $check in
    tests)
        # in two lots: programs that share the GPU wait for one another's turns
        for test in cuda_ops cuda_nodes cuda_match cuda_eval cuda_optim; do piece test_$test "$gpu/test_$test"; done
        gather
        for test in cuda_field cuda_lstar cuda_fit cuda_sample zoo_cuda; do piece test_$test "$gpu/test_$test"; done
        gather ;;
    memcheck)
        for op in linear edge_features edge_encoder edge_readout velocity; do
            sanitize $op '*' test_cuda_ops "$op-1x1-*,$op-64x9-*"
        done
        sanitize lean-64 test_bf16 test_cuda_ops 'lean_edges-1x1-*,lean_edges-64x9-*'
        sanitize lean-128 test_bf16 test_cuda_ops 'lean_edges-1x1-*,lean_edges-128x33-*'
        sanitize attention-64 test_attention test_cuda_ops '*-32x1-*,*-64x33-*'
        sanitize attention-128 test_attention test_cuda_ops '*-32x1-*,*-128x9-*'
        sanitize lstar-messages test_messages test_cuda_lstar '*'
        sanitize lstar-edges test_edges test_cuda_lstar '*'
        sanitize nodes test_block test_cuda_nodes nodes-32
        gather
        sanitize field test_training test_cuda_field '*'
        sanitize fit bf16_stays_near test_cuda_fit -
        sanitize sample networks_do_not_depend_on_the_call test_cuda_sample -
        sanitize zoo same_networks test_zoo_cuda '*'
        sanitize match '*' test_cuda_match '5-1-3,6-17-5,3-64-2,6-5!-7!-11-3,4-17-33-6,3-40!-40!-3'
        sanitize eval '*' test_cuda_eval -
        gather ;;
    racecheck | synccheck) # a case or two of each kernel: they follow every access to shared memory
        sanitize lean-64 test_bf16 test_cuda_ops lean_edges-64x9-fused-sum-silu-64
        sanitize lean-64-mean test_bf16 test_cuda_ops lean_edges-64x9-fused-mean-silu-64
        sanitize lean-128 test_bf16 test_cuda_ops lean_edges-128x33-fused-sum
        sanitize attention-64 test_attention test_cuda_ops lean_edges-64x33-fused-attention
        sanitize attention-128 test_attention test_cuda_ops lean_edges-128x9-fused-attention
        sanitize lstar-messages test_messages test_cuda_lstar '*-64x9-sum-silu-*'
        sanitize lstar-attention test_messages test_cuda_lstar '*-64x9-attention-silu-wide'
        sanitize lstar-edges test_edges test_cuda_lstar '*'
        sanitize encoder test_bf16 test_cuda_ops 'edge_encoder-1x1-*,edge_encoder-64x9-*'
        sanitize readout test_bf16 test_cuda_ops 'edge_readout-1x1-*,edge_readout-64x9-*'
        gather
        sanitize linear test_bf16 test_cuda_ops 'linear-1x1-*,linear-64x9-*'
        sanitize nodes test_block test_cuda_nodes nodes-32
        sanitize zoo same_networks test_zoo_cuda 64-16-8-10-relu-adam,784-32-32-10-relu-adam
        sanitize match '*' test_cuda_match 5-1-3,3-64-2,4-17-33-6
        sanitize eval '*' test_cuda_eval -
        gather ;;
    times)
        "$gpu/cuda_step" || status=1
        "$gpu/cuda_loop" || status=1 ;;
    torch) # the same steps in PyTorch, bf16: the cases of a mode compile side by side and are timed in turn
        for mode in eager compile; do
            turns=$(mktemp -d)
            for case in karhunen_lean karhunen_lstar mnist_lean mnist_lstar; do
                piece torch_${case}_$mode python3 bench/torch_step.py "${case#*_}" 2 4 cuda "${case%_*}" $mode "$turns" 4
            done
            gather
            cat "$gpu"/torch_*_$mode.log
            rm -r "$turns"
        done ;;
    profile) # time per kernel of one step
        for layout in lean lstar; do
            note "kernels of a step, karhunen $layout bf16 (ms, launches)"
            ncu --clock-control none --metrics gpu__time_duration.sum --csv "$gpu/cuda_step" \
                karhunen $layout bf16 2>/dev/null | python3 -c '
import csv, sys, collections
rows = list(csv.reader(line for line in sys.stdin if line.startswith("\"")))
head, sums = rows[0], collections.Counter()
count = collections.Counter()
name, value, unit = (head.index(k) for k in ("Kernel Name", "Metric Value", "Metric Unit"))
for row in rows[1:]:
    scale = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1, "msecond": 1}[row[unit]]
    sums[row[name][:90]] += float(row[value].replace(",", "")) * scale
    count[row[name][:90]] += 1
print("%.2f in all" % sum(sums.values()))
for key, total in sums.most_common(24): print("%8.3f %5d  %s" % (total, count[key], key))'
        done ;;
    esac
done
exit $status
