#!/usr/bin/env python3
"""compare.py WEFT.json TORCH.jsonl: one table, with how many times faster weft is."""
import json, sys

weft = json.load(open(sys.argv[1]))
torch = {line["name"]: line for line in map(json.loads, open(sys.argv[2]))}
print(f"weft {weft['version']}, {weft['threads']} threads")
print(f"{'measured':<10}{'weft':>12}{'PyTorch':>12}  {'unit':<16}{'ratio':>7}  how")
for row in weft["results"]:
    other = torch.get(row["name"])
    ratio = ""
    if other:
        faster = (
            other["value"] / row["value"]
            if row["unit"].startswith("ms")
            else row["value"] / other["value"]
        )
        ratio = f"{faster:.1f}x"
    print(
        f"{row['name']:<10}{row['value']:>12.5g}{other['value'] if other else float('nan'):>12.5g} "
        f" {row['unit']:<16}{ratio:>7}  "
        f"{row['note']}" + (f" | {other['note']}" if other else "")
    )
