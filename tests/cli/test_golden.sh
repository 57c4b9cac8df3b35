#!/bin/sh
# A run folder of version 0.1: its stages stay finished, its results are shown, and it goes on.
. tests/cli/lib.sh
cp -r "$root/tests/golden/0.1" "$scratch/old"
cd "$scratch/old" || exit 1
export WEFT_DATA="$PWD"
expect report-is-made 0 "The page with plots: run/report.html" "$weft" run run.conf -o run
for stage in collection held-out training sampling evaluation; do
    check "$stage-is-skipped" grep -q "^$stage: done before" "$scratch/err"
done
check page grep -q "average-matched" run/report.html
check rows-as-they-were cmp run/eval.json "$root/tests/golden/0.1/run/eval.json"
expect its-own-recipe 0 "report: done before" "$weft" run run/recipe.conf -o run
expect changed-setting 2 "train.lr was 0.002, now 0.5" "$weft" run run.conf -o run \
    --set train.lr=0.5
expect compared 0 "run refined" "$weft" compare run
expect flow-with-tasks 0 "left out with probability 0.1" "$weft" flow info tasks.safetensors
expect manifest 0 "a flow after 2 updates" "$weft" train run.conf -m manifest.conf \
    -o new.safetensors \
    --set model.cond=linear --set train.updates=2
expect judged 0 "gmn" "$weft" eval -z run/zoo.safetensors --nets run/nets.safetensors --name gmn \
    --cloud 8
expect half-done-of-others 3 '"momentum = 0.90000000000000002", asked for is "momentum = 0.8"' \
    "$weft" zoo train half.conf -o half.safetensors --set zoo.momentum=0.8
cp half.safetensors.parts/0000000002.safetensors part.safetensors
expect half-done 0 "6 networks" "$weft" zoo train half.conf -o half.safetensors
check half-done-is-kept python3 -c '
import json, struct
def tensor(path, name):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])[name]["data_offsets"]
    return data[8 + size + begin:8 + size + end]
part, whole = (tensor(p, "layers.0.weight") for p in ("part.safetensors", "half.safetensors"))
assert len(whole) == 3 * len(part) and part == whole[len(part):2 * len(part)]'
finish
