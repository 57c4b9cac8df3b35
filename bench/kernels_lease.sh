#!/bin/sh
# Where a training step's time goes on this machine's GPU, in LEASE=95 seconds at most: stages of
# the edge and node benchmarks with right or wrong, step times, small batches, the kernels of a step
# with their times and what they use; one table last. Programs are those of bench/cuda_check.sh
# build. OUT=FOLDER keeps the logs: eight files.
#     bench/kernels_lease.sh
# What decides most comes first; a piece for which no time is left is named in the table.
set -u
cd "$(dirname "$0")/.." || exit 1
gpu=${BUILD:-build}/gpu
for name in cuda_step cuda_loop edge_benchmark node_benchmark test_cuda_ops test_cuda_field; do
    [ -x "$gpu/$name" ] && continue
    echo "kernels_lease.sh: not in $gpu: $name; make it where nvcc is: bench/cuda_check.sh build" \
        >&2
    exit 2
done
begun=$(date +%s) missed=
logs=${OUT:-}
if [ -z "$logs" ]; then
    logs=$(mktemp -d) || exit 1
    trap 'rm -r "$logs"' EXIT
fi
# piece MOST LOG COMMAND...: appended to LOG; MOST seconds, and what is left.
piece() {
    left=$((${LEASE:-95} - ($(date +%s) - begun))) most=$1 log=$logs/$2
    shift 2
    [ "$most" -le "$left" ] || most=$left
    if [ "$most" -lt 3 ]; then
        missed="$missed; $*"
    elif ! timeout "$most" "$@" >>"$log" 2>&1; then
        missed="$missed; $* (failed, or longer than $most s)"
    fi
}
# kernels LOG CASE LAYOUT: of a step, each with its time. details LOG CASE LAYOUT NAMES SKIPPED
# COUNT: so many launches of these kernels, with all that ncu's sections say.
kernels() {
    piece 25 "$1" ncu --clock-control none --print-units base --metrics gpu__time_duration.sum \
        --csv --page raw \
        "$gpu/cuda_step" "$2" "$3" bf16
}
details() {
    piece 25 "$1" ncu --clock-control none --print-units base --csv --page raw -k "regex:$4" \
        -s "$5" -c "$6" \
        --section SpeedOfLight --section SchedulerStats --section WarpStateStats \
        --section InstructionStats \
        --section LaunchStats "$gpu/cuda_step" "$2" "$3" bf16
}
piece 25 benchmarks "$gpu/edge_benchmark"
piece 15 benchmarks "$gpu/node_benchmark"
piece 20 steps "$gpu/cuda_step" lean
kernels kernels-karhunen karhunen lean
piece 15 steps "$gpu/cuda_loop" brief karhunen-lean:56
kernels kernels-mnist mnist lean
piece 20 tests env WEFT_TEST_FILTER=test_bf16 WEFT_TEST_CASES='node_tables-*,lean_nodes-*' \
    "$gpu/test_cuda_ops"
piece 20 tests env WEFT_TEST_FILTER=test_lean_nodes "$gpu/test_cuda_field"
piece 20 steps "$gpu/cuda_step" lstar
details details-karhunen karhunen lean 'node_tables|lean_(forward|backward|nodes)' 15 18
details details-mnist mnist lean 'lean_(forward|backward|norm)' 12 10
kernels kernels-lstar karhunen lstar
grep -hE '^not ok|^FAILED|^stage|^[FZM][0-3] |^N[KB]? |relative|wrong' "$logs/benchmarks"
grep -hE '^\[ *(OK|FAILED|PASSED) *\]|^ok ' "$logs/tests"
awk '!seen[$0]++' "$logs/steps"
python3 - "$logs" <<'END'
import collections, csv, os, re, sys

# What ncu may call them; the first that is there is printed.
SHARES = [("sm %", "sm__throughput"), ("L1 %", "l1tex__throughput"), ("L2 %", "lts__throughput"),
          ("HBM %", "gpu__dram_throughput|dram__throughput"),
          ("issued %", "smsp__issue_active.avg.*pct|sm__inst_issued.*pct|smsp__issue_active.avg.per_cycle"),
          ("instructions", "smsp__inst_executed.sum$|sm__inst_executed.sum$"),
          ("registers", "launch__registers_per_thread$")]


def table_of(name):
    path = os.path.join(sys.argv[1], name)
    lines = [x for x in open(path)] if os.path.exists(path) else []
    rows = list(csv.reader(x for x in lines if x.startswith('"')))
    return (rows[0], rows[2:]) if len(rows) > 2 else (None, [])


def short(name):
    name = re.sub(r"wf_gpu::|<unnamed>::|\(anonymous namespace\)::|^void ", "", name)
    return re.sub(r"\((?!int|bool).*|\((int|bool)\)", "", name)[:52]


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


for name in ("kernels-karhunen", "kernels-mnist", "kernels-lstar"):
    head, rows = table_of(name)
    if not rows:
        print(name + ": no profile")
        continue
    us, count = collections.Counter(), collections.Counter()
    at, time = head.index("Kernel Name"), head.index("gpu__time_duration.sum")
    for row in rows:
        us[short(row[at])] += number(row[time]) / 1e3
        count[short(row[at])] += 1
    print("%s: us, launches, us each; %d us, %d launches in all" % (name, sum(us.values()), len(rows)))
    for key, all_us in us.most_common(16):
        print("%7.0f %4d %7.1f  %s" % (all_us, count[key], all_us / count[key], key))
for name in ("details-karhunen", "details-mnist"):
    head, rows = table_of(name)
    if not rows:
        print(name + ": no profile")
        continue
    columns = [(title, next((k for k, c in enumerate(head) if re.match(pattern, c)), None))
               for title, pattern in SHARES]
    print("%s: us, %s" % (name, ", ".join(title for title, k in columns if k is not None)))
    for row in rows:
        print("%7.1f %s  %s" % (number(row[head.index("gpu__time_duration.sum")]) / 1e3,
                                " ".join("%9.4g" % number(row[k]) for _, k in columns if k is not None),
                                short(row[head.index("Kernel Name")])))
END
echo "$(($(date +%s) - begun)) s${missed:+; not measured: ${missed#; }}"
