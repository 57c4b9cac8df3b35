#!/bin/sh
# A collection of many files: the bits of one file, read piece by piece; what does not belong
# together is said.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
cd "$scratch" || exit 1

"$weft" zoo train "$recipe" -n 40 -o whole.safetensors -q >/dev/null
"$weft" zoo train "$recipe" -n 25 -o part-a.safetensors -q >/dev/null
"$weft" zoo train "$recipe" --first 25 -n 5 -o part-b.safetensors -q >/dev/null
"$weft" zoo train "$recipe" --first 30 -n 10 -o part-c.safetensors -q >/dev/null
mkdir parts && mv part-?.safetensors parts

summary() { # of zoo info, but for the path
    "$weft" zoo info "$1" --json -q | sed 's/"path": "[^"]*"//'
}
summary whole.safetensors >one.json
summary 'parts/part-*.safetensors' >many.json
check "info says the same of three files as of one" cmp one.json many.json
"$weft" zoo subset 'parts/part-*.safetensors' -i 0-39 -o joined.safetensors -q >/dev/null
check "joined by subset they have the weights of one" python3 - <<'END'
import json, struct
def tensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__")
    return {k: (v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}
assert tensors("joined.safetensors") == tensors("whole.safetensors")
END

# The same flow from one file in memory, from many, and from files that are not kept in memory.
losses() {
    python3 -c \
        'import json, sys; print([(r["update"], r["loss"]) for r in map(json.loads, open(sys.argv[1])) if "loss" in r])' "$1"; }
fit() { # NAME ZOO ...
    label=$1 zoo=$2
    shift 2
    env "$@" "$weft" train "$recipe" --zoo "$zoo" -o "$label.safetensors" --set train.set_aside=4 \
        -q >/dev/null &&
        losses "$label.safetensors.log.jsonl" >"$label.losses" &&
        "$weft" sample "$label.safetensors" -n 3 -o "$label-nets.safetensors" -q >/dev/null &&
        "$weft" zoo export "$label-nets.safetensors" -i 2 -o "$label-net.safetensors" -q >/dev/null
}
check "fit to one file" fit one whole.safetensors
check "fit to three" fit many 'parts/part-*.safetensors'
check "fit to three that stay in their files" fit streamed 'parts/part-*.safetensors' WEFT_KEEP_MB=0
check "the log has losses" grep -q "(5, " one.losses
check "the same losses" cmp one.losses many.losses
check "and streamed" cmp one.losses streamed.losses
check "the same networks" cmp one-net.safetensors streamed-net.safetensors

judge() { # NAME ZOO ...
    label=$1 zoo=$2
    shift 2
    env "$@" "$weft" eval --nets one-nets.safetensors --zoo "$zoo" --data "$recipe" \
        --json -q >"$label.json"
}
check "judged by one file" judge by-one whole.safetensors
check "judged by three, piece by piece" judge by-many 'parts/part-*.safetensors' WEFT_KEEP_MB=0.002
rm -f parts/*.cloud.safetensors
check "the same table" python3 - <<'END'
import json
def rows(path):
    def clean(x):
        if isinstance(x, dict): return {k: clean(v) for k, v in x.items() if k not in ("zoo", "path", "collection")}
        return [clean(v) for v in x] if isinstance(x, list) else x
    return clean(json.load(open(path)))
a, b = rows("by-one.json"), rows("by-many.json")
assert a == b, (a, b)
END

# Runs: what the collection was is remembered, file by file.
cat >many.conf <<END
[zoo]
path = parts/part-*.safetensors
$(sed -n '/^\[model\]/,$p' "$recipe")
END
check "a run over many files" "$weft" run many.conf -o run -q
expect "goes on without work" 0 "training: done before" "$weft" run many.conf -o run
expect "verify with a pattern" 0 "ok         parts/part-c.safetensors" "$weft" verify \
    'parts/part-*.safetensors'
mv parts/part-b.safetensors kept
expect "a file that is gone" 2 "parts/part-b.safetensors is not as it was in the collection" \
    "$weft" run many.conf -o run
expect "a gap is told" 0 "is a file between them missing?" "$weft" zoo info \
    'parts/part-*.safetensors'
cp parts/part-a.safetensors parts/part-b.safetensors
expect "one that is another" 2 "parts/part-b.safetensors is not as it was in the collection" \
    "$weft" run many.conf -o run
expect "networks twice" 0 "some are there twice" "$weft" zoo info 'parts/part-*.safetensors'
mv kept parts/part-b.safetensors
cp parts/part-a.safetensors parts/part-d.safetensors
expect "one more" 2 "parts/part-d.safetensors is not as it was in the collection" "$weft" run \
    many.conf -o run
rm parts/part-d.safetensors
expect "all is as it was" 0 "training: done before" "$weft" run many.conf -o run
cp parts/part-b.safetensors kept
python3 - <<'END'
with open("parts/part-b.safetensors", "r+b") as f:
    f.seek(-9, 2); byte = f.read(1); f.seek(-9, 2); f.write(bytes([byte[0] ^ 4]))
END
expect "a damaged file is named" 3 "damaged    parts/part-b.safetensors" "$weft" verify \
    'parts/part-*.safetensors'
expect "also when it is used" 3 "parts/part-b.safetensors: is damaged" "$weft" eval \
    --nets one-nets.safetensors --zoo 'parts/part-*.safetensors' --data "$recipe"
mv kept parts/part-b.safetensors

expect "no file" 3 "nothing-*.safetensors: no file matches this pattern" "$weft" zoo info \
    'nothing-*.safetensors'
"$weft" zoo train "$recipe" --set zoo.arch=2-5-3 -n 3 -o parts/part-z.safetensors -q >/dev/null
expect "another architecture" 3 "parts/part-z.safetensors of 2-5-3" "$weft" zoo info \
    'parts/part-*.safetensors'
finish
