#!/bin/sh
# The CUDA backend on this machine's GPU: tests, compute-sanitizer, times of a training step.
#
#     bench/cuda_check.sh build     compile what it runs, and weft, into $BUILD/gpu (needs nvcc, the test libraries)
#     bench/cuda_check.sh           run from there; needs the folder and a GPU only, so it may be carried elsewhere
#
# The programs are linked statically where they can be. CHECKS picks what is run: "tests memcheck racecheck times torch profile".
set -u
build=${BUILD:-build}
gpu=$build/gpu
cd "$(dirname "$0")/.." || exit 1
if [ "${1:-run}" = build ]; then
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
    exit 0
fi
checks=${CHECKS:-tests memcheck racecheck times}
status=0
note() { echo "$*"; }
run() { # name, then the command; its output is shown when it fails
    name=$1
    shift
    begin=$(date +%s)
    if "$@" >"$gpu/log" 2>&1; then
        note "ok      $name ($(($(date +%s) - begin)) s)"
    else
        note "FAILED  $name ($(($(date +%s) - begin)) s)"
        grep -v '^\[ RUN\|^\[       OK' "$gpu/log" | tail -n 30
        status=1
    fi
}
for check in $checks; do
    case $check in
    tests)
        for test in "$gpu"/test_*; do run "$(basename "$test")" "$test"; done ;;
    memcheck)
        for test in test_cuda_ops test_cuda_field test_cuda_fit test_cuda_sample test_cuda_match test_cuda_eval; do
            run "memcheck $test" env WEFT_CUDA_SMALL=3 compute-sanitizer --error-exitcode 9 "$gpu/$test"
        done ;;
    racecheck) # two shapes only: it follows every access to shared memory
        for test in test_cuda_ops test_cuda_match test_cuda_eval; do
            run "racecheck $test" env WEFT_CUDA_SMALL=6 compute-sanitizer --tool racecheck \
                --error-exitcode 9 "$gpu/$test"
        done ;;
    times)
        "$gpu/cuda_step" || status=1
        "$gpu/cuda_loop" || status=1 ;;
    torch) # the same steps in PyTorch, bf16; the first round only fills the compiler's cache, all cases side by side
        cases="karhunen_lean karhunen_lstar mnist_lean mnist_lstar"
        for case in $cases; do
            python3 bench/torch_step.py "${case#*_}" 0 4 cuda "${case%_*}" compile >/dev/null 2>&1 &
        done
        wait
        for case in $cases; do
            for mode in eager compile; do
                python3 bench/torch_step.py "${case#*_}" 2 16 cuda "${case%_*}" $mode 2>"$gpu/log" ||
                    { tail -n 5 "$gpu/log"; status=1; }
            done
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
