#!/bin/sh
# A tiny run end to end: skipped when done, refused when changed, resumed when broken, the same
# whatever the threads.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1

expect run 0 "gmn-refined" "$weft" run "$recipe"
for file in zoo held-out flow nets nets-direct
do check "leaves $file" test -s runs/tiny/$file.safetensors; done
check report-exists grep -q "</html>" runs/tiny/report.html
check eval-json is_json runs/tiny/eval.json
check stage-json is_json runs/tiny/stage.json
check resolved-recipe "$weft" model info runs/tiny/recipe.conf
check rows python3 -c '
import json
eval = json.load(open("runs/tiny/eval.json"))
names = [row["name"] for row in eval["rows"]]
want = """reference held-out random perturbation-0.05 perturbation-0.10 perturbation-0.25 perturbation-0.50 perturbation
          average average-matched gmn gmn-refined""".split()
assert names == want, names
rows = dict(zip(names, eval["rows"]))
assert rows["reference"]["n"] == 40 and rows["held-out"]["n"] == 12 and rows["gmn"]["n"] == 8
assert rows["perturbation-0.05"]["wcs_mean"] > 0.97 > rows["random"]["wcs_mean"]
assert rows["perturbation"]["jws"] == max(rows[n]["jws"] for n in names if n.startswith("perturbation-"))
assert set(eval["novelty"]) == {"gmn", "gmn-refined"} and len(eval["scales"]) == 3'

cp -r runs/tiny before
expect run-again 0 "evaluation: done before" "$weft" run "$recipe"
check "nothing was done again" test "$(grep -c 'done before' err)" = 6
check "results stand" cmp before/eval.json runs/tiny/eval.json
expect run-json 0 '"rows"' "$weft" run "$recipe" --json -q
check run-json-parses is_json out

rm runs/tiny/nets.safetensors
expect run-mends 0 "training: done before" "$weft" run "$recipe"
check "lost networks come back the same" cmp before/nets.safetensors runs/tiny/nets.safetensors

expect run-changed 2 "train.lr was" "$weft" run "$recipe" --set train.lr=0.123
check "refusal changes nothing" cmp before/flow.safetensors runs/tiny/flow.safetensors
expect run-changed-data 2 "data.rows was 300, now 400" "$weft" run "$recipe" --set data.rows=400
expect run-redo 0 "collection: done before" "$weft" run "$recipe" --set train.lr=0.005 --redo
check "redo makes another flow" test -n "$(cmp before/flow.safetensors runs/tiny/flow.safetensors \
    2>&1)"
expect run-report-key 0 "report: " "$weft" run "$recipe" --set train.lr=0.005 \
    --set report.title=Hello
check report-title grep -q "weft: Hello" runs/tiny/report.html
expect report-again 0 "again.html" "$weft" report runs/tiny -o again.html
check report-again-whole grep -q "</html>" again.html
"$weft" report before -o named.html --json >report.json
check report-json is_json report.json
check "the page keeps the recipe's name" grep -q "<h1>weft: tiny</h1>" named.html

mkdir one && (cd one && "$weft" run "$recipe" --threads 1 -q >/dev/null)
check "one thread, same networks" cmp before/nets.safetensors one/runs/tiny/nets.safetensors
check "one thread, same rows" cmp before/eval.json one/runs/tiny/eval.json

# A collection of your own: no training of networks, no held-out row, nothing of yours removed.
cp before/zoo.safetensors own.safetensors
printf '[data]\nname = spirals\nrows = 300\n[zoo]\npath = own.safetensors\n' >own.conf
sed -n '/^\[model\]/,$p' "$recipe" >>own.conf
expect run-own 0 "gmn-refined" "$weft" run own.conf
expect run-own-redo 0 "gmn-refined" "$weft" run own.conf --set zoo.activation=tanh --redo
check "own collection stands" cmp before/zoo.safetensors own.safetensors
printf '[zoo]\npath = own.safetensors\n' >bare.conf
sed -n '/^\[model\]/,$p' "$recipe" >>bare.conf
expect run-unlabelled 0 "gmn-refined" "$weft" run bare.conf

# Folders that cannot be written.
expect out-is-file 4 "own.conf" "$weft" run "$recipe" -o own.conf/x
if [ "$(id -u)" -ne 0 ]; then
    mkdir sealed && chmod 555 sealed
    expect read-only-folder 4 "sealed" "$weft" run "$recipe" -o sealed/x
elif command -v setpriv >/dev/null 2>&1 && chmod 755 "$scratch" && mkdir -m 755 sealed &&
    cp "$weft" "$recipe" . && # others may not see into the clone
    setpriv --reuid=65534 --regid=65534 --clear-groups ./weft version >/dev/null 2>&1; then
    expect read-only-folder 4 "sealed" \
        setpriv --reuid=65534 --regid=65534 --clear-groups ./weft run tiny.conf -o sealed/x
else echo "skip read-only-folder: running as root without setpriv, or in a closed folder"; fi

# A full disk: a file system of 200 kB, where this may be mounted.
if unshare -m sh -c 'mkdir -p full && mount -t tmpfs -o size=200k none full' 2>/dev/null; then
    expect disk-full 4 "full" unshare -m sh \
        -c "mount -t tmpfs -o size=200k none full && exec \"$weft\" run \"$recipe\" -o full/x --set zoo.count=3000 --set zoo.epochs=1 -q"
else echo "skip disk-full: no tmpfs may be mounted here"; fi
finish
