#!/bin/sh
# The CUDA backend on this machine's GPU: tests, compute-sanitizer, times of a training step.
#
#     bench/cuda_check.sh build         compile what it runs, and weft, into $BUILD/gpu (needs nvcc,
#                                       the test libraries)
#     bench/cuda_check.sh build edges   only the benchmarks of the second edge design and its
#                                       instructions
#     bench/cuda_check.sh build ranks   what bench/gpu_ranks.sh runs, into $BUILD/gpu_ranks; needs
#                                       mpicc
#     bench/cuda_check.sh               run from there; needs the folder and a GPU only, so it may
#                                       be carried elsewhere
#     bench/cuda_check.sh lease         for a GPU lent for minutes, what decides most first, one
#                                       short table last: sm_90a's instructions, both benchmarks,
#                                       step times, tests, memcheck, racecheck, loop, synccheck.
#                                       Builds first where programs are missing and nvcc is not.
#                                       Takes LEASE=560 seconds at most; called again, it goes on
#                                       with what has not ended well, until the programs are
#                                       others. OUT=FOLDER: logs there, too, in seven files
#
# The programs are linked statically where they can be. CHECKS picks what is run: "tests memcheck
# racecheck synccheck times products nccl torch rivals profile"; products: our products beside
# cuBLASLt's, one table; nccl: what its way costs one rank; rivals: an update of each rival beside
# torch.compile (bench/torch_rivals.py). Tests and sanitizers run side by side, a log each in the
# folder (of a lease: $BUILD/lease); LIMIT is the most seconds one of them may take.
set -u
build=${BUILD:-build}
gpu=$build/gpu
cd "$(dirname "$0")/.." || exit 1
mode=${1:-run}
case $mode-${2:-} in
build- | build-edges | build-ranks | run- | lease-) ;;
*)
    echo "usage: bench/cuda_check.sh [build | build edges | build ranks | lease]" >&2
    exit 2 ;;
esac
# Programs of one .cu file. Spills, products that the compiler serialises and registers that it does
# not move are errors.
build_edges() {
    mkdir -p "$gpu" || exit 1
    ccache=$(command -v ccache) # "": none
    for source in bench/edge_benchmark.cu bench/node_benchmark.cu bench/cnn_benchmark.cu \
        tests/emulator/test_instructions.cu; do
        name=$(basename "$source" .cu)
        fresh "$gpu/$name" "$source" && continue
        echo "$nvcc $source"
        if ! $ccache "$nvcc" -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a \
            -Xptxas -v -Xcompiler -Wall -Iinclude -Isrc \
            -c "$source" -o "$gpu/$name.o" >"$gpu/$name.build" 2>&1 ||
            ! "$nvcc" -arch=sm_90a "$gpu/$name.o" -o "$gpu/$name" >>"$gpu/$name.build" 2>&1; then
            cat "$gpu/$name.build"
            exit 1
        fi
        errors='warning|C75(0[89]|1[0-5])'
        # addresses, some 40 in 4,400 instructions
        [ $name = cnn_benchmark ] || errors="$errors|[1-9][0-9]* bytes spill"
        if grep -E "$errors" "$gpu/$name.build"; then
            echo "$source: the lines above are errors here ($gpu/$name.build)" >&2
            rm "$gpu/$name"
            exit 1
        fi
        case $name in edge_benchmark | node_benchmark) check_machine_code $name ;; esac
    done
}
# fresh PROGRAM SOURCE: whether it is younger than what it is made of.
fresh() {
    [ -x "$1" ] || return 1
    from=$(ls bench/*.cuh)
    [ "$2" != bench/cnn_benchmark.cu ] || from="src include"
    # shellcheck disable=SC2086
    [ -z "$(find "$2" $from -name '*.[ch]*' -newer "$1")" ]
}
# What ptxas has made of left operands of products, where nvdisasm is there.
check_machine_code() {
    command -v nvdisasm >/dev/null || return 0
    for kind in ptx cubin; do
        "$nvcc" -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -$kind -o "$gpu/$1.$kind" \
            "bench/$1.cu" || exit 1
    done
    nvdisasm "$gpu/$1.cubin" >"$gpu/$1.sass" &&
        bench/operand_sources.py "$gpu/$1.ptx" "$gpu/$1.sass" >>"$gpu/$1.build" || {
        grep -B 1 '^  product\|^  machine code' "$gpu/$1.build"
        rm "$gpu/$1"
        exit 1
    }
    rm "$gpu/$1.ptx" "$gpu/$1.cubin" "$gpu/$1.sass"
}
# link_programs FOLDER LIBRARIES SOURCE...: all in one file, for each of them would hold all
# kernels: FOLDER/programs NAME ARGUMENT..., and a script NAME that calls it.
link_programs() {
    into=$1 libraries=$2 objects=$1/objects table= mains=
    shift 2
    rm -rf "$objects" && mkdir -p "$objects" || return 1
    jansson=$(grep -q ljansson Makefile && echo -l:libjansson.a)
    link="-L$(dirname \
        "$nvcc")/../lib64 -lcudart_static -l:libz.a -l:libxxhash.a -lm -lpthread -ldl -lrt -lstdc++"
    flags="-std=gnu11 -O2 -Wall -Werror -D_GNU_SOURCE -Iinclude -Isrc -Itests -I$(dirname \
        "$nvcc")/../include"
    for source; do
        name=$(basename "$source" .c)
        case $source in
        weft) ld -r "$build"/src/cli/*.o -o "$objects/$name.o" || return 1 ;;
        *) ${CC:-gcc} $flags -c "$source" -o "$objects/$name.o" || return 1 ;;
        esac
        objcopy --redefine-sym main=main_$name --keep-global-symbol=main_$name "$objects/$name.o" ||
            return 1
        mains="$mains int main_$name(int, char **);" table="$table {\"$name\", main_$name},"
        printf '#!/bin/sh\nexec "$(dirname "$0")/programs" %s "$@"\n' "$name" >"$into/$name"
        chmod +x "$into/$name"
    done
    cat >"$objects/programs.c" <<END
#include <stdio.h>
#include <string.h>
$mains
static const struct { const char *name; int (*run)(int, char **); } table[] = {$table};
int main(int argc, char **argv) {
    for (size_t k = 0; argc > 1 && k < sizeof table / sizeof *table; k++)
        if (strcmp(argv[1], table[k].name) == 0) return table[k].run(argc - 1, argv + 1);
    fprintf(stderr, "usage: programs NAME ARGUMENT...\n");
    return 2;
}
END
    # shellcheck disable=SC2086
    ${CC:-gcc} $flags "$objects"/programs.c bench/nccl_at_run_time.c "$objects"/*.o \
        "$build/libweft.a" $libraries $link \
        $jansson -s -Wl,-rpath,'$ORIGIN' -o "$into/programs" || return 1
    rm -r "$objects"
}
nvcc=${NVCC:-$(command -v nvcc)}
if [ "$mode" = build ]; then
    if [ ! -x "$nvcc" ]; then
        echo "cuda_check.sh: no nvcc; put CUDA's bin folder into PATH, or set NVCC" >&2
        exit 2
    fi
    if [ "${2:-}" = ranks ]; then
        make BUILD="$build" CURL= "$build/libweft.a" || exit 1
        make BUILD="$build" CURL= "$build/weft" || exit 1
        "$build/weft" version | grep '^mpi: .*MPI' || {
            echo "cuda_check.sh: build ranks needs mpicc (Debian: libopenmpi-dev)" >&2
            exit 2
        }
        link_programs "$build/gpu_ranks" -lmpi bench/cuda_loop.c bench/cuda_ranks.c weft || exit 1
        du -sm "$build/gpu_ranks" | sed 's/\t/ MiB in /'
        exit 0
    fi
    build_edges
    [ -z "${2:-}" ] || exit 0
    rm -f "$build/libweft.a" # it may hold what uses libcurl and MPI
    make BUILD="$build" CURL= MPI= "$build/libweft.a" || exit 1
    make BUILD="$build" CURL= MPI= "$build/weft" || exit 1
    link_programs "$gpu" -lcmocka tests/unit/test_cuda_*.c tests/unit/test_zoo_cuda.c \
        bench/cuda_*.c weft || exit 1
    cp -L "$(${CC:-gcc} -print-file-name=libcmocka.so)" "$gpu/libcmocka.so.0"
    arch="-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a"
    # shellcheck disable=SC2086
    "$nvcc" -std=c++17 -O3 $arch -D_GNU_SOURCE -Iinclude -Isrc -c bench/cuda_products.cu \
        -o "$gpu/cuda_products.o" &&
        ${CC:-gcc} "$gpu/cuda_products.o" bench/nccl_at_run_time.c "$build/libweft.a" $link \
        $jansson -lcublasLt \
            -s -Wl,-rpath,"$(dirname "$nvcc")/../lib64" -o "$gpu/cuda_products" || exit 1
    rm -f "$build/libweft.a" "$build/weft" # the next make puts libcurl and MPI back
    du -sm "$gpu" | sed 's/\t/ MiB in /'
    exit 0
fi
checks=${CHECKS:-tests memcheck racecheck times}
limit=${LIMIT:-600} # seconds for one program
status=0
note() { echo "$*"; }
logs=$gpu least=0 # seconds that must be left to start a piece
left() { echo "$limit"; }
# Programs of one check run side by side: piece NAME COMMAND..., then gather, which shows the output
# of those that failed. A lease passes over what has ended well, and what there is no time for.
pieces= all=
piece() {
    name=$1 most=$(left)
    shift
    all="$all $name"
    if [ "$mode" = lease ]; then
        grep -qs '^ok' "$logs/$name.end" && return
        echo "not run  $name: no time left" >"$logs/$name.end"
        : >"$logs/$name.log"
        [ "$most" -ge "$least" ] || return
    fi
    [ "$most" -le "$limit" ] || most=$limit
    pieces="$pieces $name"
    (
        begin=$(date +%s)
        timeout -s KILL "$most" "$@" >"$logs/$name.log" 2>&1
        code=$?
        [ $code -eq 0 ] && word="ok     " || word="FAILED "
        [ $code -eq 137 ] && word="KILLED " # at its limit
        echo "$word $name ($(($(date +%s) - begin)) s)" >"$logs/$name.end"
    ) &
}
gather() {
    wait
    for name in $pieces; do
        [ "$mode" = lease ] && break # it ends with a table
        cat "$logs/$name.end"
        grep -q '^ok' "$logs/$name.end" && continue
        grep -v '^\[ RUN\|^\[       OK\|Host Frame' "$logs/$name.log" | head -n 40
        status=1
    done
    pieces=
}
# sanitize NAME FILTER PROGRAM CASES: small cases of a program's tests under the tool, in one
# process (tests/named_cases.h). Blocks of memory are exact, so that the tool sees objects. CASES:
# patterns, or - where a test has no cases.
sanitize() {
    choice=WEFT_TEST_CASES=$4
    [ "$4" != - ] || choice=WEFT_CUDA_SMALL=1
    piece "$check-$1" env WEFT_EXACT_BLOCKS=1 WEFT_TEST_FILTER="$2" WEFT_CUDA_SMALL=1 "$choice" \
        compute-sanitizer --tool "$check" --error-exitcode 9 --print-limit 5 "$gpu/$3"
}
# NCCL for cuda_loop and cuBLASLt for cuda_products: the system's, or PyTorch's.
theirs=$(python3 -c 'import importlib
for name in "nccl", "cublas":
    try: print(list(importlib.import_module("nvidia." + name).__path__)[0] + "/lib", end=":")
    except ImportError: pass' 2>/dev/null)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib:/usr/local/cuda/lib64:$theirs"
# Every program that is run must be there before the first one starts.
first_tests="test_cuda_ops test_cuda_nodes test_cuda_match test_cuda_eval test_cuda_optim"
second_tests="test_cuda_field test_cuda_lstar test_cuda_fit test_cuda_sample test_cuda_contexts"
second_tests="$second_tests test_cuda_loops test_cuda_net test_cuda_convs test_cuda_execute"
second_tests="$second_tests test_cuda_phases test_zoo_cuda"
[ "$mode" = lease ] && more="edge_benchmark node_benchmark test_instructions cuda_step cuda_loop" ||
    more=
find_missing() {
    missing=
    for name in weft $more $first_tests $second_tests; do
        [ -x "$gpu/$name" ] || missing="$missing $name"
    done
}
begun=$(date +%s)
find_missing
if [ -n "$missing" ] && [ "$mode" = lease ] && [ -x "$nvcc" ]; then
    bench/cuda_check.sh build || exit 1
    find_missing
fi
if [ -n "$missing" ]; then
    echo "cuda_check.sh: not in $gpu:$missing; make them where nvcc is: bench/cuda_check.sh build" \
        >&2
    exit 2
fi
# Without a GPU most tests are skipped, which is no success here.
if ! WEFT_TEST_FILTER=test_absent "$gpu/test_cuda_ops" 2>&1 | grep -q SKIPPED; then
    note "no GPU that this build can use: $("$gpu/weft" version | grep "^cuda")"
    exit 1
fi
run_check() {
    check=$1
    case $check in
    tests)
        # in two lots: programs that share the GPU wait for one another's turns
        for test in $first_tests; do piece $test "$gpu/$test"; done
        gather
        for test in $second_tests; do piece $test "$gpu/$test"; done
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
        sanitize nodes-64 test_bf16 test_cuda_ops 'node_tables-64x9-*,lean_nodes-64x9-*'
        gather
        sanitize nodes-field test_lean_nodes test_cuda_field 'lean-sum-*-two-bf16'
        sanitize field test_training test_cuda_field '*'
        sanitize fit bf16_stays_near test_cuda_fit -
        sanitize phases test_bf16 test_cuda_phases '*'
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
        sanitize nodes-64 test_bf16 test_cuda_ops 'node_tables-64x9-0,lean_nodes-64x9-0'
        sanitize zoo same_networks test_zoo_cuda 64-16-8-10-relu-adam,784-32-32-10-relu-adam
        sanitize match '*' test_cuda_match 5-1-3,3-64-2,4-17-33-6
        sanitize eval '*' test_cuda_eval -
        gather ;;
    times)
        "$gpu/cuda_step" || status=1
        "$gpu/cuda_loop" || status=1 ;;
    products)
        "$gpu/cuda_products" || status=1 ;;
    nccl)
        "$gpu/cuda_loop" nccl || status=1 ;;
    # the same steps in PyTorch, bf16: the cases of a mode compile side by side and are timed in
    # turn
    torch)
        for mode in eager compile; do
            turns=$(mktemp -d)
            for case in karhunen_lean karhunen_lstar mnist_lean mnist_lstar; do
                piece torch_${case}_$mode python3 bench/torch_step.py "${case#*_}" 2 4 cuda \
                    "${case%_*}" $mode "$turns" 4
            done
            gather
            cat "$gpu"/torch_*_$mode.log
            rm -r "$turns"
        done ;;
    rivals)
        WEFT="$gpu/weft" python3 bench/torch_rivals.py --device cuda || status=1 ;;
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
    scale = {"n": 1e-6, "u": 1e-3, "m": 1}[row[unit][0]] # ns or nsecond ...
    sums[row[name][:90]] += float(row[value].replace(",", "")) * scale
    count[row[name][:90]] += 1
print("%.2f in all" % sum(sums.values()))
for key, total in sums.most_common(24): print("%8.3f %5d  %s" % (total, count[key], key))'
        done ;;
    esac
}
if [ "$mode" = lease ]; then
    logs=$build/lease
    left() { echo $((${LEASE:-560} - ($(date +%s) - begun))); }
    mkdir -p "$logs" || exit 1
    programs=$(cd "$gpu" && cat $more $first_tests $second_tests programs 2>/dev/null | cksum)
    [ "$(cat "$logs/of" 2>/dev/null)" = "$programs" ] || rm -f "$logs"/*.end
    echo "$programs" >"$logs/of"
    # All logs in few files: of benchmarks, steps, loop, tests, and of each tool.
    keep_logs() {
        [ -n "${OUT:-}" ] || return
        for name in $all; do
            case $name in
            instructions | nodes | edges) file=benchmarks ;;
            step_*) file=steps ;;
            loop | nccl) file=loop ;;
            test_*) file=tests ;;
            *) file=${name%%-*} ;;
            esac
            { echo "=== $(cat "$logs/$name.end")" && cat "$logs/$name.log"; } >>"$OUT/$file"
        done
    }
    # alone MOST NAME COMMAND...: nothing beside it, MOST seconds at most
    alone() {
        limit=$1 least=5
        shift
        piece "$@"
        wait
    }
    alone 30 instructions "$gpu/test_instructions"
    alone 30 nodes "$gpu/node_benchmark"
    alone 60 edges "$gpu/edge_benchmark"
    alone 60 step_lean "$gpu/cuda_step" lean
    alone 60 step_lstar "$gpu/cuda_step" lstar
    limit=${LIMIT:-600}
    run_check tests
    least=20
    for check in memcheck racecheck; do run_check $check; done
    alone 90 loop "$gpu/cuda_loop"
    alone 60 nccl "$gpu/cuda_loop" nccl karhunen-lean karhunen-lstar
    limit=${LIMIT:-600} least=20
    run_check synccheck
    keep_logs
    # What failed comes first, the table last.
    for name in $all; do
        grep -q '^ok' "$logs/$name.end" && continue
        status=1
        [ -s "$logs/$name.log" ] || continue
        note "--- $logs/$name.log"
        grep -v '^\[ RUN\|^\[       OK' "$logs/$name.log" | head -n 20
    done
    note "=== $(($(date +%s) - begun)) of ${LEASE:-560} s; logs in $logs"
    for name in $all; do cat "$logs/$name.end"; done
    cat "$logs/step_lean.log" "$logs/step_lstar.log" "$logs/nccl.log" | awk '!seen[$0]++'
    cat "$logs/nodes.log" "$logs/edges.log" | grep -E '^stage|^[FZM][0-3] |^N[KB]? |^FAILED|wrong'
    exit $status
fi
for check in $checks; do run_check "$check"; done
exit $status
