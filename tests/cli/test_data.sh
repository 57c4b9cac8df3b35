#!/bin/sh
# Data sets that are made: weft data bng, and its note in everything made from the set.
. tests/cli/lib.sh
cd "$scratch" || exit 1
unset WEFT_DATA

python3 - <<'PYTHON'
import random
random.seed(4)
with open("source.arff", "w") as out:
    out.write("@relation small\n@attribute x numeric\n@attribute c {a,'b c'}\n@attribute y {no,yes}\n@data\n")
    for i in range(240):
        y = random.random() < 0.5
        out.write("%.2f,%s,%s\n" % (random.gauss(2 * y, 1), "'b c'" if random.random() < 0.2 + 0.6 * y else "a", "yes" if y else "no"))
PYTHON
expect bng-no-out 2 "-o FILE" "$weft" data bng source.arff
expect bng-absent 3 "absent.arff" "$weft" data bng absent.arff -o x.arff
expect bng-bad-bins 2 "bins" "$weft" data bng source.arff -o x.arff --bins 1
expect bng 0 "regenerated" "$weft" data bng source.arff -o made.arff -n 400 --seed 7
check bng-first-line sh \
    -c 'head -n 1 made.arff | grep -q "% weft note: regenerated.*400 rows.*source.arff, seed 7"'
check bng-rows test "$(sed '1,/^@data/d' made.arff | wc -l)" = 400
"$weft" data bng source.arff -o again.arff -n 400 --seed 7 --json >bng.json
check bng-json python3 -c '
import json
made = json.load(open("bng.json"))
assert made["seed"] == 7 and made["rows"] == 400 and made["source_rows"] == 240
assert [c["name"] for c in made["columns"]] == ["x", "c", "y"]
assert len(made["columns"][0]["cuts"]) == 5
assert made["columns"][1]["levels"] == ["a", "b c"]
assert "y" in made["columns"][1]["parents"]
assert made["columns"][2]["parents"] == []'
check bng-same-again cmp made.arff again.arff
"$weft" data bng source.arff -o other.arff -n 400 --seed 8 -q >/dev/null
check bng-other-seed test -n "$(cmp made.arff other.arff 2>&1)"

# The note goes wherever the set goes.
{ printf '[data]\nname = made\npath = made.arff\n[zoo]\narch = 3-6-2\n'
    sed -n '/^count/,$p' "$root/tests/cli/tiny.conf"; } >made.conf
expect info-note 0 "regenerated" "$weft" data info made.conf
"$weft" data info made.conf --json >info.json
check info-json-note python3 \
    -c 'import json; assert "seed 7" in json.load(open("info.json"))["note"]'
expect run-note 0 "data: regenerated" "$weft" run made.conf -q
check eval-note python3 \
    -c 'import json; assert "seed 7" in json.load(open("runs/made/eval.json"))["data_note"]'
check report-note grep -q "regenerated, not the original" runs/made/report.html
expect zoo-note 0 "regenerated" "$weft" zoo info runs/made/zoo.safetensors
expect eval-command-note 0 "data: regenerated" "$weft" eval --zoo runs/made/zoo.safetensors \
    --nets runs/made/nets.safetensors --data made.conf -q
finish
