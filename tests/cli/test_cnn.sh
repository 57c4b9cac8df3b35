#!/bin/sh
# Convolutional networks: import with batch norms, export, and every kind of bad input. A message
# names the layer, what was expected and what was found, and the exit code is 3.
. tests/cli/lib.sh
cd "$scratch" || exit 1

# --- in and out -----------------------------------------------------------------------------------
cat >cnn.conf <<RECIPE
[data]
name = digits
[zoo]
arch = 1x8x8 conv3 batchnorm pool linear10
count = 3
epochs = 1
RECIPE
"$weft" zoo train cnn.conf -o zoo.safetensors -q >/dev/null
"$weft" zoo export zoo.safetensors --all --format pt -o nets -q >/dev/null
arch="1x8x8 conv3 batchnorm pool linear10"
expect import-folds 0 "1 batch norm of each network folded" "$weft" zoo import nets --arch "$arch" \
    -o folded
check "said on stderr" grep -q -e "--keep-norm" err
check "the architecture has no norm" grep -q "1x8x8 conv3 pool linear10" out
expect import-keeps 0 "conv3 batchnorm pool" "$weft" zoo import nets --arch "$arch" \
    --keep-norm -o kept
check "nothing is said of folding" sh -c '! grep -q folded err'
expect keep-alone 2 "goes with --arch" "$weft" zoo import nets -a relu --keep-norm -o x
score() { "$weft" zoo import nets --arch "$arch" --data digits --scale standard "$@" -q |
    sed 's/.*accuracy/accuracy/'; }
score -o a >a.txt 2>/dev/null
score -o b --keep-norm >b.txt 2>/dev/null
check "folded networks score the same" cmp a.txt b.txt
check "and are scored" grep -q "accuracy [1-9]" a.txt
"$weft" zoo export folded.safetensors -i 2 -o back.pt -q >/dev/null
check "an exported network is imported again" "$weft" zoo import back.pt --arch "$arch" -o again -q
"$weft" zoo subset folded.safetensors -i 2 -o two.safetensors -q >/dev/null
"$weft" zoo export two.safetensors -o two-net.safetensors -q >/dev/null
"$weft" zoo export again.safetensors -o again-net.safetensors -q >/dev/null
check "with the same bits" cmp two-net.safetensors again-net.safetensors

# --- descriptions that do not fit -----------------------------------------------------------------
model() { sed "s/^arch = .*/arch = $1/" cnn.conf >bad.conf; }
model "1x8x8 conv3k11p0 linear10"
expect kernel-too-large 3 \
    'layer 1 (conv "0"): convolution: a kernel of 11x11 does not fit; expected at most 8x8' \
    "$weft" zoo train bad.conf -o x.safetensors
model "1x8x8 conv3s4 pool conv3 pool linear10"
expect nothing-left \
    3 'layer 2 (conv "3"): pooling: a kernel of 2x2 does not fit; expected at most 1x1' \
    "$weft" zoo train bad.conf -o x.safetensors
model "1x9x9 conv3 linear10"
expect other-images 3 "1x9x9" "$weft" zoo train bad.conf -o x.safetensors
check "with what was found" grep -q "1x8x8" err
echo '{"input": [1, 8, 8], "layers": [{"op": "conv", "units": 4, "kernel": 3},
  {"op": "conv", "in": 5, "units": 6, "kernel": 3}, {"op": "linear", "units": 10}]}' >chain.json
model chain.json
expect channels-chain \
    3 'layer 2 (conv "layers.1"): expected 5 units to read, found 4, which layer 1 makes' \
    "$weft" zoo train bad.conf -o x.safetensors
echo '{"input": [1, 8, 8], "layers": [{"op": "conv", "units": 4, "kernel": 3},
  {"op": "conv", "units": 6, "kernel": 3, "padding": 1}, {"op": "add", "from": [1, 2]}, {"op": "linear", "units": 10}]}' >add.json
model add.json
expect sums-differ \
    3 "layer 3 (add): expected two inputs of one size, found 4x6x6 of layer 1 and 6x6x6 of layer 2" \
    "$weft" zoo train bad.conf -o x.safetensors
expect tensor-differs 3 "'0.weight' is F32 [3,1,3,3], layer 1 of" \
    "$weft" zoo import nets --arch "1x8x8 conv3k5 batchnorm pool linear10" -o x
check "with what is needed" grep -q "needs \[3,1,5,5\]" err
expect norm-missing 3 "no tensor" "$weft" zoo import nets \
    --arch "1x8x8 conv3 batchnorm pool linear12 linear10" -o x
echo '{"input": [1, 8, 8], "layers": [{"op": "conv", "name": "0", "units": 3, "kernel": 3, "padding": 1,
  "activation": "relu", "pool": {"kind": "max", "kernel": 2}}, {"op": "linear", "name": "5", "units": 10}]}' >bare.json
expect norm-left-over 3 "belong to no layer of the description: 1.bias F32 [3]" "$weft" zoo import \
    nets --arch bare.json -o x
expect norm-alone 3 'layer 2, batch norm "2": expected a convolution or linear layer before it' \
    "$weft" zoo import nets --arch "1x8x8 conv3 relu pass batchnorm pool linear10" -o x

# --- generators of networks that no text describes ------------------------------------------------
resnet="1x8x8 conv3! batchnorm basic3x1 basic4x1s2 gap linear10"
sed "s/^arch = .*/arch = $resnet/" cnn.conf >resnet.conf
"$weft" zoo train resnet.conf -o resnets.safetensors -q >/dev/null
toy="--set model.width=8 --set model.time=8 --set train.updates=2 --set train.batch=2 --set sample.steps=1"
# shellcheck disable=SC2086
expect fit-resnets 0 "after 2 updates" "$weft" train resnet.conf --zoo resnets.safetensors \
    --set model.generator=dwf \
    --set train.coupling=independent $toy -o dwf.safetensors -q
expect sample-rival 0 "2 networks of 1x8x8 to 10, 9 layers" "$weft" sample dwf.safetensors -n 2 \
    -o drawn.safetensors -q
expect sample-control 0 "2 networks of 1x8x8 to 10, 9 layers" \
    "$weft" sample perturbation-0.1 --zoo resnets.safetensors -n 2 -o noisy.safetensors -q
small="--set model.node=8 --set model.edge=8 --set model.time=8 --set model.blocks=1 --set train.updates=2 --set train.batch=2"
# shellcheck disable=SC2086
"$weft" train resnet.conf --zoo resnets.safetensors $small -o flow.safetensors -q >/dev/null
expect sample-arch 0 "a shape never trained on" "$weft" sample flow.safetensors -n 1 --steps 1 \
    --arch "1x8x8 conv3! batchnorm basic3x1 basic6x1s2 gap linear10" -o wide.safetensors -q
expect sample-kernel 2 "layer 1: expected 9 numbers between two units, as in the flow's networks" \
    "$weft" sample flow.safetensors \
    --arch "1x8x8 conv3k5! batchnorm basic3x1 basic4x1s2 gap linear10" -o x.safetensors -q
expect sample-images 2 "write 1x8x8 ... linear10" "$weft" sample flow.safetensors \
    --arch "1x9x9 conv4 gap linear10" -o x.safetensors -q
"$weft" zoo export drawn.safetensors -i 0 -o drawn.pt -q >/dev/null
check "an exported ResNet is imported again" "$weft" zoo import drawn.pt --arch "$resnet" \
    --keep-norm -o returned -q

# --- batches of CIFAR -----------------------------------------------------------------------------
mkdir cifar-10
python3 - <<PYTHON
import random
for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
    open("cifar-10/" + name, "wb").write(b"".join(bytes([i % 10]) + random.Random(i).randbytes(3072) for i in range(20)))
PYTHON
cat >cifar.conf <<RECIPE
[data]
name = cifar10
path = $scratch/cifar-10
[zoo]
arch = 3x32x32 conv4 pool gap linear10
RECIPE
expect batches 0 "100 to train, 20 to test" "$weft" data info cifar.conf
cp cifar-10/data_batch_3.bin whole
head -c 60000 whole >cifar-10/data_batch_3.bin
expect truncated \
    3 "data_batch_3.bin: 60000 bytes; expected whole CIFAR-10 images of 3073 bytes, found 19" \
    "$weft" data info cifar.conf
python3 -c \
    'b = bytearray(open("whole", "rb").read()); b[3073 * 7] = 11; open("cifar-10/data_batch_3.bin", "wb").write(b)'
expect label-beyond 3 "data_batch_3.bin: image 7 has the label 11; expected 0 to 9" "$weft" data \
    info cifar.conf
rm cifar-10/data_batch_3.bin
expect batch-missing 3 "data_batch_3.bin is missing" "$weft" data info cifar.conf
check "nothing is left behind" test ! -e x.safetensors
finish
