#!/bin/sh
# CIFAR-10 from the batches to the table, in one go: data, rate of training, collection, flow, networks, table.
#
#     bench/cifar10.sh FOLDER ...      folders that hold data_batch_1.bin ... data_batch_5.bin, test_batch.bin between them, plain, .gz
#                                      or .xz: six batches in xz are 117 MiB, so they may come two at a time, a folder each
#
# What is done stays: the same command goes on where the last one stopped. The recipe is recipes/cifar10.conf; the table is that of
# weft run (reference, held-out, random, perturbation, averages, direct, refined with jumps), then refinement as in the paper: t* 0.3,
# ten cycles, tolerance 1e-5, with seconds a network.
#
#   BUDGET  seconds of this call: what runs then saves and ends with 75, and the next call goes on
#   WEFT    the program (build/weft)        DEVICE   cuda or cpu (cuda)         OUT     where all goes (runs/cifar10-bench)
#   COUNT   networks (2000)                 HELD     held-out networks (100)    EPOCHS  of a network (60)
#   SECONDS_FOR_NETWORKS  train at most so many networks as fit, by the rate of one epoch measured first; without it COUNT
#   UPDATES of the flow (20000)             SAMPLES  networks drawn (100)       SETTINGS  for the run: "model.node=32 ..."
#   IMAGES  of each batch, the first so many (all): a small trial
#   TIMED   networks whose epoch is timed (132 on a GPU, one a multiprocessor; 2 on the CPU)
set -u
bench=$(dirname "$0")
recipe=$bench/../recipes/cifar10.conf
weft=${WEFT:-build/weft}
device=${DEVICE:-cuda}
out=${OUT:-runs/cifar10-bench}
count=${COUNT:-2000}
epochs=${EPOCHS:-60}
timed=${TIMED:-$([ "$device" = cuda ] && echo 132 || echo 2)}
began=$(date +%s)
note() { echo "[$(($(date +%s) - began)) s] $*"; }
stop() { echo "cifar10.sh: $*" >&2 && exit 3; }
# limited LOG COMMAND...: it may take what is left of BUDGET; weft saves when it is interrupted.
limited() {
    log=$1 left=$((${BUDGET:-1000000000} - ($(date +%s) - began)))
    shift
    code=124
    [ "$left" -lt 5 ] || { timeout --foreground -s INT "$left" "$@" >"$log" 2>&1 && return; code=$?; }
    [ $code -eq 124 ] || stop "$(tail -n 1 "$log")"
    note "the time is over; the same command goes on" && exit 75
}

[ $# -gt 0 ] || stop "say where the batches are: bench/cifar10.sh FOLDER ..."
data=$out/data/cifar-10
mkdir -p "$data" || exit 4
for batch in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
    [ -s "$data/$batch.bin" ] && continue
    found=
    for folder in "$@"; do
        for packed in "$folder/$batch.bin" "$folder/$batch.bin.gz" "$folder/$batch.bin.xz"; do
            [ -f "$packed" ] && found=$packed && break 2
        done
    done
    [ -n "$found" ] || stop "$batch.bin is in none of: $*"
    case $found in *.xz) unpack="xz -dc" ;; *.gz) unpack="gzip -dc" ;; *) unpack="cat" ;; esac
    if [ -n "${IMAGES:-}" ]; then $unpack "$found" 2>/dev/null | head -c $((IMAGES * 3073)); else $unpack "$found"; fi >"$data/$batch.part"
    [ -s "$data/$batch.part" ] || stop "$found cannot be unpacked"
    mv "$data/$batch.part" "$data/$batch.bin"
done
path=data.path=$(realpath "$data")
note "data: $(find "$data" -name '*.bin' -size +0 | wc -l) batches"

# Networks a second at full length, from one epoch of some: data and program are loaded in the first call.
if [ ! -f "$out/rate.txt" ]; then
    for n in 1 "$timed"; do
        begin=$(date +%s%N)
        rm -rf "$out/timed.safetensors" "$out/timed.safetensors.parts"
        limited "$out/timed.txt" "$weft" zoo train "$recipe" --set "$path" --set zoo.epochs=1 -n "$n" -o "$out/timed.safetensors" \
            --device "$device" -q
        eval "took_$([ "$n" = 1 ] && echo one || echo all)=$(($(date +%s%N) - begin))"
        [ "$timed" = 1 ] && took_all=$((2 * took_one)) && break
    done
    rm -f "$out/timed.safetensors"
    # shellcheck disable=SC2154
    awk -v n="$timed" -v one="$took_one" -v all="$took_all" -v epochs="$epochs" 'BEGIN {
        s = (all > one ? all - one : all) * 1e-9; printf "%.6g\n", n / s / epochs }' >"$out/rate.txt"
fi
rate=$(cat "$out/rate.txt")
note "training: $rate networks of $epochs epochs a second ($timed timed for one epoch)"
if [ -n "${SECONDS_FOR_NETWORKS:-}" ]; then
    count=$(awk -v rate="$rate" -v s="$SECONDS_FOR_NETWORKS" -v most="$count" -v held="${HELD:-100}" 'BEGIN {
        n = int(rate * s) - held; print (n > most ? most : n) }')
    [ "$count" -ge 2 ] || stop "in $SECONDS_FOR_NETWORKS s no collection can be trained at $rate networks a second"
fi

set -- "$path" zoo.count="$count" zoo.held_out="${HELD:-100}" zoo.epochs="$epochs" train.updates="${UPDATES:-20000}" \
    sample.count="${SAMPLES:-100}"
for setting in ${SETTINGS:-}; do set -- "$@" "$setting"; done
for setting in "$@"; do set -- "$@" --set "$setting" && shift; done
note "run: $count networks, ${UPDATES:-20000} updates"
limited "$out/run.txt" "$weft" run "$recipe" -o "$out/run" --device "$device" -q "$@"
cat "$out/run.txt"

paper=$out/paper.safetensors
if [ ! -f "$paper" ]; then
    limited "$out/paper.json" "$weft" sample "$out/run/flow.safetensors" -n "${SAMPLES:-100}" --solver dopri5 --refine 0.3,10 \
        -o "$paper" --device "$device" -q --json
fi
seconds=$(tr -d '\n ' <"$out/paper.json" | sed 's/.*"seconds"://; s/[,}].*//')
note "refined as in the paper: $(awk -v s="$seconds" -v n="${SAMPLES:-100}" 'BEGIN { printf "%.3g", s / n }') s a network"
"$weft" eval --zoo "$out/run/zoo.safetensors" --nets "$paper" --data "$recipe" --set "$path" --name "refined 0.3,10" --device "$device" -q ||
    exit 1
note "done"
