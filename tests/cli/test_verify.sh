#!/bin/sh
# Damage and exchange are noticed: by weft verify, when a stage is reused, and on resume.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1
flip() { # FILE BYTE: turns one bit
    python3 - "$1" "$2" <<'END'
import sys
with open(sys.argv[1], "r+b") as f:
    data = f.read()
    at = int(sys.argv[2]) % len(data)
    f.seek(at)
    f.write(bytes([data[at] ^ 4]))
END
}
"$weft" run "$recipe" -o run -q >/dev/null 2>&1
cp -r run whole
expect "an intact run" 0 "ok         run/zoo.safetensors" "$weft" verify run
check "every file has its digest" test "$(grep -c '^ok ' out)" -ge 9
check "and none lacks one" test "$(grep -vc '^ok ' out)" = 0
"$weft" verify run --json >out
check "as JSON" python3 \
    -c 'import json; r = json.load(open("out")); assert r["damaged"] == 0 and len(r["files"]) >= 9'
cp "$root/tests/golden/tensors.safetensors" other.safetensors
expect "a file of another program" 0 "no digest  other.safetensors" "$weft" verify other.safetensors
expect "a file that is no safetensors" 3 "damaged" "$weft" verify "$recipe" nowhere

# A flipped bit in the midst of each output: verify says which, and weft run does not build on it.
for file in zoo.safetensors held-out.safetensors flow.safetensors flow.safetensors.log.jsonl \
    nets.safetensors nets-direct.safetensors eval.json points.json; do
    for byte in 300 777777; do
        flip run/$file $byte
        expect "verify sees $file, byte $byte" 3 "damaged    run/$file" "$weft" verify run
        expect "and the file alone" 3 "damaged    run/$file" "$weft" verify run/$file
        expect "a run refuses $file, byte $byte" 3 "Remove run/$file" "$weft" run "$recipe" -o run
        cp whole/$file run/$file
    done
done
# What tells of the stages, and the recipe that weft report reads: each byte of a setting, a digest,
# a name.
for byte in 12 60 300 777 2222 3333; do
    flip run/stage.json $byte
    expect "verify sees stage.json, byte $byte" \
        3 "damaged    run/stage.json: run/stage.json is damaged" "$weft" verify run
    expect "and the file alone" 3 "damaged    run/stage.json" "$weft" verify run/stage.json
    expect "a run refuses it" 3 "stage.json is damaged; remove it to run all stages again" "$weft" \
        run "$recipe" -o run
    expect "so does weft report" 3 "stage.json is damaged" "$weft" report run -o page.html
    cp whole/stage.json run/
done
python3 -c \
    'import json; r = json.load(open("run/stage.json")); del r["digest"]; json.dump(r, open("run/stage.json", "w"))'
expect "a stage.json of version 0.1 is read" 0 "no digest  run/stage.json" "$weft" verify run
expect "and taken" 0 "report: done before" "$weft" run "$recipe" -o run
cp whole/stage.json run/
for byte in 100 700 1500; do
    flip run/recipe.conf $byte
    expect "verify sees recipe.conf, byte $byte" 3 "damaged    run/recipe.conf" "$weft" verify run
    if "$weft" report run -o page.html 2>err
    then fail "weft report refuses recipe.conf, byte $byte" "a page"
    else pass "weft report refuses recipe.conf, byte $byte"; fi
    expect "weft run writes it again" 0 "report: done before" "$weft" run "$recipe" -o run
    check "as it was" cmp whole/recipe.conf run/recipe.conf
done
expect "a title by hand is another recipe" 0 "run/report.html" "$weft" run "$recipe" -o run \
    --set report.title=mine -q
expect "whose digest is kept" 0 "ok         run/recipe.conf" "$weft" verify run
rm -r run && cp -r whole run
flip run/eval.json 100
expect "weft report refuses it" 3 "is not what evaluation left" "$weft" report run
cp whole/eval.json run/eval.json
# A log that is cut short draws another curve, an empty one none.
for size in 0 300; do
    truncate -s $size run/flow.safetensors.log.jsonl
    cp run/report.html page.html
    expect "weft report refuses a log of $size bytes" \
        3 "flow.safetensors.log.jsonl: is not what training left" \
        "$weft" report run -o page.html
    check "and leaves the page as it was" cmp run/report.html page.html
    expect "so does weft run" 3 "and the page has no curve of the loss" "$weft" run "$recipe" -o run
done
rm run/flow.safetensors.log.jsonl
expect "without a log there is a page" 0 "page.html" "$weft" report run -o page.html
check "that has no curve" sh \
    -c '! grep -q "<h2>Training</h2>" page.html && grep -q "<h2>Training</h2>" run/report.html'
cp whole/flow.safetensors.log.jsonl run/
expect "all is well again" 0 "report: done before" "$weft" run "$recipe" -o run
echo "<!-- my own -->" >>run/report.html
expect "a changed page is written again" 0 "report is not done" sh \
    -c "'$weft' run '$recipe' -o run 2>&1 | sed 's/report and what stands on it are done again/report is not done/'"
expect "weft report writes it with a wider wall" 0 "run/report.html" "$weft" report run \
    --set report.wall=4
expect "which is no damage" 0 "ok         run/report.html" "$weft" verify run
expect "and stays" 0 "report: done before" "$weft" run "$recipe" -o run
cp whole/zoo.safetensors run/held-out.safetensors
expect "an exchanged file is refused" 3 "Remove run/held-out.safetensors" "$weft" run "$recipe" \
    -o run
expect "with --redo it is made again" 0 "held-out.safetensors is not what it was" "$weft" run \
    "$recipe" -o run --redo
check "the same" cmp whole/held-out.safetensors run/held-out.safetensors

# A collection of one's own that was exchanged after its stage.
cp whole/zoo.safetensors own.safetensors
printf '[data]\nname = spirals\nrows = 300\n[zoo]\npath = own.safetensors\n' >own.conf
sed -n '/^\[model\]/,$p' "$recipe" >>own.conf
"$weft" run own.conf -o mine -q >/dev/null 2>&1
cp whole/held-out.safetensors own.safetensors
expect "another collection is refused" \
    2 "own.safetensors is not the collection that the results in mine" "$weft" run own.conf -o mine
expect "with --redo it is used" 0 "gmn-refined" "$weft" run own.conf -o mine --redo

# Resume: a damaged checkpoint, a damaged part.
"$weft" train "$recipe" --zoo whole/zoo.safetensors -o flow.safetensors --set train.updates=20 \
    -q >/dev/null
flip flow.safetensors -200
expect "a damaged checkpoint is not continued" 3 "flow.safetensors: is damaged" "$weft" train \
    "$recipe" --zoo whole/zoo.safetensors -o flow.safetensors
expect "nor sampled from" 3 "flow.safetensors: is damaged" "$weft" sample flow.safetensors \
    -o nets.safetensors
cp whole/zoo.safetensors bad.safetensors
flip bad.safetensors -2000
expect "a damaged collection is not fitted" 3 "bad.safetensors: is damaged" "$weft" train \
    "$recipe" --zoo bad.safetensors -o flow2.safetensors
expect "nor evaluated against" 3 "bad.safetensors: is damaged" "$weft" eval --zoo bad.safetensors \
    --nets whole/nets.safetensors
mkdir part.safetensors.parts
cp whole/zoo.safetensors part.safetensors.parts/0000000000.safetensors
flip part.safetensors.parts/0000000000.safetensors -2000
expect "nor is a damaged part taken up" 3 "delete this file to train its networks again" "$weft" \
    zoo train "$recipe" -o part.safetensors
finish
