#!/bin/sh
# A flow without a recipe: planned for the time, the recipe beside it makes the same flow, broken off
# it goes on, and what does not fit is said before any training.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1
value() { python3 -c 'import json,sys
at = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("."): at = at[key]
print(at)' "$1" "$2"; }

"$weft" zoo train "$recipe" -o zoo.safetensors -q >/dev/null # 40 networks
mkdir measured
TMPDIR=$scratch/measured "$weft" fit zoo.safetensors --minutes 0.01 -o flow.safetensors --json >fit.json 2>said
check fit test -s flow.safetensors
check "says the estimate first" grep -q "training: .* updates of .* networks, .* each: about" said
check "says the networks" grep -q "40 networks of .*: 36 train, 4 validate" said
check fit-json is_json fit.json
check "the plan is in the JSON" test "$(value fit.json plan.updates)" = "$(value fit.json updates)"
check "the recipe lies beside" grep -q "^updates = $(value fit.json updates) " flow.safetensors.recipe.conf
check "too short a time is a warning" grep -q "warning: .* minutes would" said
check "nothing stays of the measurement" test -z "$(ls -A measured)"
expect nowhere 4 "a folder to measure in" env TMPDIR="$scratch/none" "$weft" fit zoo.safetensors -o x.safetensors

# The recipe makes the same flow: the same networks.
check train "$weft" train flow.safetensors.recipe.conf --zoo zoo.safetensors -o again.safetensors -q
for flow in flow again; do
    "$weft" sample $flow.safetensors -n 3 -o $flow.nets.safetensors --json -q >$flow.json
    "$weft" zoo export $flow.nets.safetensors -i 2 -o $flow.one.safetensors -q >/dev/null
done
check "weft train with it makes the same flow" cmp flow.one.safetensors again.one.safetensors
check "weft run takes it" "$weft" run flow.safetensors.recipe.conf -o ran --set sample.count=4 --set eval.subsets=3 -q
check "and makes the same flow" python3 -c '
import json, struct
def tensors(path):
    data = open(path, "rb").read()
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    return {k: data[8 + n:][slice(*v["data_offsets"])] for k, v in header.items() if k.startswith("weights.")}
assert tensors("flow.safetensors") == tensors("ran/flow.safetensors")'

expect done 2 "has all its" "$weft" fit zoo.safetensors -o flow.safetensors
check force "$weft" fit zoo.safetensors -m 0.01 -o flow.safetensors --force --seed 5 -q
check "the seed is in the recipe" grep -q "^seed = 5" flow.safetensors.recipe.conf
expect foreign 2 "is there already" "$weft" fit zoo.safetensors -o again.nets.safetensors

# Broken off, the same command goes on with the same plan and ends where it would have.
"$weft" fit zoo.safetensors -m 0.2 -o long.safetensors -q >/dev/null 2>&1 &
process=$!
for i in $(seq 300); do
    [ -s long.safetensors.log.jsonl ] && break
    sleep 0.1
done
kill -INT $process
wait $process
check interrupted test $? = 130
check "a checkpoint is kept" test -s long.safetensors
before=$(cksum <long.safetensors.recipe.conf)
"$weft" fit zoo.safetensors -m 0.2 -o long.safetensors --json >long.json 2>said
check "goes on" grep -q "goes on from update" said
check "with the same recipe" test "$(cksum <long.safetensors.recipe.conf)" = "$before"
check "to its end" grep -q "^updates = $(value long.json updates) " long.safetensors.recipe.conf

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

"$weft" zoo head zoo.safetensors -n 12 -o few.safetensors -q >/dev/null
expect few 0 "learns them by heart" "$weft" fit few.safetensors -m 0.01 -o few_flow.safetensors
finish
