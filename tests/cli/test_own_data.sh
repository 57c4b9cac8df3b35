#!/bin/sh
# Data sets named on the command line, and networks of one's own on them.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1
unset WEFT_DATA

# A table of three classes that one linear layer tells apart; one column is far larger than the other.
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
value() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }

expect csv 0 "240 to train" "$weft" data info own.csv --target kind --drop price
expect tsv 0 "classes      3: a (100)" "$weft" data info own.tsv
expect set 0 "150 to train" "$weft" data info own.tsv --set data.test_fraction=0.5
expect classes 0 "classes      3: c (100)" "$weft" data info own.tsv --classes c,a,b
expect classes-unknown 3 "'d', which does not occur" "$weft" data info own.tsv --classes a,b,d
expect regression 3 "regression, which is not supported" "$weft" data info own.csv --target price --drop kind
expect no-column 3 "no such column; the columns are: u, v, kind" "$weft" data info own.tsv --target y
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
eval_mean() { "$weft" eval --nets "$1" --data "$2" $3 --json -q >mean.json && value mean.json accuracy_mean; }
"$weft" zoo subset zoo.safetensors -i 0-3 -o four.safetensors -q >/dev/null
check "trained networks keep their scale" test "$(eval_mean four.safetensors spirals)" = "$(eval_mean four.safetensors spirals '--scale standard')"
check "imported networks take numbers as they are" test "$(eval_mean mine.safetensors spirals)" = "$(eval_mean mine.safetensors spirals '--scale none')"
check "a scale that is said rules" test "$(eval_mean mine.safetensors spirals '--scale standard')" = "$(eval_mean four.safetensors spirals)"
printf '[data]\nname = spirals\nscale = standard\n' >said.conf
check "so does one of a recipe" test "$(eval_mean mine.safetensors said.conf)" = "$(eval_mean four.safetensors spirals)"
finish
