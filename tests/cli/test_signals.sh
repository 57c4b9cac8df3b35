#!/bin/sh
# SIGINT and SIGTERM in the middle of training: saved, exit 130 and 143, and the same networks in
# the end.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
mkdir "$scratch/whole" "$scratch/broken"
updates=12000 # longer than it takes to send three signals
sanitized && updates=1000
long="--set train.updates=$updates --set train.batch=32 --set eval.controls=no"

# interrupt SIGNAL CODE: start the run, wait until the flow is being trained, send the signal.
interrupt() {
    # shellcheck disable=SC2086
    "$weft" run "$recipe" $long 2>err >out &
    pid=$!
    wait_for grep -q '"training"' runs/tiny/stage.json ||
        fail "interrupt $1" "training did not begin"
    wait_for test -s err # an earlier run may have begun it, and this one not be ready for signals
    sleep "$3"
    kill -"$1" $pid
    wait $pid
    code=$?
    check "SIG$1 exits $2" test $code -eq "$2"
    check "SIG$1 says how to go on, once" test "$(grep -o "same command" err | wc -l)" = 1
}
cd "$scratch/broken" || exit 1
interrupt INT 130 0.3
check "checkpoint after SIGINT" test -s runs/tiny/flow.safetensors
interrupt TERM 143 0.2
interrupt USR1 138 0.2
# shellcheck disable=SC2086
expect "goes on to the end" 0 "gmn-refined" "$weft" run "$recipe" $long
check "collection was not made again" grep -q "collection: done before" "$scratch/err"
cd "$scratch/whole" || exit 1
# shellcheck disable=SC2086
"$weft" run "$recipe" $long -q >/dev/null
cd "$scratch" || exit 1
check "broken and whole runs end in the same networks" cmp broken/runs/tiny/nets.safetensors \
    whole/runs/tiny/nets.safetensors
check "and the same table" cmp broken/runs/tiny/eval.json whole/runs/tiny/eval.json

# Killed outright: nothing half-written is taken for a result, and the end is the same.
mkdir killed && cd killed || exit 1
# shellcheck disable=SC2086
"$weft" run "$recipe" $long --set train.save_seconds=0.2 -q 2>/dev/null >/dev/null &
pid=$!
wait_for test -s runs/tiny/flow.safetensors
kill -KILL $pid
wait $pid 2>/dev/null
# shellcheck disable=SC2086
expect "goes on after SIGKILL" 0 "gmn-refined" "$weft" run "$recipe" $long
cd "$scratch" || exit 1
check "killed and whole runs end in the same networks" cmp killed/runs/tiny/nets.safetensors \
    whole/runs/tiny/nets.safetensors

# A signal before there is any work to save.
"$weft" run "$recipe" --out "$scratch/early" --set zoo.count=200000 --set zoo.epochs=400 \
    -q 2>err >/dev/null &
pid=$!
wait_for test -s early/stage.json
kill -INT $pid
wait $pid
check "SIGINT in the collection exits 130" test $? -eq 130

# In the midst of networks that take minutes each. Under load a process may wait for the processor:
# 10 s, not 2.
printf '[data]\nname = digits\n[zoo]\narch = 64-1024-1024-10\ncount = 2\nepochs = 2000\n' \
    >large.conf
"$weft" zoo train large.conf -o large.safetensors -q 2>err >/dev/null &
pid=$!
wait_for test -d large.safetensors.parts
sleep 2 # less is not worth keeping
# Of its own, too: on a busy machine those of the clock may pass before a network is begun.
has_worked() { test "$(cut -d ' ' -f 14 /proc/$pid/stat)" -ge $((2 * $(getconf CLK_TCK))); }
wait_for has_worked
kill -TERM $pid
start=$(date +%s)
wait $pid
check "SIGTERM inside a large network exits 143" test $? -eq 143
check "soon" test $(($(date +%s) - start)) -lt 10
check "and keeps what it has" test -n "$(ls large.safetensors.parts/*.started)"

# Sampling and judging, too, which save nothing.
# stops NAME COMMAND...: 0.2 s after it took its output's lock.
stops() {
    part=$1
    shift
    "$weft" "$@" -o never.safetensors -q >/dev/null 2>err &
    pid=$!
    wait_for test -e .never.safetensors.lock
    sleep 0.2
    kill -TERM $pid
    start=$(date +%s)
    wait $pid
    check "SIGTERM in $part exits 143" test $? -eq 143
    check "soon, in $part" test $(($(date +%s) - start)) -lt 10
}
flow=whole/runs/tiny/flow.safetensors
stops sampling sample $flow -n 2000000
stops "sampling of a wide network" sample $flow -n 40 --arch 2-60000-3
"$weft" zoo train "$recipe" -n 3000 --set zoo.epochs=1 -o many.safetensors -q >/dev/null 2>&1
stops alignment align many.safetensors --restarts 10000
check "nothing is left of them" test -z "$(ls -A | grep never)"
finish
