#!/usr/bin/env bash
# The files that commands of the documents are given: collections, flows, runs and tables as small
# as they can be. tests/doc_blocks.py runs it once, in an empty folder; WEFT_RECIPES is ./recipes
# then, so that a recipe named digits or karhunen is the small one made here.
set -euo pipefail

mkdir recipes
# Networks of 64-12-8-10 on few rows of the built-in digits, and a tiny flow.
cat >recipes/digits.conf <<'RECIPE'
[data]
name = digits
rows = 300
noise = 0.3
[zoo]
arch = 64-12-8-10
count = 60
held_out = 4
epochs = 40
batch = 32
lr = 0.01
[model]
node = 8
edge = 8
time = 8
blocks = 1
[train]
updates = 10
batch = 4
[sample]
count = 12
steps = 4
refine_cycles = 1
[eval]
subsets = 2
RECIPE
cp recipes/digits.conf recipes/karhunen.conf
cp recipes/digits.conf my.conf
export WEFT_RECIPES=$PWD/recipes

weft zoo train digits -o digits.safetensors -q
for name in zoo mine nets a b part1 part2 fit good net0; do cp digits.safetensors $name.safetensors
done
weft zoo export digits.safetensors --all -o checkpoints/ --format pt -q >/dev/null
weft zoo export digits.safetensors -i 3 -o net.pt -q >/dev/null
mkdir -p runs/1 runs/2 more/deep
cp checkpoints/*00.pt runs/1/last.ckpt
cp checkpoints/*01.pt runs/2/last.ckpt
cp checkpoints/*02.pt more/deep/net.pt
weft zoo export digits.safetensors --names fc1,fc2,out -i 0 -o one.safetensors -q >/dev/null
mv one.safetensors stack.safetensors

python3 "$ROOT"/tests/doc_cnns.py "$ROOT"/docs/formats.md

# A table for networks of 64 inputs and 10 classes.
awk 'BEGIN {
    srand(1)
    for (i = 0; i < 64; i++) printf "p%d,", i
    print "kind"
    for (row = 0; row < 200; row++) {
        for (i = 0; i < 64; i++) printf "%.3f,", rand()
        print "class" row % 10
    }
}' >my.csv
mkdir cmc
awk 'BEGIN {
    srand(2)
    print "@relation cmc\n@attribute age numeric\n@attribute work {no,yes}\n@attribute method {1,2,3}\n@data"
    for (row = 0; row < 120; row++)
        printf "%d,%s,%d\n", 16 + rand() * 33, rand() < 0.3 ? "no" : "yes", 1 + rand() * 3
}' >cmc/cmc.arff

# Two domains with one architecture, two tasks with their manifest.
for name in letter banknote; do cp digits.safetensors $name.safetensors; done
sed 's/^name = digits/name = moons/; s/^arch = .*/arch = 2-6-2/' recipes/digits.conf |
    tee ca.conf >pr.conf
weft zoo train ca.conf -o ca.safetensors -q >/dev/null
weft zoo train pr.conf --first 60 -o pr.safetensors -q >/dev/null
sed 's/^blocks = 1/&\ncond = mlp/; s/^batch = 4/&\ncond_drop = 0.1/' ca.conf >acs.conf
sed 's/^blocks = 1/&\ncond = linear/' recipes/digits.conf >tasks.conf
printf '[letter]\nzoo = letter.safetensors\n[banknote]\nzoo = banknote.safetensors\n' \
    >tasks.manifest

weft train digits --zoo digits.safetensors -o flow.safetensors -q >/dev/null
weft train acs.conf --zoo ca.safetensors,pr.safetensors --cond "0;1" -o domains.safetensors \
    -q >/dev/null
weft train tasks.conf --manifest tasks.manifest -o tasks.safetensors -q >/dev/null
weft sample flow.safetensors -n 12 --width 1.5 -o wide.safetensors -q >/dev/null

weft run digits -q >/dev/null
for name in demo adamw muon digits-a digits-b; do cp -r runs/digits runs/$name; done
for limit in 20 30; do weft run digits -o runs/sweep-$limit --set train.limit=$limit -q >/dev/null
done
