#!/bin/sh
# Recipes of the rivals: sizes as the paper states them, a few updates of each digits recipe from
# the collection to the table, the paper's grid, and what is refused before any work.
. tests/cli/lib.sh
cd "$scratch" || exit 1
rivals=$root/recipes/rivals

# --- sizes ----------------------------------------------------------------------------------------
size() { "$weft" model info "$rivals/$1.conf" --json | sed -n 's/.*"parameters": \([0-9]*\),/\1/p' |
    head -n 1; }
while read -r name params; do
    check "$name has $params parameters" test "$(size "$name")" = "$params"
done <<END
mnist-mlp 21434730
mnist-dit 15762848
mnist-dwf 16045844
mnist-dwf-aligned 16045844
mnist-sane-kde 2041873
mnist-sane-gauss 4277533
mnist-pdiff $((15396833 + 2545153))
cifar10-mlp 80356378
cifar10-dit 77913152
cifar10-dwf 79992165
cifar10-dwf-aligned 79992165
cifar10-sane-kde 79657757
cifar10-sane-gauss 79657757
cifar10-pdiff $((32725537 + 3201537))
karhunen-dit 2019872
karhunen-dit-l 10731424
karhunen-dwf 2009538
karhunen-dwf-aligned 2009538
karhunen-dwf-l 10557490
karhunen-dwf-l-aligned 10557490
digits-gmn 215105
digits-mlp 493490
digits-dit 262688
digits-dwf 347922
digits-dwf-aligned 347922
digits-sane-kde 245117
digits-sane-gauss 245117
digits-pdiff 86310
END
check "all recipes are in this list" test "$(ls "$rivals"/*.conf | wc -l)" = 28

# --- two updates of each --------------------------------------------------------------------------
"$weft" zoo train "$rivals/digits-mlp.conf" -n 8 --set zoo.epochs=1 -o zoo.safetensors -q >/dev/null
toy="--set zoo.path=zoo.safetensors --set zoo.held_out=0 --set train.updates=2 --set train.batch=4 --set train.set_aside=2
 --set sample.count=3 --set eval.controls=no --set eval.subsets=2 -q"
for name in gmn mlp dit dwf dwf-aligned sane-kde sane-gauss pdiff; do
    case $name in
    pdiff) more="--set model.vae_updates=2 --set model.diffusion_steps=25" ;;
    gmn) more="--set sample.steps=1 --set sample.refine_cycles=1" ;;
    sane-*) more= ;;
    *) more="--set sample.steps=1" ;;
    esac
    # shellcheck disable=SC2086
    expect "$name" 0 "$name  " "$weft" run "$rivals/digits-$name.conf" -o "run-$name" $toy $more
done
check "a validation loss in each phase" python3 -c '
import json
lines = [json.loads(line) for line in open("run-pdiff/model.safetensors.log.jsonl")]
seen = {(line["phase"], key) for line in lines for key in ("loss", "validation") if key in line}
assert seen == {(p, k) for p in ("vae", "ddpm") for k in ("loss", "validation")}, seen
assert [line["update"] for line in lines if "loss" in line] == [2, 4]'
"$weft" sample run-sane-kde/model.safetensors -n 2 -o more.safetensors --json -q >more.json
check "weft sample of a rival" python3 \
    -c 'import json; j = json.load(open("more.json")); assert j["n"] == 2, j'

# --- side by side ---------------------------------------------------------------------------------
expect methods 0 "no sqrt 3" "$weft" compare run-* --methods -o methods.html
check methods-table sh \
    -c 'grep -q "^run-pdiff  *pdiff  *86,310 " out && [ "$(grep -c "^reference" out)" = 1 ]'
"$weft" compare run-* --methods --json >methods.json
check methods-json python3 -c '
import json
methods = [run["method"] for run in json.load(open("methods.json"))["runs"]]
assert {m["generator"]: m["parameters"] for m in methods}["dit"] == 262688 and len(methods) == 8
assert {m["generator"]: m["updates"] for m in methods} == {m["generator"]: 4 if m["generator"] == "pdiff" else 2 for m in methods}, methods
assert all(m["training_seconds"] > 0 and 0 <= m["jws_raw"] <= 1 and 0 <= m["jws_no_sqrt3"] <= 1 for m in methods)'
# All networks of all methods in one plot: nine generated rows (one is refined), each with its mark
# in the legend.
check methods-scatter python3 -c '
page = open("methods.html").read()
points = page[page.index("id=\"points\""):]
legend = points[points.index("class=\"legend\""):points.index("<h3>")]
assert legend.count("k-run") == 9, legend.count("k-run")
assert all(legend.count("run-%s direct" % name) == 1 for name in ("gmn", "mlp", "dit", "dwf", "sane-kde", "pdiff"))'
"$weft" run "$rivals/digits-mlp.conf" -o run5-mlp $toy --set sample.steps=1 --set train.limit=5 \
    >/dev/null 2>&1
"$weft" run "$rivals/digits-dwf.conf" -o run5-dwf $toy --set sample.steps=1 --set train.limit=5 \
    >/dev/null 2>&1
expect methods-over 0 "paper, DWF 2M" "$weft" compare run-mlp run-dwf run5-mlp run5-dwf \
    --methods --over train.limit --beside "$root/bench/paper_karhunen.json" -o over.html
check "one series a method, the paper's seven beside" python3 -c '
page = open("over.html").read()
sweep = page[page.index("Over train.limit"):]
for name in ("mlp, 493,490 parameters, direct", "dwf, 347,922 parameters, direct", "paper, DiT 10M", "paper, DWF 10M aligned"):
    assert sweep.count(">" + name + "<") == 1 or sweep.count(name + "</span>") == 1, name'

# --- said before any work -------------------------------------------------------------------------
"$weft" zoo train "$rivals/digits-mlp.conf" -n 3 --set zoo.epochs=1 --set zoo.arch=64-7-10 \
    -o other.safetensors -q >/dev/null
for name in mlp dit dwf sane-kde pdiff; do
    expect "$name-architectures" 3 "takes one architecture" "$weft" train \
        "$rivals/digits-$name.conf" --zoo zoo.safetensors,other.safetensors -o no.safetensors -q
done
for name in dwf-aligned sane-kde sane-gauss; do
    expect "$name-unaligned" 3 "weft align makes an aligned collection" "$weft" train \
        "$rivals/digits-$name.conf" --zoo zoo.safetensors -o no.safetensors -q
done
"$weft" align zoo.safetensors -o aligned.safetensors -q >/dev/null
expect too-few 3 "model.anchors is 50, but 8 networks are fitted" "$weft" train \
    "$rivals/digits-sane-kde.conf" --zoo aligned.safetensors --set model.anchors=50 \
    -o no.safetensors -q
expect one-network 3 "takes latents of two or more" "$weft" train "$rivals/digits-sane-kde.conf" \
    --zoo aligned.safetensors --set train.limit=1 -o no.safetensors -q
run_kde() { "$weft" run "$rivals/digits-sane-kde.conf" -o no -q "$@"; }
expect run-too-few 2 "sane-kde takes 900 networks or more" run_kde --set model.anchors=900
expect run-one-network 2 "sane-kde takes 2 networks or more" run_kde --set train.limit=1
expect run-heads 2 "must divide it" run_kde --set model.heads=5
expect relabel 2 "relabelled copies are not" "$weft" train "$rivals/digits-dwf-aligned.conf" \
    --zoo aligned.safetensors --set train.relabel=yes -o no.safetensors -q
expect signs 2 "flipped copies are not" "$weft" train "$rivals/digits-dwf-aligned.conf" \
    --zoo aligned.safetensors --set train.signs=yes -o no.safetensors -q
printf '[small]\nrecipe = small.conf\n[large]\nrecipe = large.conf\n' >both.ini
for n in 7 9; do
    name=small; [ "$n" = 7 ] || name=large
    printf '[data]\nname = digits\n[zoo]\narch = 64-%s-10\ncount = 4\nepochs = 1\n' "$n" \
        >"$name.conf"
done
printf '[zoo]\nmanifest = both.ini\n[model]\ngenerator = pdiff\n[train]\nupdates = 2\n' >both.conf
expect run-architectures 2 "pdiff takes one architecture; small has networks of 64-7-10" "$weft" \
    run both.conf -o no -q
expect not-read 2 "does not read it" "$weft" train "$rivals/digits-pdiff.conf" \
    --zoo zoo.safetensors --set train.coupling=independent -o no.safetensors -q
expect refined 2 "has no refinement" "$weft" run "$rivals/digits-pdiff.conf" -o no \
    --set sample.refine_cycles=2 -q
expect epochs 2 "which go through one collection" "$weft" train "$rivals/digits-dwf.conf" \
    --zoo zoo.safetensors,zoo.safetensors -o no.safetensors -q
expect token 2 "the longest row of 64-16-8-10 has 65 numbers" "$weft" train \
    "$rivals/digits-sane-kde.conf" --zoo aligned.safetensors --set model.token=66 \
    -o no.safetensors -q
expect no-flow 3 "made by the generator pdiff, which is no flow" "$weft" flow info \
    run-pdiff/model.safetensors
expect heads 2 "must divide it" "$weft" train "$rivals/digits-sane-kde.conf" \
    --zoo aligned.safetensors --set model.heads=5 -o no.safetensors -q
check "nothing half-written" test ! -e no.safetensors -a ! -e no

# --- the paper's grid -----------------------------------------------------------------------------
experiment() { WEFT="$weft" OUT=grid DEVICE=cpu "$root/bench/experiments.sh" "$@"; }
experiment grid --list >list.txt
check "110 configurations" test "$(wc -l <list.txt)" = 110
check "93 on MNIST" test "$(grep -c '^mnist-' list.txt)" = 93
check "each once" test "$(sort -u list.txt | wc -l)" = 110
check "81 of DWF, 18 of SANE, 7 of DiT" test "$(grep -c -- '-dwf' list.txt) $(grep \
    -c -- '-sane' list.txt) $(grep -c -- '-dit' list.txt)" = "81 18 7"
# All of them are accepted, and have the sizes of the paper's tables.
experiment grid --sizes >sizes.txt
awk '{ count[$2]++ } END { for (size in count) print count[size], size }' sizes.txt |
    sort -n -k 2 >counts.txt
cat >paper.txt <<END
2 2041873
2 4277533
2 7938493
2 8223008
2 8479057
18 10687494
2 15641773
3 15762848
18 16045844
2 16403521
1 $((15396833 + 2545153))
18 21424194
1 21434730
18 29962751
1 $((32725537 + 3201537))
2 77913152
2 79657757
9 79992165
1 80356378
2 202704797
2 202802589
END
check "sizes of the grid" cmp paper.txt counts.txt
check "70 runs of the scaling study" test "$(experiment scaling --list | wc -l)" = 70
check "8 methods on three data sets" test "$(experiment rivals --list | wc -l)" = 24
check "27 runs about permutations" test "$(experiment permutation --list | wc -l)" = 27
check "7 rivals on one training run" test "$(experiment origin --list 'origin-*' | wc -l)" = 7

# --- a subset of an experiment, and the same command again ----------------------------------------
few() {
    COUNT=3 DIGITS=8 SETTINGS="train.updates=2 train.set_aside=2 sample.steps=1 eval.subsets=2" \
        experiment rivals 'digits-mlp' digits-dwf 2>&1
}
few >few.txt
check "two methods, one table" grep -q '^digits-dwf  *dwf  *347,922 ' few.txt
check "a page with their networks" grep -q 'id="points"' grid/rivals-digits.html
few >again.txt
check "goes on where it was" test "$(grep -c 'done before' again.txt)" = 2
COUNT=3 DIGITS=8 SHARE=1 SETTINGS="model.diffusion_steps=25 train.set_aside=2 eval.subsets=2" \
    experiment rivals digits-pdiff >share.txt 2>&1
check "a share of its updates" grep -q '^digits-pdiff  *pdiff  *86,310  *14 ' share.txt
endless() { DIGITS=8 BUDGET=3 \
    SETTINGS="train.updates=100000000 train.set_aside=2 train.log_every=1" experiment rivals \
    digits-dit; }
expect "time is over" 0 "digits-dit: saved" endless
finish
