#!/bin/sh
# zoo.fresh: networks trained beside the flow, for one collection and for a manifest; what is
# refused.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1
fresh="--set zoo.fresh=yes --set train.fresh_rate=1"

# 48 networks in slices of 3: a renewal every three updates. Files say where their flow was, so
# every run is called the same.
expect fresh-run 0 "gmn-refined" "$weft" run "$recipe" $fresh --threads 1 -o run
cp -r run one
rm run/flow.safetensors run/nets.safetensors
expect fresh-threads 0 "gmn-refined" "$weft" run "$recipe" $fresh --threads 2 -o run
check "whatever the threads" cmp one/nets.safetensors run/nets.safetensors
expect plain-run 0 "gmn-refined" "$weft" run "$recipe" -o plain
check "the collection is the same" cmp one/zoo.safetensors plain/zoo.safetensors
check "the networks are not" sh -c '! cmp -s one/nets.safetensors plain/nets.safetensors'
expect fresh-changed 2 "zoo.fresh was" "$weft" run "$recipe" -o one
expect fresh-other-rate 2 "train.fresh_rate was" "$weft" run "$recipe" $fresh \
    --set train.fresh_rate=2 -o one
expect fresh-measured 0 "gmn-refined" "$weft" run "$recipe" --set zoo.fresh=yes \
    --set train.updates=80 -o measured

mkdir recipes
for set in moons spirals; do
    classes=2
    [ $set = spirals ] && classes=3
    printf '[data]\nname = %s\nrows = 200\n[zoo]\narch = 2-5-%s\ncount = 30\nheld_out = 6\nepochs = 4\nbatch = 32\n' \
        $set $classes >recipes/$set.conf
    printf '[%s]\nrecipe = %s.conf\n' $set $set >>recipes/all.manifest
done
cat >tasks.conf <<'END'
[zoo]
manifest = recipes/all.manifest
fresh = yes
[model]
node = 8
edge = 8
time = 8
blocks = 1
cond = linear
[train]
updates = 20
batch = 8
fresh_rate = 2
[sample]
count = 5
solver = euler
steps = 3
[eval]
subsets = 4
END
expect fresh-tasks 0 "mean gap at width 1 over 2 collections" "$weft" run tasks.conf -o tasks
printf '[given]\nzoo = ../one/zoo.safetensors\n' >>recipes/all.manifest
expect fresh-given-task 2 "has no recipe to train networks with" "$weft" run tasks.conf -o given

expect fresh-path 2 "leave zoo.path out" "$weft" run "$recipe" $fresh \
    --set zoo.path=one/zoo.safetensors -o path
expect fresh-info 0 "trained beside the flow" "$weft" flow info one/flow.safetensors
expect fresh-train 2 "zoo.fresh belongs to weft run" "$weft" train "$recipe" \
    --zoo one/zoo.safetensors $fresh -o flow
sed '/^node\|^edge\|^time\|^blocks/d; s/^\[model\]/&\ngenerator = dwf-aligned/' "$recipe" \
    >aligned.conf
expect fresh-aligned 2 "it wants them aligned" "$weft" run aligned.conf $fresh \
    --set sample.refine_cycles=0 -o aligned

# Recipes for the GPU, as far as they can be read here.
for name in mnist-fresh karhunen-fresh; do
    expect $name 0 "parameters" "$weft" model info "$root/recipes/$name.conf"
    check "$name asks for fresh networks" grep -q "^fresh = yes" "$root/recipes/$name.conf"
done
finish
