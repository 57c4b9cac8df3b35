#!/bin/sh
# Are the losses of a fit those of an earlier version, to the last digit?
#
#     bench/losses.sh build [REV...]   where nvcc is: compiles these versions (f99308d, which is
#                                      0.1) and the tree as it is into $BUILD/gpu_losses, which may
#                                      be carried elsewhere
#     bench/losses.sh                  needs that folder, a GPU and WEFT_DATA; under a minute, one
#                                      table last
#
# The first version trains the collections of karhunen and MNIST. Every version fits a flow to
# these, with the recipes' settings: in bf16 and in fp32, karhunen in the layout lstar too, the demo
# on the CPU. The table compares the losses of all updates with those of the first version. Ends
# with 1 where a program fails; losses that differ are a row of the table.
#
#   UPDATES, FLOAT, DEMO   updates on the GPU in bf16 (200) and in fp32 (50), and of the demo (1000)
#   DEVICE=cpu             without a GPU: all of it in fp32 on the CPU; BATCH networks an update (8)
#   COUNT                  networks of a collection (2000)
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
programs=$build/gpu_losses
logs=$build/gpu_losses.log

# compile FOLDER BUILD NAME: weft of the sources in FOLDER, whose BUILD may be there from an earlier
# call
compile() {
    cuda=$(dirname "$nvcc")/../lib64
    hash=$(grep -q lxxhash "$1/Makefile" && echo -l:libxxhash.a)
    static="-l:libjansson.a -l:libz.a $hash -lm -pthread"
    cc=$(command -v ccache >/dev/null && echo 'ccache gcc' || echo gcc)
    make -C "$1" CC="$cc" NVCC="$nvcc" CUDA_ARCH="${CUDA_ARCH:-90a}" CURL= MPI= NCCL= \
        LDLIBS="$static -L$cuda -lcudart_static -ldl -lrt -lstdc++" BUILD="$2" "$2/weft" \
        >"$logs/$3.build" 2>&1 || {
        tail -n 20 "$logs/$3.build" >&2
        return 1
    }
    strip -o "$programs/$3" "$1/$2/weft"
    echo "$3" >>"$programs/versions"
}
if [ "${1:-}" = build ]; then
    shift
    nvcc=${NVCC:-$(command -v nvcc)}
    [ -x "$nvcc" ] || {
        echo "losses.sh: no nvcc; put CUDA's bin folder into PATH, or set NVCC" >&2
        exit 2
    }
    mkdir -p "$logs" && rm -rf "$programs" && mkdir -p "$programs" || exit 1
    : >"$programs/versions"
    for version in "${@:-f99308d}"; do
        tree=$build/versions/$version
        [ -d "$tree" ] || git worktree add --detach "$tree" "$version" || exit 1
        compile "$tree" build "$version" || exit 1
    done
    compile . "$build/versions/now" "$(git describe --always --dirty)" || exit 1
    du -sm "$programs" | sed 's/\t/ MiB in /'
    exit 0
fi
[ $# -eq 0 ] || { echo "usage: bench/losses.sh [build [REV...]]" >&2; exit 2; }
[ -s "$programs/versions" ] || {
    echo "losses.sh: no $programs; make it where nvcc is: bench/losses.sh build" >&2
    exit 2
}
versions=$(cat "$programs/versions")
first=${versions%%[!0-9a-z]*}
device=${DEVICE:-cuda} count=${COUNT:-2000}
updates=${UPDATES:-200} float=${FLOAT:-50} demo=${DEMO:-1000}
[ "$device" = cuda ] && batch= || batch="--set train.batch=${BATCH:-8}"
rm -rf "$logs" && mkdir -p "$logs" || exit 1
status=0
[ -d "${WEFT_DATA:-}" ] || {
    echo "losses.sh: set WEFT_DATA, the folder of the data sets" >&2
    exit 2
}
# run NAME COMMAND...: a minute at most
run() {
    name=$1
    shift
    timeout -k 2 60 "$@" >"$logs/$name.said" 2>&1 && return
    echo "FAILED $name: $(tail -n 1 "$logs/$name.said" | cut -c 1-200)"
    status=1
}
# fit NAME VERSION ZOO RECIPE OPTION...: the losses in $logs/NAME.VERSION
fit() {
    of=$1.$2 version=$2 zoo=$3 recipe=$4
    shift 4
    run "$of" "$programs/$version" train "recipes/$recipe.conf" -z "$logs/$zoo.zoo" -q \
        -o "$logs/$of.flow" --set train.log_every=1 "$@"
    touch "$logs/$of.flow.log.jsonl"
    sed -n 's/.*"update":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$logs/$of.flow.log.jsonl" \
        >"$logs/$of"
}
# on_gpu NAME RECIPE PRECISION UPDATES OPTION...: every version in turn
on_gpu() {
    flow=$1 conf=$2 precision=$3 most=$4
    shift 4
    [ "$device" = cuda ] || precision=auto
    for each in $versions; do
        # shellcheck disable=SC2086
        fit "$flow" "$each" "$conf" "$conf" --device "$device" --precision "$precision" \
            --set train.updates="$most" $batch "$@"
    done
}
collection() { # RECIPE VERSION FILE
    run "$3" "$programs/$2" zoo train "recipes/$1.conf" -n "$count" -o "$logs/$3" -q \
        --device "$device"
}
(
    run demo.zoo "$programs/$first" zoo train recipes/demo.conf -n "$count" -o "$logs/demo.zoo" -q
    for each in $versions; do fit demo-cpu "$each" demo demo --set train.updates="$demo"; done
    exit $status
) &
beside=$!
for recipe in karhunen mnist; do
    collection $recipe "$first" $recipe.zoo
    for each in $versions; do
        [ "$each" = "$first" ] || collection $recipe "$each" $recipe.zoo.$each
    done
done
on_gpu karhunen-bf16 karhunen bf16 "$updates"
on_gpu karhunen-lstar-bf16 karhunen bf16 "$float" --set model.layout=lstar
on_gpu karhunen-node-128 karhunen bf16 "$float" --set model.node=128
on_gpu mnist-bf16 mnist bf16 "$updates"
on_gpu karhunen-fp32 karhunen fp32 "$float"
on_gpu mnist-fp32 mnist fp32 "$float"
wait $beside || status=1

"$programs/${versions##*[!0-9a-z-]}" version 2>/dev/null | grep '^cuda'
# Collections: their weights, without the metadata, in which versions differ.
python3 - "$logs" "$first" $versions <<'END'
import json, struct, sys
logs, first, versions = sys.argv[1], sys.argv[2], sys.argv[3:]
def weights(path):
    data = open(path, "rb").read()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    head = {k: v for k, v in json.loads(data[8:end]).items() if k.startswith("layers.")}
    return {k: data[end + v["data_offsets"][0]:end + v["data_offsets"][1]] for k, v in head.items()}
def equal(path, other):
    try:
        return "equal" if weights(path) == weights(other) else "differ"
    except OSError as error:
        return "unknown: %s" % error
for recipe in "karhunen", "mnist":
    for version in versions:
        if version != first:
            zoo = "%s/%s.zoo" % (logs, recipe)
            word = equal(zoo, zoo + "." + version)
            print("weights of %s's collection, %s: %s" % (recipe, version, word))
def losses(flow, version):
    return [line.split() for line in open("%s/%s.%s" % (logs, flow, version))]
print("%-20s %-16s %7s %15s  %s" % ("flow", "version", "updates", "last loss", "losses"))
flows = "karhunen-bf16 karhunen-lstar-bf16 karhunen-node-128 mnist-bf16 karhunen-fp32 mnist-fp32"
for flow in flows.split() + ["demo-cpu"]:
    begin = losses(flow, first)
    for version in versions:
        mine = losses(flow, version)
        other = [a for a, b in zip(begin, mine) if a != b]
        worst = max([abs(float(a[1]) - float(b[1])) for a, b in zip(begin, mine)], default=0)
        word = "-" if version == first else "equal to the last digit"
        if other:
            word = "differ from update %s on, by %.1e at most" % (other[0][0], worst)
        if not mine or len(mine) != len(begin):
            word = "MISSING"
        last = mine[-1] if mine else ["0", "-"]
        print("%-20s %-16s %7s %15s  %s" % (flow, version, last[0], last[1], word))
END
[ $? -eq 0 ] || status=1
exit $status
