#!/bin/sh
# Collections out of collections: parts, joined, filtered; networks out of them as files.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1

count() { "$weft" zoo info "$1" --json -q >count.json && value count.json count; }

"$weft" zoo train "$recipe" -o zoo.safetensors -q >/dev/null # 40 networks
"$weft" zoo subset zoo.safetensors -i 7,0-2,39 -o some.safetensors --json -q >some.json
check subset-json test "$(value some.json count)" = 5
check subset-count test "$(count some.safetensors)" = 5
"$weft" zoo export zoo.safetensors -i 39 -o a.safetensors -q >/dev/null
"$weft" zoo export some.safetensors -i 4 -o b.safetensors -q >/dev/null
check "network 4 of the subset is network 39" cmp a.safetensors b.safetensors
expect subset-range 2 "network 40" "$weft" zoo subset zoo.safetensors -i 0-40 -o x.safetensors
expect subset-bad 2 "0,3,10-19" "$weft" zoo subset zoo.safetensors -i 3-1 -o x.safetensors
expect subset-no-index 2 "--index" "$weft" zoo subset zoo.safetensors -o x.safetensors
check "nothing is left behind" test ! -e x.safetensors
expect there-already 2 "--force" "$weft" zoo subset zoo.safetensors -i 1 -o some.safetensors
check replaced "$weft" zoo subset zoo.safetensors -i 1 -o some.safetensors --force -q
check replaced-count test "$(count some.safetensors)" = 1

check head "$weft" zoo head zoo.safetensors -n 4 -o head.safetensors -q
"$weft" zoo subset zoo.safetensors -i 0-3 -o same.safetensors -q >/dev/null
check "the head is a subset" cmp head.safetensors same.safetensors
expect head-all 0 "40 of 40" "$weft" zoo head zoo.safetensors -n 400 -o whole.safetensors -q

check split "$weft" zoo split zoo.safetensors -n 10 -o fit.safetensors --held-out held.safetensors \
    -q
check split-fit test "$(count fit.safetensors)" = 30
check split-held test "$(count held.safetensors)" = 10
"$weft" zoo split zoo.safetensors -n 10 --seed 5 -o fit2.safetensors --held-out held2.safetensors \
    -q >/dev/null
check "another seed draws others" sh -c '! cmp -s held.safetensors held2.safetensors'
expect split-none 2 "both parts" "$weft" zoo split zoo.safetensors --fraction 0.001 \
    -o x.safetensors --held-out y.safetensors
expect split-where 2 "--held-out" "$weft" zoo split zoo.safetensors -o x.safetensors

check merge "$weft" zoo merge fit.safetensors held.safetensors -o merged.safetensors -q
check merge-count test "$(count merged.safetensors)" = 40
"$weft" zoo info merged.safetensors --json -q >merged.json
"$weft" zoo info zoo.safetensors --json -q >whole.json
check "scores go along" python3 -c '
import json
a, b = (json.load(open(p))["tests"][0] for p in ("merged.json", "whole.json"))
assert abs(a["mean"] - b["mean"]) < 1e-6 and a["max"] == b["max"] and a["name"] == b["name"]'
"$weft" zoo train "$recipe" --set zoo.arch=2-5-3 -n 3 -o other.safetensors -q >/dev/null
expect merge-shapes 3 "one architecture" "$weft" zoo merge zoo.safetensors other.safetensors \
    -o x.safetensors

# A network that is not finite, one that is there twice.
mkdir folder
for i in 0 1 2; do "$weft" zoo export zoo.safetensors -i $i -o folder/net$i.safetensors \
    -q >/dev/null; done
cp folder/net1.safetensors folder/net9-again.safetensors
python3 - <<'PY'
import json, math, struct
raw = bytearray(open("folder/net2.safetensors", "rb").read())
n = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + n])
header["__metadata__"].pop("weft.digest")
at = header["layers.0.weight"]["data_offsets"][0]
data = raw[8 + n:]
data[at:at + 4] = struct.pack("<f", math.inf)
text = json.dumps(header).encode()
open("folder/bad.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
expect import-not-finite 0 "weft zoo filter mine.safetensors --finite" \
    "$weft" zoo import folder -a relu -o mine.safetensors -q
expect train-not-finite 3 "weft zoo filter mine.safetensors --finite" \
    "$weft" train "$recipe" --zoo mine.safetensors -o flow.safetensors -q
"$weft" zoo filter mine.safetensors --finite --unique -o good.safetensors --json -q >good.json
check filter-counts python3 -c '
import json
good = json.load(open("good.json"))
assert (good["count"], good["of"], good["non_finite"], good["duplicates"]) == (3, 5, 1, 1), good'
"$weft" zoo filter zoo.safetensors --best 3 -o best.safetensors -q >/dev/null
"$weft" zoo info best.safetensors --json -q >best.json
check "the best are the best" python3 -c '
import json
best, all = (json.load(open(p))["tests"][0] for p in ("best.json", "whole.json"))
assert best["max"] == all["max"] and best["min"] >= all["mean"]'
expect filter-score 2 "no network" "$weft" zoo filter zoo.safetensors --max-score 0 \
    -o x.safetensors -q
expect filter-percent 2 "allowed is 0 to 1" "$weft" zoo filter zoo.safetensors --min-score 90 \
    -o x.safetensors -q
expect filter-no-scores 2 "--data" "$weft" zoo filter mine.safetensors --best 2 -o x.safetensors -q
check filter-data "$weft" zoo filter good.safetensors --best 2 --data "$recipe" -o two.safetensors \
    -q
expect filter-nothing 2 "say what stays" "$weft" zoo filter zoo.safetensors -o x.safetensors

# Out again: one file, the best, all of them, under their names.
"$weft" zoo export good.safetensors --all -o exported --json -q >exported.json
check export-all-names test -e exported/net0.safetensors -a -e exported/net1.safetensors \
    -a -e exported/net2.safetensors
check export-all-json python3 -c '
import json
out = json.load(open("exported.json"))
assert [n["name"] for n in out["networks"]] == ["net0.safetensors", "net1.safetensors", "net2.safetensors"]'
expect export-there 2 "--force" "$weft" zoo export good.safetensors --all -o exported -q
# Number 3 is called net0 as number 0 is, and number 4 is called net0-3.
"$weft" zoo merge good.safetensors good.safetensors -o twice.safetensors -q >out 2>&1
"$weft" zoo export twice.safetensors --all -o twice -q >out 2>&1
"$weft" zoo import twice -a relu -o six.safetensors -q >out 2>&1
"$weft" zoo subset six.safetensors -i 1 -o net0.safetensors -q >out 2>&1
"$weft" zoo merge good.safetensors net0.safetensors six.safetensors -o alike.safetensors -q >out 2>&1
check export-names-alike "$weft" zoo export alike.safetensors --all -o alike -q
check "each network has its file" test "$(ls alike | wc -l)" = 10
rm -r twice* alike*
check export-best "$weft" zoo export zoo.safetensors --best 2 -o best --format pt -q
check export-best-files test "$(ls best | wc -l)" = 2
expect export-both 2 "one of --index" "$weft" zoo export zoo.safetensors --best 2 --all -o x -q
expect export-file 2 "need a folder" "$weft" zoo export zoo.safetensors --all -o a.safetensors
expect export-one-name 2 "3 networks need a folder, one file each: -o three/ --format pt" "$weft" \
    zoo export zoo.safetensors -i 0-2 -o three.pt
check "nothing is made then" test ! -e three.pt
# Names of many networks cost a moment, not the square of it: two seconds are enough to find the
# last file there.
forty() { for copy in $(seq 40); do echo "$1"; done; }
# shellcheck disable=SC2046
"$weft" zoo merge $(forty zoo.safetensors) -o crowd.safetensors -q >/dev/null
# shellcheck disable=SC2046
"$weft" zoo merge $(forty crowd.safetensors) -o crowds.safetensors -q >/dev/null
mkdir crowds && touch crowds/net-63999.safetensors
expect export-crowds 2 "crowds/net-63999.safetensors is there already" \
    sh -c "ulimit -t 2; exec '$weft' zoo export crowds.safetensors -i 0-63999 -o crowds -q"
rm -r crowd*
expect export-ending 2 ".onnx" "$weft" zoo export zoo.safetensors -o net.onnx
check export-pt "$weft" zoo export zoo.safetensors -i 5 -o five.pt -q
check import-pt "$weft" zoo import five.pt -a relu -o five.safetensors -q
"$weft" zoo subset zoo.safetensors -i 5 -o one.safetensors -q >/dev/null
"$weft" zoo merge one.safetensors five.safetensors -o twice.safetensors -q >/dev/null 2>&1
"$weft" zoo info twice.safetensors --json -q >twice.json
check "a network is the same after .pt" test "$(value twice.json duplicates)" = 1

# Where files come from: patterns, single files, folders below, what trainers leave.
check import-pattern "$weft" zoo import 'folder/net?.safetensors' -a relu -o pattern.safetensors -q
check import-pattern-count test "$(count pattern.safetensors)" = 3
check import-files "$weft" zoo import folder/net2.safetensors folder/net0.safetensors -a relu \
    -o files.safetensors -q
check import-files-count test "$(count files.safetensors)" = 2
expect import-no-match 3 "no file matches" "$weft" zoo import 'folder/*.pth' -a relu \
    -o x.safetensors -q
expect import-two-stars 3 "** is no more than *: name the folder above and give --recursive" \
    "$weft" zoo import 'folder/**/*.pth' -a relu -o x.safetensors -q
mkdir -p runs/run1 runs/run2 runs/run10
for i in 1 2 10; do
    cp folder/net0.safetensors runs/run$i/model.safetensors
    cp five.pt runs/run$i/optimizer.pt
    echo '{}' >runs/run$i/config.json
done
expect import-subfolders 3 "as runs/run1/model.safetensors; give --recursive" "$weft" zoo import \
    runs -a relu -o x.safetensors -q
"$weft" zoo import runs --recursive -a relu -o runs.safetensors -q >/dev/null
check import-recursive test "$(count runs.safetensors)" = 3
echo a,b,kind >table.csv
expect import-table \
    3 "table.csv: no file of a network: neither safetensors nor torch.save; a table of examples goes behind --data" "$weft" zoo import table.csv -a relu -o x.safetensors
check eval-folders "$weft" eval --zoo zoo.safetensors --nets runs --csv runs.csv
check eval-folders-all test "$(wc -l <runs.csv)" = 4
expect no-ending 3 "there is no file runs/../zoo; did you mean runs/../zoo.safetensors?" "$weft" \
    zoo info runs/../zoo
expect no-ending-nets 3 "there is no file pattern; did you mean pattern.safetensors?" "$weft" eval \
    --zoo zoo.safetensors --nets pattern
check import-hugging "$weft" zoo import runs/run1 runs/run2/ -a relu -o hugging.safetensors -q
"$weft" zoo export runs.safetensors --all -o again --json -q >again.json
check "names are paths, in natural order" python3 -c '
import json
names = [n["name"] for n in json.load(open("again.json"))["networks"]]
assert names == ["run1/model.safetensors", "run2/model.safetensors", "run10/model.safetensors"], names'
check export-safe-names test -e again/run10_model.safetensors
mkdir many
for i in $(seq 1 300); do cp folder/net0.safetensors many/n$i.safetensors; done
check import-many "$weft" zoo import many/n*.safetensors -a relu -o many.safetensors -q
check import-many-count test "$(count many.safetensors)" = 300
cp five.pt five.ckpt
cp five.pt five.bin
check import-ckpt "$weft" zoo import five.ckpt five.bin -a relu -o ckpt.safetensors -q
echo hello >broken.pt
expect import-broken 3 "not a file of torch.save" "$weft" zoo import broken.pt -a relu \
    -o x.safetensors
check "nothing is left behind by import" test ! -e x.safetensors
finish
