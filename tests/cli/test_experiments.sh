#!/bin/sh
# bench/experiments.sh and bench/science_lease.sh as a GPU lent for minutes runs them, at the size of
# a rehearsal on the CPU: no experiment stumbles, a run goes on in the next call, results come back.
. tests/cli/lib.sh
not_sanitized "scripts around a program that other tests watch"
if [ ! -f "${WEFT_DATA:-/nowhere}/mfeat/mfeat-karhunen.arff.gz" ]; then
    echo "skip experiments: WEFT_DATA names no folder with mfeat-karhunen"
    finish
    exit
fi
export DEVICE=cpu COUNT=2 KARHUNEN=24 BATCH=4 SIZES="24 8"
small="model.node=8 model.edge=8 model.time=8 model.blocks=1 sample.steps=2 eval.subsets=2"
small="$small sample.refine_cycles=1 train.fresh_pool=16 train.fresh_rate=1"
tried() { UPDATES=3 SETTINGS=$small OUT=$scratch/all WEFT=$weft bench/experiments.sh "$@"; }
expect rehearsal 0 "done" tried karhunen-fresh karhunen-distinct leads lstar
for run in karhunen-fresh karhunen-distinct-1x lead-width128 lstar-24; do
    check "$run" test -f "$scratch/all/$run/eval.json"
done
seeded() { SEED=2 tried karhunen-fresh; }
expect seed 0 "karhunen-fresh-seed2" seeded
check "each part has that seed" test \
    "$(grep -c '^seed = 2' "$scratch/all/karhunen-fresh-seed2/recipe.conf")" = 3
some() { ONLY="small dropout-2" tried karhunen-fixed; }
expect only 0 "2 runs of 3 updates" some
check "those and no others" test "$(cd "$scratch/all" && echo karhunen-fixed-*/)" = \
    "karhunen-fixed-dropout-2/ karhunen-fixed-small/"
expect unknown 2 "no experiment mnist-nothing" tried mnist-nothing

# --- one command a call ---------------------------------------------------------------------------
export BUILD="$scratch/made"
packed() { WEFT="$(dirname "$weft")/weft-cpu" bench/science_lease.sh pack "$@"; }
[ -x "$(dirname "$weft")/weft-cpu" ] || packed() { WEFT=$weft bench/science_lease.sh pack "$@"; }
expect no-part 2 "PART is 1, 2 or 3" packed karhunen-fresh 4
expect pack 0 "MiB of the tree beside it" packed karhunen-fresh
check "the data of the experiment alone" test "$(ls "$BUILD/lease/data")" = mfeat
mkdir "$scratch/back"
lease() {
    env -u WEFT_DATA RUNS="$scratch/lent" OUT="$scratch/back" \
        SETTINGS="$small train.save_seconds=1" bench/science_lease.sh "$@"
}
# Far more updates than the first call has time for; the second is told fewer. On a busy machine
# the shortest call may end before the first line of the log.
stopped() { UPDATES=1000000 LEASE=$seconds lease karhunen-fresh; }
log=$scratch/lent/karhunen-fresh/flow.safetensors.log.jsonl
for seconds in 24 60 150; do
    stopped >"$scratch/stopped" 2>&1
    code=$?
    grep -qs '"loss"' "$log" && break
done
check "stopped in the middle" sh -c '[ "$0" = 0 ] && grep -q "karhunen-fresh: saved" "$1"' $code \
    "$scratch/stopped"
before=$(grep '"loss"' "$log" | tail -n 1 | sed 's/.*"update":\([0-9]*\).*/\1/')
more() { UPDATES=$((before + 100)) lease karhunen-fresh; }
rm -r "$BUILD/lease" # the next call carries nothing
expect goes-on 0 "karhunen-fresh" more
check "each update once" python3 -c '
import json, sys
at = [json.loads(x)["update"] for x in open(sys.argv[1]) if "\"loss\"" in x]
assert at == sorted(set(at)) and at[0] <= 20 and at[-1] > int(sys.argv[2]), (at[:3], at[-3:])' \
    "$log" "$before"
check "a line for the run" grep -q "^karhunen-fresh  *0\.[0-9]" "$scratch/out"
check "what comes back" sh -c 'tar -tzf "$0/results.tar.gz" | grep -q karhunen-fresh/eval.json &&
    [ -f "$0/karhunen-fresh-nets.safetensors" ] && [ "$(ls "$0" | wc -l)" -le 8 ]' "$scratch/back"
finish
