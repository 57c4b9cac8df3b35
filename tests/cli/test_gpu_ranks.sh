#!/bin/sh
# bench/gpu_ranks.sh on an emulated device; scripts stand in for the programs that time.
. tests/cli/lib.sh
emulated=$root/${BUILD:-build}/emulated/weft
case ${BUILD:-} in /*) emulated=$BUILD/emulated/weft ;; esac
if [ ! -x "$emulated" ] || ! command -v mpirun >/dev/null 2>&1 || ! "$emulated" version |
    grep -q '^mpi: .*MPI'; then
    echo "skip ranks on a GPU: no emulated program, or no mpirun"
    exit 0
fi
script=$root/bench/gpu_ranks.sh
cd "$scratch" || exit 1
mkdir programs
ln -s "$emulated" programs/weft
cat >programs/cuda_loop <<'P'
#!/bin/sh
echo "bf16, ms                          alone     NCCL    more"
[ "$1" != brief ] || { echo "karhunen-lean            6.400    6.500"; exit; }
echo "karhunen-lean            adamw    6.500    6.5$MORE  +0.$MORE %"
P
cat >programs/cuda_ranks <<'P'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-0}" != 0 ] || echo "ranks ${OMPI_COMM_WORLD_SIZE:-1}, NCCL ${WEFT_NCCL:-not asked for}"
P
chmod +x programs/*
sed '/^held_out/d; /^batch = 8/d' "$root/tests/cli/tiny.conf" >small.conf
export PROGRAMS="$PWD/programs" BUILD="$PWD" RECIPE="$PWD/small.conf" PRECISION=fp32 BATCH=5 \
    UPDATES=10 WEFT_EMULATOR_DEVICES=1
MORE=20 expect all-well 0 "=== " "$script"
check times-of-one grep \
    -q "^ok .*karhunen-lean adamw: 6.500 ms alone, 6.520 ms over NCCL, +0.20 %" out
check sums sh -c 'grep -qx "ranks 1, NCCL on" out && grep -qx "ranks 2, NCCL not asked for" out'
check no-row-failed sh -c '! grep FAILED out && [ "$(grep -c "^ok " out)" = 13 ]'
check what-ranks-say grep -q "^ok .*interrupted after update [0-9]*; the checkpoint is saved" out
check updates-of-batches grep -q "an update of N networks, ms: karhunen-lean 6.500" out
check updates-are-timed grep \
    -q "an update of 5, ms: [0-9.]* alone, [0-9.]* over NCCL, [0-9.]* by two" out
echo "[zoo" >small.conf
sed -i 's/+0[.]/+1./' programs/cuda_loop
MORE=20 expect too-slow 1 "FAILED  one rank, karhunen-lean adamw: 6.500 ms alone" "$script"
check no-collection grep -q "^FAILED  zoo: exit code [23]" out
rm programs/cuda_ranks
expect one-missing 2 "no $PWD/programs/cuda_ranks; make it where nvcc and mpicc are" "$script"
finish
