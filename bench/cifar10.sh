#!/bin/sh
# CIFAR-10 from the batches to the tables, in one go: data, collection, flow, table, widths, the
# curve over the number of networks.
#
#     bench/cifar10.sh FOLDER ...      folders that hold data_batch_1.bin ... data_batch_5.bin,
#                                      test_batch.bin between them, plain, .gz or .xz: six batches
#                                      in xz are 117 MiB, so they may come two at a time, a folder
#                                      each
#     bench/cifar10.sh data FOLDER ... only unpacks what is there, for batches that come two at a
#     time
#
# What is done stays: the same command goes on where the last one stopped. The recipe is
# recipes/cifar10.conf. The collection and the held-out networks are trained in one call, the
# held-out ones last: a GPU trains as many at a time as it has multiprocessors, and a second call
# would leave some of them idle. PARTS follow the main table (reference, held-out, random,
# perturbation, averages, direct, refined), in order:
#   refine   the same networks refined otherwise, with seconds a network; the last line is without
#            refinement
#   widths   accuracies at 0.5, 1 and 1.5 times the width, direct and refined; beside them TRAINED
#            networks trained at 0.5 and 1.5
#   curve    flows to the first CURVE networks, each for CURVE_SECONDS
#   paper    refinement as in the paper: t* 0.3, ten cycles, tolerance 1e-5
# OUT/tables holds the results, files of a few MB at most: report.html, eval.json, log.jsonl,
# summary.txt, and a line of JSON for each table of networks in refine.jsonl, widths.jsonl,
# curve.jsonl, paper.jsonl.
#
#   BUDGET  seconds of this call: what runs then saves and ends with 75, and the next call goes on
#   WEFT    the program (build/weft)        DEVICE   cuda or cpu (cuda)         OUT     where all
#           goes (runs/cifar10-bench)
#   COUNT   networks (2012)                 HELD     held-out networks (100)    EPOCHS  of a network
#           (60)
#   SECONDS_FOR_NETWORKS  train at most so many networks as fit, in whole rounds of TIMED, by the
#                         rate of one epoch measured first; without it COUNT
#   UPDATES of the flow (20000)             SAMPLES  networks drawn (100)       SETTINGS  for the
#                                           run: "model.node=32 ..."
#   PARTS   after the table ("refine widths paper")            TRAINED  networks trained at 0.5 and
#           1.5 times the width (0)
#   CURVE   numbers of networks ("250 500 1000 2000")          CURVE_SECONDS  of a flow (60)
#   IMAGES  of each batch, the first so many (all): a small trial
#   TIMED   networks whose epoch is timed (132 on a GPU, one a multiprocessor; 2 on the CPU)
set -u
bench=$(dirname "$0")
recipe=$bench/../recipes/cifar10.conf
weft=${WEFT:-build/weft}
device=${DEVICE:-cuda}
out=${OUT:-runs/cifar10-bench}
count=${COUNT:-2012}
held=${HELD:-100}
epochs=${EPOCHS:-60}
samples=${SAMPLES:-100}
timed=${TIMED:-$([ "$device" = cuda ] && echo 132 || echo 2)}
tables=$out/tables
began=$(date +%s)
note() { echo "[$(($(date +%s) - began)) s] $*" | tee -a "$tables/summary.txt"; }
stop() { echo "cifar10.sh: $*" >&2 && exit 3; }
left() { echo $((${BUDGET:-1000000000} - ($(date +%s) - began))); }
over() { note "the time is over; the same command goes on" && exit 75; }
# limited LOG COMMAND...: it may take what is left of BUDGET; weft saves when it is interrupted.
limited() {
    log=$1 most=$(left)
    shift
    code=124
    [ "$most" -lt 5 ] || { timeout --foreground -s INT "$most" "$@" >"$log" 2>"$log.err" &&
        return; code=$?; }
    [ $code -eq 124 ] || stop "$(tail -n 1 "$log.err")"
    over
}
# number FILE KEY: that of a JSON object, the first of the name.
number() { tr -d '\n ' <"$1" | sed -n "s/.*\"$2\":\([-0-9.e+]*\)[,}].*/\1/p" | head -n 1; }
# accuracy FILE: of a table of networks, in percent.
accuracy() { awk -v m="$(number "$1" accuracy_mean)" -v s="$(number "$1" accuracy_std)" \
    'BEGIN { printf "%.2f +- %.2f %%", 100 * m, 100 * s }'; }
# one_line FILE: JSON on a line.
one_line() { tr -d '\n' <"$1" | sed 's/  */ /g'; }

only_data=
[ "${1:-}" = data ] && only_data=yes && shift
[ $# -gt 0 ] || stop "say where the batches are: bench/cifar10.sh FOLDER ..."
data=$out/data/cifar-10
mkdir -p "$data" "$tables" || exit 4
# unpack BATCH FILE
unpack() {
    case $2 in
    *.xz) if command -v xz >/dev/null; then set -- "$1" "$2" xz -dc; else
        set -- "$1" "$2" python3 \
            -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)'
    fi ;;
    *.gz) set -- "$1" "$2" gzip -dc ;;
    *) set -- "$1" "$2" cat ;;
    esac
    to=$data/$1 from=$2
    shift 2
    if [ -n "${IMAGES:-}" ]; then "$@" "$from" 2>/dev/null | head -c $((IMAGES * 3073))
    else "$@" "$from"; fi >"$to.part"
    [ -s "$to.part" ] && mv "$to.part" "$to.bin"
}
for batch in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
    [ -s "$data/$batch.bin" ] && continue
    found=
    for folder in "$@"; do
        for packed in "$folder/$batch.bin" "$folder/$batch.bin.gz" "$folder/$batch.bin.xz"; do
            [ -f "$packed" ] && found=$packed && break 2
        done
    done
    [ -n "$found" ] || [ -n "$only_data" ] || stop "$batch.bin is in none of: $*"
    [ -z "$found" ] || unpack "$batch" "$found" &
done
wait
here=$(find "$data" -name '*.bin' -size +0 | wc -l)
note "data: $here batches"
[ -z "$only_data" ] || exit 0
[ "$here" -eq 6 ] || stop "$((6 - here)) of six batches are missing or cannot be unpacked: $*"
path=data.path=$(realpath "$data")

# Networks a second at full length, from one epoch of some: data and program are loaded in the first
# call.
if [ -n "${SECONDS_FOR_NETWORKS:-}" ] && [ ! -f "$out/rate.txt" ]; then
    for n in 1 "$timed"; do
        begin=$(date +%s%N)
        rm -rf "$out/timed.safetensors" "$out/timed.safetensors.parts"
        limited "$out/timed.txt" "$weft" zoo train "$recipe" --set "$path" --set zoo.epochs=1 \
            -n "$n" -o "$out/timed.safetensors" \
            --device "$device" -q
        eval "took_$([ "$n" = 1 ] && echo one || echo all)=$(($(date +%s%N) - begin))"
        [ "$timed" = 1 ] && took_all=$((2 * took_one)) && break
    done
    rm -f "$out/timed.safetensors"
    # shellcheck disable=SC2154
    awk -v n="$timed" -v one="$took_one" -v all="$took_all" -v epochs="$epochs" 'BEGIN {
        s = (all > one ? all - one : all) * 1e-9; printf "%.6g\n", n / s / epochs }' >"$out/rate.txt"
fi
if [ -n "${SECONDS_FOR_NETWORKS:-}" ]; then
    rate=$(cat "$out/rate.txt")
    note "training: $rate networks of $epochs epochs a second ($timed timed for one epoch)"
    # Whole rounds of those that are trained at a time, where there is more than one.
    count=$(awk -v rate="$rate" -v s="$SECONDS_FOR_NETWORKS" -v most="$count" -v held="$held" \
        -v round="$timed" 'BEGIN {
        n = int(rate * s); if (n > round) n -= n % round
        n -= held; print (n > most ? most : n) }')
    [ "$count" -ge 2 ] ||
        stop "in $SECONDS_FOR_NETWORKS s no collection can be trained at $rate networks a second"
fi

if [ ! -f "$out/held-out.safetensors" ]; then
    begin=$(date +%s%N)
    limited "$out/all.txt" "$weft" zoo train "$recipe" --set "$path" --set zoo.epochs="$epochs" \
        -n $((count + held)) \
        -o "$out/all.safetensors" --device "$device" -q
    note "networks: $((count + held)) of $epochs epochs in $(awk -v ns=$(($(date +%s%N) - begin)) \
        'BEGIN { printf "%.1f", ns * 1e-9 }') s (of this call)"
    limited "$out/head.txt" "$weft" zoo head "$out/all.safetensors" -n "$count" \
        -o "$out/zoo.safetensors" --force
    limited "$out/subset.txt" "$weft" zoo subset "$out/all.safetensors" \
        -i "$count-$((count + held - 1))" -o "$out/held-out.safetensors"
    rm -f "$out/all.safetensors"
fi
zoo=$out/zoo.safetensors

# run FOLDER SETTING...: the flow and its table.
run() {
    folder=$1
    shift
    # shellcheck disable=SC2086
    set -- ${SETTINGS:-} "$@"
    for setting; do set -- "$@" --set "$setting" && shift; done
    limited "$folder.txt" "$weft" run "$recipe" -o "$folder" --device "$device" -q --set "$path" \
        --set zoo.path="$(realpath "$zoo")" \
        --set zoo.held_out_path="$(realpath "$out/held-out.safetensors")" \
        --set train.updates="${UPDATES:-20000}" \
        --set sample.count="$samples" "$@"
}
flow=$out/run/flow.safetensors
if [ ! -f "$tables/eval.json" ]; then
    note "run: ${UPDATES:-20000} updates"
    run "$out/run"
    cp "$out/run/report.html" "$tables/report.html" && cp "$flow.log.jsonl" "$tables/log.jsonl" &&
        cp "$out/run/eval.json" "$tables/eval.json"
    tee -a "$tables/summary.txt" <"$out/run.txt"
fi

# judged TABLE NAME NETWORKS [OPTION...]: a line of OUT/tables/TABLE.jsonl.
judged() {
    table=$1 name=$2 nets=$3
    shift 3
    limited "$out/judged.json" "$weft" eval --nets "$nets" --data "$recipe" --set "$path" \
        --name "$name" --device "$device" -q --json "$@"
    one_line "$out/judged.json" >>"$tables/$table.jsonl" && echo >>"$tables/$table.jsonl"
}
# drawn NAME OPTION...: networks of the flow, once, in $nets; $each: seconds for one of them.
drawn() {
    nets=$out/$1.safetensors json=$out/$1.json
    shift
    [ -f "$nets" ] || limited "$json" "$weft" sample "$flow" -n "$samples" -o "$nets" \
        --device "$device" -q --json "$@"
    each=$(awk -v s="$(number "$json" seconds)" -v n="$samples" 'BEGIN { printf "%.3g", s / n }')
}
has() { grep -qs "\"$2\"" "$tables/$1.jsonl"; }

refine() {
    for how in 0.9,100,1 0.9,30,1 0.8,40,1 0.8,20,1 0.7,10,1 0.6,10,1 none; do
        has refine "refined $how" && continue
        drawn "refined-$how" --refine $how
        judged refine "refined $how" "$nets" --zoo "$zoo"
        note "refined $how: $each s a network, JWS $(number "$out/judged.json" jws), $(accuracy \
            "$out/judged.json")"
    done
}
widths() {
    for width in 0.5 1 1.5; do
        for how in none 0.8,20,1; do
            name="width $width, refined $how"
            has widths "$name" && continue
            drawn "width-$width-$how" --width $width --refine $how
            judged widths "$name" "$nets"
            note "$name: $(accuracy "$out/judged.json")"
        done
        [ "${TRAINED:-0}" -gt 0 ] || continue
        name="width $width, trained"
        has widths "$name" && continue
        case $width in 0.5) units="8 16 24" ;; 1) units= ;; 1.5) units="24 48 72" ;; esac
        nets=$out/held-out.safetensors
        # shellcheck disable=SC2086
        if [ -n "$units" ]; then
            nets=$out/trained-$width.safetensors
            limited "$out/trained.txt" "$weft" zoo train "$recipe" --set "$path" \
                --set zoo.epochs="$epochs" -n "$TRAINED" -o "$nets" \
                --set "zoo.arch=3x32x32 $(printf 'conv%s pool conv%s pool conv%s' \
                $units) gap linear10" --device "$device" -q
        fi
        judged widths "$name" "$nets"
        note "$name: $(accuracy "$out/judged.json")"
    done
}
curve() {
    for n in ${CURVE:-250 500 1000 2000}; do
        [ "$n" -le "$count" ] || continue
        has curve "networks $n, refined" && continue
        run "$out/curve-$n" train.limit="$n" train.max_seconds="${CURVE_SECONDS:-60}" \
            eval.controls=no
        for how in direct refined; do
            has curve "networks $n, $how" && continue
            [ $how = direct ] && nets=$out/curve-$n/nets-direct.safetensors ||
                nets=$out/curve-$n/nets.safetensors
            judged curve "networks $n, $how" "$nets" --zoo "$zoo"
            note "networks $n, $how: JWS $(number "$out/judged.json" jws), $(accuracy \
                "$out/judged.json")"
        done
    done
}
paper() {
    has paper "refined 0.3,10" && return
    drawn paper --solver dopri5 --tolerance 1e-5 --refine 0.3,10
    judged paper "refined 0.3,10" "$nets" --zoo "$zoo"
    note "refined 0.3,10 (dopri5, 1e-5): $each s a network, JWS $(number "$out/judged.json" \
        jws), $(accuracy "$out/judged.json")"
}
for part in ${PARTS:-refine widths paper}; do
    case $part in refine | widths | curve | paper) $part ;; *) stop \
        "PARTS: $part is none of refine, widths, curve, paper" ;; esac
done
note "done"
