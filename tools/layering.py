#!/usr/bin/env python3
"""Checks who may include whom, and draws it.

    layering.py             checks; prints nothing where all is well
    layering.py --text      the modules from the top, each with those that it includes
    layering.py --svg       the same as a picture: docs/modules.svg, which `make check` compares

A module includes itself and the modules before it in ORDER, their public headers too; cli/ includes
public headers and those of run/, which is the program's work without its printing. Tables of the
source in README.md and docs/ name the modules in that order. The program prints through its filter
alone."""
import pathlib, re, sys

ORDER = "base tensor nn graph data zoo align models flow generators eval report run".split()
# Public headers that are not named after their module; weft.h has them all.
PUBLIC = {
    "activations": "graph", "bng": "data", "match": "align", "bench": "models", "comm": "base",
    "errors": "base", "field": "models", "file": "base", "fit": "flow", "generator": "generators",
    "import": "zoo", "plan": "generators", "recipe": "base", "rng": "base", "sample": "flow",
    "settings": "base", "text": "base",
}
# What the program prints comes from files of others: only src/cli/print.c, which filters it, writes
# to a terminal. progress.c adds the escapes that rewrite its line; help.c and recipe_help.c print
# the program's own texts to a FILE.
PRINTS = re.compile(
    r"\b(v?printf|puts|putchar|json_dumpf)\("
    r"|\b(v?fprintf|fputs|fputc|putc|fwrite)\([^;]*\bstd(out|err)\b"
)
REWRITES_LINE = 'fputs("\\r\\033[K", stderr)'
root = pathlib.Path(__file__).resolve().parent.parent
complaints = []
uses = {module: set() for module in ORDER}  # module -> modules that it includes


def public_owner(file):
    """The module of weft/FILE; None for weft.h."""
    stem = file.split(".")[0]
    return None if stem == "weft" else PUBLIC.get(stem, stem)


def check_include(place, module, target):
    first, _, rest = target.partition("/")
    owner = public_owner(rest) if first == "weft" else first
    if module is None or (module == "cli" and first in ("weft", "run", "cli")):
        return
    if module == "cli":
        if rest or not (place[0].parent / target).exists():
            complain(place, f"cli/ may include weft/ and run/ only, not {target}")
    elif owner is None:
        complain(place, f"{module} may not include all public headers at once")
    elif owner not in ORDER:
        complain(place, f'"{target}" names no module; write "MODULE/FILE"')
    elif ORDER.index(owner) > ORDER.index(module):
        complain(place, f"{module} stands before {owner} and may not include {target}")
    elif owner != module:
        uses[module].add(owner)


def complain(place, text):
    path, number = place
    complaints.append(f"{path.relative_to(root)}:{number}: {text}")


def read_sources():
    names = {}
    patterns = ["src/**/*.[ch]", "src/**/*.cu", "src/**/*.cuh", "include/weft/*"]
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        parts = path.relative_to(root).parts
        module = parts[1] if parts[0] == "src" else public_owner(path.name)
        if parts[0] == "src" and names.setdefault(path.name, path) != path:
            complain((path, 1), f"file name already used by {names[path.name].relative_to(root)}")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if (
                parts[0] == "src"
                and module in ("cli", "run")
                and path.name != "print.c"
                and PRINTS.search(line)
                and REWRITES_LINE not in line
            ):
                complain(
                    (path, number),
                    "prints past the filter of print.c; use cli_print or cli_print_error",
                )
            include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if include:
                check_include((path, number), module, include.group(1))


def check_tours():
    """Rows "| `src/MODULE/` | ..." of a page name all modules, in order."""
    for page in [root / "README.md", *root.glob("docs/*.md")]:
        rows = [line for line in page.read_text().splitlines() if line.startswith("| `src/")]
        named = [name for row in rows for name in re.findall(r"`src/([a-z]+)/`", row.split("|")[1])]
        if named and named != [*ORDER, "cli"]:
            complain(
                (page, 1),
                f"its table of the source has {' '.join(named)}; the order is {' '.join(ORDER)} "
                f"cli",
            )


def reduced():
    """The arrows without those that follow from others: module -> modules."""
    reach = {}
    for module in ORDER:
        reach[module] = set().union(uses[module], *(reach[used] for used in uses[module]))
    kept = {m: {u for u in uses[m] if not any(u in reach[v] for v in uses[m])} for m in ORDER}
    return {m: [u for u in ORDER if u in kept[m]] for m in ORDER}  # in one order: the same picture


def draw_text():
    lines = [f"{'cli':<11} public headers (include/weft) and run"]
    for module in reversed(ORDER):
        lines.append(f"{module:<11} {', '.join(u for u in ORDER if u in uses[module]) or '-'}")
    return "\n".join(lines) + "\n"


def place(arrows):
    """Rows of boxes from base upwards, each module above what it includes, and the way of each
    arrow through the rows. An arrow that passes a row has a place in it, the pair (from, to), so
    that it passes beside the boxes."""
    height = {}
    for module in ORDER:
        height[module] = 1 + max((height[used] for used in uses[module]), default=-1)
    rows = [[m for m in ORDER if height[m] == h] for h in range(max(height.values()) + 1)]
    ways = {}
    for module in ORDER:
        for used in arrows[module]:
            passed = [(module, used)] * (height[module] - height[used] - 1)
            ways[module, used] = [module, *passed, used]
            for h in range(height[used] + 1, height[module]):
                rows[h].append((module, used))
    above = {}  # (height, place) -> places in the row above that lead to it
    for way in ways.values():
        for i in range(len(way) - 1):
            above.setdefault((height[way[0]] - i - 1, way[i + 1]), []).append(way[i])
    for h in range(len(rows) - 2, -1, -1):  # below what leads to it
        where = {place: (i + 0.5) / len(rows[h + 1]) for i, place in enumerate(rows[h + 1])}
        mean = {
            p: sum(where[q] for q in above.get((h, p), [])) / len(above.get((h, p), [0]))
            for p in rows[h]
        }
        rows[h].sort(key=mean.get)
    return rows, ways


def draw_svg():
    """Arrows from boxes to what they include; those that follow from others are left out."""
    rows, ways = place(reduced())
    box, slot, tall, step = 104, 128, 30, 70
    width, bottom = max(map(len, rows)) * slot, (len(rows) + 1) * step
    at = {
        (h, p): (width * (i + 0.5) / len(row), bottom - h * step - tall)
        for h, row in enumerate(rows)
        for i, p in enumerate(row)
    }
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom}" '
        f'font-family="sans-serif" font-size="13">',
        "<title>modules of src/ and what they include</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
        f'<rect width="{width}" height="{bottom}" fill="#fff"/>',
    ]
    for way in ways.values():
        h = next(h for h, row in enumerate(rows) if way[0] in row)
        points = [at[h - i, p] for i, p in enumerate(way)]
        path = f"M{points[0][0]:.0f} {points[0][1] + tall / 2:.0f}"
        for i, ((x, y), (to_x, to_y)) in enumerate(zip(points, points[1:])):
            start, end = y + tall / 2, to_y - tall / 2
            path += f"C{x:.0f} {start + 20:.0f} {to_x:.0f} {end - 20:.0f} {to_x:.0f} {end:.0f}"
            if i + 2 < len(points):
                path += f"V{to_y + tall / 2:.0f}"
        out.append(f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#tip)"/>')
    boxes = [(name, *xy) for (_, name), xy in at.items() if name in uses] + [
        ("cli: public headers, run", width / 2, step / 2)
    ]
    for name, x, y in boxes:
        wide = box if name in uses else 2 * box
        out.append(
            f'<rect x="{x - wide / 2:.0f}" y="{y - tall / 2:.0f}" width="{wide}" height="{tall}" '
            f'rx="5" '
            f'fill="{"#e8f0fa" if name in uses else "#fbf1dc"}" stroke="#456"/>'
        )
        out.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


read_sources()
check_tours()
print(*complaints, sep="\n", end="\n" if complaints else "", file=sys.stderr)
if sys.argv[1:] == ["--text"]:
    print(draw_text(), end="")
elif sys.argv[1:] == ["--svg"]:
    print(draw_svg(), end="")
elif len(sys.argv) > 1:
    sys.exit("usage: layering.py [--text | --svg]")
sys.exit(1 if complaints else 0)
