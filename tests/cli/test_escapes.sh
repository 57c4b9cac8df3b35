#!/bin/sh
# Names in files of others may hold terminal escapes: the program shows them, the terminal never
# acts on them.
. tests/cli/lib.sh
cd "$scratch" || exit 1
# What a terminal acts on: control characters but newline and tab, in one byte and in two; marks
# that turn the direction of writing.
cat >acts.py <<'END'
import sys
text = open(sys.argv[1], "rb").read().decode("utf-8", "surrogateescape")
marks = "\u061c\u200e\u200f\u2028\u2029" + "".join(map(chr, [*range(0x202a, 0x202f), *range(0x2066, 0x206a)]))
sys.exit(any((ord(c) < 32 and c not in "\n\t") or 0x7f <= ord(c) < 0xa0 or ord(c) >= 0xdc80 and ord(c) < 0xdd00 or c in marks for c in text))
END
# shown NAME CODE COMMAND...: the exit code, the escape as text, and no other way.
shown() {
    name=$1 code=$2
    shift 2
    "$@" >out 2>err
    got=$?
    cat out err >all
    if [ $got -ne "$code" ]; then fail "$name" "exit code $got: $(tail -n 1 err)"
    elif ! grep -qF '\u001b[2J' all; then fail "$name" "nothing of the escape: $(cat -v all |
        tail -n 3)"
    elif ! python3 acts.py all; then fail "$name" "a raw escape: $(cat -v all | tail -n 3)"
    else pass "$name"; fi
}
python3 - "$root" <<'END'
import json, struct
esc = "\x1b[2J\x9b\u202e\x7f"
def collection(path, arch, test, meta):
    tensors, data, at = {}, b"", 0
    for name, shape in (("layers.0.weight", [2, 3, 2]), ("layers.0.bias", [2, 3]), ("weft.score." + test, [2])):
        size = 4
        for n in shape: size *= n
        tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
        data += struct.pack("<%df" % (size // 4), *[0.5 + 0.1 * i for i in range(size // 4)])
    meta.update({"weft.arch": arch, "weft.activation": "relu", "weft.format": "collection 1"})
    header = json.dumps({"__metadata__": meta, **tensors}).encode()
    open(path, "wb").write(struct.pack("<Q", len(header)) + header + data)
collection("zoo.safetensors", "2-3", "t" + esc, {"weft.data.note": "n" + esc})
collection("bad.safetensors", "2-3" + esc, "t", {})
rows = "".join(f"{i},{i * i % 7},{'ab'[i % 2]}{esc}\n" for i in range(40))
open("data.csv", "w").write("x,y" + esc + ",class\n" + rows)
open("data.conf", "w").write("[data]\npath = data.csv\n")
open("target.conf", "w").write("[data]\npath = data.csv\ntarget = z\n")
END
shown zoo-info 0 "$weft" zoo info zoo.safetensors
shown zoo-info-arch 3 "$weft" zoo info bad.safetensors
shown data-info 0 "$weft" data info data.conf
shown column-names 3 "$weft" data info target.conf
esc=$(printf '\033[2J')
shown command 2 "$weft" "$esc"
shown argument 3 "$weft" zoo info "$esc"
shown option 2 "$weft" version "--$esc"
mkdir recipes
printf '# \033[2J\n' >recipes/acts.conf
shown recipes 0 env WEFT_RECIPES=recipes "$weft" help recipes
# JSON stays JSON, with the same names in it.
"$weft" data info data.conf --json >info.json
check json-is-clean python3 acts.py info.json
check json-keeps-names python3 \
    -c 'import json; assert json.load(open("info.json"))["classes"][0]["name"] == "a\x1b[2J\x9b\u202e\x7f"'

# A run and its flow: the data set is called so in the table, the log, the page's text and the flow.
sed -e 's/^name = .*/path = data.csv/' "$root/tests/cli/tiny.conf" >tiny.conf
"$weft" zoo train tiny.conf --set zoo.arch=2-4-2 --set zoo.count=8 -o "t.safetensors" \
    -q >out 2>&1 ||
    fail "train" "$(cat out)"
cp t.safetensors "z$esc.safetensors"
shown align 0 "$weft" align "z$esc.safetensors" -o "a$esc.safetensors"
shown train-and-flow-path 0 "$weft" train tiny.conf --zoo "z$esc.safetensors" \
    --set train.updates=2 --set zoo.arch=2-4-2 -o "f$esc.safetensors"
shown flow-info 0 "$weft" flow info "f$esc.safetensors"
shown sample 0 "$weft" sample "f$esc.safetensors" -n 2 -o "s$esc.safetensors"
finish
