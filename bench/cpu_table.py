#!/usr/bin/env python3
"""The runs of bench/cpu_experiments.sh as lines: OUT [PREFIX ...].

JWS of the generator's direct and refined networks, the share of refined networks within 0.99 of a
trained one, both losses of the last validation, updates, seconds of training, dopri5's evaluations."""
import json
import os
import sys


def last_validation(path):
    found = {}
    for line in open(path):
        line = json.loads(line)
        if "validation" in line:
            found = line
    return found


def seconds_of(path):
    times = [json.loads(line).get("seconds", 0) for line in open(path)]
    return max(times, default=0)


def row_of(folder):
    rows = {row["name"]: row for row in json.load(open(f"{folder}/eval.json"))["rows"]}
    direct, refined = rows.get("gmn"), rows.get("gmn-refined")
    log = f"{folder}/flow.safetensors.log.jsonl"
    losses = last_validation(log)
    dopri5 = f"{folder}/dopri5.json"
    evaluations = json.load(open(dopri5))["evaluations"] if os.path.exists(dopri5) else None
    return {
        "run": os.path.basename(folder),
        "direct": direct and direct["jws"],
        "refined": refined and refined["jws"],
        "held_out": rows["held-out"]["jws"] if "held-out" in rows else None,
        "validation": losses.get("validation"),
        "fitted": losses.get("fitted"),
        "updates": losses.get("update"),
        "seconds": seconds_of(log),
        "dopri5": evaluations,
    }


def main():
    out, wanted = sys.argv[1], sys.argv[2:]
    names = sorted(n for n in os.listdir(out) if os.path.exists(f"{out}/{n}/eval.json"))
    print("run direct refined held-out validation fitted updates seconds dopri5")
    for name in names:
        if wanted and not any(name.startswith(prefix) for prefix in wanted):
            continue
        row = row_of(f"{out}/{name}")
        print(*("-" if v is None else f"{v:.4f}" if isinstance(v, float) else v for v in row.values()))


main()
