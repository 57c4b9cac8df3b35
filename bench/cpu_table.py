#!/usr/bin/env python3
"""The runs of bench/cpu_experiments.sh as lines: OUT [PREFIX ...].

JWS of the generator's direct and refined networks and of held-out ones, how many refined networks
are nearer to a trained one than 99 % of those are to each other, both losses of the last
validation, updates, seconds of training, dopri5's evaluations."""
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
    judged = json.load(open(f"{folder}/eval.json"))
    rows = {row["name"]: row for row in judged["rows"]}
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
        "near": judged["novelty"]["gmn-refined"]["wcs"]["at_99th_percentile"] if refined else None,
        "validation": losses.get("validation"),
        "fitted": losses.get("fitted"),
        "updates": losses.get("update"),
        "seconds": seconds_of(log),
        "dopri5": evaluations,
    }


def main():
    out, wanted = sys.argv[1], sys.argv[2:]
    names = sorted(n for n in os.listdir(out) if os.path.exists(f"{out}/{n}/eval.json"))
    print("run direct refined held-out near validation fitted updates seconds dopri5")
    for name in names:
        if wanted and not any(name.startswith(prefix) for prefix in wanted):
            continue
        values = row_of(f"{out}/{name}").values()
        print(*("-" if v is None else f"{v:.4f}" if isinstance(v, float) else v for v in values))


main()
