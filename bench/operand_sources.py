#!/usr/bin/env python3
"""Whether ptxas has kept what the left operands of products are made of.

    nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -keep -cubin bench/edge_benchmark.cu
    nvdisasm edge_benchmark.cubin >edge_benchmark.sass
    bench/operand_sources.py edge_benchmark.ptx edge_benchmark.sass

A left operand in registers (wgmma, HGMMA) may be made from accumulators of an earlier batch of
products. ptxas 13.0 has made such operands anew, later, from registers in which another batch had
left its accumulators since. The emulated device cannot see that, for it runs the source. Here each
register carries the batches that its value is made of, in PTX and in machine code, and the left
operand of each product is compared. Code is read from top to bottom, once; what comes from memory
comes from no batch. A role is what follows setmaxnreg.

Prints kernels, roles, products with left operands in registers, and how many of them are made of
accumulators. Ends with 1 where an operand differs, or the products do not match.
"""
import re
import sys

VALUE = re.compile(r"%?[A-Za-z_]\w*")


class Role:
    """Products of a role: (columns, batches of the left operand or None)."""

    def __init__(self):
        self.products, self.batch, self.made_of = [], 0, {}

    def sources(self, registers):
        return frozenset().union(*(self.made_of.get(r, frozenset()) for r in registers))

    def set(self, registers, batches, keep=False):
        for r in registers:
            self.made_of[r] = batches | (self.made_of.get(r, frozenset()) if keep else frozenset())

    def product(self, columns, accumulators, left):
        self.products.append((columns, None if left is None else self.sources(left)))
        self.set(accumulators, frozenset([self.batch]))


def kernels(text, start, end):
    """(name, body) of each."""
    for match in re.finditer(start, text):
        stop = re.compile(end).search(text, match.end())
        yield match.group(1), text[match.end():stop.start() if stop else len(text)]


def ptx_instruction(role, text):
    guard, op, rest = re.match(r"(@!?%?\w+\s+)?([\w.:]+)\s*(.*)", text, re.S).groups()
    parts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
    lists = [VALUE.findall(p) for p in parts]
    if op.startswith("wgmma.fence"):
        role.batch += 1
    elif op.startswith("wgmma.mma_async"):
        role.product(2 * len(lists[0]), lists[0], lists[1] if parts[1].startswith("{") else None)
    elif op.startswith((".", "st", "bra", "red", "cp.", "bar", "mbarrier", "fence", "ret")):
        return
    elif len(lists) > 1:
        opaque = op.startswith(("ld", "atom"))
        sources = frozenset() if opaque else role.sources(r for part in lists[1:] for r in part)
        role.set(lists[0], sources, keep=guard is not None)


def ptx_roles(body):
    roles = {"": Role()}
    role = roles[""]
    for line in re.split(r"[;\n]", re.sub(r"//[^\n]*", "", body)):
        line = line.strip()
        while line.startswith("{.reg"):  # inline PTX in braces
            line = line[1:]
        line = line.rstrip()
        if line in ("", "}", "{") or re.match(r"[$\w]+:$", line):
            continue
        limit = re.match(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)", line)
        if limit:
            role = roles.setdefault(limit.group(1), Role())
        elif re.match(r"(@!?%?\w+\s+)?[a-z.]", line):
            ptx_instruction(role, line)
    return roles


def width(op):
    """Registers that an instruction writes."""
    if re.match(r"LDSM\.16\.M88\.4|LDSM\.16\.MT88\.4", op) or ".128" in op:
        return 4
    if ".64" in op or ".WIDE" in op or op == "CS2R":
        return 2
    return 1


def halves_of(first, count):
    """Registers in machine code are followed by halves: some hold two values of 16 bits."""
    return [(first + k, half) for k in range(count) for half in (0, 1)]


def sass_instruction(role, guard, op, rest):
    if op.startswith("WARPGROUP.ARRIVE"):
        role.batch += 1
        return
    numbers = [int(n) for n in re.findall(r"\bR(\d+)\b", rest)]
    if op.startswith("HGMMA"):
        n = int(re.match(r"HGMMA\.64x(\d+)x16", op).group(1))
        left = re.match(r"\s*R\d+, R(\d+), gdesc", rest)
        role.product(n, halves_of(numbers[0], n // 2),
                     halves_of(int(left.group(1)), 4) if left else None)
        return
    target = re.match(r"\s*(?:U?P[T\d]\s*,\s*)*R(\d+)\b", rest)
    if not target or re.match(r"ST|RED|BRA|ATOM|UBLKCP|SYNCS|[A-Z]*SETP|R2UR", op):
        return
    own, rest = int(target.group(1)), rest[target.end():]
    if op.startswith(("LD", "S2R", "CS2R")):
        made = [frozenset(), frozenset()]
    else:
        made = [role.sources(read_halves(op, rest, half)) for half in (0, 1)]
    for k in range(width(op)):
        for half in (0, 1):
            role.set([(own + k, half)], made[half], keep=bool(guard))


def read_halves(op, rest, half):
    """(register, half) that a half of the result is made of."""
    bytes_taken = re.match(r", (\S+), 0x([0-9a-f]+), (\S+)", rest) if op == "PRMT" else None
    if bytes_taken:
        low, selector, high = bytes_taken.groups()
        for digit in (int(selector, 16) >> 8 * half & 7, int(selector, 16) >> 8 * half + 4 & 7):
            number = re.match(r"R(\d+)", (low, high)[digit // 4])
            if number:
                yield int(number.group(1)), digit % 4 // 2
        return
    by_halves = re.match(r"H(FMA2|MUL2|MNMX2|ADD2)", op) and not op.endswith(".F32")
    for number, chosen in re.findall(r"\bR(\d+)\b(?:\.reuse)?(?:\.H([01])_H[01])?", rest):
        pair = ".64" in op or ".WIDE" in op
        for which in [int(chosen)] if chosen else [half] if by_halves else [0, 1]:
            yield int(number), which
            if pair:
                yield int(number) + 1, which


def sass_roles(body):
    roles = {"": Role()}
    role = roles[""]
    for line in body.splitlines():
        code = re.search(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\d+ )?\s*([A-Z][\w.]*)([^;]*);", line)
        if not code:
            continue
        guard, op, rest = code.groups()
        limit = re.search(r"0x([0-9a-f]+)", rest) if op.startswith("USETMAXREG") else None
        if limit:
            role = roles.setdefault(str(int(limit.group(1), 16)), Role())
        else:
            sass_instruction(role, guard, op, rest)
    return roles


def compare(name, ptx, sass):
    """Prints a line for each role with products; what differs, too."""
    differs = 0
    for limit, role in ptx.items():
        theirs = sass.get(limit, Role()).products
        made = [made for _, made in role.products if made is not None]
        if not role.products:
            continue
        print("%s%s: %d products, %d left operands in registers, %d made of accumulators"
              % (name, limit and " (%s registers)" % limit, len(role.products), len(made),
                 sum(1 for m in made if m)))
        if [n for n, _ in theirs] != [n for n, _ in role.products]:
            print("  machine code has other products: %d" % len(theirs))
            differs += 1
            continue
        for k, ((_, wanted), (_, found)) in enumerate(zip(role.products, theirs)):
            if wanted != found:
                print("  product %d: left operand of batches %s, in machine code of %s"
                      % (k + 1, sorted(wanted or []), sorted(found or [])))
                differs += 1
    return differs


def main():
    ptx = open(sys.argv[1], encoding="utf-8").read()
    sass = open(sys.argv[2], encoding="utf-8").read()
    code = {name: sass_roles(body) for name, body in
            kernels(sass, r"\t\.section\t\.text\.([^,\s]+)", r"\t\.section\t\.text\.")}
    differs = 0
    for name, body in kernels(ptx, r"\.entry (\w+)\(", r"\n\}"):
        differs += compare(name, ptx_roles(body), code.get(name, {}))
    return 1 if differs else 0


if len(sys.argv) != 3:
    sys.exit("usage: operand_sources.py PTX SASS")
sys.exit(main())
