#!/bin/sh
# Several processes under mpirun: the files of one process, bit for bit; faults end all of them with one message.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
programs=$root/${BUILD:-build}
case ${BUILD:-} in /*) programs=$BUILD ;; esac
cd "$scratch" || exit 1

if ! command -v mpirun >/dev/null 2>&1; then
    echo "skip several processes: mpirun is not installed (Debian: openmpi-bin)"
    exit 0
fi
if ! "$weft" version | grep -q '^mpi: .*MPI'; then
    echo "skip several processes: this build has no MPI (Debian: libopenmpi-dev, then make again)"
    exit 0
fi
# Two cores take three ranks, also as root in a container; MPI's own memory is no leak of ours.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" WEFT_RANK_TIMEOUT=4
# ranks N ARGUMENT...: weft with N ranks of one thread; a minute at most.
ranks() {
    n=$1
    shift
    timeout 60 mpirun -n "$n" "$weft" "$@" --threads 1
}

# --- the communicator
check "collective calls of 3 ranks" timeout 60 mpirun -n 3 "$programs/tests/unit/test_comm"
check "weft version speaks once" test "$(timeout 60 mpirun -n 2 "$weft" version | grep -c '^mpi: ')" = 1
[ "$(uname -m)" != x86_64 ] || expect "ranks of other instruction sets" 2 "computes with avx2, rank 1 on " timeout 60 mpirun -n 1 -x WEFT_ISA=avx2 "$weft" zoo train "$recipe" -o x.safetensors : -n 1 -x WEFT_ISA=base "$weft" zoo train "$recipe" -o x.safetensors
expect "ranks of other arguments" 2 "rank 1 on $(hostname) was started with other arguments" timeout 60 mpirun -n 1 "$weft" zoo train "$recipe" -o x.safetensors : -n 1 "$weft" zoo train "$recipe" -o y.safetensors
cp "$weft" other && echo >>other
expect "ranks of other builds" 2 "rank 1 on $(hostname) runs another build" timeout 60 mpirun -n 1 "$weft" zoo train "$recipe" -o x.safetensors : -n 1 ./other zoo train "$recipe" -o x.safetensors
expect "a mistake is told once" 2 "zoo.epochs" ranks 3 zoo train "$recipe" -o x.safetensors --set zoo.epochs=-1
check "by rank 0 alone" test "$(grep -c '^weft:' err)" = 1

# --- collections
"$weft" zoo train "$recipe" -o zoo.safetensors -q >/dev/null || fail "a collection" "exit code $?"
expect "a collection by 3 ranks" 0 "40 networks" ranks 3 zoo train "$recipe" -o zoo-3.safetensors
check "is that of one process" cmp zoo.safetensors zoo-3.safetensors
check "and leaves no parts" test ! -e zoo-3.safetensors.parts
expect "more ranks than networks" 0 "1 of 3 ranks have nothing to do" ranks 3 zoo train "$recipe" -n 2 -o two.safetensors
"$weft" zoo train "$recipe" -n 2 -o two-alone.safetensors -q >/dev/null
check "are the same networks" cmp two.safetensors two-alone.safetensors

finish
