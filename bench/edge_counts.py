#!/usr/bin/env python3
"""Instructions of the tile loops of edge_benchmark, counted in machine code.

    nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -cubin -o edge.cubin \\
        bench/edge_benchmark.cu
    nvdisasm edge.cubin | bench/edge_counts.py

A role is what follows a USETMAXREG. Its tile loop is the shortest loop with all of its HGMMA. Each
warp of a group runs it once for a tile, so a count stands for 16 edges. Waiting loops behind the
kernel are not counted, and branches inside count as if both sides ran. Nothing is measured.

Ends with 1 where, in any kernel, a batch multiplies the same registers twice into one accumulator:
no kernel says so. ptxas 13.0 did it where left operands had been made from accumulators of an
earlier batch: it made them anew, from what later products had left in these registers.
"""
import re
import sys

CLASSES = [
    ("tensor", r"HGMMA|WARPGROUP"),
    ("units", r"HFMA2|HMUL2|HADD2(?!\.F32)|HMNMX2|MUFU\.TANH"),
    ("conversions", r"F2F|F2FP|HADD2\.F32"),
    ("fp32", r"FADD|FMUL|FFMA|MUFU"),
    ("shared", r"LDS|STS|LDSM|STSM|SYNCS|SHFL|BAR|FENCE"),
    ("memory", r"LDG|STG|LDC|UBLKCP|UTMA"),
    ("uniform", r"U[A-Z0-9]+|R2UR|S2UR"),
    ("control", r"BRA|BSYNC|BSSY|EXIT|NOP|CALL|RET|WARPSYNC|DEPBAR"),
]


def functions(text):
    """(name, [(label or None, opcode)]) of each kernel."""
    for part in re.split(r"\t\.section\t\.text\.", text)[1:]:
        name = part[:part.index(",")]
        lines, labels = [], {}
        for line in part.splitlines():
            label = re.match(r"(\.L_x_\d+):", line)
            if label:
                labels[label.group(1)] = len(lines)
            code = re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*([A-Z][\w.]*)(.*)", line)
            if code:
                lines.append((code.group(1), code.group(2)))
        yield name, lines, labels


def loops(lines, labels):
    for at, (op, rest) in enumerate(lines):
        target = re.search(r"\.L_x_\d+", rest) if op.startswith("BRA") else None
        if target and labels.get(target.group(0), at + 1) <= at:
            yield labels[target.group(0)], at + 1


def roles(lines):
    """(registers, first, last) of the regions that begin with USETMAXREG."""
    starts = [k for k, (op, _) in enumerate(lines) if op.startswith("USETMAXREG")]
    for start, end in zip(starts, starts[1:] + [len(lines)]):
        yield int(re.search(r"0x([0-9a-f]+)", lines[start][1]).group(1), 16), start, end


def repeated_operands(lines):
    """Products of a batch whose left operand was multiplied into the same accumulator before."""
    seen = set()
    for op, rest in lines:
        if op.startswith("WARPGROUP.ARRIVE"):
            seen = set()
        found = re.match(r"\s*R(\d+), R(\d+), gdesc", rest) if op.startswith("HGMMA") else None
        if found and found.groups() in seen:
            yield "%s%s" % (op, rest.split(";")[0])
        if found:
            seen.add(found.groups())


def classify(op):
    for name, pattern in CLASSES:
        if re.match(r"(?:%s)\b" % pattern, op):
            return name
    return "integer"


def kernel_name(mangled):
    found = re.search(r"(forward|backward)_kernelILi(\d)E(?:Lb(\d))?", mangled)
    if not found:  # not of the benchmark: nothing is counted
        return mangled
    kind, number, message = found.groups()
    return {"forward": "F", "0": "Z", "1": "M"}[message if kind == "backward" else kind] + number


def main():
    names = [name for name, _ in CLASSES] + ["integer"]
    head = ["stage", "role's registers", "highest used", "all"] + names + ["HGMMA"]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * (len(names) + 5))
    rows, wrong = [], []
    for mangled, lines, labels in functions(sys.stdin.read()):
        name = kernel_name(mangled)
        wrong += ["%s: %s" % (name, line) for line in repeated_operands(lines)]
        if name == mangled:
            continue
        all_loops = list(loops(lines, labels))
        for registers, first, last in roles(lines):
            products = [k for k in range(first, last) if lines[k][0].startswith("HGMMA")]
            if not products:
                continue
            around = [(b - a, a, b) for a, b in all_loops
                      if a <= products[0] and b > products[-1]]
            _, a, b = min(around)
            counts = dict.fromkeys(names, 0)
            for op, _ in lines[a:b]:
                counts[classify(op)] += 1
            used = max(int(r) for _, rest in lines[first:last]
                       for r in re.findall(r"\bR(\d+)\b", rest))
            rows.append([name, registers, used, b - a] +
                        [counts[n] for n in names] + [len(products)])
    for row in sorted(rows, key=lambda r: ("FZM".index(r[0][0]), r[0], -r[1])):
        print("| " + " | ".join(map(str, row)) + " |")
    for line in wrong:
        print("the same left operand twice in a batch: " + line, file=sys.stderr)
    return 1 if wrong else 0


sys.exit(main())
