"""docs/examples/sample_flow.py, written from the documents alone, draws the networks that weft
draws: field, random numbers, preconditioning, Euler steps, refinement and matching of its noise."""
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "docs", "examples"))
import sample_flow

WEFT = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "weft"))
RECIPE = """[data]
name = spirals
[zoo]
arch = 2-7-5-3
count = 40
epochs = 4
[model]
node = 16
edge = 16
time = 16
blocks = 2
"""
SAMPLE = """[sample]
solver = euler
steps = 6
refine_t = 0.7
refine_cycles = 3
refine_steps = 2
refine_matched = yes
"""
TRAIN = "[train]\nbatch = 8\nlr = 1e-2\n"
CASES = [("sine, tanh-gelu", "encoder = sine\nactivation = gelu\n" + TRAIN +
          "updates = 60\nseed = 3\n"),
         ("scalar, silu, best by validation", "encoder = scalar\nactivation = silu\n" + TRAIN +
          "updates = 60\nset_aside = 8\nvalidations = 10\nweights = validation\n"
          "coupling = matched\noptimizer = muon\n"),
         ("wide noise, noisy paths", "encoder = scalar\n" + TRAIN +
          "updates = 40\nsource_std = 0.7\npath_noise = 0.1\nema = 0\n")]


def networks(path):
    tensors, _ = sample_flow.read_safetensors(path)
    names = [f"layers.{l}.{k}" for l in range(3) for k in ("weight", "bias")]
    return np.concatenate([tensors[name].reshape(len(tensors[name]), -1) for name in names], 1)


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        def weft(*words):
            subprocess.run([WEFT, *words, "-q"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        for number, (name, rest) in enumerate(CASES):
            with open(os.path.join(folder, f"{number}.conf"), "w") as recipe:
                recipe.write(RECIPE + rest + SAMPLE)
            if number == 0:
                weft("zoo", "train", "0.conf", "-o", "zoo.safetensors")
            weft("train", f"{number}.conf", "--zoo", "zoo.safetensors", "-o", f"{number}.flow")
            weft("sample", f"{number}.flow", "-n", "3", "--seed", "7", "-o",
                 f"{number}.safetensors")
            theirs = networks(os.path.join(folder, f"{number}.safetensors"))
            flow = sample_flow.Flow(os.path.join(folder, f"{number}.flow"))
            ours = np.stack([flow.sample(7, k) for k in range(len(theirs))])
            worst = np.abs(ours - theirs).max()
            good = ours.shape == theirs.shape and np.isfinite(worst) and worst < 1e-5
            failed += not good
            print(f"{'ok' if good else 'not ok'} {name}: largest difference {worst:.1e}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
