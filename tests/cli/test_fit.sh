#!/bin/sh
# A flow without a recipe: planned for the time, the recipe beside it makes the same flow, broken
# off it goes on, and what does not fit is said before any training.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1

"$weft" zoo train "$recipe" -o zoo.safetensors -q >/dev/null # 40 networks
mkdir measured
TMPDIR=$scratch/measured "$weft" fit zoo.safetensors --minutes 0.01 -o flow.safetensors \
    --json >fit.json 2>said
check fit test -s flow.safetensors
check "says the estimate first" grep -q "training: .* updates of .* networks, .* each: about" said
check "says the networks" grep -q "40 networks of .*: 36 train, 4 validate" said
check fit-json is_json fit.json
# A machine that gets busier between plan and training shortens the schedule, and says so where 5 %
# or more of it are lost.
planned=$(value fit.json plan.updates) made=$(value fit.json updates)
slower=$([ "$made" -eq "$planned" ] || echo yes)
check "the plan is in the JSON, or the machine was slower" sh -c '[ "$1" -le "$0" ] &&
    { [ $((100 * $1)) -gt $((95 * $0)) ] || grep -q "the machine was slower\|max_seconds is over" said; }' \
    "$planned" "$made"
check "the recipe lies beside" grep -q "^updates = $(value fit.json plan.updates) " \
    flow.safetensors.recipe.conf
check "with the promised time" grep -q "^max_seconds = " flow.safetensors.recipe.conf
check "too short a time is a warning" grep -q "warning: .* as minutes = " said
check "nothing stays of the measurement" test -z "$(ls -A measured)"
expect nowhere 4 "no temporary folder can be made in" env TMPDIR="$scratch/none" \
    "$weft" fit zoo.safetensors -o x.safetensors

# The recipe makes the same flow: the same networks.
if [ -n "$slower" ]; then
    cp flow.safetensors.recipe.conf planned.conf # weft train puts its own there
    rm flow.safetensors flow.safetensors.log.jsonl
    "$weft" train planned.conf --set train.max_seconds=0 --zoo zoo.safetensors -o flow.safetensors \
        -q
    cp planned.conf flow.safetensors.recipe.conf
fi
check train "$weft" train flow.safetensors.recipe.conf --set train.max_seconds=0 \
    --zoo zoo.safetensors -o again.safetensors -q
for flow in flow again; do
    "$weft" sample $flow.safetensors -n 3 -o $flow.nets.safetensors --json -q >$flow.json
    "$weft" zoo export $flow.nets.safetensors -i 2 -o $flow.one.safetensors -q >/dev/null
done
check "weft train with it makes the same flow" cmp flow.one.safetensors again.one.safetensors
cp flow.safetensors.recipe.conf alone.conf
check "weft run takes it" "$weft" run alone.conf -o ran --set train.max_seconds=0 \
    --set sample.count=4 --set eval.subsets=3 -q
check "and makes the same flow" python3 -c '
import json, struct
def tensors(path):
    data = open(path, "rb").read()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    return {k: data[8 + n:][slice(*v["data_offsets"])] for k, v in header.items() if k.startswith("weights.")}
assert tensors("flow.safetensors") == tensors("ran/flow.safetensors")'
# Beside its flow, the recipe does not fit it again; with other settings it does.
run() { "$weft" run flow.safetensors.recipe.conf --set sample.count=4 --set eval.subsets=3 "$@"; }
expect "weft run takes the flow over" 0 "training: that of flow.safetensors" run -o taken
check "as it is" cmp flow.safetensors taken/flow.safetensors
check "with its log" cmp flow.safetensors.log.jsonl taken/flow.safetensors.log.jsonl
check "other settings" run -o other --set model.node=8 --set model.edge=8 --set train.updates=5 -q
check "are fitted anew" test "$("$weft" flow info other/flow.safetensors --json |
    python3 -c 'import json,sys; print(json.load(sys.stdin)["updates"])')" = 5

before=$(cksum <flow.safetensors)
expect done 0 "done before" "$weft" fit zoo.safetensors -o flow.safetensors
check "and leaves the flow as it is" test "$before" = "$(cksum <flow.safetensors)"
# Killed behind its last update, it has left its lock, and not kept how the flow samples.
cp flow.safetensors killed.safetensors
sed '/^steps = /d; s/^\[sample\]/&\nsteps = 7/' flow.safetensors.recipe.conf \
    >killed.safetensors.recipe.conf
touch .killed.safetensors.lock
expect "killed behind the last update" 0 "done before" "$weft" fit zoo.safetensors \
    -o killed.safetensors
check "it keeps how it samples" grep -q '"sample.steps":"7"' killed.safetensors
check "and sweeps the lock" test ! -e .killed.safetensors.lock
"$weft" zoo head zoo.safetensors -n 30 -o other.safetensors -q >/dev/null
expect "a flow of another collection" 2 "is a flow of $scratch/zoo.safetensors" \
    "$weft" fit other.safetensors -o flow.safetensors
check force "$weft" fit zoo.safetensors -m 0.01 -o flow.safetensors --force --seed 5 -q
check "the seed is in the recipe" grep -q "^seed = 5" flow.safetensors.recipe.conf
expect foreign 2 "is there already" "$weft" fit zoo.safetensors -o again.nets.safetensors

# Broken off, the same command goes on with the same plan and ends where it would have.
"$weft" fit zoo.safetensors -m 0.2 -o long.safetensors -q >/dev/null 2>stopped &
process=$!
wait_for test -s long.safetensors.log.jsonl
# Meanwhile nobody else plans for this flow, or removes it.
before=$(cksum <long.safetensors.recipe.conf)
expect "a second fit of it" 5 "is being made by process $process" "$weft" fit zoo.safetensors \
    -m 0.1 -o long.safetensors
expect "with --force" 5 "is being made by process $process" "$weft" fit zoo.safetensors -m 0.1 \
    -o long.safetensors --force
check "the plan is that of the first" test "$before" = "$(cksum <long.safetensors.recipe.conf)"
kill -INT $process
wait $process
check interrupted test $? = 130
check "a checkpoint is kept" test -s long.safetensors
before=$(cksum <long.safetensors.recipe.conf)
"$weft" fit zoo.safetensors -m 0.2 -o long.safetensors --json >long.json 2>said
made=$(sed -n 's/.*interrupted after update \([0-9]*\);.*/\1/p' stopped)
check "goes on from the update that was the last" grep -q "goes on from update ${made:-?} of" said
check "with the same recipe" test "$(cksum <long.safetensors.recipe.conf)" = "$before"
expect "to its end" 0 "done before" "$weft" fit zoo.safetensors -m 0.2 -o long.safetensors

# Killed while it plans: what lies among the temporary files goes with the next call, also one that
# finds all done.
mkdir temporary
for plan in unplanned long; do
    TMPDIR=$scratch/temporary "$weft" fit zoo.safetensors -m 60 -o unplanned.safetensors -q \
        >/dev/null 2>&1 &
    process=$!
    wait_for sh -c 'ls temporary/.weft_plan_*/.lock >/dev/null'
    check "a plan has a temporary folder" test "$(ls -A temporary | wc -l)" = 1
    kill -KILL $process
    wait $process 2>/dev/null
    check "which stays where its process is killed" test "$(ls -A temporary | wc -l)" = 1
    TMPDIR=$scratch/temporary "$weft" fit zoo.safetensors -m 0.01 -o $plan.safetensors -q \
        >/dev/null 2>&1
    check "until the next call, of $plan" test -z "$(ls -A temporary)"
    rm -f unplanned.safetensors*
done
# What has nearly the same name is somebody's own: a run, say, that was killed and has its lock.
mkdir temporary/weft_plan_mine && touch temporary/weft_plan_mine/.lock
TMPDIR=$scratch/temporary "$weft" fit zoo.safetensors -m 0.2 -o long.safetensors -q >/dev/null 2>&1
check "other folders stay" test -e temporary/weft_plan_mine/.lock

# Data: kept in the recipe by its whole path, refused where it does not fit.
printf 'a,b,y\n1,2,0\n2,3,1\n3,4,2\n4,5,1\n5,6,0\n6,7,2\n' >mine.csv
expect data-shape 3 "inputs" "$weft" fit zoo.safetensors -m 0.01 --data digits -o x.safetensors
expect no-zoo 3 "none.safetensors" "$weft" fit none.safetensors -o x.safetensors
expect no-out 2 "-o FILE" "$weft" fit zoo.safetensors
expect minutes 2 "--minutes" "$weft" fit zoo.safetensors --minutes 0 -o x.safetensors
check "nothing is left behind" test ! -e x.safetensors -a ! -e x.safetensors.recipe.conf
check data "$weft" fit zoo.safetensors -m 0.01 --data mine.csv --target y -o d.safetensors -q
check "the data is in the recipe" grep -qx "path = $scratch/mine.csv" d.safetensors.recipe.conf
check "its target too" grep -qx "target = y" d.safetensors.recipe.conf

# A path may hold quotes, backslashes, newlines and what looks like a comment.
odd='it"s \ #1
new'
mkdir "$odd"
cp zoo.safetensors "$odd"/zoo.safetensors
cp mine.csv "$odd"/mine.csv
check "an odd path" "$weft" fit "$odd"/zoo.safetensors -m 0.01 --data "$odd"/mine.csv --target y \
    -o "$odd"/flow -q
check "its recipe runs" "$weft" run "$odd"/flow.recipe.conf -o "$odd"/run --set sample.count=4 \
    --set eval.subsets=3 -q
check "and the page is made again" "$weft" report "$odd"/run
"$weft" train "$recipe" --zoo "$odd"/zoo.safetensors -o "$odd"/trained -q >/dev/null
check "the page counts what was fitted" grep -q 'fitted to [0-9]* of [0-9]* trained' \
    "$odd"/run/report.html
check "and updates that were made" grep -q '[0-9] updates of [0-9]* in ' "$odd"/run/report.html
(cd "$odd" && "$weft" run flow.recipe.conf --set sample.count=4 --set eval.subsets=3 -q >/dev/null)
check "the run has the flow's name" grep -q '<h1>weft: flow<' "$odd"/runs/flow/report.html
expect "so does that of weft train" 0 "training: that of" "$weft" run "$odd"/trained.recipe.conf \
    -o "$odd"/again --set sample.count=4
long=$(printf 'é%.0s' $(seq 40)) # the name in the recipe's first line is cut, at a whole character
cp "$recipe" "$long.conf"
check "a long name" "$weft" train "$long.conf" --zoo zoo.safetensors -o long_name -q
check "its recipe opens" "$weft" model info long_name.recipe.conf
bytes=$(printf 'bad\377.safetensors')
cp zoo.safetensors "$bytes"
expect "a path that is not UTF-8" 2 "is not UTF-8" "$weft" fit "$bytes" -m 0.01 -o y.safetensors
check "is refused before anything is written" test ! -e y.safetensors -a ! \
    -e y.safetensors.recipe.conf
check "and measured" sh -c '! grep -q measuring "$0"' "$scratch/err"

# weft train with a recipe of model and training alone: the recipe beside the flow names the
# networks.
printf '[model]\nnode = 8\nedge = 8\ntime = 8\nblocks = 1\n[train]\nupdates = 5\nbatch = 8\n' \
    >alone.conf
check "a recipe without data" "$weft" train alone.conf --zoo zoo.safetensors -o bare.safetensors -q
quick="--set sample.count=4 --set sample.solver=euler --set sample.steps=4 --set eval.subsets=3"
mkdir elsewhere
expect "its recipe runs from any folder" 0 "training: that of ../bare.safetensors" sh \
    -c "cd elsewhere && '$weft' run ../bare.safetensors.recipe.conf -o bare $quick"
check "weft report has no need of data either" "$weft" report elsewhere/bare
check "two collections" "$weft" train alone.conf --zoo zoo.safetensors,zoo.safetensors \
    -o two.safetensors -q
check "their recipe runs" sh \
    -c "cd elsewhere && '$weft' run ../two.safetensors.recipe.conf -o two -q $quick"
check "with conditions" "$weft" train alone.conf --set model.cond=mlp \
    --zoo zoo.safetensors,zoo.safetensors --cond '0;1' -o cond.safetensors -q
check "it runs too" sh \
    -c "cd elsewhere && '$weft' run ../cond.safetensors.recipe.conf -o cond -q $quick"
printf '[a]\nzoo = zoo.safetensors\n[b]\nzoo = zoo.safetensors\n' >two.conf
check "a manifest" "$weft" train alone.conf --manifest two.conf -o many.safetensors -q
check "and its recipe" sh \
    -c "cd elsewhere && '$weft' run ../many.safetensors.recipe.conf -o many -q $quick"
check "a pattern of files" "$weft" train alone.conf --zoo 'zo?.safetensors' -o pattern.safetensors \
    -q
check "and its recipe too" sh \
    -c "cd elsewhere && '$weft' run ../pattern.safetensors.recipe.conf -o pattern -q $quick"

printf '[data]\npath = mine.csv\ntarget = y\n' | cat - alone.conf >with_data.conf
check "data by a relative path" "$weft" train with_data.conf --zoo zoo.safetensors \
    -o data.safetensors -q
expect "is found from any folder" 0 "accuracy" sh \
    -c "cd elsewhere && '$weft' run ../data.safetensors.recipe.conf -o data $quick"
check "a condition of one collection" "$weft" train alone.conf --set model.cond=mlp \
    --zoo zoo.safetensors --cond 1 -o one.safetensors -q
check "is kept" grep -qx "cond = 1" one.safetensors.manifest.conf
check "and its recipe runs" sh \
    -c "cd elsewhere && '$weft' run ../one.safetensors.recipe.conf -o one -q $quick"

"$weft" zoo head zoo.safetensors -n 12 -o few.safetensors -q >/dev/null
expect few 0 "little but repeat them" "$weft" fit few.safetensors -m 0.01 -o few_flow.safetensors
check "once" test "$(grep -c 'warning: .*networks' "$scratch/err")" = 1
finish
