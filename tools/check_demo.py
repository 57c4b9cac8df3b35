#!/usr/bin/env python3
"""check_demo.py RUN: what the demo promises, checked on its eval.json (the README says the same in
words)."""
import json, os, sys

folder = sys.argv[1]
rows = {row["name"]: row for row in json.load(open(os.path.join(folder, "eval.json")))["rows"]}
reference, best = rows["reference"], max(("gmn", "gmn-refined"), key=lambda name: rows[name]["jws"])
made = rows[best]
copies = rows["perturbation-0.05"]
checks = [
    ("collection accuracy below 0.97", reference["accuracy_mean"] < 0.97),
    (f"{best}: JWS at least 0.88", made["jws"] >= 0.88),
    (
        f"{best}: accuracy within 0.05 of the reference",
        abs(made["accuracy_mean"] - reference["accuracy_mean"]) <= 0.05,
    ),
    (
        f"{best}: WCS within 0.03 of the reference",
        abs(made["wcs_mean"] - reference["wcs_mean"]) <= 0.03,
    ),
    ("perturbation-0.05 is seen as copies (WCS at least 0.99)", copies["wcs_mean"] >= 0.99),
    ("random networks score 0.3 less", rows["random"]["jws"] <= made["jws"] - 0.3),
    ("held-out networks: JWS at least 0.97", rows["held-out"]["jws"] >= 0.97),
    ("report.html is there", os.path.getsize(os.path.join(folder, "report.html")) > 10000),
]
for name, good in checks:
    print(("ok     " if good else "FAILED ") + name)
sys.exit(0 if all(good for _, good in checks) else 1)
