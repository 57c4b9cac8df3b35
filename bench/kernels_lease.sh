#!/bin/sh
# Where a training step's time goes on this machine's GPU, in under 100 seconds: stages of the edge benchmark, step times,
# and the kernels of a step with their times; one table last. Programs are those of bench/cuda_check.sh build.
#     bench/kernels_lease.sh [CASE LAYOUT]    of a step of karhunen lean, or of mnist, lstar
set -u
cd "$(dirname "$0")/.." || exit 1
gpu=${BUILD:-build}/gpu
for name in cuda_step edge_benchmark node_benchmark; do
    [ -x "$gpu/$name" ] && continue
    echo "kernels_lease.sh: not in $gpu: $name; make it where nvcc is: bench/cuda_check.sh build" >&2
    exit 2
done
logs=$(mktemp -d) || exit 1
trap 'rm -r "$logs"' EXIT
timeout 30 "$gpu/edge_benchmark" >"$logs/edges" 2>&1
timeout 20 "$gpu/node_benchmark" >"$logs/nodes" 2>&1
timeout 20 "$gpu/cuda_step" lean >"$logs/steps" 2>&1
timeout 40 ncu --clock-control none --metrics gpu__time_duration.sum --csv "$gpu/cuda_step" "${1:-karhunen}" "${2:-lean}" \
    bf16 >"$logs/kernels" 2>&1
grep -hE '^FAILED|^stage|^[FZM][0-2] |^N[KB]? ' "$logs/edges" "$logs/nodes"
cat "$logs/steps"
python3 - "$logs/kernels" <<'END'
import collections, csv, re, sys
rows = list(csv.reader(line for line in open(sys.argv[1]) if line.startswith('"')))
if not rows:
    sys.exit("no profile: " + open(sys.argv[1]).read()[-300:])
name, value, unit = (rows[0].index(k) for k in ("Kernel Name", "Metric Value", "Metric Unit"))
scale = {"n": 1e-3, "u": 1, "m": 1e3}
sums, count = collections.Counter(), collections.Counter()
for row in rows[1:]:
    key = re.sub(r"wf_gpu::|<unnamed>::|\(anonymous namespace\)::|\(.*|^void ", "", row[name])[:56]
    sums[key] += float(row[value].replace(",", "")) * scale[row[unit][0]]
    count[key] += 1
print("kernels of a step: us, launches, us each; %d in all" % sum(sums.values()))
for key, us in sums.most_common(26):
    print("%8.0f %5d %8.1f  %s" % (us, count[key], us / count[key], key))
END
