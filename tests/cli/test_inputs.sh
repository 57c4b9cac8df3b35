#!/bin/sh
# Recipes and files that are wrong, and everything that only looks.
. tests/cli/lib.sh

recipe() { printf '%s\n' "$@" >"$scratch/r.conf"; }

recipe '[data]' 'name = spirals' '[zoo]' 'arch = 2-4-3' 'cuont = 7'
expect unknown-key 3 "r.conf" "$weft" model info "$scratch/r.conf"
expect unknown-key-line 3 "5" "$weft" model info "$scratch/r.conf"
expect unknown-key-nearest 3 "count" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'arch = 2-4-3' '[modle]' 'node = 8'
expect unknown-section 3 "modle" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'arch = 2-4-3' 'count = 5' 'count = 6'
expect duplicate-key 3 "count" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'arch = 2-4-3' '[train]' 'lr = fast'
expect bad-number 3 "lr" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'arch = 2-4-3' '[sample]' 'solver = magic'
expect bad-choice 3 "dopri5" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'arch = 2-0-3'
expect width-zero 2 "2-0-3" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'count = 3'
expect no-arch 3 "zoo.arch" "$weft" model info "$scratch/r.conf"
recipe '[zoo]' 'arch = 2-4-3' '[model]' 'cond = mlp'
expect cond-without-size 2 "cond_size" "$weft" model info "$scratch/r.conf"
recipe '[data]' 'name = spirals' '[zoo]' 'arch = 5-4-3'
expect arch-against-data 3 "2 inputs and 3 classes" "$weft" zoo train "$scratch/r.conf" \
    -o "$scratch/z"
recipe '[zoo]' 'arch = 2-4-3'
expect no-data 3 "[data]" "$weft" zoo train "$scratch/r.conf" -o "$scratch/z"
expect bad-override 2 "train.updates" "$weft" model info tests/cli/tiny.conf --set train.updates=0
expect unknown-override 2 "train.nonsense" "$weft" model info tests/cli/tiny.conf \
    --set train.nonsense=1

expect missing-recipe 3 "nowhere.conf" "$weft" run nowhere.conf
expect missing-collection 3 "nowhere.safetensors" "$weft" zoo info nowhere.safetensors
expect missing-flow 3 "nowhere.safetensors" "$weft" sample nowhere.safetensors -o "$scratch/x"
expect missing-run 3 "nowhere" "$weft" report nowhere
expect missing-import 3 "nowhere" "$weft" zoo import nowhere -a relu -o "$scratch/x"
printf 'not a collection' >"$scratch/junk"
expect junk-collection 3 "junk" "$weft" zoo info "$scratch/junk"
expect junk-flow 3 "junk" "$weft" sample "$scratch/junk" -o "$scratch/x"
: >"$scratch/empty"
expect empty-collection 3 "empty" "$weft" align "$scratch/empty" -o "$scratch/x"
expect folder-as-file 3 "$scratch" "$weft" zoo info "$scratch"
mkdir "$scratch/folder"
expect zoo-train-into-folder 4 "is a folder" "$weft" zoo train tests/cli/tiny.conf \
    -o "$scratch/folder"
check "nothing begun there" test ! -e "$scratch/folder.parts"
expect zoo-train-no-out 2 "-o FILE" "$weft" zoo train tests/cli/tiny.conf
expect sample-no-out 2 "-o FILE" "$weft" sample "$scratch/junk"
expect eval-no-files 2 "--zoo FILE" "$weft" eval
expect eval-no-data 2 "--data DATA" "$weft" eval --nets x.safetensors
expect import-no-activation 2 "--activation" "$weft" zoo import "$scratch" -o "$scratch/x"
expect train-no-zoo 2 "--zoo FILE" "$weft" train tests/cli/tiny.conf -o "$scratch/x"

# What only looks: sizes that are known, and JSON that parses.
parameters() { "$weft" model info "$1" --json |
    python3 -c 'import json,sys; print(json.load(sys.stdin)["parameters"])'; }
check "lstar karhunen has 1,958,017 parameters" test "$(parameters recipes/karhunen-paper.conf)" = \
    1958017
check "lstar mnist has 8,000,914 parameters" test "$(parameters recipes/mnist-paper.conf)" = 8000914
for conf in recipes/*.conf; do
    "$weft" model info "$conf" --json >"$scratch/model.json" 2>"$scratch/err"
    check "reads $conf" is_json "$scratch/model.json"
done
expect help-recipe 0 "[train]" "$weft" help recipe
# Values that are not allowed: file, line, key, what was found and what is allowed.
tiny() { "$weft" model info "$@"; }
sed 's/^updates = .*/updates = many/' tests/cli/tiny.conf >"$scratch/bad.conf"
expect bad-value 3 "bad.conf:$(grep -n '^updates' tests/cli/tiny.conf |
    cut -d: -f1): [train] updates is \"many\"; allowed is a whole number from 1" tiny \
    "$scratch/bad.conf"
expect bad-range 2 'override train.beta1 is "1"; allowed is a number from 0 below 1' tiny \
    tests/cli/tiny.conf --set train.beta1=1
expect bad-choice 2 "sum, mean, attention (did you mean mean?)" tiny tests/cli/tiny.conf \
    --set model.messages=maen
expect bad-generator 2 'override model.generator is "gmm"; allowed is random, perturbation' tiny \
    tests/cli/tiny.conf --set model.generator=gmm
expect bad-model-key 2 '[model] has no key "nodes"; did you mean "node"?' tiny tests/cli/tiny.conf \
    --set model.nodes=4
expect unset-text 0 "parameters" tiny tests/cli/tiny.conf --set train.shares="a: 2" \
    --set train.shares=
expect unset-to-default 0 "parameters" tiny tests/cli/tiny.conf --set model.generator= \
    --set zoo.activation=
# Descriptions of networks: what is wrong is named with its layer; what does not fit the data, too.
expect arch-words 0 "19,450 parameters as a graph of 113 nodes" \
    tiny tests/cli/tiny.conf --set "zoo.arch=3x32x32 conv16 pool conv32 pool conv48 gap linear10"
expect arch-kernel 3 'layer 2 (conv "3"): convolution: a kernel of 9x9 does not fit' \
    tiny tests/cli/tiny.conf --set "zoo.arch=1x8x8 conv4 pool conv4k9p2 gap linear3"
echo '{"input":[2],"layers":[{"op":"linear","units":4,"in":3}]}' >"$scratch/net.json"
expect arch-file \
    3 "net.json: architecture: layer 1 (linear \"layers.0\"): expected 3 units to read, found 2" \
    tiny tests/cli/tiny.conf --set "zoo.arch=$scratch/net.json"
expect crop-without-images 2 "data set spirals has none" "$weft" zoo train tests/cli/tiny.conf \
    --set zoo.crop=2 -o "$scratch/cnn.safetensors"
"$weft" data list --json >"$scratch/list.json"
check data-list-json is_json "$scratch/list.json"
for set in spirals moons digits; do
    "$weft" data info $set --json >"$scratch/data.json"
    check "data-info-json $set" is_json "$scratch/data.json"
done
check data-info-recipe "$weft" data info tests/cli/tiny.conf
"$weft" bench --only wcs --seconds 0.05 --json -q >"$scratch/bench.json"
check bench-json is_json "$scratch/bench.json"
expect bench-unknown 2 "lstar" "$weft" bench --only speed
finish
