"""What the comparisons of fields and phases with PyTorch share: a program that dumps the library's
numbers, the same parameters on both sides, three steps of AdamW, and a check that remembers the
largest difference."""
import os, pathlib, subprocess, tempfile
import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 3
PRECISIONS = ((np.float64, 1e-8), (np.float32, 1e-3))  # type and tolerance, by norm per tensor


def difference(a, b):
    a, b = np.asarray(a, np.float64).reshape(-1), np.asarray(b, np.float64).reshape(-1)
    return np.linalg.norm(a - b) / np.linalg.norm(b) if np.linalg.norm(b) > 0 else np.linalg.norm(a)


class Dump:
    """The program with the arguments of one case: before and after those of a call. Without files
    it lists its tensors."""

    def __init__(self, program, folder, before, after):
        self.folder = folder
        self.command = lambda dtype, steps, eps, source, sink: [
            str(program),
            *map(str, before),
            "1" if dtype == np.float64 else "0",
            str(steps),
            str(eps),
            str(source),
            str(sink),
            *map(str, after),
        ]
        text = subprocess.run(
            self.command(np.float64, 0, 0, "-", "-"), check=True, capture_output=True, text=True
        ).stdout
        lines = [line.split() for line in text.splitlines()]
        self.inputs = [(int(line[1]), int(line[2])) for line in lines if line[0] == "input"]
        self.shapes = [
            (line[0], int(line[1]), int(line[2])) for line in lines if line[0] != "input"
        ]
        self.decays = {line[0]: line[3] == "1" for line in lines if line[0] != "input"}

    def run(self, arrays, dtype, eps):
        """The bytes that the library made of these arrays."""
        source, sink = self.folder / "in.bin", self.folder / "out.bin"
        np.concatenate([np.asarray(a, dtype).reshape(-1) for a in arrays]).tofile(source)
        subprocess.run(self.command(dtype, STEPS, eps, source, sink), check=True)
        return sink.read_bytes()

    def split(self, flat):
        out, at = {}, 0
        for name, rows, cols in self.shapes:
            out[name] = flat[at : at + rows * cols].reshape(rows, cols)
            at += rows * cols
        assert at == len(flat)
        return out

    def random_params(self, rng, norms=0.0):
        """norms: what is added to a vector that belongs to a norm."""
        numbers = [
            rng.standard_normal((rows, cols)) * (0.3 if cols == 1 else cols**-0.5)
            + norms * (cols == 1 and "norm" in name)
            for name, rows, cols in self.shapes
        ]
        return np.concatenate([x.reshape(-1) for x in numbers]).astype(np.float32)


class Comparison:
    """PyTorch's side: parameters by name, their AdamW, and check()."""

    def __init__(self, dump, params, dtype, tolerance):
        self.dtype, self.tolerance, self.worst = dtype, tolerance, ("", 0.0)
        self.params = {
            name: torch.nn.Parameter(self.tensor(x)) for name, x in dump.split(params).items()
        }
        # Adam's first step is the sign of a gradient: eps lies above rounding noise, or noise would
        # be compared by its sign.
        self.eps = 1e-8 if dtype == np.float64 else 1e-4
        groups = [
            dict(params=[p], weight_decay=0.01 if dump.decays[name] else 0.0)
            for name, p in self.params.items()
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=self.eps)

    def tensor(self, array):
        return torch.tensor(
            np.asarray(array, self.dtype),
            dtype=torch.float64 if self.dtype == np.float64 else torch.float32,
        )

    def check(self, name, a, b):
        value = difference(a, b)
        self.worst = max(self.worst, (name, value), key=lambda pair: pair[1])
        assert value <= self.tolerance, f"{name}: {value:.3g} > {self.tolerance:g}"


def run_cases(program, cases):
    """cases: (label, function of the built program, a folder, a type and a tolerance, which returns
    a Comparison). The exit code. The Makefile's rule for test programs compiles the program: it
    knows what the library was linked with."""
    torch.set_num_threads(1)
    target, failed = f"{os.environ.get('BUILD', 'build')}/tests/oracle/{program}", 0
    subprocess.run(["make", "-s", target], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        for label, run in cases:
            for dtype, tolerance in PRECISIONS:
                try:
                    name, value = run(ROOT / target, pathlib.Path(folder), dtype, tolerance).worst
                    print(f"ok {label} {np.dtype(dtype).name} (worst {value:.1e}, {name})")
                except AssertionError as error:
                    failed += 1
                    print(f"not ok {label} {np.dtype(dtype).name}: {error}")
    return 1 if failed else 0
