#!/bin/sh
# The recipes of many tasks and of two domains: manifests beside their recipe, the run's own counts,
# a paper's numbers; with WEFT_DATA recipes/openml20-small.conf and acs-small.conf at toy size, and
# the sizes of the full ones.
. tests/cli/lib.sh
cd "$scratch" || exit 1

mkdir recipes
for domain in near far; do
    noise=0.1
    [ $domain = far ] && noise=0.5
    printf '[data]\nname = moons\nrows = 200\nnoise = %s\n[zoo]\narch = 2-6-2\ncount = 500\nheld_out = 4\nepochs = 6\nbatch = 32\nlr = 0.02\n' $noise >recipes/$domain.conf
done
printf '[near]\nrecipe = near.conf\ncond = 0\npaper = 1: 98.5 97.25\n[far]\nrecipe = far.conf\ncond = 1\n' >recipes/two.manifest
cat >recipes/two.conf <<'END'
[zoo]
manifest = two.manifest   # beside this recipe, whatever the working folder
count = 20
[model]
node = 8
edge = 8
time = 8
blocks = 1
cond = mlp
[train]
updates = 20
batch = 8
cond_drop = 0.1
[sample]
count = 5
solver = euler
steps = 3
[eval]
score = auc
subsets = 4
END
expect run 0 "mean gap at width 1 over 2 collections" "$weft" run recipes/two.conf
check run-rows python3 -c '
import json
eval = json.load(open("runs/two/eval.json"))
rows = {(r["collection"], r["name"]): r for r in eval["rows"]}
assert rows["near", "reference"]["n"] == 20 and rows["near", "scratch"]["n"] == 4, "the count of the run, held_out of the recipe"
assert eval["paper"] == [{"collection": "near", "width": 1.0, "trained": 0.985, "generated": 0.9725}]'
check "the page quotes the paper" grep -q "0.9725" runs/two/report.html
"$weft" model info recipes/two.conf --json >model.json
check model-of-a-manifest python3 \
    -c 'import json; m = json.load(open("model.json")); assert m["arch"] == "2-6-2" and m["parameters"] > 0'
sed 's/^paper.*/paper = 1 98.5/' recipes/two.manifest >recipes/bad.manifest
expect shares 0 "mean gap" "$weft" run recipes/two.conf -o shares \
    --set "train.shares=near: 3, far: 1"
sed 's/^batch = 8/&\nshares = nigh: 2/' recipes/two.conf >recipes/shared.conf
expect shares-taken-back 0 "mean gap" "$weft" run recipes/shared.conf -o back --set train.shares= -q
expect shares-wrong 2 "COLLECTION: PLACES" "$weft" run recipes/two.conf -o x \
    --set "train.shares=near: 0"
expect shares-unknown 2 "names nigh, which is no collection" "$weft" run recipes/two.conf -o x \
    --set "train.shares=far: 2, nigh: 3"
expect paper-wrong 3 "WIDTH: TRAINED GENERATED" "$weft" run recipes/two.conf -o x \
    --set zoo.manifest=recipes/bad.manifest

# The repository's own, at toy size.
toy="--set zoo.count=3 --set zoo.held_out=2 --set zoo.epochs=1 --set zoo.epochs_max=0 --set zoo.batch=256 --set train.updates=2 --set train.batch=2
 --set model.blocks=1 --set model.node=4 --set model.edge=4 --set model.time=4 --set sample.count=2 --set sample.steps=1 --set eval.subsets=2 -q"
if [ -s "$WEFT_DATA/cmc/cmc.arff" ]; then
    # shellcheck disable=SC2086
    expect openml20 0 "over 20 collections" "$weft" run "$root/recipes/openml20-small.conf" $toy \
        --set sample.refine_cycles=1
    check openml20-table python3 -c '
import json
eval = json.load(open("runs/openml20-small/eval.json"))
made = [(r["collection"], r["width"]) for r in eval["rows"] if r["name"] == "gmn-refined"]
assert len(made) == 60 and len(set(made)) == 60 and len(eval["paper"]) == 60
assert [g["collections"] for g in eval["gaps"]] == [20, 20, 20]
arch = {r["collection"]: r["arch"] for r in eval["rows"] if r["width"] == 1}
assert len(set(arch.values())) == 16, "16 architectures"
mean = {w: [sum(p[k] for p in eval["paper"] if p["width"] == w) / 20 for k in ("trained", "generated")] for w in (0.5, 1, 1.5)}
for w, pair in {0.5: (79.54, 78.96), 1: (83.15, 82.17), 1.5: (84.04, 82.35)}.items():
    assert all(abs(100 * a - b) < 0.006 for a, b in zip(mean[w], pair)), (w, mean[w])
assert list(eval["data_notes"]) == ["BNG-cmc"] and "regenerated" in eval["data_notes"]["BNG-cmc"]'
    check openml20-page grep -q "regenerated, not the original" runs/openml20-small/report.html
else echo "skip openml20: WEFT_DATA does not name a folder with the tables"; fi
if [ -s "$WEFT_DATA/acs-income/acsincome-2018-CA_1.csv.gz" ]; then
    # shellcheck disable=SC2086
    expect acs 0 "The page with plots" "$weft" run "$root/recipes/acs-small.conf" $toy
    check acs-rows python3 -c '
import json
eval, points = (json.load(open("runs/acs-small/" + name)) for name in ("eval.json", "points.json"))
made = {(r["on"], round(r["cond"], 6)): r for r in eval["rows"] if r["name"] == "gmn"}
assert {c for _, c in made} == {k / 10 for k in range(11)}
assert {on for on, _ in made} == {"CA", "PR"}
assert len(made) == 22
assert all(0 <= r["jws"] <= 1 and 0 <= r["accuracy_mean"] <= 1 for r in made.values())
assert [c["name"] for c in eval["mix"]["curves"]] == ["average", "average-1", "average-5", "average-50", "ensemble"]
assert len(points["clouds"]) == 13 and all(len(c["scores"]) == 2 for c in points["clouds"])'
    check acs-page grep -q "The plane of both domains" runs/acs-small/report.html
    "$weft" zoo info runs/acs-small/zoos/PR.safetensors --json >pr.json
    check acs-networks python3 \
        -c 'import json; z = json.load(open("pr.json")); assert z["arch"] == "35-32-32-2" and z["parameters"] == 2274'
else echo "skip acs: WEFT_DATA does not name a folder with the tables"; fi

# The full-scale recipes: the paper's fields have the sizes it states.
size() { "$weft" model info "$root/recipes/$1.conf" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["parameters"])'; }
check "the paper's ACS field, and the null condition" test "$(size acs-paper)" = $((7849737 + 128))
openml=$(size openml20-paper)
check "the paper's field of 20 tasks, 15.13 M" test "${openml:-0}" -gt 15000000 -a "${openml:-0}" \
    -lt 15300000
for recipe in openml20 acs; do check "$recipe reads" test "$(size $recipe)" -gt 1000000; done
finish
