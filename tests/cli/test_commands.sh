#!/bin/sh
# The single commands, one after another on a tiny collection.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1


"$weft" zoo train "$recipe" -o zoo.safetensors --json -q >zoo.json
check zoo-train-json is_json zoo.json
check zoo-train-count test "$(value zoo.json count)" = 40
check zoo-train-two "$weft" zoo train "$recipe" -o two.safetensors --first 40 -n 5 -q --threads 1
check zoo-train-shard "$weft" zoo train "$recipe" -o part.safetensors --first 10 -n 5 -q
cp part.safetensors other-part.safetensors
expect zoo-train-replaces 0 "other-part.safetensors holds other networks" "$weft" zoo train \
    "$recipe" -o other-part.safetensors --first 15 -n 5 -q
"$weft" zoo train "$recipe" -o fifteen.safetensors --first 15 -n 5 -q >/dev/null
check "with the networks that were asked for" cmp fifteen.safetensors other-part.safetensors
"$weft" zoo head zoo.safetensors -n 5 -o head.safetensors -q >/dev/null
"$weft" zoo train "$recipe" -o head.safetensors -q >/dev/null 2>&1
check "a part of a collection is not taken for all of it" cmp zoo.safetensors head.safetensors
expect zoo-train-again 0 "5 networks" "$weft" zoo train "$recipe" -o part.safetensors --first 10 -n 5
check "what stands is not told to be replaced" test ! -s err
"$weft" zoo export zoo.safetensors -i 12 -o a.safetensors -q >/dev/null
"$weft" zoo export part.safetensors -i 2 -o b.safetensors -q >/dev/null
check "network 12 is the same in any shard" cmp a.safetensors b.safetensors
expect zoo-export-range 2 "40 networks" "$weft" zoo export zoo.safetensors -i 40 -o c.safetensors
"$weft" zoo info zoo.safetensors --json >info.json
check zoo-info-json is_json info.json
check zoo-info-count test "$(value info.json count)" = 40
check zoo-info-duplicates test "$(value info.json duplicates)" = 0
mkdir folder
for i in 0 1 2; do "$weft" zoo export zoo.safetensors -i $i -o folder/net$i.safetensors >/dev/null
done
"$weft" zoo import folder -a relu -o mine.safetensors --json >import.json
check zoo-import-json is_json import.json
check zoo-import-networks test "$(value import.json networks)" = 3
"$weft" zoo export mine.safetensors -i 1 -o d.safetensors >/dev/null
"$weft" eval --zoo zoo.safetensors --nets mine.safetensors --json -q --no-cache >copies.json
check "imported copies have WCS 1" python3 \
    -c 'import json; assert json.load(open("copies.json"))["wcs_mean"] > 0.9999'

"$weft" train "$recipe" --zoo zoo.safetensors -o flow.safetensors --json -q >train.json
check train-json is_json train.json
check train-updates test "$(value train.json updates)" = 40
check "resolved recipe beside the flow" "$weft" model info flow.safetensors.recipe.conf
check sample "$weft" sample flow.safetensors -n 6 -o nets.safetensors --solver euler --steps 4 -q
"$weft" sample flow.safetensors -n 6 -o refined.safetensors --direct direct.safetensors \
    --solver heun --steps 3 \
    --refine 0.5,2 --json -q >sample.json
check sample-json is_json sample.json
"$weft" sample flow.safetensors -n 6 -o jumps.safetensors --solver heun --steps 3 --refine 0.5,4,1 \
    --json -q >jumps.json
check sample-jumps test "$(value jumps.json evaluations)" = 10.0 # 3 steps of 2, then 4 of 1
expect sample-bad-jumps 2 "T,K,S" "$weft" sample flow.safetensors -o x.safetensors \
    --refine 0.5,4,1.5
"$weft" sample flow.safetensors -n 2 --first 4 -o late.safetensors --solver euler --steps 4 \
    -q >/dev/null
"$weft" zoo export nets.safetensors -i 5 -o e.safetensors >/dev/null
"$weft" zoo export late.safetensors -i 1 -o f.safetensors >/dev/null
check "generated network 5 is the same whatever the call" cmp e.safetensors f.safetensors
"$weft" sample flow.safetensors -n 2 -o wide.safetensors --width 1.5 --solver euler --steps 3 \
    --json -q >wide.json
check sample-width test "$(value wide.json arch)" = 2-9-3
check sample-arch "$weft" sample flow.safetensors -n 2 -o other.safetensors --arch 2-5-3 \
    --solver euler --steps 3 -q
expect sample-depth 2 "keep the number of layers" "$weft" sample flow.safetensors -n 2 \
    -o x.safetensors --arch 2-5-4-3
expect sample-bad-refine 2 "T,K" "$weft" sample flow.safetensors -o x.safetensors --refine 2,3
expect sample-bad-solver 2 "dopri5" "$weft" sample flow.safetensors -o x.safetensors --solver magic
expect sample-bad-precision 2 "auto, bf16, fp32" "$weft" sample flow.safetensors -o x.safetensors \
    --precision fp8
expect sample-control-precision 2 "--precision belongs to generators that are fitted" "$weft" sample \
    random --arch 2-4-3 -n 2 -o x.safetensors --precision fp32
expect sample-nothing 3 'there is no file perturbtion, and there is no generator "perturbtion"' \
    "$weft" sample perturbtion -o x.safetensors
expect sample-unfitted 2 "gmn has to be fitted first" "$weft" sample gmn -o x.safetensors
expect sample-bf16-cpu 2 "runs on the CPU" "$weft" sample flow.safetensors -o x.safetensors \
    --precision bf16 --device cpu
expect sample-cond 2 "without conditions" "$weft" sample flow.safetensors -o x.safetensors --cond 1

"$weft" eval --zoo zoo.safetensors --nets nets.safetensors --data "$recipe" --json -q >row.json
check eval-json is_json row.json
check eval-keys python3 -c '
import json
row = json.load(open("row.json"))
for key in "name n accuracy_mean accuracy_std iou_mean iou_std wcs_mean wcs_std jws jws_std".split():
    assert key in row, key
assert row["n"] == 6 and 0 < row["jws"] <= 1 and 0 <= row["accuracy_mean"] <= 1
assert sorted(row["devices"].split(", ")) == ["errors cpu", "matching cpu", "testing cpu"], row["devices"]'
"$weft" eval --zoo zoo.safetensors --nets nets.safetensors --json -q >unlabelled.json
check eval-unlabelled python3 -c '
import json
row = json.load(open("unlabelled.json"))
assert row["jws"] is None and row["accuracy_mean"] is None and 0 < row["wcs_mean"] <= 1'
expect eval-shapes 3 "2-9-3" "$weft" eval --zoo zoo.safetensors --nets wide.safetensors
expect eval-devices 0 "where it ran: matching cpu" "$weft" eval --zoo zoo.safetensors \
    --nets nets.safetensors \
    --device auto -q
"$weft" eval --zoo zoo.safetensors --nets nets.safetensors --data "$recipe" \
    --rows reference,networks,perturbation-0.1,average --json -q >rows.json
check eval-rows python3 -c 'import json
rows = json.load(open("rows.json"))["rows"]; one = json.load(open("row.json"))
assert [r["name"] for r in rows] == ["reference", "networks", "perturbation-0.1", "average"]
assert rows[1]["jws"] == one["jws"]'
expect eval-row-unknown 2 "there is no generator" "$weft" eval --zoo zoo.safetensors \
    --nets nets.safetensors --rows nobody
expect eval-table 0 "JWS" "$weft" eval --zoo zoo.safetensors --nets nets.safetensors \
    --data "$recipe" -q

"$weft" align zoo.safetensors -o aligned.safetensors --json -q >align.json
check align-json is_json align.json
check "alignment brings networks closer" python3 -c '
import json
a = json.load(open("align.json"))
assert a["cosine_after"] > a["cosine_before"] + 0.01'
"$weft" eval --zoo zoo.safetensors --nets aligned.safetensors --data "$recipe" \
    --json -q >aligned.json
check "aligned networks are the same networks" python3 -c '
import json
row = json.load(open("aligned.json"))
assert row["wcs_mean"] > 0.9999 and row["iou_mean"] > 0.9999, row'
"$weft" zoo info aligned.safetensors --json >aligned-info.json
check "scores go along" python3 -c '
import json
a, b = json.load(open("info.json")), json.load(open("aligned-info.json"))
assert a["tests"] == b["tests"] != []'

"$weft" zoo train "$recipe" -o other.safetensors --seed 9 -n 12 -q >/dev/null
"$weft" mix --zoo zoo.safetensors,other.safetensors --data "$recipe",spirals --pairs 6 --steps 2 \
    --sweeps 0,5 --score accuracy --json -q >mix.json
check mix-json python3 -c '
import json
mix = json.load(open("mix.json"))
assert [c["name"] for c in mix["curves"]] == ["average", "average-5", "ensemble"]
assert len(mix["data"]) == 2
ends = [[c["points"][k]["mean"] for c in mix["curves"]] for k in (0, 2)]
assert all(abs(x - y) < 1e-6 for end in ends for m in end for x, y in zip(m, end[0])), ends
assert [p["alpha"] for p in mix["curves"][0]["points"]] == [0, 0.5, 1]'
expect mix-auc-classes 2 "two classes" "$weft" mix --zoo zoo.safetensors,other.safetensors \
    --data "$recipe" -q
expect mix-one-zoo 2 "give two" "$weft" mix --zoo zoo.safetensors --data "$recipe" \
    --score accuracy -q
expect mix-sweeps 2 "whole numbers" "$weft" mix --zoo zoo.safetensors,other.safetensors \
    --data "$recipe" --sweeps 0.5 --score accuracy -q
expect mix-shapes 3 "one architecture" "$weft" mix --zoo zoo.safetensors,wide.safetensors \
    --data "$recipe" --score accuracy -q

# A flow is sampled as its recipe said, unless told otherwise.
"$weft" sample flow.safetensors -n 3 -o as-trained.safetensors --json -q >as-trained.json
check sample-as-trained test "$(value as-trained.json sampling)" = \
    "euler of 4 steps, refined 2 times from t = 0.75"
check sample-as-trained-cost test "$(value as-trained.json evaluations)" = 6.0
"$weft" sample flow.safetensors -n 3 -o plain.safetensors --refine none --json -q >plain.json
check sample-refine-none test "$(value plain.json evaluations)" = 4.0
expect sample-one-name 2 "./one.safetensors is named twice" "$weft" sample flow.safetensors \
    -o one.safetensors --direct ./one.safetensors --wait
expect split-one-name 2 "one.safetensors is named twice" "$weft" zoo split zoo.safetensors \
    -o one.safetensors --held-out one.safetensors
expect sample-direct-alone 2 "there is none" "$weft" sample flow.safetensors -o x.safetensors \
    --refine none --direct y.safetensors
expect sample-other-inputs 2 "write 2-...-3" "$weft" sample flow.safetensors -o x.safetensors \
    --arch 4-6-3
expect sample-there 2 "--force" "$weft" sample flow.safetensors -o plain.safetensors
check sample-force "$weft" sample flow.safetensors -n 3 -o plain.safetensors --force -q
"$weft" zoo head zoo.safetensors -n 6 -o few.safetensors -q >/dev/null
expect train-few 0 "fewer than 30" "$weft" train "$recipe" --zoo few.safetensors \
    -o few-flow.safetensors --set train.updates=2 -q
expect train-collection 2 "weft fit zoo.safetensors" "$weft" train zoo.safetensors -o x.safetensors
expect train-flow 2 "weft sample flow.safetensors" "$weft" run flow.safetensors
printf '[zoo]\npath = zoo.safetensors\n[model]\nblocks = 1\n' >given.conf
"$weft" model info given.conf --json >model.json
check model-info-path test "$(value model.json arch)" = 2-6-3
check model-info-tensors python3 -c '
import json, math
model = json.load(open("model.json"))
names = [t["name"] for t in model["tensors"]]
assert names[0] == "time.0.weight"
assert "blocks.0.edge.0.weight_e" in names
assert "readout.2.bias" in names
assert sum(math.prod(t["shape"]) for t in model["tensors"]) == model["parameters"]
position, = [t for t in model["tensors"] if t["name"] == "edge_encoder.position.weight"]
assert position["shape"][1] == 3 and not position["decay"]'

# The line of progress is rewritten in place, so it must not be wider than the terminal. SIGINT ends
# the command behind some of them, for a fast machine would show none of a short one.
cat >narrow.py <<'END'
import fcntl, os, pty, re, signal, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
shown, lines, stopped = b"", [], False
try:
    while piece := os.read(terminal, 4096):
        shown += piece
        lines = re.findall(rb"\r\x1b\[K([^\r\n]+)(?=\r\x1b)", shown)
        if len(lines) >= 3 and not stopped: stopped = not os.kill(child, signal.SIGINT)
except OSError: pass # the end of a terminal
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130, shown
assert max(map(len, lines)) < 40, lines
END
check "progress on a narrow terminal" python3 narrow.py "$weft" zoo train "$recipe" -n 200000 \
    --set zoo.epochs=400 -o narrow.safetensors

# Scores of the networks one by one; exported files as networks.
check eval-networks python3 -c '
import json
row = json.load(open("row.json"))
nets = row["networks"]
assert [n["index"] for n in nets] == list(range(6))
assert abs(sum(n["score"] for n in nets) / 6 - row["accuracy_mean"]) < 1e-6
assert all(0 <= n["nearest_wcs"] < 40 and n["wcs"] <= 1 for n in nets)'
check eval-csv "$weft" eval --nets mine.safetensors --data "$recipe" --csv scores.csv -q
check eval-csv-rows test "$(wc -l <scores.csv)" = 4
check eval-csv-names grep -q '^2,"net2.safetensors",0' scores.csv
expect eval-csv-there 2 "--force" "$weft" eval --nets mine.safetensors --data "$recipe" \
    --csv scores.csv -q
"$weft" zoo export zoo.safetensors -i 3 -o three.pt -q >/dev/null
"$weft" zoo export zoo.safetensors -i 3 -o three.safetensors -q >/dev/null
for net in three.pt three.safetensors; do
    "$weft" eval --zoo zoo.safetensors --nets $net --data "$recipe" --json -q >three.json
    check "an exported network is judged ($net)" python3 -c '
import json
row = json.load(open("three.json"))
assert row["n"] == 1 and row["networks"][0]["nearest_wcs"] == 3 and row["wcs_mean"] > 0.9999, row'
done
check "a folder of exported networks is judged" "$weft" eval --nets folder --data "$recipe" -q
printf 'junk' >junk.pt
expect eval-junk 3 "junk.pt" "$weft" eval --zoo zoo.safetensors --nets junk.pt
finish
