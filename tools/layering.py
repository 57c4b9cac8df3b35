#!/usr/bin/env python3
"""Checks who may include whom: a module includes itself and the modules before it; cli/ the public headers alone.
Also that the program prints through its filter alone."""
import pathlib, re, sys

ORDER = "base tensor nn graph data zoo align models flow generators eval report".split()
# What the program prints comes from files of others: only src/cli/print.c, which filters it, writes to a terminal.
# progress.c adds the escapes that rewrite its line; help.c and recipe_schema.c print the program's own texts to a FILE.
PRINTS = re.compile(r"\b(v?printf|puts|putchar|json_dumpf)\(|\b(v?fprintf|fputs|fputc|putc|fwrite)\([^;]*\bstd(out|err)\b")
REWRITES_LINE = 'fputs("\\r\\033[K", stderr)'
root = pathlib.Path(__file__).resolve().parent.parent
bad = 0
names = {}
for path in sorted([*root.glob("src/**/*.[ch]"), *root.glob("src/**/*.cu"), *root.glob("src/**/*.cuh")]):
    module = path.relative_to(root / "src").parts[0]
    if path.name in names:
        print(f"{path.relative_to(root)}: file name already used by {names[path.name]}")
        bad += 1
    names[path.name] = path.relative_to(root)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if module == "cli" and path.name != "print.c" and PRINTS.search(line) and REWRITES_LINE not in line:
            print(f"{path.relative_to(root)}:{number}: prints past the filter of print.c; use cli_print or cli_print_error")
            bad += 1
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not include:
            continue
        target = include.group(1)
        first = target.split("/")[0]
        if first == "weft" or "/" not in target and module == "cli" and (path.parent / target).exists():
            continue
        if first == "cli" and module == "cli":
            continue
        if module == "cli":
            print(f"{path.relative_to(root)}:{number}: cli/ may include weft/ only, not {target}")
            bad += 1
        elif first not in ORDER:
            print(f'{path.relative_to(root)}:{number}: "{target}" names no module; write "MODULE/FILE"')
            bad += 1
        elif ORDER.index(first) > ORDER.index(module):
            print(f"{path.relative_to(root)}:{number}: {module} stands before {first} and may not include {target}")
            bad += 1
sys.exit(1 if bad else 0)
