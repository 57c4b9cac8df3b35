#!/bin/sh
# Data sets named on the command line, and networks of one's own on them.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1
unset WEFT_DATA

# A table of three classes that one linear layer tells apart; one column is far larger than the
# other.
python3 - <<'PY'
import random
random.seed(3)
rows = []
for i in range(300):
    c = i % 3
    rows.append((random.gauss(100 * c, 10), random.gauss(0.01 * ((c + 1) % 3), 0.001), "abc"[c], random.random()))
open("own.csv", "w").write("u,v,kind,price\n" + "".join("%.4f,%.6f,%s,%.6f\n" % r for r in rows))
open("own.tsv", "w").write("u\tv\tkind\n" + "".join("%.4f\t%.6f\t%s\n" % r[:3] for r in rows))
PY

expect csv 0 "240 to train" "$weft" data info own.csv --target kind --drop price
expect tsv 0 "classes      3: a (100)" "$weft" data info own.tsv
expect set 0 "150 to train" "$weft" data info own.tsv --set data.test_fraction=0.5
expect classes 0 "classes      3: c (100)" "$weft" data info own.tsv --classes c,a,b
expect classes-unknown 3 "'d', which does not occur" "$weft" data info own.tsv --classes a,b,d
expect classes-listed 3 "the classes are: a, b, c" "$weft" data info own.tsv --classes a,b,d
expect classes-twice 3 "'a' twice; the classes are: a, b, c" "$weft" data info own.tsv \
    --classes a,b,a
expect table-ending 3 "there is no file own; did you mean own.csv?" "$weft" data info own
expect table-as-collection 3 "own.csv: no safetensors file: it holds text" "$weft" fit own.csv -o x.safetensors
expect no-folder 4 "there is no folder absent; make it first" "$weft" zoo train "$recipe" \
    -o absent/x.safetensors
tail -n +2 own.tsv >headless.tsv
expect headless 0 "if it is a row of data, put a header in front" "$weft" data info headless.tsv
expect regression 3 "regression, which is not supported" "$weft" data info own.csv --target price \
    --drop kind
expect no-column 3 "no such column; the columns are: u, v, kind" "$weft" data info own.tsv \
    --target y
expect no-file 3 "no such file" "$weft" data info absent.csv
expect bad-scale 2 "minmax" "$weft" data info own.tsv --scale big
expect npy 2 "numpy.savez" "$weft" data info own.npy
expect digits-remark 0 "scikit-learn" "$weft" data info digits
expect list-remark 0 "scikit-learn" "$weft" data list
check "a table is found in the working folder first" env WEFT_DATA="$root" "$weft" data info own.tsv

# Imported networks read a table as it is; trained ones as they were trained.
"$weft" zoo train "$recipe" -o zoo.safetensors -q >/dev/null
mkdir nets
for i in 0 1 2 3; do "$weft" zoo export zoo.safetensors -i $i -o nets/n$i.pt -q >/dev/null; done
"$weft" zoo import nets -a relu -o mine.safetensors -q >/dev/null
eval_mean() { "$weft" eval --nets "$1" --data "$2" $3 --json -q >mean.json &&
    value mean.json accuracy_mean; }
"$weft" zoo subset zoo.safetensors -i 0-3 -o four.safetensors -q >/dev/null
check "trained networks keep their scale" test "$(eval_mean four.safetensors spirals)" = \
    "$(eval_mean four.safetensors spirals '--scale standard')"
check "imported networks take numbers as they are" test "$(eval_mean mine.safetensors spirals)" = \
    "$(eval_mean mine.safetensors spirals '--scale none')"
check "a scale that is said rules" test "$(eval_mean mine.safetensors spirals '--scale standard')" \
    = "$(eval_mean four.safetensors spirals)"
printf '[data]\nname = spirals\nscale = standard\n' >said.conf
check "so does one of a recipe" test "$(eval_mean mine.safetensors said.conf)" = \
    "$(eval_mean four.safetensors spirals)"

# Imported with their data they are scored, checked and remembered.
printf '[data]\nname = spirals\nscale = standard\n[zoo]\narch = 2-12-3\ncount = 6\nepochs = 30\nbatch = 32\nlr = 1e-2\n' >spirals.conf
"$weft" zoo train spirals.conf -o six.safetensors -q >/dev/null
mkdir six
for i in 0 1 2 3 4 5; do "$weft" zoo export six.safetensors -i $i -o six/n$i.pt -q >/dev/null; done
expect import-good 0 "accuracy 9" "$weft" zoo import six -a relu --data spirals --scale standard \
    -o good.safetensors
check "nothing to warn of" test ! -s "$scratch/err"
expect other-scale 0 "with --scale standard: pass that" "$weft" eval --nets good.safetensors \
    --data spirals --scale minmax
expect own-scale 0 "networks" "$weft" eval --nets good.safetensors --data spirals --scale standard
check "the collection's own scale needs no warning" test ! -s "$scratch/err"
check "the scale is remembered" test "$(eval_mean good.safetensors spirals)" = \
    "$(eval_mean six.safetensors spirals)"

# Brought in without its data, or read at another scale, it is told wherever data are named.
"$weft" zoo import six -a relu -o bare.safetensors -q >/dev/null
told() {
    name=$1
    shift
    expect "$name" 0 "bare.safetensors: accuracy" "$weft" "$@" --force
    check "$name says what fits" grep -q -e "with --scale standard: " "$scratch/err"
}
told fit-bare fit bare.safetensors -m 0.001 --data spirals -o bare.flow
told export-bare zoo export bare.safetensors --best 2 --data spirals -o bare
told filter-bare zoo filter bare.safetensors --best 2 --data spirals -o two.safetensors

# A collection in place of a recipe, also before anything says where the flow goes.
expect train-collection 2 \
    "is a collection, not a recipe. To fit a generator to it: weft fit mine.safetensors" "$weft" \
    train mine.safetensors
expect run-table 2 "own.csv is a table of data, not a recipe" "$weft" run own.csv
expect run-folder 2 "nets is a folder, not a recipe" "$weft" run nets
mkdir made && cp said.conf made/recipe.conf
expect run-of-a-run 2 "made is a folder; its recipe is made/recipe.conf" "$weft" run made
expect train-nowhere 2 "say where the flow goes" "$weft" train "$recipe" --zoo mine.safetensors

expect other-widths 3 "without --zoo the scores on --data are shown" "$weft" eval \
    --zoo four.safetensors --nets six.safetensors --data spirals

# All rows of a table, where the networks have seen none of it.
expect split 0 "judged on 60 of 300 rows; --whole takes them all" "$weft" zoo import nets -a relu \
    --data own.tsv -o part.safetensors
expect whole 0 "on 300 examples of own" "$weft" zoo import nets -a relu --data own.tsv \
    --whole -o all.safetensors
check "nothing is left to say" sh -c '! grep -q rows "$0"' "$scratch/err"
expect eval-split 0 "networks" "$weft" eval --nets all.safetensors --data own.tsv
check "eval says on how many rows it judges" grep \
    -q "own.tsv: judged on 60 of 300 rows; --whole takes them all" "$scratch/err"
printf '[data]\npath = own.tsv\n' >table.conf
expect eval-recipe 0 "networks" "$weft" eval --nets all.safetensors --data table.conf
check "a recipe, which --whole refuses, gets no such advice" sh -c '! grep -q -e --whole "$0"' \
    "$scratch/err"
expect whole-builtin 2 "a test part of its own" "$weft" eval --nets nets --data spirals --whole
check "a plan keeps it" sh \
    -c '"$0" fit all.safetensors -m 0.001 --data own.tsv --whole -o whole -q >/dev/null && grep -q "^test_path = .*own.tsv" whole.recipe.conf' "$weft"

expect import-flow 3 "whole: a generator, not networks; draw some from it: weft sample" "$weft" \
    zoo import whole -a relu -o x.safetensors

# What only another scale would mind is no news at an import.
awk -F'\t' '{ print (NR == 1 ? "u,v" : "0," $2) "," $3 }' own.tsv >flat.csv
expect constant 0 "of flat" "$weft" zoo import nets -a relu --data flat.csv -o flat.safetensors
check "a constant column is not told" sh -c '! grep -q constant "$0"' "$scratch/err"

# An order of classes that was said at import is kept as the scale is, by flows and their networks
# too.
printf '[data]\npath = own.tsv\nclasses = c, a, b\nscale = standard\n[zoo]\narch = 2-6-3\ncount = 30\nepochs = 20\nlr = 1e-2\n' >order.conf
"$weft" zoo train order.conf -o order.safetensors -q >/dev/null
"$weft" zoo export order.safetensors --all -o order -q >/dev/null
"$weft" zoo import order -a relu --data own.tsv --scale standard --classes c,a,b \
    -o ordered.safetensors -q >/dev/null
check "the order of classes is remembered" test "$(eval_mean ordered.safetensors own.tsv)" = \
    "$(eval_mean ordered.safetensors own.tsv '--classes c,a,b')"
expect other-classes \
    3 "the classes are: 0, 1, 2. List them in the order of the networks' outputs (--classes)" \
    "$weft" eval --nets ordered.safetensors --data spirals
for format in safetensors pt; do
    "$weft" zoo export ordered.safetensors --all -o "again-$format" --format $format -q >/dev/null
    check "exported $format files keep scale and order" test "$(eval_mean again-$format own.tsv)" \
        = "$(eval_mean ordered.safetensors own.tsv)"
done
check "another one that is said rules" test "$(eval_mean ordered.safetensors own.tsv \
    '--classes a,b,c')" != "$(eval_mean ordered.safetensors own.tsv)"
"$weft" fit ordered.safetensors --data own.tsv -m 0.01 -o order.flow -q >/dev/null
check "the recipe of a fit has it" grep -q '^classes = c,a,b' order.flow.recipe.conf
"$weft" sample order.flow -n 3 -o drawn.safetensors -q >/dev/null
check "networks from the flow have it" test "$(eval_mean drawn.safetensors own.tsv)" = \
    "$(eval_mean drawn.safetensors own.tsv '--classes c,a,b')"
expect flow-as-zoo 3 "draw some from it: weft sample order.flow" "$weft" zoo info order.flow
expect sample-collection 3 "weft fit ordered.safetensors -o" "$weft" sample ordered.safetensors \
    -o x.safetensors

# A class whose name has a comma: the advice can be pasted.
sed 's/a$/"le $a, rot"/; s/\t/,/g' own.tsv >odd.csv
expect odd-class 0 "classes      3: le \$a, rot (100)" "$weft" data info odd.csv \
    --classes '"le $a, rot",c,b'
"$weft" zoo import order -a relu --data odd.csv --scale standard -o odd.safetensors -q >/dev/null \
    2>odd.txt
words=$(sed -n 's/.* with --classes \(.*\): pass that$/\1/p' odd.txt)
check "its advice is for a shell" test "$words" = "'c,\"le \$a, rot\",b'"
check "and serves" sh \
    -c 'eval "$1 zoo import order -a relu --data odd.csv --scale standard --classes $2 -o pasted -q" 2>pasted.txt && ! grep -q "pass that" pasted.txt' sh "$weft" "$words"

"$weft" zoo info good.safetensors --json -q >good.json
check "scores are in the collection" python3 -c '
import json
test, = json.load(open("good.json"))["tests"]
assert test["name"] == "spirals" and test["mean"] > 0.9, test'
check best-by-stored-scores "$weft" zoo export good.safetensors --best 1 -o best.pt -q
expect import-scale 0 "with --scale standard: pass that" "$weft" zoo import six -a relu \
    --data spirals -o a.safetensors -q
expect import-activation 0 "with --activation relu: pass that" \
    "$weft" zoo import six -a sigmoid --data spirals --scale standard -o b.safetensors -q
expect import-classes 0 '--classes "0,1,2": pass that' \
    "$weft" zoo import six -a relu --data spirals --scale standard --classes 2,0,1 \
    -o c.safetensors -q
printf '[data]\nname = spirals\n[zoo]\narch = 2-6-3\ncount = 1\nepochs = 1\n' >one.conf
"$weft" zoo train one.conf -o three.safetensors -q >/dev/null
python3 - <<'PYTHON'
# The same with one output: its last layer's first row.
import json, struct
data = open("three.safetensors", "rb").read()
size, = struct.unpack("<Q", data[:8])
header, body = json.loads(data[8:8 + size]), data[8 + size:]
def tensor(name, n):
    start = header[name]["data_offsets"][0]
    return body[start:start + 4 * n]
parts = [("a.weight", [6, 2], tensor("layers.0.weight", 12)), ("a.bias", [6], tensor("layers.0.bias", 6)),
         ("b.weight", [1, 6], tensor("layers.1.weight", 6)), ("b.bias", [1], tensor("layers.1.bias", 1))]
out, at = {}, 0
for name, shape, raw in parts:
    out[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(raw)]}
    at += len(raw)
text = json.dumps(out).encode()
open("one-output.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + b"".join(p[2] for p in parts))
PYTHON
expect one-output 3 "has 2 inputs and 1 output, but the data have 2 inputs and 2 classes; one output for two classes is not judged" \
    "$weft" zoo import one-output.safetensors -a relu --data moons -o one
"$weft" zoo import one-output.safetensors -a relu -o one -q >/dev/null
expect one-output-eval 3 "have 1 output; data set moons" "$weft" eval --nets one.safetensors --data moons
expect import-shape 3 "the data have 64 inputs" "$weft" zoo import six -a relu --data digits \
    -o d.safetensors -q
check "nothing was written" test ! -e d.safetensors
"$weft" zoo import six -a relu -o plain.safetensors -q >/dev/null
expect eval-warns 0 "with --scale standard: pass that" "$weft" eval --nets plain.safetensors \
    --data spirals -q
"$weft" zoo import six -a relu --data spirals -o f.safetensors --json -q >advice.json 2>/dev/null
check import-json python3 -c '
import json
one, = json.load(open("advice.json"))["collections"]
assert one["advice"] == "--scale standard" and one["advised_accuracy"] > one["accuracy"] + 0.02, one'

# Checkpoints in place of a collection: what to type.
expect folder-as-zoo 3 "weft zoo import six --activation relu" "$weft" eval --zoo six --nets six
expect torch-as-zoo 3 "weft zoo import six/n0.pt" "$weft" zoo info six/n0.pt

# A flow that was planned without data: runs, says how data are named, and on how many rows it
# judges.
expect fit-without-data 0 "weft run unjudged.recipe.conf --set data.path=FILE" "$weft" fit \
    ordered.safetensors -m 0.01 -o unjudged
short="--set sample.count=4 --set eval.subsets=3"
expect run-without-data 0 "no labelled data" "$weft" run unjudged.recipe.conf -o unjudged_run $short
expect run-with-data 0 "own.tsv: judged on 60 of 300 rows; --set data.test_path=own.tsv takes them all" \
    "$weft" run unjudged.recipe.conf -o split_run $short --set data.path=own.tsv
expect run-whole 0 "accuracy" "$weft" run unjudged.recipe.conf -o whole_run $short \
    --set data.path=own.tsv --set data.test_path=own.tsv
check "then nothing is said of rows" sh -c '! grep -q rows "$0"' "$scratch/err"
expect run-flow 2 "unjudged is a flow, not a recipe" "$weft" run unjudged
expect flow-of-recipe 3 "unjudged.recipe.conf: no safetensors file: it holds text" "$weft" flow info \
    unjudged.recipe.conf
finish
