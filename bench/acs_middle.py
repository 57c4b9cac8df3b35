#!/usr/bin/env python3
"""What a network between two domains can reach: WEFT OUT, with WEFT_DATA as for recipes/acs.conf.

Trains 16 networks each on California, on Puerto Rico, and on both in equal parts, and judges single
ones and logit ensembles of pairs on both (weft mix). Puerto Rico's rows are repeated to be as
many."""
import gzip
import os
import random
import subprocess
import sys

weft, out = os.path.abspath(sys.argv[1]), sys.argv[2]
source = os.path.join(os.environ["WEFT_DATA"], "acs-income", "acsincome-2018-")
os.makedirs(out, exist_ok=True)
os.chdir(out)
random.seed(0)


def rows_of(name):
    head, *rows = gzip.open(source + name, "rt").read().strip().split("\n")
    random.shuffle(rows)
    return head, rows


head, california = rows_of("CA_1.csv.gz")
_, puerto_rico = rows_of("PR_0.csv.gz")
fifth = len(puerto_rico) // 5
sets = {"CA": california[6000:30000], "PR": puerto_rico[fifth:]}
sets["mix"] = sets["CA"] + [random.choice(sets["PR"]) for _ in sets["CA"]]
random.shuffle(sets["mix"])
sets["CAtest"], sets["PRtest"] = california[:6000], puerto_rico[:fifth]
for number, (name, rows) in enumerate(sets.items()):
    open(f"{name}.csv", "w").write("\n".join([head] + rows) + "\n")
    open(f"{name}.conf", "w").write(f"""[data]
name = {name}
path = {name}.csv
joint = {", ".join(f"{n}.csv" for n in sets)}
categorical = COW, MAR, RELP, SEX, RAC1P
drop = OCCP, POBP
merge = RAC1P: 3.0, 4.0, 5.0 -> 2.0
test_fraction = {0.8 if name.endswith("test") else 0.2}
[zoo]
arch = 35-32-32-2
count = 16
seed = {number}
batch = 256
lr = 0.0003
lr_max = 0.003
epochs = 15
epochs_max = 40
""")
os.environ["WEFT_DATA"] = os.getcwd()


def run(*words):
    subprocess.run([weft, *words, "-q"], check=True)


for name in ("CA", "PR", "mix"):
    run("zoo", "train", f"{name}.conf", "-o", f"{name}.safetensors")
    for half, index in (("1", "0-7"), ("2", "8-15")):
        run(
            "zoo", "subset", f"{name}.safetensors", "-i", index, "-o", f"{name}-{half}.safetensors",
            "--force",
        )
for a, b in (("CA-1", "CA-2"), ("PR-1", "PR-2"), ("mix-1", "mix-2"), ("CA-1", "PR-1")):
    print(f"{a} and {b}", flush=True)
    run(
        "mix", "-z", f"{a}.safetensors,{b}.safetensors", "-d", "CAtest.conf,PRtest.conf", "-n",
        "40", "--steps", "2", "--sweeps", "0",
    )
