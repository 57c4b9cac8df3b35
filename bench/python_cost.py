#!/usr/bin/env python3
"""What drawing 100 networks costs from Python, beside the program: CPU seconds of the whole process,
library and file included, on one thread; the fastest of some rounds that take turns.

    PYTHONPATH=python bench/python_cost.py [ROUNDS]"""

import os
import resource
import subprocess
import sys
import tempfile

import weft

DRAW = """
import sys, weft
flow = weft.Flow.open(sys.argv[1])
with weft.Context(threads=1, device="cpu", progress=False):
    flow.sample(100, solver="euler", steps=20, seed=1).save(sys.argv[2])
"""


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    program = os.path.join(os.path.dirname(__file__), "..", "build", "weft")
    with tempfile.TemporaryDirectory() as folder:
        arch = weft.Arch("64-16-8-10", activation="relu")
        zoo = weft.generator("random").sample(64, arch=arch)
        flow = weft.fit(zoo, updates=5, batch=8, node=64, edge=64, time=64, blocks=8).save(
            folder + "/flow.safetensors"
        )
        out = [folder + "/program.safetensors", folder + "/python.safetensors"]
        options = "-n 100 --solver euler --steps 20 --seed 1 --threads 1 --device cpu"
        commands = [
            [program, "sample", flow, "-o", out[0], *options.split()],
            [sys.executable, "-c", DRAW, flow, out[1]],
        ]
        idle = cpu_seconds([sys.executable, "-c", "import numpy"])
        best = [
            min(times)
            for times in zip(*([cpu_seconds(c) for c in commands] for _ in range(rounds)))
        ]
        same = (weft.Zoo.open(out[0]).weights == weft.Zoo.open(out[1]).weights).all()
        print(
            f"program {best[0]:.3f} s, Python {best[1]:.3f} s of CPU ({best[1] / best[0] - 1:+.2%})"
        )
        print(f"of this an interpreter with numpy {idle:.3f} s; same networks: {bool(same)}")


main()
