#!/bin/sh
# Several collections in one flow: manifests, tasks, conditions, widths; and what is said when one
# of them is wrong.
. tests/cli/lib.sh
cd "$scratch" || exit 1
meta() {
    python3 -c 'import json, struct, sys
file = open(sys.argv[1], "rb")
head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
print(head["__metadata__"].get(sys.argv[2], "absent"))' "$1" "$2"
}

cat >moons.conf <<'END'
[data]
name = moons
rows = 200
[zoo]
arch = 2-5-2
count = 30
epochs = 4
batch = 32
[model]
node = 8
edge = 8
time = 8
blocks = 1
cond = linear
[train]
updates = 20
batch = 8
cond_drop = 0.2
END
sed -e 's/moons/spirals/' -e 's/2-5-2/2-7-3/' moons.conf >spirals.conf
mkdir zoos
"$weft" zoo train moons.conf -o zoos/moons.safetensors -q >/dev/null
"$weft" zoo train spirals.conf -o zoos/spirals.safetensors -q >/dev/null
"$weft" zoo train spirals.conf -o zoos/wide.safetensors --set zoo.arch=2-9-3 -q >/dev/null

# Paths are looked up beside the manifest; two collections share a task.
cat >zoos/tasks.manifest <<'END'
[moons]
zoo = moons.safetensors   # 2-5-2
[spirals]
zoo = spirals.safetensors
[spirals-wide]
zoo = wide.safetensors
task = spirals
END
expect train 0 "20 updates" "$weft" train moons.conf --manifest zoos/tasks.manifest \
    -o flow.safetensors -q
check "the number of tasks is filled in" grep -q "^cond_size = 2" flow.safetensors.recipe.conf
expect "goes on with the same manifest" 0 "25 updates" "$weft" train moons.conf \
    -m zoos/tasks.manifest -o flow.safetensors --set train.updates=25 \
    --set train.schedule_updates=20 -q
expect "recipe's manifest" 0 "20 updates" "$weft" train moons.conf -o other.safetensors \
    --set zoo.manifest=zoos/tasks.manifest -q
"$weft" flow info flow.safetensors --json >flow.json
check flow-info python3 -c '
import json
flow = json.load(open("flow.json"))
sources = flow["sources"]
assert [s["task"] for s in sources] == ["moons", "spirals", "spirals"], sources
assert [s["arch"] for s in sources] == ["2-5-2", "2-7-3", "2-9-3"]
assert [s["cond"] for s in sources] == [[1, 0], [0, 1], [0, 1]]
assert [s["tests"] for s in sources] == ["moons", "spirals", "spirals"]
assert all(len(s["data"]) == 64 for s in sources) and flow["cond_drop"] == 0.2'
expect flow-info-collection 3 "a collection of networks, not a flow" "$weft" flow info \
    zoos/moons.safetensors
expect flow-info-text 0 "tested on spirals" "$weft" flow info flow.safetensors

fast="--solver euler --steps 3 -q"
sample() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$weft" sample flow.safetensors -n 4 -o "$name.safetensors" --json $fast "$@" >"$name.json" \
        2>err || fail "sample $name" "$(cat err)"
}
sample moons --task moons
check task-arch test "$(value moons.json arch)" = 2-5-2
check task-place test "$(value moons.json cond_place)" = trained
check task-remembered test "$(meta moons.safetensors weft.task)" = moons
check task-tests test "$(meta moons.safetensors weft.sample.tests)" = moons
sample by-number --cond 1,0
"$weft" zoo export moons.safetensors -i 2 -o a.safetensors >/dev/null
"$weft" zoo export by-number.safetensors -i 2 -o b.safetensors >/dev/null
check "a task is its condition" cmp a.safetensors b.safetensors
sample half --task spirals --width 0.5
check "width 0.5 of 7 is 4" test "$(value half.json arch)" = 2-4-3
check "a new shape is named" test "$(value half.json new_shape)" = True
sample thin --task spirals --width 0.01
check "a layer keeps a unit" test "$(value thin.json arch)" = 2-1-3
sample shape --task spirals --arch 2-9-3
check "a shape of the task" test "$(value shape.json new_shape)" = False
sample between --cond 0.5,0.5 --guidance 4
check between test "$(value between.json cond_place)" = between
check between-remembered test "$(meta between.safetensors weft.sample.cond_place)" = between
check between-cond test "$(meta between.safetensors weft.sample.cond)" = 0.5,0.5
check guidance-remembered test "$(meta between.safetensors weft.sample.guidance)" = 4
sample beyond --cond 2,-1 --arch 2-7-3
check beyond test "$(value beyond.json cond_place)" = beyond
# shellcheck disable=SC2086
expect beyond-named 0 "a condition beyond those trained on" "$weft" sample flow.safetensors \
    -o far-beyond.safetensors --cond 2,-1 $fast
sample null --cond none
sample ignored --task moons --guidance 0
check no-condition test "$(value null.json cond_place)" = none
"$weft" zoo export null.safetensors -o a.safetensors --force >/dev/null
"$weft" zoo export ignored.safetensors -o b.safetensors --force >/dev/null
check "guidance 0 is no condition" cmp a.safetensors b.safetensors
expect eval-task 0 "JWS" "$weft" eval --zoo zoos/moons.safetensors --nets moons.safetensors \
    --data moons.conf --no-cache -q
"$weft" eval --nets half.safetensors --data spirals.conf --json -q >row.json
check "a new width has an accuracy" python3 -c '
import json
row = json.load(open("row.json"))
assert 0 <= row["accuracy_mean"] <= 1
assert row["jws"] is None
assert row["n"] == 4'

# A scalar domain: numbers in the manifest, without weight normalisation.
sed 's/^cond = linear/cond = mlp/' moons.conf >domain.conf
printf '[train]\nzoo = zoos/moons.safetensors\ncond = 0\n[far]\nzoo = %s/zoos/moons.safetensors\ncond = 1\n' "$scratch" >domain.manifest
plain="--set train.normalise=no --set train.precondition=no --set model.encoder=fourier --set model.activation=gelu"
# shellcheck disable=SC2086
expect domain 0 "20 updates" "$weft" train domain.conf -m domain.manifest -o domain.safetensors \
    $plain -q
# shellcheck disable=SC2086
expect domain-middle 0 "a condition between those trained on, guidance 4" "$weft" sample \
    domain.safetensors --cond 0.5 --guidance 4 -o mid.safetensors $fast
# shellcheck disable=SC2086
expect domain-depth 0 "2-4-4-2" "$weft" sample domain.safetensors --cond 0 --arch 2-4-4-2 \
    -o deep.safetensors $fast
expect zoo-and-cond 0 "20 updates" "$weft" train domain.conf \
    --zoo zoos/moons.safetensors,zoos/spirals.safetensors --cond "0;1" -o two.safetensors -q
expect train-each 0 "20 updates" "$weft" train moons.conf -m zoos/tasks.manifest \
    -o each.safetensors --set train.normalise_by=collection -q

# What is wrong, and how it is told.
expect unknown-task 2 'no task "letter"; it knows moons, spirals' "$weft" sample flow.safetensors \
    --task letter -o x
expect task-without-names 2 "no task names" "$weft" sample two.safetensors --task letter -o x
expect condition-missing 2 "--task (moons, spirals) or --cond (2 numbers, or none)" "$weft" sample \
    flow.safetensors -o x
expect condition-length 2 "--cond has 3 numbers, the flow's conditions have 2" "$weft" sample \
    flow.safetensors --cond 1,0,0 -o x
expect condition-word 2 "numbers joined by commas" "$weft" sample flow.safetensors --cond one -o x
expect task-and-cond 2 "not both" "$weft" sample flow.safetensors --task moons --cond 1,0 -o x
expect width-zero 2 "--width is 0" "$weft" sample flow.safetensors --task moons --width 0 -o x
expect width-negative 2 "--width" "$weft" sample flow.safetensors --task moons --width -1 -o x
expect width-huge 2 "at most" "$weft" sample flow.safetensors --task moons --arch 2-60000-2 \
    --width 900 -o x
expect width-of-nothing 2 "no hidden layer" "$weft" sample domain.safetensors --cond 0 --arch 2-2 \
    --width 2 -o x
expect task-shape 2 "write 2-...-2" "$weft" sample flow.safetensors --task moons --arch 2-5-3 -o x
check "nothing was written" test ! -e x.safetensors
manifest() { printf '%s\n' "$@" >bad.manifest; }
train() { "$weft" train moons.conf -m bad.manifest -o bad.safetensors -q "$@"; }
manifest '[a]' 'zoo = nowhere.safetensors'
expect manifest-missing-zoo 3 "nowhere.safetensors" train
manifest '[a]' 'task = b'
expect manifest-no-zoo 3 "[a] names no collection" train
manifest '# nothing'
expect manifest-empty 3 "no collection" train
manifest '[a]' 'zoo = zoos/moons.safetensors' 'codn = 1'
expect manifest-unknown-key 3 'did you mean "cond"' train
manifest '[a]' 'zoo = zoos/moons.safetensors' 'cond = 1' '[b]' 'zoo = zoos/spirals.safetensors'
expect manifest-half 3 "[a] has a condition, [b] has none" train
manifest '[a]' 'zoo = zoos/moons.safetensors' 'cond = 1' '[b]' 'zoo = zoos/spirals.safetensors' \
    'cond = 1,0'
expect manifest-lengths 2 "the condition of b has 2 numbers, model.cond_size is 1" train
manifest '[a]' 'zoo = zoos/moons.safetensors' 'cond = 1' '[b]' 'zoo = zoos/moons.safetensors' \
    'cond = 2' 'task = a'
expect manifest-one-task 3 "different conditions" train
manifest '[a]' 'zoo = zoos/moons.safetensors' 'cond = x'
expect manifest-word 2 "the condition of a needs numbers" train
manifest '[a]' 'zoo = zoos/moons.safetensors'
expect manifest-size 2 "1 task, model.cond_size is 5" train --set model.cond_size=5
manifest '[a]' 'zoo = zoos/moons.safetensors' 'cond = 1'
expect manifest-unconditional 2 "model.cond is none" train --set model.cond=none
expect manifest-and-zoo 2 "not both" "$weft" train moons.conf -m bad.manifest \
    --zoo zoos/moons.safetensors -o x
expect manifest-and-cond 2 "--cond belongs to --zoo" "$weft" train moons.conf -m bad.manifest \
    --cond 1 -o x
expect conditions-count 2 "3 conditions for 2 collections" "$weft" train moons.conf \
    --zoo zoos/moons.safetensors,zoos/spirals.safetensors --cond "1;2;3" -o x
finish
