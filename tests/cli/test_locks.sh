#!/bin/sh
# Two processes and one output: the second says who is at work and ends, or waits; results are those
# of one process.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1
long="--set train.updates=3000 --set eval.controls=no"

# shellcheck disable=SC2086
mkdir whole && (cd whole && "$weft" run "$recipe" -o shared $long -q >/dev/null 2>&1)
# shellcheck disable=SC2086
"$weft" run "$recipe" -o shared $long -q >/dev/null 2>first.err &
first=$!
wait_for test -s shared/stage.json
expect "a second run into the folder" 5 "shared is being made by process $first on " "$weft" run \
    "$recipe" -o shared --set train.updates=50 --seed 7
expect "demo into it" 5 "process $first" "$weft" demo -o shared
# The same with --wait: when the first has ended, everything is done before.
# shellcheck disable=SC2086
"$weft" run "$recipe" -o shared $long --wait >second.out 2>second.err &
second=$!
# shellcheck disable=SC2086
"$weft" run "$recipe" -o shared $long --wait -q >third.out 2>third.err &
third=$!
wait $first
check "the first ends well" test $? -eq 0
wait $second
check "the second too" test $? -eq 0
wait $third
check "and the third" test $? -eq 0
check "the second says for whom it waits" grep -q "made by process .* on .* since .* UTC; waiting" \
    second.err
check "and finds everything done" test "$(grep -c 'done before' second.err)" = 6
for file in zoo.safetensors flow.safetensors nets.safetensors eval.json; do
    # The flow's file says how long it took.
    [ $file = flow.safetensors ] ||
        check "$file is that of one process" cmp whole/shared/$file shared/$file
done
check "no line of the log is lost" test "$(wc -l <whole/shared/flow.safetensors.log.jsonl)" = \
    "$(wc -l <shared/flow.safetensors.log.jsonl)"
check "no lock is left" test -z "$(find shared whole -name '*.lock')"

# A killed process holds nothing.
# shellcheck disable=SC2086
"$weft" run "$recipe" -o killed $long -q >/dev/null 2>&1 &
first=$!
wait_for test -s killed/stage.json
kill -KILL $first
wait $first 2>/dev/null
# shellcheck disable=SC2086
expect "after kill -9 the folder is free" 0 "gmn-refined" "$weft" run "$recipe" -o killed $long
check "and no lock is left" test -z "$(find killed -name '*.lock')"

# Single outputs.
"$weft" zoo train "$recipe" -n 20000 -o many.safetensors -q >/dev/null 2>&1 &
first=$!
wait_for test -e .many.safetensors.lock
expect "two collections into one file" 5 "many.safetensors is being made by process $first" \
    "$weft" zoo train "$recipe" -o many.safetensors --seed 3
kill -TERM $first
wait $first
"$weft" train "$recipe" --zoo whole/shared/zoo.safetensors -o one.safetensors \
    --set train.updates=1000000 -q >/dev/null 2>&1 &
first=$!
wait_for test -e .one.safetensors.lock
expect "two flows into one file" 5 "one.safetensors is being made by process $first" "$weft" train \
    "$recipe" --zoo whole/shared/zoo.safetensors -o one.safetensors
kill -TERM $first
wait $first
"$weft" sample whole/shared/flow.safetensors -n 100000 -o sampled.safetensors -q >/dev/null 2>&1 &
first=$!
wait_for test -e .sampled.safetensors.lock
expect "two samples into one file" 5 "sampled.safetensors is being made by process $first" "$weft" \
    sample whole/shared/flow.safetensors -o sampled.safetensors
kill -TERM $first
wait $first
check "no lock is left after SIGTERM" test -z "$(find . -name '*.lock')"

# Who waited replaces nothing without --force, whatever was made meanwhile.
"$weft" sample whole/shared/flow.safetensors -n 3000 -o waited.safetensors -q >/dev/null 2>&1 &
first=$!
wait_for test -e .waited.safetensors.lock
expect "who waited finds the file there" 2 "is there already" "$weft" sample \
    whole/shared/flow.safetensors -n 2 --seed 9 -o waited.safetensors --wait
wait $first
"$weft" zoo info waited.safetensors --json >waited.json
check "and leaves it" test "$(value waited.json count)" = 3000

# A folder of exported networks.
mkdir exported
flock -o exported/.lock sleep 30 &
first=$!
wait_for sh -c '! flock -n exported/.lock true'
expect "two exports into one folder" 5 "exported is being made by" "$weft" zoo export \
    whole/shared/zoo.safetensors -i 0-3 -o exported
kill $first
wait $first 2>/dev/null
expect "one after the other" 0 "4 networks" "$weft" zoo export whole/shared/zoo.safetensors \
    -i 0-3 -o exported
check "and no lock is left" test "$(ls -A exported | wc -l)" = 4
mkdir folder
expect "networks into a folder are refused before they are drawn" 4 "is a folder" "$weft" sample \
    whole/shared/flow.safetensors -n 1000000 -o folder
finish
