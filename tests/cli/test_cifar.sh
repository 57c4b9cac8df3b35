#!/bin/sh
# CIFAR-10 itself, where WEFT_DATA has it (as xz, unpacked once into the build folder).
. tests/cli/lib.sh
expect paper-field 0 "78,243,466 parameters" "$weft" model info recipes/cifar10-paper.conf
expect lean-field 0 "19,450 parameters as a graph of 113 nodes" "$weft" model info \
    recipes/cifar10.conf
expect small-field 0 "830 parameters" "$weft" model info recipes/digits-cnn.conf
not_sanitized "cli/test_cnn.sh reads small files of that format"
data=${BUILD:-build}/data/cifar-10
case $data in /*) ;; *) data=$PWD/$data ;; esac
if [ ! -f "${WEFT_DATA:-/nowhere}/cifar-10/data_batch_1.bin.xz" ]; then
    echo "skip cifar: WEFT_DATA names no folder with cifar-10"
    finish
    exit
fi
if ! command -v xz >/dev/null 2>&1 && ! tools/need.sh xz-utils >/dev/null 2>&1; then
    echo "skip cifar: there is no xz"
    finish
    exit
fi
mkdir -p "$data"
for packed in "$WEFT_DATA"/cifar-10/*.bin.xz; do
    name=$(basename "$packed" .xz)
    [ -s "$data/$name" ] && continue
    xz -dc "$packed" >"$data/$name.part" && mv "$data/$name.part" "$data/$name"
done
cd "$scratch" || exit 1
cat >cifar.conf <<RECIPE
[data]
name = cifar10
path = $data
scale = channel
[zoo]
arch = 3x32x32 conv16 pool conv32 pool conv48 gap linear10
RECIPE
expect info 0 "images of 3x32x32" "$weft" data info cifar.conf
check examples grep -q "50000 to train, 10000 to test" out
check balanced grep -q "0 (6000) 1 (6000)" out
sed 's/3x32x32/3x28x28/' cifar.conf >other.conf
expect other-size 3 "expect images of 3x28x28" "$weft" zoo train other.conf -o z.safetensors
tar -cf cifar-10-binary.tar -C "$(dirname "$data")" cifar-10
sed "s|^path = .*|path = $scratch/cifar-10-binary.tar|" cifar.conf >tar.conf
"$weft" data info cifar.conf --json >folder.json
"$weft" data info tar.conf --json >archive.json
check archive python3 -c '
import json
a, b = json.load(open("folder.json")), json.load(open("archive.json"))
assert a["fingerprint"] == b["fingerprint"] and a["image"] == [3, 32, 32]'
# The whole experiment on 240 images: a batch comes first, packed, in a folder of its own; stopped, it goes on; again, it is done.
mkdir pair
gzip -c "$data/data_batch_2.bin" >pair/data_batch_2.bin.gz
bench() {
    env DEVICE=cpu WEFT="$weft" OUT="$scratch/bench" IMAGES=40 COUNT=6 HELD=2 EPOCHS=1 UPDATES=3 SAMPLES=2 TIMED=2 TRAINED=1 CURVE="3 5" \
        PARTS="refine widths curve paper" SETTINGS="train.batch=2 model.blocks=1 model.node=8 model.edge=8 model.time=8 train.weights=ema \
        train.principal=no train.log_every=1 sample.steps=4" "$root/bench/experiments.sh" cifar10 "$@"
}
late() { BUDGET=4 bench "$@"; } # nothing begins in the last five seconds
timed() { SECONDS_FOR_NETWORKS=1000 bench "$@"; }
expect bench-data 0 "1 batches" bench data pair
expect bench-late 75 "the same command goes on" late "$WEFT_DATA/cifar-10"
expect bench 0 "refined 0.3,10" timed "$WEFT_DATA/cifar-10"
check bench-rate grep -q "networks of 1 epochs a second" out
check bench-table grep -q "gmn-refined" out
check bench-widths grep -q "width 1.5, trained: [0-9.]* +- [0-9.]* %" out
check bench-curve grep -q "networks 5, refined: JWS 0[.0-9]*" out
for table in refine:7 widths:9 curve:4 paper:1; do
    check "bench-${table%:*}" python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert len(rows) == int(sys.argv[2]), rows' "bench/tables/${table%:*}.jsonl" "${table#*:}"
done
expect bench-again 0 "done" bench pair
check bench-goes-on test "$(wc -l <out)" -le 3
rm -r "$scratch/bench"
expect bench-missing 3 "data_batch_1.bin is in none of: pair" bench pair
finish
