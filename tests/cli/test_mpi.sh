#!/bin/sh
# Several processes under mpirun: the files of one process, bit for bit; faults end all of them with
# one message.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
programs=$root/${BUILD:-build}
case ${BUILD:-} in /*) programs=$BUILD ;; esac
cd "$scratch" || exit 1

if ! "$weft" version | grep -q '^mpi: .*MPI'; then
    expect "one of several, without MPI" 2 "but this build has no MPI" env OMPI_COMM_WORLD_SIZE=2 \
        "$weft" zoo train "$recipe" -o x.safetensors
    expect "by itself" 0 "40 networks" env OMPI_COMM_WORLD_SIZE=2 WEFT_MPI=off "$weft" zoo train \
        "$recipe" -o x.safetensors
    echo "skip several processes: this build has no MPI (Debian: libopenmpi-dev, then make again)"
    finish
    exit
fi
if ! command -v mpirun >/dev/null 2>&1; then
    echo "skip several processes: mpirun is not installed (Debian: openmpi-bin)"
    exit 0
fi
# Two cores take three ranks, also as root in a container; MPI's own memory is no leak of ours.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" WEFT_RANK_TIMEOUT=30
# ranks N ARGUMENT...: weft with N ranks of one thread; a minute at most.
ranks() {
    n=$1
    shift
    timeout 60 mpirun -n "$n" "$weft" "$@" --threads 1
}

# --- the communicator
check "collective calls of 3 ranks" timeout 60 mpirun -n 3 "$programs/tests/unit/test_comm"
[ "$(uname -m)" != x86_64 ] || expect "ranks of other instruction sets" \
    2 "computes with avx2, rank 1 on " timeout 60 mpirun -n 1 -x WEFT_ISA=avx2 "$weft" zoo train \
    "$recipe" -o x.safetensors : -n 1 -x WEFT_ISA=base "$weft" zoo train "$recipe" -o x.safetensors
expect "ranks of other arguments" 2 "rank 1 on $(hostname) was started with other arguments" \
    timeout 60 mpirun -n 1 "$weft" zoo train "$recipe" -o x.safetensors : -n 1 "$weft" zoo train \
    "$recipe" -o y.safetensors
cp "$weft" other && echo >>other
expect "ranks of other builds" 2 "rank 1 on $(hostname) runs another build" timeout 60 mpirun \
    -n 1 "$weft" zoo train "$recipe" -o x.safetensors : -n 1 ./other zoo train "$recipe" \
    -o x.safetensors
expect "a mistake is told once" 2 "zoo.epochs" ranks 3 zoo train "$recipe" -o x.safetensors \
    --set zoo.epochs=-1
check "by rank 0 alone" test "$(grep -c '^weft:' err)" = 1
expect "a command that is none, too" 2 "unknown command nonsense" ranks 3 nonsense
check "once" test "$(grep -c '^weft:' err)" = 1

# --- collections
"$weft" zoo train "$recipe" -o zoo.safetensors -q >/dev/null || fail "a collection" "exit code $?"
expect "a collection by 3 ranks" 0 "40 networks" ranks 3 zoo train "$recipe" -o zoo-3.safetensors
check "is that of one process" cmp zoo.safetensors zoo-3.safetensors
check "and leaves no parts" test ! -e zoo-3.safetensors.parts
expect "more ranks than networks" 0 "1 of 3 ranks have nothing to do" ranks 3 zoo train "$recipe" \
    -n 2 -o two.safetensors
"$weft" zoo train "$recipe" -n 2 -o two-alone.safetensors -q >/dev/null
check "are the same networks" cmp two.safetensors two-alone.safetensors
expect "a command that ranks do not share" 0 "one rank does all of weft zoo head; 2 wait for it" \
    ranks 3 zoo head two.safetensors -n 1 -o one.safetensors

# --- training, sampling, evaluation: whole runs of 1, 2 and 3 ranks
cat >body.py <<'END'
import glob, os, struct, sys
def body(path):  # headers say how long it took
    data = open(path, "rb").read()
    return data[8 + struct.unpack("<Q", data[:8])[0]:]
def bodies(path):  # of a file, or of all in a folder
    if not os.path.isdir(path): return body(path)
    names = glob.glob("**/*.safetensors", root_dir=path, recursive=True)
    return {name: body(os.path.join(path, name)) for name in names}
a, b = bodies(sys.argv[1]), bodies(sys.argv[2])
sys.exit(0 if a and a == b else "other tensors")
END
quick="--set train.batch=96 --set train.updates=24 --set train.validations=3 --set eval.subsets=4"
# same_run NAME N FOLDER OPTION...: N ranks make the networks, losses, samples and scores of FOLDER.
same_run() {
    label=$1 many=$2 alone=$3
    shift 3
    rm -rf run
    ranks "$many" run "$recipe" -o run "$@" >run.out 2>run.err
    code=$?
    check "$label: ends well: $(tail -n 1 run.err)" test $code -eq 0
    check "$label: collections, flow, networks" python3 body.py "$alone" run
    check "$label: scores" cmp "$alone/eval.json" run/eval.json
    sed 's/"seconds".*//' "$alone/flow.safetensors.log.jsonl" >log.alone
    sed 's/"seconds".*//' run/flow.safetensors.log.jsonl >log.run
    check "$label: losses and validation" cmp log.alone log.run
}
# shellcheck disable=SC2086
"$weft" run "$recipe" -o muon -q $quick --set train.optimizer=muon --set train.ema=0.9 >/dev/null \
    2>&1
# shellcheck disable=SC2086
same_run "muon, 3 ranks" 3 muon $quick --set train.optimizer=muon --set train.ema=0.9
check "the collection's scores are kept beside it" test -e run/zoo.safetensors.cloud.safetensors
expect "a finished run is done" 0 "report: done before" ranks 2 run "$recipe" -o run $quick \
    --set train.optimizer=muon --set train.ema=0.9
# A manifest: two collections, and networks between them.
cp "$recipe" ends-0.conf
sed 's/^name = .*/&\nseed = 4\nnoise = 0.3/' "$recipe" >ends-1.conf
printf '[ends-%d]\nrecipe = ends-%d.conf\ncond = %d\n' 0 0 0 1 1 1 >ends.manifest
sed -n '/^\[model\]/,$p' "$recipe" | sed 's/^\[model\]/[zoo]\nmanifest = ends.manifest\n&\ncond = mlp/
    s/^count = .*/&\nconds = 0,0.5,1/' >ends.conf
# shellcheck disable=SC2086
"$weft" run ends.conf -o ends -q $quick >/dev/null 2>&1
tiny=$recipe recipe=ends.conf
# shellcheck disable=SC2086
same_run "two collections, 3 ranks" 3 ends $quick
recipe=$tiny

# Every field; gmn with conditions. Some networks are for validation. Three ranks do not divide the
# batch.
for field in mlp dit dwf; do
    sed "s/^node.*/width = 16/; /^edge/d; s/^\[model\]/&\ngenerator = $field/" "$recipe" \
        >$field.conf
done
sed -i '/^blocks/d' dwf.conf
cp "$recipe" gmn.conf
for field in gmn dit dwf mlp; do
    set -- "$field.conf" --set train.coupling=independent --set train.batch=97 \
        --set train.updates=12 --set train.weights=validation --set train.set_aside=10
    if [ $field = gmn ]; then set -- "$@" -z zoo.safetensors,zoo-3.safetensors --cond "0;1" \
        --set model.cond=linear
    else set -- "$@" -z zoo.safetensors; fi
    "$weft" train "$@" -o "$field.safetensors" -q >/dev/null 2>first.err ||
        fail "$field" "$(tail -n 1 first.err)"
    expect "$field with 3 ranks" 0 "" ranks 3 train "$@" -o "$field-3.safetensors"
    check "$field: the weights of one process" python3 body.py "$field.safetensors" \
        "$field-3.safetensors"
    check "$field: no rank idles" sh -c '! grep idle err'
done
expect "ranks without a part" 0 "mlp cuts a batch of 2 networks into 2 parts: 1 of 3 ranks idle" \
    ranks 3 train mlp.conf -z zoo.safetensors --set train.coupling=independent --set train.batch=2 \
    --set train.updates=3 -o few.safetensors

# --- networks that are trained beside the flow: batches and pools that ranks do not divide
fresh="--set zoo.fresh=yes --set train.fresh_rate=1 --set train.batch=50 --set train.updates=24"
# shellcheck disable=SC2086
"$weft" run "$recipe" -o fresh -q $fresh >/dev/null 2>&1
# shellcheck disable=SC2086
same_run "fresh networks, 3 ranks" 3 fresh $fresh
# shellcheck disable=SC2086
"$weft" run "$recipe" -o few -q $quick --set train.batch=2 >/dev/null 2>&1
# shellcheck disable=SC2086
same_run "a batch of 2, 2 ranks" 2 few $quick --set train.batch=2
expect "a flow that diverges ends all ranks" 1 "training diverged at update" ranks 3 train \
    "$recipe" --set train.lr=1000 --set train.weight_decay=1000 --set train.clip=0 \
    --set train.batch=96 -z zoo.safetensors -o wild.safetensors
check "and names rank and host" grep -q "(rank [0-2] on $(hostname)) is" err
check "and is told once" test "$(grep -c 'training diverged' err)" = 1
check "a rank with numbers that are not finite is named" grep \
    -q "the [a-z' ]* (rank [0-2] on $(hostname)) is " err
expect "a fault that all ranks find" 1 "weft: gone.safetensors: all 40 networks diverged" ranks \
    3 zoo train "$recipe" --set zoo.lr=1e30 -o gone.safetensors

# --- single commands
"$weft" sample muon/flow.safetensors -n 7 -o nets.safetensors --solver dopri5 -q >/dev/null 2>&1
expect "sample with 3 ranks" 0 "7 networks" ranks 3 sample muon/flow.safetensors -n 7 \
    -o nets-3.safetensors --solver dopri5
check "sample: the file of one process" cmp nets.safetensors nets-3.safetensors
"$weft" align zoo.safetensors -o aligned.safetensors -q >/dev/null 2>&1
expect "align with 3 ranks" 0 "" ranks 3 align zoo.safetensors -o aligned-3.safetensors
check "align: the file of one process" cmp aligned.safetensors aligned-3.safetensors

# --- generators whose step needs the whole batch
sed '/^node/d; /^edge/d; /^time/d; /^blocks/d' "$recipe" >bare.conf
expect "pdiff is fitted by one process" 2 "pdiff: its step needs the whole batch" ranks 2 train \
    bare.conf --set model.generator=pdiff -z zoo.safetensors -o pdiff.safetensors
check "nothing is left" test ! -e pdiff.safetensors
sane="bare.conf --set model.generator=sane-gauss -z aligned.safetensors"
# shellcheck disable=SC2086
expect "sane too" 2 "sane-gauss: its step needs the whole batch" ranks 2 train $sane \
    -o sane.safetensors
# shellcheck disable=SC2086
"$weft" train $sane --set train.updates=4 -o sane.safetensors -q >/dev/null 2>sane.err ||
    fail "sane" "$(tail -n 1 sane.err)"
"$weft" sample sane.safetensors -n 5 -o sane-nets.safetensors -q >/dev/null 2>&1
expect "what it draws with 2 ranks" 0 "5 networks" ranks 2 sample sane.safetensors -n 5 \
    -o sane-2.safetensors
check "are the networks of one process" cmp sane-nets.safetensors sane-2.safetensors
judge="--zoo zoo.safetensors --nets nets.safetensors --data $recipe --no-cache --json"
# shellcheck disable=SC2086
"$weft" eval $judge -q >judged.json 2>/dev/null
# shellcheck disable=SC2086
ranks 3 eval $judge -q >judged-3.json 2>judged.err ||
    fail "eval with 3 ranks" "$(tail -n 1 judged.err)"
check "eval with 3 ranks: the table of one process" cmp judged.json judged-3.json

# --- a run goes on with another number of ranks
long="--set train.batch=96 --set train.optimizer=muon"
"$weft" train "$recipe" $long --set train.updates=30 -z zoo.safetensors -o whole.safetensors \
    -q >/dev/null 2>&1
ranks 2 train "$recipe" $long --set train.updates=10 --set train.schedule_updates=30 \
    -z zoo.safetensors -o part.safetensors -q >/dev/null 2>part.err
"$weft" train "$recipe" $long --set train.updates=20 --set train.schedule_updates=30 \
    -z zoo.safetensors -o part.safetensors -q >/dev/null 2>>part.err
ranks 3 train "$recipe" $long --set train.updates=30 --set train.schedule_updates=30 \
    -z zoo.safetensors -o part.safetensors -q >/dev/null 2>>part.err
check "10 updates of 2 ranks, 10 of 1, 10 of 3: as 30 of one" python3 body.py whole.safetensors \
    part.safetensors

# --- the recipe beside a flow
expect "2 ranks take over the flow beside a recipe" 0 "training: that of part.safetensors" ranks 2 \
    run part.safetensors.recipe.conf -o taken --set eval.subsets=4
check "it is that flow" cmp part.safetensors taken/flow.safetensors

# --- different files
mkdir here there
cp zoo.safetensors here/zoo.safetensors
cp two.safetensors there/zoo.safetensors
expect "ranks with different files" 3 "zoo.safetensors is another here than on rank 0" timeout 60 \
    mpirun -n 1 -wdir "$PWD/here" "$weft" train "$recipe" -z zoo.safetensors -o ../flow.safetensors : \
    -n 1 -wdir "$PWD/there" "$weft" train "$recipe" -z zoo.safetensors -o ../flow.safetensors
expect "a folder that hosts do not share" 3 "x.safetensors is in another folder here than on rank 0" \
    timeout 60 mpirun -n 1 -wdir "$PWD/here" "$weft" zoo train "$recipe" -o x.safetensors : \
    -n 1 -wdir "$PWD/there" "$weft" zoo train "$recipe" -o x.safetensors

# --- a network file system
# A sanitizer must be the first library of a process.
preloads() { ! ldd "$weft" | grep -q lib[at]san; }
if preloads && ${CC:-cc} -shared -fPIC "$root/tests/cli/old_names.c" -o old-names.so; then
    set -- "$weft" run "$recipe" -o far -q --threads 1 --set train.updates=5
    expect "a rank that remembers which files were absent" 0 "" timeout 60 mpirun -n 1 "$@" : \
        -n 1 env LD_PRELOAD="$PWD/old-names.so" "$@"
fi

# --- faults
# The process of rank $2 that makes $1 here: another run of this test may make one of that name.
rank_of() {
    for process in $(pgrep -f "weft .*train .*-o $1 "); do
        [ "$(readlink /proc/"$process"/cwd)" = "$(pwd -P)" ] || continue
        tr '\0' '\n' 2>/dev/null </proc/"$process"/environ | grep -qx "OMPI_COMM_WORLD_RANK=$2" &&
            echo "$process"
    done
}
# A disk that is full for one rank: what it writes to files fails.
cat >full.c <<'END'
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
size_t fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
    struct stat info;
    if (fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode)) {
        errno = ENOSPC;
        return 0;
    }
    for (size_t i = 0; i < size * count; i++)
        if (putc(((const unsigned char *)bytes)[i], file) == EOF) return i / size;
    return count;
}
END
# of_two RANK COMMAND...: two ranks, and this one's disk is full.
of_two() {
    first='' second=$PWD/full.so
    [ "$1" = 1 ] || first=$second second=''
    shift
    timeout 60 mpirun -n 1 env LD_PRELOAD="$first" "$weft" "$@" --threads 1 : \
        -n 1 env LD_PRELOAD="$second" "$weft" "$@" --threads 1
}
if preloads && ${CC:-cc} -shared -fPIC full.c -o full.so; then
    expect "rank 1's disk is full" 4 "rank 1 on $(hostname): " of_two 1 zoo train "$recipe" \
        -o full.safetensors
    check "the system's words are told" grep -q "No space left on device" err
    check "once" test "$(grep -c '^weft:' err)" = 1
    check "there is no file" test ! -e full.safetensors
    expect "with room the same command goes on" 0 "40 networks" ranks 2 zoo train "$recipe" \
        -o full.safetensors
    check "to the same file" cmp zoo.safetensors full.safetensors
    expect "rank 0's disk is full" 4 "rank 0 on $(hostname): full-flow.safetensors" of_two 0 train \
        "$recipe" --set train.batch=96 -z zoo.safetensors -o full-flow.safetensors
    check "with the system's words, once" test "$(grep '^weft:' err |
        grep -c 'No space left on device')" = 1
    check "there is no flow" test ! -e full-flow.safetensors
fi

# A collection whose rank 1 is killed: what rank 0 had trained is kept.
slow="-n 300 --set zoo.held_out=0 --set zoo.epochs=1000"
# shellcheck disable=SC2086
"$weft" zoo train "$recipe" $slow -o slow.safetensors -q >/dev/null 2>&1
# shellcheck disable=SC2086
timeout 60 mpirun --mca odls_base_sigkill_timeout 10 -n 2 "$weft" zoo train "$recipe" $slow \
    -o halves.safetensors --threads 1 -q >/dev/null 2>halves.err &
job=$!
wait_for test -d halves.safetensors.parts
sleep 0.3
kill -KILL "$(rank_of halves.safetensors 1)"
wait $job
check "the others keep what they have" test -n "$(ls halves.safetensors.parts)"
# shellcheck disable=SC2086
expect "the rest is shared out anew" 0 "300 networks" ranks 3 zoo train "$recipe" $slow \
    -o halves.safetensors
check "to the file of one process" cmp slow.safetensors halves.safetensors

endless="--set train.batch=96 --set train.updates=1000000 --set train.save_seconds=1 -z zoo.safetensors"
# fault NAME SIGNAL RANKS CODES WORDS: of a run of 3 whose first checkpoint stands.
fault() {
    label=$1 signal=$2 some=$3 codes=$4 words=$5
    # shellcheck disable=SC2086
    ranks 3 train "$recipe" $endless -o "$label.safetensors" -q >/dev/null 2>"$label.err" &
    job=$!
    wait_for test -s "$label.safetensors"
    processes=$(for rank in $some; do rank_of "$label.safetensors" "$rank"; done)
    start=$(date +%s)
    # shellcheck disable=SC2086
    kill -"$signal" $processes
    wait $job
    code=$?
    took=$(($(date +%s) - start))
    check "$label: ends with an error ($code)" test "$(echo " $codes " | grep -c " $code ")" = 1
    check "$label: in time ($took s)" test $took -le 30
    check "$label: says so" grep -q "$words" "$label.err"
    check "$label: once" test "$(grep -c '^weft:' "$label.err")" -le 1
    expect "$label: the checkpoint is whole" 0 "ok" "$weft" verify "$label.safetensors"
    [ "$label" != killed ] || expect "$label: the same command goes on" 0 "" ranks 3 train \
        "$recipe" $endless --set train.max_seconds=1 -o "$label.safetensors"
}
# saves NAME SIGNAL: to every rank, as Slurm does; they save within 5 s. Open MPI's launcher would
# hold SIGTERM back.
saves() {
    label=$1 signal=$2
    # shellcheck disable=SC2086
    ranks 2 train "$recipe" $endless --set train.save_seconds=1000 -o "$label.safetensors" \
        -q >/dev/null 2>"$label.err" &
    job=$!
    wait_for test -s "$label.safetensors.log.jsonl"
    both="$(rank_of "$label.safetensors" 0) $(rank_of "$label.safetensors" 1)"
    start=$(date +%s%N)
    # shellcheck disable=SC2086
    kill -"$signal" $both
    wait_for test -s "$label.safetensors"
    took=$((($(date +%s%N) - start) / 1000000))
    wait $job
    check "$label: a checkpoint after $took ms" test $took -le 5000
    expect "$label: which is whole" 0 "ok" "$weft" verify "$label.safetensors"
    check "$label: says so" grep -q "interrupted after update [0-9]*; the checkpoint is saved" \
        "$label.err"
}
saves term TERM
saves usr1 USR1
fault killed KILL 1 "137" "rank 1 .* on node .* exited on signal 9"
fault stopped USR1 1 "130 138" \
    "stopped.safetensors: interrupted after update [0-9]*; the checkpoint is saved"
WEFT_RANK_TIMEOUT=3
fault hangs STOP 2 "1" "rank 2 on .* has not answered for 3 s"
fault hangs-0 STOP 0 "1" "rank 0 on .* has not answered for 3 s"
fault host STOP "0 1" "1" "rank 0 on .* has not answered for 3 s"

# Slurm suspends a job and lets it go on.
# shellcheck disable=SC2086
ranks 2 train "$recipe" $endless --set train.max_seconds=10 -o suspended.safetensors -q >/dev/null \
    2>suspended.err &
job=$!
wait_for test -s suspended.safetensors
both="$(rank_of suspended.safetensors 0) $(rank_of suspended.safetensors 1)"
# shellcheck disable=SC2086
kill -STOP $both
sleep 7
# shellcheck disable=SC2086
kill -CONT $both
wait $job
code=$?
check "a job that was suspended goes on: $(tail -n 1 suspended.err)" test $code -eq 0

finish
