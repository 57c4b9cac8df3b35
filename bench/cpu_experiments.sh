#!/bin/sh
# Experiments of docs/results/ that two CPU cores can make: small collections, what holds a flow
# from memorising them, fresh networks, and the time code. Each run is a `weft run` folder under
# $OUT.
#
#     bench/cpu_experiments.sh EXPERIMENT ...
#
#   fixed    the demo's flow fitted to the first 300 networks, judged against 2,000: single settings
#   time     the demo's flow with top frequencies 1000 and 30 of the time code, solved by dopri5
#   decay    weight decay 0, 0.1 and 0.3 at UPDATES=7000, fitted to 300 and to 2,000 networks
#   small    300 networks as `weft fit` takes them, 30 of them set aside: two fields, weight
#            decay, and which weights sample; judged against 2,000 networks that the flow never saw
#   gap      100 and 300 of these networks, and 300 with tanh: what keeps a field from learning them
#            by heart; GAP_UPDATES (4000) of 16, GAP ("few wide signs errors")
#   fresh    the demo and digits at equal total time with 1, 3, 10 and 30 times the networks
#   table    a line for each finished run of those named, or of all
#
# A finished run is kept, so a broken call goes on. SEEDS ("1 2 3"), UPDATES (2000), THREADS (1),
# WEFT (build/weft), OUT (runs/cpu-experiments).
set -u
bench=$(dirname "$0")
weft=${WEFT:-build/weft}
out=${OUT:-runs/cpu-experiments}
seeds=${SEEDS:-"1 2 3"}
updates=${UPDATES:-2000}
mkdir -p "$out"

# One run: NAME RECIPE SEED [SECTION.KEY=VALUE ...]
one() {
    name=$1 recipe=$2 seed=$3
    shift 3
    [ ! -f "$out/$name/eval.json" ] || return 0
    for setting in train.seed="$seed" model.seed="$seed" sample.seed="$seed" "$@"; do
        set -- "$@" --set "$setting"
    done
    while [ "$1" != --set ]; do shift; done
    begin=$(date +%s)
    if nice -n 10 "$weft" run "$bench/../recipes/$recipe" -o "$out/$name" --redo -q \
        --threads "${THREADS:-1}" "$@" >"$out/$name.txt" 2>&1; then
        echo "$name: $(($(date +%s) - begin)) s"
    else
        echo "FAILED $name: $(tail -n 1 "$out/$name.txt")" >&2
    fi
}

# Single settings beside the demo's; those that are worth it with every seed.
fixed() {
    for seed in $seeds; do
        demo() {
            name=$1
            shift
            one "fixed-$name-$seed" demo.conf "$seed" train.limit=300 train.updates="$updates" "$@"
        }
        demo base
        demo decay train.weight_decay=0.1
        [ "$seed" = 1 ] || continue
        demo validation train.weights=validation
        demo small model.node=16 model.edge=16 model.blocks=2
        demo ema99 train.ema=0.99
        demo ema9995 train.ema=0.9995
    done
}

# What a weight decay does for small and large collections.
decay() {
    for seed in $seeds; do
        for networks in 300 2000; do
            for rate in 0 0.1 0.3; do
                one "decay-$networks-$rate-$updates-$seed" demo.conf "$seed" \
                    train.limit="$networks" \
                    train.updates="$updates" train.weight_decay="$rate"
            done
        done
    done
}

# NAME SECTION.KEY=VALUE ...: a flow fitted to $out/$set-own, and for each kind of weights a line
# for direct networks and one for refined ones.
small_run() {
    name=$set-$1
    shift
    [ ! -f "$out/$name.jsonl" ] || return 0
    for setting in train.seed="$seed" model.seed="$seed" train.weights=validation \
        train.set_aside=30 \
        train.save_seconds=1e9 "$@"; do
        set -- "$@" --set "$setting"
    done
    while [ "$1" != --set ]; do shift; done
    "$weft" train "$bench/../recipes/demo.conf" --zoo "$out/$set-own.safetensors" -q \
        -o "$out/$name.safetensors" --threads "${THREADS:-1}" "$@" 2>"$out/$name.txt" || exit 1
    for weights in ${kinds:-final ema validation}; do
        kept=$out/$name-$weights.safetensors
        python3 "$bench/keep_weights.py" "$out/$name.safetensors" $weights "$kept" || exit 1
        small_rows "$name" $weights none
        small_rows "$name" $weights 0.8,10,1
        rm "$kept"
    done >"$out/$name.jsonl.new" && mv "$out/$name.jsonl.new" "$out/$name.jsonl"
    echo "$name: $(grep -c jws "$out/$name.jsonl") rows"
}
# NAME WEIGHTS REFINEMENT: one row, on one line.
small_rows() {
    nets=$out/$name-drawn.safetensors
    "$weft" sample "$kept" -n 100 --solver euler --steps 40 --refine "$3" --seed "$seed" \
        -o "$nets" --force -q \
        --threads "${THREADS:-1}" >/dev/null &&
        "$weft" eval --zoo "$out/$set-unseen.safetensors" --nets "$nets" --name "$1 $2 $3" \
        -q --json \
            --data "$bench/../recipes/demo.conf" --threads "${THREADS:-1}" | tr -d '\n' |
            tr -s ' ' || exit 1
    echo
}
# SET SECTION.KEY=VALUE ...: 300 networks to fit, 2,000 to judge against, 100 held-out ones.
small_networks() {
    set=$1
    shift
    [ ! -f "$out/$set-unseen.safetensors" ] || return 0
    zoo=$out/$set-zoo.safetensors
    "$weft" zoo train "$bench/../recipes/demo.conf" -n 2400 -o "$zoo" -q "$@" &&
        "$weft" zoo subset "$zoo" -i 0-299 -o "$out/$set-own.safetensors" -q &&
        "$weft" zoo subset "$zoo" -i 2300-2399 -o "$out/$set-held-out.safetensors" -q &&
        "$weft" zoo subset "$zoo" -i 300-2299 -o "$out/$set-unseen.safetensors" -q || exit 1
}
small() {
    small_networks small
    for rate in 0.1 0; do
        for seed in $seeds; do
            small_run "narrow-$rate-$seed" train.weight_decay=$rate train.batch=16 \
                train.updates=3000
        done
    done
    for seed in $seeds; do
        small_run "wide-0.1-$seed" train.weight_decay=0.1 model.node=64 model.edge=64 \
            model.time=64 model.blocks=4 \
            train.batch=16 train.updates=3000
    done
}

# NAME SETTINGS: as they are, with dropout in the field, and with weight decay.
held_open() {
    name=$1
    shift
    small_run "gap-$name-$seed" "$@"
    small_run "gap-$name-dropout-$seed" "$@" model.dropout=0.1
    small_run "gap-$name-decay-$seed" "$@" train.weight_decay=0.1
}
# few: 100 of the networks; wide: a field that memorises 270; signs: under tanh; errors: layers
# weighted by what their errors cost.
gap() {
    many="train.batch=16 train.updates=${GAP_UPDATES:-4000}"
    kinds="ema validation"
    # shellcheck disable=SC2086
    for seed in $seeds; do
        for part in ${GAP:-few wide signs errors}; do
            [ "$part" = signs ] && small_networks tanh --set zoo.activation=tanh ||
                small_networks small
            case $part in
            few) held_open few $many train.limit=100 ;;
            wide) held_open wide $many model.node=64 model.edge=64 model.time=64 model.blocks=4 ;;
            signs)
                small_run "gap-base-$seed" $many
                small_run "gap-signs-$seed" $many train.signs=yes ;;
            errors)
                small_run "gap-base-$seed" $many
                small_run "gap-errors-$seed" $many train.loss_by=errors ;;
            *) echo "GAP: no part $part" >&2 && exit 2 ;;
            esac
        done
    done
    kinds=
}

# NAME UPDATES NETWORKS POOL: distinct networks in the time of $updates updates alone. An update of
# the demo takes the time of 55 networks (docs/results/2026-11-18-fresh-cpu.md).
fresh_run() {
    rate=$(awk "BEGIN { r = ($3 - $4) / $2; print (r > 0 ? r : 1e-9) }")
    one "fresh-$1-$seed" demo.conf "$seed" zoo.fresh=yes train.fresh_pool="$4" train.updates="$2" \
        train.fresh_rate="$rate"
}
fresh() {
    for seed in $seeds; do
        fresh_run 1x "$updates" 304 304
        fresh_run 10x $((updates - 3000 / 55)) 3000 304
        fresh_run 30x $((updates - 9000 / 55)) 9000 304
        fresh_run 3x $((updates - 900 / 55)) 900 304
        fresh_run 30x-wide $((updates - 9000 / 55)) 9000 4800
    done
}

# The same flow with another time code; dopri5's evaluations are in NAME/dopri5.json.
time_code() {
    for seed in $seeds; do
        for frequency in 1000 30; do
            name=time-$frequency-$seed
            one "$name" demo.conf "$seed" train.updates="$updates" model.time_frequency="$frequency"
            [ -f "$out/$name/dopri5.json" ] ||
                nice -n 10 "$weft" sample "$out/$name/flow.safetensors" \
                -n 100 -o "$out/$name/dopri5.safetensors" --force --solver dopri5 \
                --threads "${THREADS:-1}" --json \
                >"$out/$name/dopri5.json"
        done
    done
}

table() { python3 "$bench/cpu_table.py" "$out" "$@"; }

for experiment in "$@"; do
    case $experiment in
        time) time_code ;;
        decay | fixed | fresh | gap | small) $experiment ;;
        table) table ;;
        *) echo "no experiment $experiment" >&2 && exit 2 ;;
    esac
done
