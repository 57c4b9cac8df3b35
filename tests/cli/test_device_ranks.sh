#!/bin/sh
# Training on GPUs with several ranks, on emulated devices: over a stand-in for NCCL
# (tests/emulator/fake_nccl.cpp) and through host memory. R ranks agree with one to rounding, two
# runs have the same bits, a run goes on.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
emulated=$root/${BUILD:-build}/emulated/weft
case ${BUILD:-} in /*) emulated=$BUILD/emulated/weft ;; esac
cd "$scratch" || exit 1
if [ ! -x "$emulated" ] || ! command -v mpirun >/dev/null 2>&1 || ! "$emulated" version |
    grep -q '^mpi: .*MPI'; then
    echo "skip ranks with GPUs: no emulated program, or no mpirun"
    exit 0
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none \
    WEFT_RANK_TIMEOUT=60
check "the build says what is in" sh -c "'$emulated' version | grep -q '^nccl: 1.2.3'"

"$weft" zoo train "$recipe" -n 12 -o zoo.safetensors -q >/dev/null
# fit NAME RANKS OPTION...: one update at a time, because an emulated device works only while its
# host waits.
fit() {
    label=$1 n=$2
    shift 2
    timeout 300 mpirun -n "$n" "$emulated" train "$recipe" -z zoo.safetensors \
        -o "$label.safetensors" --device cuda --threads 1 \
        --set train.precision=fp32 --set train.batch=5 --set train.patience=1000 \
        --set train.log_every=1 --set train.eps=1e-4 \
        --set train.set_aside=2 --set train.validations=2 "$@" >"$label.out" 2>"$label.err" ||
        { cat "$label.err"; return 1; }
}
cat >near.py <<'END'
import json, struct, sys
def weights(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    out = {}
    for name, t in head.items():
        if name.startswith(("weights", "ema", "first")):
            part = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            out[name] = struct.unpack("<%df" % (len(part) // 4), part)
    return out
a, b, most = weights(sys.argv[1]), weights(sys.argv[2]), float(sys.argv[3])
assert a and a.keys() == b.keys()
worst = 0.0
for name in a:
    scale = max(max(map(abs, a[name])), 1e-3)
    worst = max(worst, max(abs(x - y) for x, y in zip(a[name], b[name])) / scale)
print(worst)
assert worst <= most, worst
END
export WEFT_EMULATOR_DEVICES=3
for optimizer in adamw muon; do
    set -- --set train.updates=2 --set train.optimizer=$optimizer --set train.ema=0.9
    check "$optimizer: one rank" fit $optimizer-1 1 "$@"
    for n in 2 3; do
        check "$optimizer: $n ranks, a GPU each" fit $optimizer-$n $n "$@"
        check "$optimizer: $n ranks agree with one" python3 near.py $optimizer-1.safetensors \
            $optimizer-$n.safetensors 1e-4
    done
done
check "no warning" sh -c '! grep -q "host memory" muon-3.err'
set -- --set train.optimizer=muon --set train.ema=0.9 --set train.schedule_updates=2
check "an update of 3 ranks" fit part 3 --set train.updates=1 "$@"
check "and one more" fit part 3 --set train.updates=2 "$@"
check "have the bits of two at once" python3 near.py muon-3.safetensors part.safetensors 0
check "matched noise" fit matched-1 1 --set train.updates=2 --set train.coupling=matched
check "matched noise, 2 ranks" fit matched-2 2 --set train.updates=2 --set train.coupling=matched
check "agree" python3 near.py matched-1.safetensors matched-2.safetensors 1e-4
check "more ranks than networks" fit few-3 3 --set train.updates=2 --set train.batch=2
check "one rank" fit few-1 1 --set train.updates=2 --set train.batch=2
check "agree, too" python3 near.py few-1.safetensors few-3.safetensors 1e-4

# Dropout's masks belong to places of the whole batch.
sed 's/^node.*/width = 16/; /^edge/d; /^blocks/d; s/^\[model\]/&\ngenerator = dwf\ndropout = 0.3/' \
    "$recipe" >dwf.conf
gmn=$recipe recipe=dwf.conf
for n in 1 2; do
    check "dropout, $n ranks" fit dwf-$n $n --set train.updates=3 --set train.coupling=independent
done
check "has the masks of one" python3 near.py dwf-1.safetensors dwf-2.safetensors 1e-4
recipe=$gmn
# A run of 2 ranks goes on with 1 and ends with 3.
set -- --set train.schedule_updates=4 --set train.optimizer=muon --set train.ema=0.9
check "two updates of 2 ranks" fit turns 2 --set train.updates=2 "$@"
check "one of 1" fit turns 1 --set train.updates=3 "$@"
check "one of 3" fit turns 3 --set train.updates=4 "$@"
check "four of one" fit four 1 --set train.updates=4 "$@"
check "agree" python3 near.py four.safetensors turns.safetensors 1e-4
# One rank by way of NCCL: the sum of one is itself.
set -- --set train.optimizer=muon --set train.ema=0.9
WEFT_NCCL=on fit alone 1 --set train.updates=2 "$@" || fail "one rank over NCCL" "$(cat alone.err)"
check "one rank over NCCL has its own bits" python3 near.py muon-1.safetensors alone.safetensors 0
WEFT_NCCL=on WEFT_FAKE_NCCL_FAILS=1 fit lost 1 --set train.updates=4 >/dev/null
check "an NCCL that does not start is told" grep -q "WEFT_NCCL=on: no shared memory" lost.err

# What each rank does with a GPU of its own: networks of a collection, and samples.
# same_file NAME COMMAND...: one rank's OUTPUT.safetensors and that of 3 are equal.
same_file() {
    label=$1
    shift
    timeout 300 "$emulated" "$@" -o "$label-1.safetensors" --device cuda --threads 1 -q >/dev/null 2>&1 &&
        timeout 300 mpirun -n 3 "$emulated" "$@" -o "$label-3.safetensors" --device cuda --threads 1 -q >/dev/null 2>&1 &&
        cmp "$label-1.safetensors" "$label-3.safetensors"
}
check "a collection of 3 ranks" same_file collection zoo train "$recipe" -n 13
check "samples of 3 ranks" same_file samples sample muon-1.safetensors -n 5 --solver heun --steps 2

# Two ranks on one GPU; a build or a setting without NCCL; an NCCL that does not start.
export WEFT_EMULATOR_DEVICES=1
check "2 ranks share a GPU" fit shared 2 --set train.updates=2 "$@"
check "which is told" grep \
    -q "ranks 0 and 1 share a GPU on .*, which NCCL refuses: gradients go through host memory and MPI" shared.err
check "with the same result" python3 near.py muon-1.safetensors shared.safetensors 1e-4
export WEFT_EMULATOR_DEVICES=3
WEFT_FAKE_NCCL_FAILS=1 fit failing 2 --set train.updates=1 >/dev/null 2>&1
check "is told" grep -q "NCCL did not start on rank 1 on " failing.err
WEFT_NCCL=off
export WEFT_NCCL
check "switched off" fit off 2 --set train.updates=2 "$@"
check "has the bits of host memory" python3 near.py shared.safetensors off.safetensors 0
finish
