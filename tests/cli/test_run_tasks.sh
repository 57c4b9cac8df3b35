#!/bin/sh
# weft run with a manifest: collections made from recipes, one flow, networks of every task and
# width, table and page.
. tests/cli/lib.sh
cd "$scratch" || exit 1
mkdir recipes
for set in moons spirals; do
    arch=2-5-2
    [ $set = spirals ] && arch=2-7-3
    printf '[data]\nname = %s\nrows = 200\n[zoo]\narch = %s\ncount = 30\nheld_out = 6\nepochs = 4\nbatch = 32\n' $set $arch >recipes/$set.conf
done
cat >recipes/all.manifest <<'END'
[moons]
recipe = moons.conf
[spirals]
recipe = spirals.conf
END
cat >all.conf <<'END'
[zoo]
manifest = recipes/all.manifest
[model]
node = 8
edge = 8
time = 8
blocks = 1
cond = linear
[train]
updates = 20
batch = 8
cond_drop = 0.1
[sample]
count = 5
widths = 0.5,1
solver = euler
steps = 3
refine_cycles = 1
[eval]
subsets = 4
END
echo 'scale = none' >scale
sed -i '/^name = /r scale' recipes/spirals.conf # moons are standardised
expect run 0 "mean gap at width 0.5 over 2 collections" "$weft" run all.conf
check run-page grep -q "hidden widths times 0.5" runs/all/report.html
check run-rows python3 -c '
import json
eval = json.load(open("runs/all/eval.json"))
rows = {(r["collection"], r["width"], r["name"]): r for r in eval["rows"]}
for task, arch, half in (("moons", "2-5-2", "2-3-2"), ("spirals", "2-7-3", "2-4-3")):
    assert rows[task, 1, "reference"]["n"] == 30 and rows[task, 1, "scratch"]["n"] == 6
    assert rows[task, 1, "gmn-refined"]["arch"] == arch and rows[task, 1, "gmn-refined"]["jws"] > 0
    assert rows[task, 0.5, "scratch"]["arch"] == half and rows[task, 0.5, "gmn"]["jws"] is None
    assert 0 <= rows[task, 0.5, "gmn-refined"]["accuracy_mean"] <= 1
gap = sum(rows[t, 1, "gmn-refined"]["accuracy_mean"] - rows[t, 1, "reference"]["accuracy_mean"] for t in ("moons", "spirals")) / 2
assert abs(eval["gaps"][1]["gap"] - gap) < 1e-9 and eval["gaps"][1]["collections"] == 2'
check "its networks are collections" "$weft" zoo export runs/all/nets/moons-x0.5.safetensors -i 1 \
    -o net.safetensors
cat >reading.py <<'END'
import json, struct, sys
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
assert header["__metadata__"].get("weft.scale") == sys.argv[2], header["__metadata__"]
END
for path in nets/moons-x1 nets-direct/moons-x0.5; do
    check "$path read their own data" python3 reading.py runs/all/$path.safetensors standard
done
for path in nets/spirals-x0.5 nets-direct/spirals-x1; do
    check "$path read their own data" python3 reading.py runs/all/$path.safetensors none
done
"$weft" sample perturbation --zoo runs/all/zoos/spirals.safetensors -n 2 -o control.safetensors -q \
    >/dev/null
check "controls read data as their collection does" python3 reading.py control.safetensors none
expect run-again 0 "training: done before" "$weft" run all.conf
# The recipe that a run leaves makes the same run: the tasks keep their numbers of networks.
expect run-resolved 0 "training: done before" "$weft" run runs/all/recipe.conf -o runs/all
check "held-out networks, too" grep -q "held-out: done before" "$scratch/err"
check "a count that is said stays" sh -c '"$0" run all.conf --set zoo.count=20 -o counted -q >/dev/null &&
    grep -q "^count = 20" counted/recipe.conf' "$weft"
cp -r runs/all before
rm runs/all/nets/spirals-x1.safetensors runs/all/nets-direct/moons-x1.safetensors \
    runs/all/zoos/moons.safetensors
expect run-mends 0 "held-out: done before" "$weft" run all.conf
check "a lost collection comes back" cmp before/zoos/moons.safetensors \
    runs/all/zoos/moons.safetensors
check "lost networks come back the same" cmp before/nets/spirals-x1.safetensors \
    runs/all/nets/spirals-x1.safetensors
check "so do those before refinement" cmp before/nets-direct/moons-x1.safetensors \
    runs/all/nets-direct/moons-x1.safetensors
# Killed when a collection stood in its place and its parts were not yet removed.
mkdir runs/all/zoos/moons.safetensors.parts
python3 -c '
import json
record = json.load(open("runs/all/stage.json"))
record["collection"]["finished"] = False
del record["digest"]
json.dump(record, open("runs/all/stage.json", "w"))'
expect run-after-parts 0 "mean gap" "$weft" run all.conf
check "no parts stay" test -z "$(find runs/all -name '*.parts')"
check "the rows stay" cmp before/eval.json runs/all/eval.json
expect run-width 2 "sample.widths was 0.5,1, now 2" "$weft" run all.conf --set sample.widths=2
expect run-width-redo 0 "mean gap" "$weft" run all.conf --set sample.widths=2 --redo
check "the collections are kept" cmp before/zoos/moons.safetensors runs/all/zoos/moons.safetensors
expect run-like-widths 2 "with 1 twice; write different numbers, of six digits at most" "$weft" run \
    all.conf -o like --set sample.widths=1,1.0000001
check "none of them is begun" test ! -e like
expect report-again 0 "again.html" "$weft" report runs/all -o again.html
expect run-json 0 '"gaps"' "$weft" run all.conf --set sample.widths=2 --json -q

# Rows by name: controls where there is a collection to control.
expect run-rows-named 0 "mean gap" "$weft" run all.conf --redo --set sample.widths=0.5,1 \
    --set eval.rows=scratch,random,perturbation-0.3,gmn-refined,reference
check run-named-rows python3 -c '
import json
rows = [(r["width"], r["name"]) for r in json.load(open("runs/all/eval.json"))["rows"] if r["collection"] == "moons"]
assert rows == [(0.5, "scratch"), (0.5, "random"), (0.5, "gmn-refined"), (1, "scratch"), (1, "random"), (1, "perturbation-0.3"),
                (1, "gmn-refined"), (1, "reference")], rows'

# Given collections, one of them without labelled data.
printf '[moons]\nzoo = before/zoos/moons.safetensors\ndata = recipes/moons.conf\n[spirals]\nzoo = before/zoos/spirals.safetensors\n' >given.manifest
sed -e 's/^manifest.*/manifest = given.manifest/' -e 's/^refine_cycles.*//' all.conf >given.conf
expect run-given 0 "mean gap at width 1 over 1 collections" "$weft" run given.conf
check "given collections stand" test -s before/zoos/moons.safetensors \
    -a -s before/zoos/spirals.safetensors

# Along a condition, between two collections of one architecture.
sed -e 's/2-7-3/2-5-2/' -e 's/name = spirals/name = moons\nseed = 4\nnoise = 0.3/' \
    recipes/spirals.conf >recipes/noisy.conf
printf '[clear]\nrecipe = moons.conf\ncond = 0\n[noisy]\nrecipe = noisy.conf\ncond = 1\n' \
    >recipes/domains.manifest
sed -e 's/all.manifest/domains.manifest/' \
    -e 's/^widths.*/conds = 0,0.5,1\nguidance = 1.5\nguidance_between = 4/' \
    -e 's/^cond = linear/cond = mlp/' all.conf >domains.conf
expect run-domains 0 "reference" "$weft" run domains.conf
check domains-rows python3 -c '
import json
eval = json.load(open("runs/domains/eval.json"))
rows = {(r["on"], r["cond"], r["name"]): r for r in eval["rows"]}
for on, cond in (("clear", 0), ("noisy", 1)):
    assert rows[on, cond, "reference"]["n"] == 30 and rows[on, cond, "scratch"]["n"] == 6
    for c in (0, 0.5, 1):
        assert rows[on, c, "gmn"]["n"] == 5 and 0 < rows[on, c, "gmn"]["jws"] <= 1
assert len(rows) == 10
names = [curve["name"] for curve in eval["mix"]["curves"]]
assert "ensemble" in names and "average" in names, names
clouds = json.load(open("runs/domains/points.json"))["clouds"]
assert [c["trained"] for c in clouds] == [True, True, False, False, False]
assert all(len(c["scores"]) == 2 and len(c["scores"][0]) == len(c["scores"][1]) for c in clouds)'
guidance() { python3 -c '
import json, struct, sys
file = open(sys.argv[1], "rb")
meta = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["__metadata__"]
print(meta["weft.sample.guidance"], meta["weft.sample.cond_place"])' "$1"; }
check domains-end test "$(guidance runs/domains/nets/cond0.safetensors)" = "1.5 trained"
check domains-middle test "$(guidance runs/domains/nets/cond0.5.safetensors)" = "4 between"
check domains-page grep -q "Similarity to each collection" runs/domains/report.html
cp -r runs/domains domains-before
rm runs/domains/nets/cond0.5.safetensors runs/domains/points.json
expect domains-mend 0 "training: done before" "$weft" run domains.conf
check "lost networks come back the same" cmp domains-before/nets/cond0.5.safetensors \
    runs/domains/nets/cond0.5.safetensors
check "and the points" cmp domains-before/points.json runs/domains/points.json
expect domains-report 0 "again.html" "$weft" report runs/domains -o again.html
expect domains-json 0 '"mix"' "$weft" run domains.conf --json -q
expect domains-rows-named 0 "perturbation" "$weft" run domains.conf \
    --redo --set eval.rows=reference,perturbation-0.2,perturbation,gmn
check domains-named-rows python3 -c '
import json
rows = [(r["cond"], r["name"]) for r in json.load(open("runs/domains/eval.json"))["rows"] if r["on"] == "noisy"]
assert rows == [(1, "reference"), (1, "perturbation-0.2"), (1, "perturbation"), (0, "gmn"), (0.5, "gmn"), (1, "gmn")], rows'
sed 's/^widths.*/conds = 0,1/' all.conf >tasks.conf
expect conds-of-tasks 2 "the conditions have 2" "$weft" run tasks.conf -o x
expect conds-and-widths 2 "not both" "$weft" run domains.conf -o x --set sample.widths=1
expect conds-alone 2 "sample.conds belongs to zoo.manifest" "$weft" run recipes/moons.conf -o x \
    --set sample.conds=1

expect train-from-recipes 3 "weft run makes it" "$weft" train all.conf -o flow.safetensors
expect widths-wrong 2 "write different numbers" "$weft" run all.conf -o x --set sample.widths=1,1
expect widths-words 2 "sample.widths needs numbers" "$weft" run all.conf -o x \
    --set sample.widths=wide
expect widths-alone 2 "belongs to zoo.manifest" "$weft" run recipes/moons.conf -o x \
    --set sample.widths=1
expect manifest-and-arch 2 "leave zoo.arch out" "$weft" run all.conf -o x --set zoo.arch=2-3-2
printf '[a]\nrecipe = recipes/moons.conf\nzoo = before/zoos/moons.safetensors\n' >bad.manifest
expect both-ways 3 "a collection and a recipe" "$weft" run all.conf -o x \
    --set zoo.manifest=bad.manifest
printf '[a]\nrecipe = nowhere.conf\n' >bad.manifest
expect lost-recipe 3 "nowhere.conf" "$weft" run all.conf -o x --set zoo.manifest=bad.manifest
printf '[a]\nrecipe = recipes/moons.conf\ndata = moons\n' >bad.manifest
expect data-twice 3 "which says the data" "$weft" run all.conf -o x --set zoo.manifest=bad.manifest
finish
