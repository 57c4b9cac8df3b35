#!/usr/bin/env python3
"""The runs of bench/cpu_experiments.sh and bench/experiments.sh as lines: OUT [PREFIX ...].

JWS of the generator's direct and refined networks and of held-out ones, how many refined networks
are nearer to a trained one than 99 % of those are to each other, both losses of the last
validation, updates, seconds of training, dopri5's evaluations, accuracies of direct and refined
networks in percent. Runs of many tasks have tables of their own and are left out."""
import json
import os
import sys


CONTROLS = ("reference", "held-out", "random", "perturbation", "average")


def last_validation(path):
    found = {}
    for line in open(path):
        line = json.loads(line)
        found["update"] = line.get("update")
        if "validation" in line:
            found = line
    return found


def log_of(folder):
    logs = [f"{folder}/{file}.safetensors.log.jsonl" for file in ("flow", "model")]
    return next(filter(os.path.exists, logs), None)


def seconds_of(path):
    times = [json.loads(line).get("seconds", 0) for line in open(path)]
    return max(times, default=0)


def row_of(folder):
    judged = json.load(open(f"{folder}/eval.json"))
    rows = {row["name"]: row for row in judged["rows"]}
    own = [name for name in rows if not name.startswith(CONTROLS)]
    direct = next((rows[name] for name in own if not name.endswith("-refined")), None)
    name = next((name for name in own if name.endswith("-refined")), None)
    refined = rows.get(name)
    log = log_of(folder)
    losses = last_validation(log)
    dopri5 = f"{folder}/dopri5.json"
    evaluations = json.load(open(dopri5))["evaluations"] if os.path.exists(dopri5) else None
    return {
        "run": os.path.basename(folder),
        "direct": direct and direct["jws"],
        "refined": refined and refined["jws"],
        "held_out": rows["held-out"]["jws"] if "held-out" in rows else None,
        "near": refined and judged["novelty"][name]["wcs"]["at_99th_percentile"],
        "validation": losses.get("validation"),
        "fitted": losses.get("fitted"),
        "updates": losses.get("update"),
        "seconds": seconds_of(log),
        "dopri5": evaluations,
        "accuracy": direct and 100 * direct["accuracy_mean"],
        "accuracy_refined": refined and 100 * refined["accuracy_mean"],
    }


def main():
    out, wanted = sys.argv[1], sys.argv[2:]
    names = sorted(n for n in os.listdir(out) if os.path.exists(f"{out}/{n}/eval.json"))
    heads = "run direct refined held-out near validation fitted updates seconds dopri5"
    table = [(heads + " accuracy accuracy-refined").split()]
    for name in names:
        if wanted and not any(name.startswith(prefix) for prefix in wanted):
            continue
        judged = json.load(open(f"{out}/{name}/eval.json"))
        rows = judged.get("rows", [])
        many = any(key in row for row in rows for key in ("on", "collection"))
        if not rows or many or log_of(f"{out}/{name}") is None:
            continue
        values = row_of(f"{out}/{name}").values()
        table.append(["-" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v)
                      for v in values])
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        print("  ".join(value.ljust(width) for value, width in zip(line, widths)).rstrip())


main()
