#!/bin/sh
# The experiments of docs/results/ on karhunen and MNIST: each a set of `weft run` folders under
# $OUT, and a table of them.
#
#     bench/experiments.sh [EXPERIMENT ...]      without one: these in this order
#     bench/experiments.sh grid [PATTERN ...]    the paper's 110 configurations of rivals, or those
#                                                whose names match a shell pattern:
#                                                'mnist-dwf-*-aligned'; --list prints the names,
#                                                --sizes parameters, too. CIFAR names a collection
#                                                of CIFAR-10 networks; without it those are left out
#     bench/experiments.sh cifar10 FOLDER ...    CIFAR-10 from its batches to the table:
#                                                bench/cifar10.sh
#     bench/experiments.sh scaling [PATTERN ...] the paper's 70 runs on karhunen likewise: seven
#                                                methods, ten sizes
#     bench/experiments.sh rivals [PATTERN ...]  the best configuration of each method: 'mnist-*',
#                                                'cifar10-*' (with CIFAR), 'digits-*' (minutes on a
#                                                CPU)
#     bench/experiments.sh permutation [PATTERN ...]
#                                                mlp, dit and dwf on digits networks as they are,
#                                                aligned, and with relabelled copies, three seeds
#                                                each
#     bench/experiments.sh origin [PATTERN ...]  each rival on the checkpoints of one training run
#   These have batches of their own. SHARE is the percentage of their updates that is made (100). A
#   finished run is kept, so that the same command goes on, with other patterns too; their table is
#   one of all that there are, and OUT/NAME.html has plots: parameters, updates, seconds of training
#   and of sampling, variants of JWS, every method's networks in one plot, their loss curves, and
#   for scaling one line a method beside the paper's seven. With BUDGET=SECONDS the run that is
#   being made then saves and ends, and the next call goes on with it; SETTINGS=train.max_seconds=60
#   gives each method the same time.
#
#   sweep            karhunen, nested subsets of 50,000 networks (the first 100 ... 50,000), judged
#                    against all of them
#   mnist            10,000 networks of 784-32-32-10: direct and refined, held-out, all controls
#   ablations        karhunen: plain AdamW; Muon, preconditioning and matched coupling one by one;
#                    all; the first and the last
#   alignment        the same flow on the collection as it is and after Git Re-Basin, three seeds
#                    each
#   mnist-ablations  the ablations on MNIST, and all but the principal axes
#   mnist-leads      MNIST: single settings beside the recipe's
#   mnist-alignment  the alignment on MNIST; only when asked for
#   lstar            the paper's layout and settings at three sizes of the sweep
#   leads            karhunen: single settings beside the recipe's; other batches and widths in the
#                    same time
#   karhunen-fresh   recipes/karhunen-fresh.conf; with BUDGET as many updates as fit, with SEED=1
#                    a run of its own name and seed
#   mnist-fresh      recipes/mnist-fresh.conf likewise
#   karhunen-distinct  1, 3, 10, 30 times 12,000 distinct networks at equal total time
#   mnist-distinct   the same on MNIST, with 10,000
#   mnist-fixed      10,000 stored networks: weight decay, dropout, weights of the lowest validation
#                    loss, a shorter EMA, a smaller field
#   karhunen-fixed   the same on karhunen, with FIXED networks (12,000), judged against all
#   openml20         20 tasks from one flow: the recipe, fresh networks, wider fields, more of
#                    letter, a larger batch; in equal time
#   acs              between two domains: the recipe, fresh networks, attention, a slower time code;
#                    in equal time. A second table of each is of networks by Euler 20 without
#                    refinement
#   paper            the paper's own settings on karhunen, acs, mnist, mnist aligned, openml20; with
#                    BUDGET each gets a part of the time as its full length asks for.
#                    These nine run only when asked for; the last three take WEFT_DATA
#   refinement       ways to sample and schedules of refinement, of the best flow on karhunen so far
#                    and of MNIST's
#
# Without BUDGET at full scale: 75,000 updates a run on karhunen, 200,000 on MNIST. With
# BUDGET=SECONDS for everything asked for, an update is timed and the updates of a run follow from
# the experiment's share of the time; every run's recipe.conf has them. Then a run begins only while
# its estimate still fits, and what was left out is said. A finished run (one with an eval.json) is
# kept as it is, whatever its settings; an unfinished one is made again where its settings differ.
# So with BUDGET the runs of two calls may differ in train.updates: give the second another OUT
# where they are to be compared. The script ends with 1 when a run failed.
#
#   WEFT   the program (build/weft)             DEVICE  cuda or cpu (cuda)
#   OUT    where all goes (runs/experiments)    COUNT   networks drawn (100)
#   JOBS   runs side by side (1)                SETTINGS  for every run: "model.node=32 ..."
#   KARHUNEN, MNIST, DIGITS, RUN_LENGTH   networks in the collections (50000, 10000, 500, 200)
#   SIZES  of the sweep                         UPDATES  of a run, in place of those planned: for a
#                                               run that goes over two calls, or a rehearsal
#   FIXED  networks of karhunen-fixed: 300, say, for a collection of a user's size
#   ONLY   runs of karhunen-fixed and mnist-fixed, as patterns: "0 dropout-0 decay-0", "*-1"
#   BATCH  networks an update (256); with little time 64 and more updates come further: seeing
#          64,000 networks the demo's flow reaches JWS 0.61 direct in 250 updates of 256, 0.73 in
#          1,000 of 64, 0.76 in 4,000 of 16
#   MNIST_SOLVER, MNIST_STEPS   of MNIST in place of the recipe's
#
# Side by side on a GPU the runs share it through NVIDIA's MPS, which this starts and ends: three
# runs of karhunen then take 8.9 ms an update together where one takes 10.8 (H200, commit 0786e0d);
# without MPS 12.0.
set -u
bench=$(dirname "$0")
recipes=$bench/../recipes
weft=${WEFT:-build/weft}
device=${DEVICE:-cuda}
out=${OUT:-runs/experiments}
jobs=${JOBS:-1}
batch=${BATCH-256}
karhunen=${KARHUNEN:-50000}
mnist=${MNIST:-10000}
digits=${DIGITS:-500}
# the largest first: it matters most
sizes=${SIZES:-"50000 100 1500 12000 400 6000 25000 200 3000 800"}
# where the other experiments on karhunen are made
middle=$((karhunen < 12000 ? karhunen : 12000))
export STUDY_BEGAN="${STUDY_BEGAN:-$(date +%s)}"

elapsed() { echo $(($(date +%s) - STUDY_BEGAN)); }
note() { echo "[$(elapsed) s] $*"; }
left() { echo $((${BUDGET:-1000000000} - $(elapsed))); }
stop() { note "$*" >&2 && exit 1; }
failed() { note "FAILED $*" >&2 && : >"$out/failed"; }

# One run: NAME ESTIMATE RECIPE [SECTION.KEY=VALUE ...]
one() {
    name=$1 estimate=$2 recipe=$3
    shift 3
    if [ -f "$out/$name/eval.json" ]; then
        note "$name: done before"
        return
    fi
    if [ "$(left)" -lt $((estimate + ${RESERVE:-0})) ] || [ "$(left)" -lt 1 ]; then
        note "left out: $name, $estimate s, with $(left) s to go"
        return
    fi
    for setting in sample.count="${COUNT:-100}" ${batch:+train.batch="$batch"} ${SETTINGS:-} "$@"
    do
        set -- "$@" --set "$setting"
    done
    while [ "$1" != --set ]; do shift; done
    begin=$(date +%s)
    timeout --foreground -s INT "$(left)" "$weft" run "$recipes/$recipe" -o "$out/$name" \
        --device "$device" --threads "${THREADS:-0}" -q --redo \
        "$@" >"$out/$name.txt" 2>&1
    case $? in
    0) note "$name: $(($(date +%s) - begin)) s" ;;
    124) note "$name: saved, for the time is over; the same command goes on" ;;
    *) failed "$name: $(tail -n 1 "$out/$name.txt")" ;;
    esac
}

# Runs from stdin, one a line, in that order. To xargs a blank at an end joins two lines.
together() { sed 's/ *$//' | xargs -r -P "$jobs" -L 1 "$0" one; }

# The table of runs NAME ..., and their rows for programs.
table() {
    name=$1
    shift
    "$weft" compare "$@" && "$weft" compare "$@" --json >"$out/$name.json"
}

# Milliseconds of an update when COPIES runs go side by side, divided by their number: COPIES RECIPE
# COLLECTION [SECTION.KEY=VALUE ...]; from the logs, without their first lines. Nothing where a run
# failed.
milliseconds() {
    copies=$1 recipe=$2 zoo=$3
    shift 3
    for setting in train.batch="$batch" ${SETTINGS:-} "$@" train.updates=60 train.log_every=10
    do set -- "$@" --set "$setting"; done
    while [ "$1" != --set ]; do shift; done
    for copy in $(seq "$copies"); do
        "$weft" train "$recipes/$recipe" --zoo "$zoo" -o "$out/timed-$copy.safetensors" \
            --device "$device" --threads "$THREADS" -q "$@" \
            >"$out/timed.txt" 2>&1 || tail -n 1 "$out/timed.txt" >&2 &
    done
    wait
    for copy in $(seq "$copies"); do
        [ -f "$out/timed-$copy.safetensors.log.jsonl" ] || continue
        sed 's/.*"seconds"://; s/[,}].*//' "$out/timed-$copy.safetensors.log.jsonl" |
            awk 'NR == 1 { first = $1 } { last = $1 }
                END { if (NR > 0) print (NR > 1 ? 100 * (last - first) / (NR - 1) : 1000) }'
    done | awk -v copies="$copies" \
        '{ sum += $1 } END { if (NR > 0 && NR == copies) print sum / NR / NR }'
    rm -f "$out"/timed-*
}

# Sets `updates` and `estimate` (seconds of a run): RUNS MS OVERHEAD FULL. `share` of the time left
# is for these runs, which go in rounds of $jobs.
plan() {
    if [ -n "${UPDATES:-}" ]; then
        updates=$UPDATES
    elif [ -z "${BUDGET:-}" ]; then
        updates=$4
    else
        updates=$(awk -v runs="$1" -v ms="$2" -v over="$3" -v full="$4" -v share="$share" \
            -v seconds="$(($(left) - ${aside:-0} - ${RESERVE:-0}))" -v jobs="$jobs" 'BEGIN {
            side = runs < jobs ? runs : jobs
            rounds = int((runs + side - 1) / side)
            u = int(1000 * (0.96 * seconds * share / rounds - over) / side / ms / 50) * 50
            print (u < 50 ? 50 : u > full ? full : u) }')
    fi
    estimate=$(awk -v u="$updates" -v ms="$2" -v over="$3" -v jobs="$jobs" -v runs="$1" 'BEGIN {
        printf "%.0f", (runs < jobs ? runs : jobs) * u * ms / 1000 + over }')
    # Told how many: a run may go over several calls, so it begins in any case.
    [ -z "${UPDATES:-}" ] || estimate=0
    note "$1 runs of $updates updates, $2 ms each where runs share the time: $estimate s a run"
}

# --- collections ----------------------------------------------------------------------------------

# RECIPE NAME COUNT: $out/NAME.safetensors, and the 100 networks after it as held-out ones.
collection() {
    [ -f "$out/$2-held-out.safetensors" ] && return
    begin=$(date +%s)
    "$weft" zoo train "$recipes/$1" -n "$3" -o "$out/$2.safetensors" --device "$device" -q &&
        "$weft" zoo train "$recipes/$1" --first "$3" -n 100 -o "$out/$2-held-out.safetensors" \
        --device "$device" -q || exit 1
    note "collection: $(($(date +%s) - begin)) s"
}
need_karhunen() {
    collection karhunen.conf karhunen "$karhunen"
    k="zoo.path=$out/karhunen.safetensors zoo.held_out_path=$out/karhunen-held-out.safetensors"
    k="$k eval.controls=no"
    [ -n "${k_ms:-}" ] ||
        k_ms=$(milliseconds "$jobs" karhunen.conf "$out/karhunen.safetensors" train.limit="$middle")
    [ -n "$k_ms" ] || stop "karhunen: the timed training failed"
}
need_mnist() {
    collection mnist.conf mnist "$mnist"
    m="zoo.path=$out/mnist.safetensors zoo.held_out_path=$out/mnist-held-out.safetensors"
    [ -n "${m_ms:-}" ] || m_ms=$(milliseconds 1 mnist.conf "$out/mnist.safetensors")
    [ -n "$m_ms" ] || stop "mnist: the timed training failed"
}
# ablations, alignment and leads vary one run, `base`, so all are made with the updates that fit
# them together. Each names it first: it is made once.
need_base() {
    need_karhunen
    if [ -z "${base:-}" ]; then
        runs=1 own=0 aside=0 # seconds for the leads' timing
        for experiment in $asked; do
            case $experiment in
            ablations) runs=$((runs + 5)) ;;
            alignment) runs=$((runs + 7)) ;;
            leads) runs=$((runs + 6)) aside=$((aside + 8)) ;;
            refinement) total=$((total - $(weight refinement))) && continue ;;
            *) continue ;;
            esac
            own=$((own + $(weight "$experiment")))
        done
        share=$(awk -v own=$own -v total="$total" 'BEGIN { print own / total }')
        plan $runs "$k_ms" 3 75000
        aside=0
        base_updates=$updates
        base="$estimate karhunen.conf $k train.limit=$middle train.updates=$updates"
    fi
}

# --- the experiments: each names its runs, best value first ---------------------------------------

run_sweep() {
    need_karhunen
    plan "$(echo "$sizes" | wc -w)" "$k_ms" 3 75000
    for n in $sizes; do
        [ "$n" -le "$karhunen" ] &&
            echo "sweep-$n $estimate karhunen.conf $k train.limit=$n train.updates=$updates"
    done | together
    table sweep "$out"/sweep-*/ --over train.limit --beside "$bench/paper_karhunen.json" \
        -o "$out/sweep.html"
    for n in 100 500 1000; do # held-out networks by their number
        if [ "$(left)" -lt 10 ]; then note "left out: $n held-out networks" && continue; fi
        "$weft" zoo train "$recipes/karhunen.conf" --first "$karhunen" -n $n \
            -o "$out/held-$n.safetensors" --device "$device" -q >/dev/null &&
            "$weft" eval --zoo "$out/karhunen.safetensors" --nets "$out/held-$n.safetensors" \
            --data "$recipes/karhunen.conf" \
                --name held-out --device "$device" -q
    done
}

run_lstar() {
    need_karhunen
    lstar_ms=$(milliseconds "$jobs" karhunen-paper.conf "$out/karhunen.safetensors")
    [ -n "$lstar_ms" ] || stop "lstar: the timed training failed"
    plan 3 "$lstar_ms" 3 75000
    for n in "$karhunen" 1500 100; do
        [ "$n" -le "$karhunen" ] &&
            echo "lstar-$n $estimate karhunen-paper.conf $k train.limit=$n train.updates=$updates"
    done | together
    table lstar "$out"/lstar-*/ --over train.limit
}

run_mnist() {
    need_mnist
    beside=25 # seconds for sampling with the adaptive solver, the controls and the evaluation
    [ -z "${MNIST_SOLVER:-}" ] ||
        beside=12 m="$m sample.solver=$MNIST_SOLVER sample.steps=${MNIST_STEPS:-100}"
    plan 1 "$m_ms" $beside 200000
    echo "mnist $estimate mnist.conf $m train.updates=$updates" | together
    table mnist "$out/mnist/" && cat "$out/mnist.txt"
    # Wall clock of 100 networks: the adaptive solver, and fixed steps in bf16, direct and refined.
    for how in "--solver dopri5" "--solver euler --steps 50" \
        "--solver euler --steps 50 --refine 0.75,10"; do
        if [ "$(left)" -lt 10 ]; then note "left out: clock of $how" && continue; fi
        # shellcheck disable=SC2086
        "$weft" sample "$out/mnist/flow.safetensors" -n "${COUNT:-100}" $how \
            -o "$out/clocked.safetensors" --force --device "$device" -q --json |
            grep -E '"(n|evaluations|seconds)"' | tr -d '\n' && echo " $how"
        "$weft" eval --zoo "$out/mnist.safetensors" --nets "$out/clocked.safetensors" \
            --data "$recipes/mnist.conf" \
            --name "$(echo "$how" | tr -d ' -' | sed 's/solver//')" --device "$device" -q
    done
}

# NAME of a collection, its run BASE: three seeds each on the collection as it is (the first is
# BASE) and aligned, then a pair without matched coupling. With it, relabelling a network relabels
# its noise alike, and only rounding tells the two apart.
seeds() { echo "train.seed=$1 model.seed=$1 sample.seed=$1"; }
aligned() {
    zoo=$1 name=$2
    shift 2
    [ -f "$out/$zoo-aligned.safetensors" ] ||
        "$weft" align "$out/$zoo.safetensors" -o "$out/$zoo-aligned.safetensors" \
        --device "$device" -q >&2
    other="train.path=$out/$zoo-aligned.safetensors" \
        apart="train.coupling=independent sample.refine_matched=no"
    echo "$name-aligned $* $other"
    for seed in 1 2; do
        echo "$name-seed$seed-aligned $* $(seeds $seed) $other"
        echo "$name-seed$seed $* $(seeds $seed)"
    done
    echo "$name-unmatched-aligned $* $apart $other"
    echo "$name-unmatched $* $apart"
}
run_alignment() {
    need_base
    { echo "base $base" && aligned karhunen base "$base"; } | together
    table alignment "$out"/base*/
}
run_mnist_alignment() {
    need_mnist
    plan 8 "$m_ms" 8 200000
    all="$estimate mnist.conf $m eval.controls=no train.updates=$updates"
    all="$all sample.solver=euler sample.steps=50"
    { echo "mnist-same $all" && aligned mnist mnist-same "$all"; } | together
    table mnist-alignment "$out"/mnist-same*/
}

# NAME and the settings of the run with everything: the four others. off: plain AdamW.
variants() {
    prefix=$1
    shift
    off="train.optimizer=adamw train.precondition=no train.principal=no train.loss_by=parameters"
    off="$off train.coupling=independent sample.refine_matched=no"
    echo "$prefix-adamw $* $off"
    echo "$prefix-muon $* $off train.optimizer=muon"
    echo "$prefix-preconditioned $* $off train.precondition=yes"
    echo "$prefix-matched $* $off train.coupling=matched sample.refine_matched=yes"
}
run_ablations() {
    need_base
    { echo "base $base" && variants only "$base" &&
        echo "only-muon-matched $base train.precondition=no"; } | together
    table ablations "$out/base/" "$out"/only-*/
}
# Runs that vary MNIST's recipe share `mnist-base`, so all are made with the updates that fit them
# together.
need_mnist_base() {
    need_mnist
    if [ -z "${mnist_base:-}" ]; then
        runs=1 own=0
        for experiment in $asked; do
            case $experiment in
            mnist-ablations) runs=$((runs + 5)) ;;
            mnist-leads) runs=$((runs + 6)) ;;
            *) continue ;;
            esac
            own=$((own + $(weight "$experiment")))
        done
        share=$(awk -v own=$own -v total="$total" 'BEGIN { print own / total }')
        plan $runs "$m_ms" 8 200000
        mnist_base="$estimate mnist.conf $m eval.controls=no train.updates=$updates"
        mnist_base="$mnist_base sample.solver=euler sample.steps=50"
    fi
}
run_mnist_ablations() {
    need_mnist_base
    { echo "mnist-base $mnist_base" && variants mnist-only "$mnist_base" &&
        echo "mnist-only-without-axes $mnist_base train.principal=no"; } | together
    table mnist-ablations "$out/mnist-base/" "$out"/mnist-only-*/
}
run_mnist_leads() {
    need_mnist_base
    {
        echo "mnist-base $mnist_base"
        echo "mnist-lead-parameters $mnist_base train.loss_by=parameters"
        echo "mnist-lead-errors $mnist_base train.loss_by=errors"
        echo "mnist-lead-edge64 $mnist_base model.edge=64"
        echo "mnist-lead-late $mnist_base train.times=late"
        echo "mnist-lead-rates-x2 $mnist_base train.lr=0.001 train.muon_lr=0.02"
        echo "mnist-lead-node256 $mnist_base model.node=256 model.edge=64"
    } | together
    table mnist-leads "$out/mnist-base/" "$out"/mnist-lead-*/
}

# Milliseconds of a network, as measured on one H200, where no update is timed with them.
karhunen_each=0.021
mnist_each=0.77
# NAME RECIPE MS-AN-UPDATE MS-A-NETWORK NETWORKS-AN-UPDATE POOL SECONDS-BESIDE FULL SETTINGS: the
# recipe; its pool is filled first.
fresh() {
    name=$1 recipe=$2
    beside=$(awk "BEGIN { print $7 + $4 * $6 / 1000 }")
    plan 1 "$(awk "BEGIN { print $3 + $4 * $5 }")" "$beside" "$8"
    # On a slower machine the schedule is shortened: the next call would plan another run.
    limit=
    [ -z "${BUDGET:-}" ] || [ -n "${UPDATES:-}" ] ||
        limit=train.max_seconds=$(awk "BEGIN { s = int(0.97 * $(left) - $7); print s < 1 ? 1 : s }")
    shift 8
    [ -z "$limit" ] || set -- "$@" "$limit"
    [ -z "${SEED:-}" ] || { name=$name-seed$SEED && set -- "$@" "$(seeds "$SEED")"; }
    echo "$name $estimate $recipe $* train.updates=$updates" | together
    table "$name" "$out/$name/" && cat "$out/$name.txt"
}
# NAME COUNT SETTINGS: $own_ms of an update on some of NAME's networks, and $own for a run that
# trains its own: COUNT networks to judge against, 100 held-out ones after them, then fresh ones.
own_networks() {
    own=$1 count=$2
    shift 2
    own_ms=0 # nothing is planned where the updates are told
    if [ -z "${UPDATES:-}" ]; then
        collection "$own.conf" "some-$own" $((count < 1000 ? count : 1000))
        own_ms=$(milliseconds 1 "$own.conf" "$out/some-$own.safetensors" "$@")
        [ -n "$own_ms" ] || stop "$own: the timed training failed"
    fi
    own="zoo.count=$count zoo.held_out=100"
}
run_karhunen_fresh() {
    own_networks karhunen "$karhunen"
    fresh karhunen-fresh karhunen-fresh.conf "$own_ms" $karhunen_each 32 64000 10 170000 "$own"
}
run_mnist_fresh() {
    own_networks mnist "$mnist" train.batch=128
    fresh mnist-fresh mnist-fresh.conf "$own_ms" $mnist_each 5 32000 50 55000 "$own" train.batch=128
}
# NAME RECIPE MS-AN-UPDATE MS-A-NETWORK NETWORKS SETTINGS: NETWORKS times 1, 3, 10, 30 distinct ones
# in the time of $updates updates alone.
distinct() {
    name=$1 recipe=$2 ms=$3 each=$4 networks=$5
    shift 5
    for times in 30 1 10 3; do
        echo "$name-${times}x $estimate $recipe $* eval.controls=no train.fresh_pool=$networks" \
            "$(awk -v u="$updates" -v ms="$ms" -v each="$each" -v n="$networks" \
            -v times=$times 'BEGIN {
            made = u - (ms > 0 ? n * (times - 1) * each / ms : 0)
            if (made < 1) exit 1
            rate = times > 1 ? n * (times - 1) / made : 1e-9
            print "train.updates=" int(made), "train.fresh_rate=" rate }' ||
                echo none)"
    done | grep -v ' none$'
}
run_mnist_distinct() {
    own_networks mnist "$mnist" train.batch=128
    plan 4 "$own_ms" 40 20000
    distinct mnist-distinct mnist-fresh.conf "$own_ms" $mnist_each "$mnist" "$own" \
        train.batch=128 | together
    table mnist-distinct "$out"/mnist-distinct*/
}
run_karhunen_distinct() {
    own_networks karhunen "$karhunen"
    plan 4 "$own_ms" 7 20000
    distinct karhunen-distinct karhunen-fresh.conf "$own_ms" $karhunen_each "$middle" "$own" |
        together
    table karhunen-distinct "$out"/karhunen-distinct*/
}
# What holds the gap shut on a stored collection, three seeds where a difference is to be claimed.
# fixed_list SETTINGS-OF-A-SMALL-FIELD; fixed NAME OVERHEAD MS FULL SMALL RECIPE SETTINGS
fixed_list() {
    for seed in 0 1 2; do
        echo "$seed $(seeds $seed)"
        echo "decay-$seed $(seeds $seed) train.weight_decay=0.1"
        echo "dropout-$seed $(seeds $seed) model.dropout=0.1"
        echo "validation-$seed $(seeds $seed) train.weights=validation"
    done
    echo "ema99 train.ema=0.99"
    echo "small $1"
}
fixed() {
    name=$1 over=$2 ms=$3 full=$4 small=$5
    shift 5
    list=$(set -f && fixed_list "$small" | while read -r run rest; do
        for pattern in ${ONLY:-"*"}; do
            # shellcheck disable=SC2254
            case $run in $pattern) echo "$run $rest" && break ;; esac
        done
    done)
    plan "$(echo "$list" | wc -l)" "$ms" "$over" "$full"
    echo "$list" | while read -r run rest; do
        echo "$name-$run $estimate $* train.updates=$updates $rest"
    done | together
    table "$name" "$out/$name"*/
}
run_mnist_fixed() {
    need_mnist
    fixed mnist-fixed 8 "$m_ms" 50000 "model.node=128 model.edge=64" mnist.conf "$m" \
        eval.controls=no sample.solver=euler sample.steps=50
}
run_karhunen_fixed() {
    need_karhunen
    fixed karhunen-fixed 5 "$k_ms" 20000 "$(width 32)" karhunen.conf "$k" \
        train.limit="${FIXED:-$middle}"
}

# Sets `limit` and `estimate` for RUNS runs of equal time with SECONDS beside the training, PART of
# the time left: with BUDGET train.max_seconds, to which the schedule is shortened.
timed() {
    limit=${UPDATES:+train.updates=$UPDATES} estimate=$2
    [ -n "${BUDGET:-}" ] || return 0
    seconds=$(awk -v left="$(left)" -v part="$3" -v rounds=$((($1 + jobs - 1) / jobs)) -v beside="$2" 'BEGIN {
        s = int(0.96 * left * part / rounds - beside)
        print (s < 1 ? 1 : s) }')
    limit="$limit train.max_seconds=$seconds"
    estimate=$((seconds + $2))
    note "$seconds s of training a run"
}
# The tables that runs NAME ... have printed.
printed() {
    for run in "$@"; do
        [ ! -f "$out/$run/eval.json" ] || { echo "== $run" && cat "$out/$run.txt"; }
    done
}
run_openml20() {
    timed 5 60 "$share"
    all="$estimate openml20.conf $limit train.batch=56"
    {
        echo "openml20 $all"
        echo "openml20-fresh $all zoo.fresh=yes"
        echo "openml20-wide $all $(width 128)"
        shares=letter:25,mfeat-karhunen:9,solar-flare-5:5,mfeat-morphological:4,BNG-cmc:3
        shares=$shares,kr-vs-kp:2,mfeat-factors:2,mfeat-zernike:2,balance-scale:2,hayes-roth:2
        echo "openml20-letter $all train.batch=66 train.shares=$shares"
        echo "openml20-batch224 $all train.batch=224"
    } | together
    printed openml20 openml20-fresh openml20-wide openml20-letter openml20-batch224
}
run_acs() {
    timed 4 20 "$share"
    all="$estimate acs.conf $limit train.batch=128"
    {
        echo "acs $all"
        echo "acs-fresh $all zoo.fresh=yes"
        echo "acs-attention $all model.messages=attention"
        echo "acs-time30 $all model.time_frequency=30"
    } | together
    # the same flow once more; refined.json keeps what eval.json had
    for name in acs acs-fresh acs-attention acs-time30; do
        if [ -f "$out/$name/eval.json" ] && [ ! -f "$out/$name/refined.json" ]; then
            cp "$out/$name/eval.json" "$out/$name/refined.json"
            "$weft" run "$out/$name/recipe.conf" -o "$out/$name" --device "$device" \
                -q --redo --set sample.steps=20 \
                --set sample.refine_cycles=0 >>"$out/$name.txt" 2>&1 || failed "$name by Euler 20"
        fi
    done
    printed acs acs-fresh acs-attention acs-time30
}
# NAME RECIPE HUNDREDTHS-OF-THE-TIME [SECTION.KEY=VALUE ...]
paper() {
    name=$1 recipe=$2
    timed 1 40 "$(awk -v share="$share" -v part="$3" 'BEGIN { print share * part / 100 }')" >&2
    shift 3
    echo "$name $estimate $recipe $limit train.batch=256 $*"
}
run_paper() {
    need_karhunen
    need_mnist
    aligned_collection mnist
    {
        paper paper-karhunen karhunen-paper.conf 8 "$k"
        paper paper-acs acs-paper.conf 20
        paper paper-mnist mnist-paper.conf 26 "$m"
        paper paper-mnist-aligned mnist-paper.conf 26 "$m train.path=$out/mnist-aligned.safetensors"
        paper paper-openml20 openml20-paper.conf 20 train.batch=192
    } | together
    printed paper-karhunen paper-acs paper-mnist paper-mnist-aligned paper-openml20
}

# Updates that take as long as the base's, each timed alone: SECTION.KEY=VALUE ...
as_long() {
    ms=$(milliseconds 1 karhunen.conf "$out/karhunen.safetensors" train.limit="$middle" "$@")
    [ -n "$ms" ] || stop "leads: the timed training with $* failed"
    awk -v updates="$base_updates" -v base="$alone" \
        -v ms="$ms" 'BEGIN { u = int(updates * base / ms); print (u < 1 ? 1 : u) }'
}
width() { echo "model.node=$1 model.edge=$1 model.time=$1"; }
run_leads() {
    need_base
    alone=$(milliseconds 1 karhunen.conf "$out/karhunen.safetensors" train.limit="$middle")
    [ -n "$alone" ] || stop "leads: the timed training failed"
    quarter=$((batch / 4)) half=$((batch / 2))
    # Timed before any of them runs.
    quarter_updates=$(as_long train.batch=$quarter) || exit 1
    half_updates=$(as_long train.batch=$half) || exit 1
    # shellcheck disable=SC2046
    wide_updates=$(as_long $(width 128)) || exit 1
    # shellcheck disable=SC2046
    narrow_updates=$(as_long $(width 32)) || exit 1
    {
        echo "base $base"
        echo "lead-batch$quarter $base train.batch=$quarter train.updates=$quarter_updates"
        echo "lead-rates-x2 $base train.lr=0.002 train.muon_lr=0.04"
        echo "lead-width128 $base $(width 128) train.updates=$wide_updates"
        echo "lead-batch$half $base train.batch=$half train.updates=$half_updates"
        echo "lead-rates-x0.5 $base train.lr=0.0005 train.muon_lr=0.01"
        echo "lead-width32 $base $(width 32) train.updates=$narrow_updates"
        echo "lead-seed1 $base $(seeds 1)" # these two where time is left
        echo "lead-times $base train.times=logit-normal"
    } | together
    table leads "$out/base/" "$out"/lead-*/
}

# One way to sample: COLLECTION RECIPE FLOW EULER-STEPS [T,K[,S]]
schedule() {
    name=$1:$4${5:+:$5} refine=${5:+--refine $5}
    if [ "$(left)" -lt 3 ]; then note "left out: $name" >&2 && return; fi
    # shellcheck disable=SC2086
    if ! "$weft" sample "$3" -n "${COUNT:-100}" --solver euler --steps "$4" $refine \
        -o "$out/$name.safetensors" \
        --force --device "$device" -q >/dev/null ||
        ! row=$("$weft" eval --zoo "$out/$1.safetensors" --nets "$out/$name.safetensors" \
        --data "$recipes/$2" --name "$name" \
            --device "$device" -q --json); then
        failed "$name"
        return
    fi
    # in one piece: others write to the same file
    printf '%s\n' "$(echo "$row" | tr -d '\n' | tr -s ' ')"
}
schedules() { # COLLECTION RECIPE FLOW
    for how in "100 0.8,10,1" "100 0.9,30,1" "100" "10" "100 0.75,10" "100 0.8,30,1" \
        "100 0.9,60,1" "100 0.7,10,1" "100 0.85,20,1" \
        "100 0.9,10,1" "100 0.6,10,1" "100 0.8,20,2" "10 0.9,30,1" "5" "100 0.95,60,1"; do
        echo "$1 $2 $3 $how"
    done
}
# The run on karhunen whose direct networks score best.
best() {
    for run in "$out"/base/ "$out"/only-*/ "$out"/lead-*/ "$out"/sweep-*/; do
        [ -f "$run/eval.json" ] || continue
        echo "$(tr -d '\n ' <"$run/eval.json" |
            sed 's/.*"name":"gmn",//; s/"jws_std.*//; s/.*"jws"://; s/,.*//') $run"
    done | sort -rn | head -n 1 | cut -d ' ' -f 2
}
run_refinement() {
    run=$(best)
    note "of ${run:-no run on karhunen}"
    {
        [ -z "$run" ] || schedules karhunen karhunen.conf "${run}flow.safetensors"
        [ ! -f "$out/mnist/eval.json" ] || schedules mnist mnist.conf "$out/mnist/flow.safetensors"
    } | xargs -r -P "$jobs" -L 1 "$0" schedule >"$out/refinement.jsonl"
    echo "networks: accuracy, error-IoU, WCS, JWS, WCS within, nearer than 99 % of trained ones"
    number='\([0-9.]*\)'
    scores='.*"name": "\([^"]*\)".*"accuracy_mean": '$number'.*"iou_mean": '$number'.*"wcs_mean": '$number'.*"jws": '$number
    near='.*"diversity_wcs_mean": '$number'.*"novelty": { "n": [0-9]*, "wcs".*"at_99th_percentile": '$number' }, "iou".*'
    sed "s/$scores$near/\1 \2 \3 \4 \5 \6 \7/" "$out/refinement.jsonl"
}

# --- the paper's grid of rivals, and its scaling experiment ---------------------------------------

# Configurations, a line each: NAME RECIPE [SECTION.KEY=VALUE ...]. Everything else is as in the
# recipe.
mnist_grid() {
    echo "mnist-mlp mnist-mlp train.batch=64"
    for one in "256 1e-3 cosine 0.999" "256 5e-4 cosine 0.999" "368 1e-3 cosine 0.999" \
        "368 5e-4 cosine 0.999" "368 3e-4 constant 0.9999"; do
        # shellcheck disable=SC2086
        set -- $one
        settings="train.batch=256 model.width=$1 train.lr=$2 train.schedule=$3 train.ema=$4"
        echo "mnist-dit-h$1-lr$2-$3-ema$4 mnist-dit $settings"
    done
    for b in 32 64 256; do
        for lr in 1e-3 5e-4 1e-4; do
            for h in 200 300 400 558; do
                for kind in dwf dwf-aligned; do
                    echo "mnist-dwf-b$b-lr$lr-h$h${kind#dwf} mnist-$kind" \
                        "train.batch=$b train.lr=$lr model.width=$h"
                done
            done
        done
    done
    for h in 104 160 224 232 320 328 1024; do
        more=
        [ "$h" = 1024 ] && more=" model.blocks=8 model.token=289" # what its printed size takes
        for prior in kde gauss
        do echo "mnist-sane-h$h-$prior mnist-sane-$prior train.batch=32 model.width=$h$more"; done
    done
    echo "mnist-pdiff mnist-pdiff train.batch=50"
}
cifar10_grid() {
    echo "cifar10-mlp cifar10-mlp train.batch=64"
    echo "cifar10-dit-lr2e-4-constant cifar10-dit train.batch=256 train.lr=2e-4" \
        "train.schedule=constant"
    echo "cifar10-dit-lr5e-4-cosine cifar10-dit train.batch=256 train.lr=5e-4 train.schedule=cosine"
    for kind in dwf dwf-aligned; do
        for one in "256 5e-4" "256 1e-3" "256 1e-4" "64 5e-4"; do
            # shellcheck disable=SC2086
            set -- $one
            echo "cifar10-dwf-b$1-lr$2${kind#dwf} cifar10-$kind train.batch=$1 train.lr=$2"
        done
    done
    echo "cifar10-dwf-b64-lr1e-4-aligned cifar10-dwf-aligned train.batch=64 train.lr=1e-4"
    for h in 640 1024; do
        for prior in kde gauss
        do echo "cifar10-sane-h$h-$prior cifar10-sane-$prior train.batch=32 model.width=$h"; done
    done
    echo "cifar10-pdiff cifar10-pdiff train.batch=256"
}
grid() { mnist_grid && cifar10_grid; }
scaling() {
    for method in gmn dit dit-l dwf dwf-aligned dwf-l dwf-l-aligned; do
        recipe=karhunen-$method table=
        [ "$method" = gmn ] && recipe=../karhunen-paper
        case $method in dwf*) table=yes ;; esac
        for n in $sizes
        do
            echo "scaling-$method-$n $recipe train.batch=256" \
                "train.limit=$n${table:+ train.noise_table=$n}"
        done
    done
}

rivals() {
    for set in mnist cifar10 digits; do
        case $set in digits) echo "$set-gmn $set-gmn" ;; *) echo "$set-gmn ../$set-paper" ;; esac
        for method in mlp dit dwf dwf-aligned sane-kde sane-gauss pdiff
        do echo "$set-$method $set-$method"; done
    done
}

# The share of so many updates, and of those of a recipe as settings.
part() { echo $((($1 * ${SHARE:-100} + 99) / 100)); }
share_of() {
    [ "${SHARE:-100}" != 100 ] || return
    for key in train.updates model.vae_updates; do
        full=$(sed -n "s/^${key#*.} *= *\([0-9]*\).*/\1/p" "$recipes/rivals/$1.conf")
        [ -z "$full" ] || printf '%s=%s ' $key "$(part "$full")"
    done
}
permutation() {
    for seed in 0 1 2; do
        for one in "mlp 10000" "dit 1600" "dwf 20000"; do
            # shellcheck disable=SC2086
            set -- $one
            same="digits-$1 train.updates=$(part "$2") $(seeds $seed)"
            echo "permutation-$1-as-it-is-$seed $same"
            echo "permutation-$1-aligned-$seed $same train.path=$out/digits-aligned.safetensors"
            echo "permutation-$1-relabelled-$seed $same train.relabel=yes"
        done
    done
}
# The noise table of dwf has a vector for each network.
origin() {
    for one in "mlp 10000" "dit 1600" "dwf 20000 train.noise_table=$run_length" \
        "dwf-aligned 20000 train.noise_table=$run_length" \
        "sane-kde 1500" "sane-gauss 1500" "pdiff 3000 model.vae_updates=$(part 1500)"; do
        # shellcheck disable=SC2086
        set -- $one
        aligned=
        case $1 in *-aligned | sane-*) aligned="train.path=$out/trajectory-aligned.safetensors" \
            ;; esac
        echo "origin-$1 digits-$1 zoo.path=$out/trajectory.safetensors train.updates=$(part \
            "$2") ${3:-} $aligned"
    done
}
# Networks of one training run: seed 1, network 0, after 21, 22 ... epochs. The rate is constant and
# all draws have addresses, so each is a checkpoint of the same run.
run_length=${RUN_LENGTH:-200}
trajectory() {
    [ -f "$out/trajectory-aligned.safetensors" ] && return
    mkdir -p "$out/trajectory"
    for epochs in $(seq 1021 $((1020 + run_length))); do # four digits: files in order
        [ -f "$out/trajectory/$epochs.safetensors" ] ||
            "$weft" zoo train "$recipes/rivals/digits-dwf.conf" --seed 1 -n 1 \
            --set zoo.epochs=$((epochs - 1000)) \
                -o "$out/trajectory/$epochs.safetensors" -q >/dev/null || exit 1
    done
    "$weft" zoo merge "$out"/trajectory/*.safetensors -o "$out/trajectory.safetensors" \
        --force -q >/dev/null || exit 1
    aligned_collection trajectory
}

# The lines of the function $1 whose names match one of the patterns.
chosen() {
    list=$1
    shift
    "$list" | while read -r name rest; do
        [ $# -gt 0 ] || echo "$name $rest"
        for pattern in "$@"; do
            # shellcheck disable=SC2254
            case $name in $pattern) echo "$name $rest" && break ;; esac
        done
    done
}
# One aligned collection for all runs that want it: NAME
aligned_collection() {
    [ -f "$out/$1-aligned.safetensors" ] ||
        "$weft" align "$out/$1.safetensors" -o "$out/$1-aligned.safetensors" --device "$device" \
        -q >&2
}
# Runs from stdin, with the collections that they take.
with_collections() {
    while read -r name recipe rest; do
        zoo=${recipe#../}
        zoo=${zoo%%-*}
        case $name in
        permutation-*-aligned-*) collection rivals/digits-dwf.conf digits "$digits" >&2 &&
            aligned_collection digits ;;
        origin-*) trajectory >&2 ;;
        esac
        case $zoo in
        mnist) collection mnist.conf mnist "$mnist" >&2 ;;
        karhunen) collection karhunen.conf karhunen "$karhunen" >&2 ;;
        digits) collection rivals/digits-dwf.conf digits "$digits" >&2 ;;
        cifar10)
            [ -n "${CIFAR:-}" ] || { note "left out: $name; CIFAR names no collection" >&2 &&
                continue; }
            [ -f "$out/cifar10.safetensors" ] ||
                ln -s "$(realpath "$CIFAR")" "$out/cifar10.safetensors"
            ;;
        esac
        paths="zoo.path=$out/$zoo.safetensors eval.controls=no"
        [ ! -f "$out/$zoo-held-out.safetensors" ] ||
            paths="$paths zoo.held_out_path=$out/$zoo-held-out.safetensors"
        case $name:$recipe in origin-* | permutation-*) ;; *-aligned | *-sane-*) \
            aligned_collection "$zoo" &&
            paths="$paths train.path=$out/$zoo-aligned.safetensors" ;; esac
        echo "$name 0 rivals/$recipe.conf $paths $(share_of "$recipe")$rest"
    done
}
# Parameters of the configurations from stdin, each as its recipe and settings say.
sizes_of() {
    while read -r name recipe rest; do
        set --
        for setting in $rest; do set -- "$@" --set "$setting"; done
        "$weft" model info "$recipes/rivals/$recipe.conf" "$@" --json -q |
            awk -v name="$name" -F '[:,]' \
            '/"parameters"/ { print name, $2 + 0; n = 1; exit } END { exit !n }' || exit 1
    done
}
run_configurations() {
    list=$1
    shift
    if [ "${1:-}" = --list ]; then
        shift
        chosen "$list" "$@" | cut -d ' ' -f 1
        exit 0
    fi
    if [ "${1:-}" = --sizes ]; then
        shift
        chosen "$list" "$@" | sizes_of
        exit
    fi
    mkdir -p "$out"
    rm -f "$out/failed"
    chosen "$list" "$@" | with_collections | together
    case $list in
    grid | rivals) for set in mnist cifar10 digits karhunen
    do methods_table "$list-$set" "$list" "$set-*"; done ;;
    scaling) methods_table scaling scaling '*' --over train.limit \
        --beside "$bench/paper_karhunen.json" ;;
    *) methods_table "$list" "$list" '*' ;;
    esac
    [ ! -e "$out/failed" ]
    exit
}
# NAME LIST PATTERN [OPTIONS]: the table and the page of the runs of LIST that match and are done.
methods_table() {
    name=$1 list=$2 pattern=$3
    shift 3
    for run in $(chosen "$list" "$pattern" | cut -d ' ' -f 1); do
        [ ! -f "$out/$run/eval.json" ] || set -- "$@" "$out/$run/"
    done
    case "$*" in *"$out"/*) table "$name" "$@" --methods -o "$out/$name.html" ;; esac
}

if [ "${1:-}" = cifar10 ]; then
    shift
    exec "$bench/cifar10.sh" "$@"
fi
case ${1:-} in
grid | scaling | rivals | permutation | origin)
    case $1 in grid | scaling) ;; *) export BATCH= ;; esac
    export THREADS=$(($(nproc) / jobs > 0 ? $(nproc) / jobs : 1))
    list=$1
    shift
    run_configurations "$list" "$@"
    ;;
esac
if [ "${1:-}" = one ] || [ "${1:-}" = schedule ]; then
    "$@"
    exit 0
fi
mkdir -p "$out"
rm -f "$out/failed"
if [ "$jobs" -gt 1 ] && [ "$device" = cuda ] && command -v nvidia-cuda-mps-control >/dev/null; then
    CUDA_MPS_PIPE_DIRECTORY=$(cd "$out" && pwd)/mps
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY="$CUDA_MPS_PIPE_DIRECTORY"
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
    nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control >/dev/null' EXIT
fi
export THREADS=$(($(nproc) / jobs > 0 ? $(nproc) / jobs : 1))
[ $# -gt 0 ] || set -- sweep mnist ablations alignment mnist-ablations mnist-leads lstar leads \
    refinement
# Weights of the experiments in the time; what one leaves over goes to those behind it.
weight() {
    case $1 in sweep) echo 30 ;; mnist) echo 25 ;; \
        mnist-ablations | mnist-alignment | mnist-leads | *-fresh | *-distinct | *-fixed | openml20 | acs | paper) echo 15 ;; refinement) echo 2 ;; *) echo 9 ;; esac
}
while [ $# -gt 0 ]; do
    asked=$* total=0
    for experiment in $asked; do total=$((total + $(weight "$experiment"))); done
    share=$(awk -v own="$(weight "$1")" -v total=$total 'BEGIN { print own / total }')
    note "== $1"
    # seconds kept for it: it is cheap
    case "$asked " in *" refinement "*) export RESERVE=12 ;; *) RESERVE=0 ;; esac
    case $1 in
    sweep | mnist | alignment | ablations | lstar | leads | refinement) "run_$1" ;;
    mnist-* | karhunen-*)
        run=run_$(echo "$1" | tr - _)
        command -v "$run" >/dev/null || { echo "no experiment $1" >&2 && exit 2; }
        "$run" ;;
    openml20 | acs | paper) "run_$1" ;;
    *) echo "no experiment $1" >&2 && exit 2 ;;
    esac
    shift
done
note "done"
[ ! -e "$out/failed" ] || stop "a run failed: see FAILED above"
