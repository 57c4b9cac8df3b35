#!/bin/sh
# Runs side by side, and a flow fitted to another collection than the one it is judged against.
. tests/cli/lib.sh
cd "$scratch" || exit 1
recipe=$root/tests/cli/tiny.conf
for limit in 10 20 40; do
    "$weft" run "$recipe" -o "limit-$limit" --set train.limit=$limit --set train.updates=10 \
        -q >/dev/null 2>&1 || fail run-$limit "weft run"
done
expect table 0 "limit-20 refined" "$weft" compare limit-10 limit-20 limit-40
check settings grep -q "^limit-20: train.limit=20, training" out
check shared-rows-once sh \
    -c '[ "$(grep -c "^held-out" out)" = 1 ] && [ "$(grep -c "^reference" out)" = 1 ]'

# JSON: every row and setting as the runs have them.
"$weft" compare limit-*/ --json >all.json
check json python3 -c '
import json
c = json.load(open("all.json"))
assert c["differ"] == ["train.limit"], c["differ"]
assert [r["run"] for r in c["runs"]] == ["limit-10", "limit-20", "limit-40"]
for r in c["runs"]:
    assert r["rows"] == json.load(open(r["run"] + "/eval.json"))["rows"]
    assert r["settings"] == {"train.limit": r["run"][6:]}
    assert r["seconds"]["training"] > 0'

# Over a setting, beside published numbers: sorted by the number, not by the name, and drawn.
cat >beside.json <<'J'
{"series": [{"name": "others", "rows": [{"at": 10, "name": "x", "n": 5, "accuracy_mean": 0.5, "iou_mean": 0.4, "wcs_mean": 0.3, "jws": 0.625}]}]}
J
mv limit-10 z-10
expect over 0 "0.625" "$weft" compare limit-* z-10 --over train.limit --beside beside.json \
    -o page.html
check order sh -c 'grep "direct " out | head -n 1 | grep -q "^z-10"'
check page sh \
    -c 'grep -q "Over train.limit" page.html && grep -q "others 10" page.html && [ "$(grep -o "<figure>" page.html | wc -l)" = 4 ]'
# The first run has no refined networks: the others' line is drawn all the same.
"$weft" run "$recipe" -o cycles-0 --set train.limit=20 --set train.updates=10 \
    --set sample.refine_cycles=0 -q >/dev/null 2>&1
expect missing-row 0 "cycles-0 direct" "$weft" compare cycles-0 limit-20 \
    --over sample.refine_cycles -o cycles.html
check missing-row-drawn grep -q ">refined" cycles.html
mkdir empty
expect unfinished 0 "empty has no results yet" "$weft" compare limit-20 empty

# What cannot be compared.
expect nothing 3 "none of the folders" "$weft" compare empty
expect no-runs 2 "RUN..." "$weft" compare
expect over-text 2 "train.optimizer" "$weft" compare limit-20 limit-40 --over train.optimizer
expect over-text 2 "\"muon\" in the run limit-20 is no number" "$weft" compare limit-20 \
    --over train.optimizer
expect over-unknown 2 "the run limit-20 has no such setting" "$weft" compare limit-20 --over train.nothing
expect beside-alone 2 "--beside needs --over" "$weft" compare limit-20 --beside beside.json
echo '{"series": [{"rows": [{"name": "x", "n": 5}]}]}' >bad.json
expect beside-bad 3 "needs at, name and n" "$weft" compare limit-20 --over train.limit \
    --beside bad.json
mkdir tasks && echo '{"tasks": []}' >tasks/eval.json
expect manifest-run 3 "without a manifest" "$weft" compare tasks
mkdir torn && cp limit-20/eval.json torn && echo '{' >torn/stage.json
expect torn 3 "torn/stage.json" "$weft" compare torn

# train.path: the same networks relabelled. Scores are against the collection. The flow is another
# draw of the same; with matched coupling it would be the same but for rounding.
"$weft" align limit-40/zoo.safetensors -o aligned.safetensors -q >/dev/null 2>&1
expect run-aligned 0 "gmn-refined" "$weft" run "$recipe" -o aligned \
    --set train.path=aligned.safetensors --set train.ema=0 --set train.coupling=independent -q
expect train-path-alone 2 "belongs to weft run" "$weft" train "$recipe" --zoo aligned.safetensors \
    -o f.safetensors --set train.path=aligned.safetensors
expect shares-alone 2 "belongs to zoo.manifest" "$weft" run "$recipe" -o x --set "train.shares=a: 2"
"$weft" run "$recipe" -o raw --set train.ema=0 --set train.coupling=independent -q >/dev/null 2>&1
"$weft" compare raw aligned --json >pair.json
check train-path python3 -c '
import json
raw, aligned = json.load(open("pair.json"))["runs"]
assert raw["rows"][:2] == aligned["rows"][:2], "reference and held-out"
a, b = (next(r for r in run["rows"] if r["name"] == "gmn") for run in (raw, aligned))
assert a != b and abs(a["jws"] - b["jws"]) < 0.05, (a["jws"], b["jws"])'
"$weft" zoo train "$recipe" -o wide.safetensors --set zoo.arch=2-7-3 -n 5 -q >/dev/null 2>&1
expect train-path-shape 3 "train.path wide.safetensors has networks of 2-7-3" "$weft" run \
    "$recipe" -o other --set train.path=wide.safetensors
echo "a zoo=limit-40/zoo.safetensors" >m.manifest
sed 's/^arch.*//' "$recipe" >m.conf
expect train-path-manifest 2 "leave train.path out" "$weft" run m.conf -o other2 \
    --set zoo.manifest=m.manifest --set train.path=aligned.safetensors
finish
