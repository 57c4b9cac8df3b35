#!/usr/bin/env python3
"""What drawing 100 networks costs from Python, beside the program: seconds of CPU on one thread,
the fastest of some rounds in which the two take turns. Opening the flow, sampling and writing the
file count; an interpreter's start is shown by itself. Fails where the two draw other weights, and
where Python costs more than 2 % over the program.

    PYTHONPATH=python bench/python_cost.py [ROUNDS]"""

import os
import resource
import subprocess
import sys
import tempfile

import weft

MOST = 1.02  # of the program's seconds
DRAW = """
import sys, time, numpy, weft
weft.Context
start = time.process_time()
with weft.Context(threads=1, device="cpu", progress=False):
    flow = weft.Flow.open(sys.argv[1])
    flow.sample(100, solver="euler", steps=20, seed=1).save(sys.argv[2])
print(time.process_time() - start)
"""


def program_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def python_seconds(command):
    # Modules are compiled once, as an installation does, not in each round.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return float(subprocess.run(command, check=True, capture_output=True, env=env).stdout)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    program = os.path.join(os.path.dirname(__file__), "..", "build", "weft")
    with tempfile.TemporaryDirectory() as folder:
        arch = weft.Arch("64-16-8-10", activation="relu")
        zoo = weft.generator("random").sample(64, arch=arch)
        size = {"node": 32, "edge": 32, "time": 32, "blocks": 3}
        flow = weft.fit(zoo, updates=5, batch=8, **size).save(folder + "/flow.safetensors")
        out = [folder + "/program.safetensors", folder + "/python.safetensors"]
        options = "-n 100 --solver euler --steps 20 --seed 1 --threads 1 --device cpu".split()
        times = [[], []]
        for _ in range(rounds):
            for path in out:
                if os.path.exists(path):
                    os.remove(path)  # the program replaces nothing
            times[0].append(program_seconds([program, "sample", flow, "-o", out[0], *options]))
            times[1].append(python_seconds([sys.executable, "-c", DRAW, flow, out[1]]))
        start = min(program_seconds([sys.executable, "-c", "import numpy"]) for _ in range(3))
        program_weights, python_weights = (weft.Zoo.open(path).weights for path in out)
        if program_weights.shape != (100, arch.params):
            sys.exit(f"the program drew weights of shape {program_weights.shape}")
        if program_weights.tobytes() != python_weights.tobytes():
            sys.exit("program and Python drew other weights")
        a, b = map(min, times)
        print(f"program {a:.3f} s, Python {b:.3f} s of CPU ({b / a - 1:+.2%}); equal weights")
        print(f"an interpreter with numpy starts in {start:.3f} s")
        if b > MOST * a:
            sys.exit(f"Python costs more than {MOST - 1:.0%} over the program")


main()
