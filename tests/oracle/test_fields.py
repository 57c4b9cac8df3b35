#!/usr/bin/env python3
"""Velocity fields of one architecture against PyTorch: forward, gradients of every parameter tensor and of the networks, and the
parameters behind three steps of AdamW, with random values in all parameters. double: 1e-8 by norm per tensor, float: 1e-3."""
import math, os, pathlib, subprocess, sys, tempfile
import numpy as np
import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[2]
NETWORKS = 5


def build_dump():
    """Compiled by the Makefile's rule for test programs: it knows what the library was linked with."""
    target = f"{os.environ.get('BUILD', 'build')}/tests/oracle/net_dump"
    subprocess.run(["make", "-s", target], cwd=ROOT, check=True)
    return ROOT / target


# --- the fields: velocity of w (B, P) at t (B) with parameters p by name ------------------------------------------------
def affine(p, name, x):
    bias = p.get(name + ".bias")
    return functional.linear(x, p[name + ".weight"], None if bias is None else bias.reshape(-1))


def norm(x, eps=1e-6):
    return functional.layer_norm(x, x.shape[-1:], eps=eps)


def sinusoids(t, width):
    half = width // 2
    frequency = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float64) / half)
    phase = 1000.0 * t.double()[:, None] * frequency
    return torch.cat([torch.cos(phase), torch.sin(phase)], 1).to(t.dtype)


def time_mlp(p, t, width):
    return affine(p, "time.2", functional.silu(affine(p, "time.0", sinusoids(t, width))))


def mlp(p, w, t, c):
    z, h = time_mlp(p, t, c["time"]), affine(p, "in", w)
    for k in range(c["blocks"]):
        shift, scale = affine(p, f"blocks.{k}.modulation", z).chunk(2, 1)
        x = norm(h) * (1 + scale) + shift
        h = h + affine(p, f"blocks.{k}.2", functional.silu(affine(p, f"blocks.{k}.0", x)))
    return affine(p, "out", h)


def weights_first(arch):
    """Places in the flat vector of an MLP's weights in the order of layers, then of its biases."""
    weights, biases, at = [], [], 0
    for inputs, outputs in zip(arch, arch[1:]):
        weights += range(at, at + inputs * outputs)
        biases += range(at + inputs * outputs, at + inputs * outputs + outputs)
        at += inputs * outputs + outputs
    return torch.tensor(weights + biases)


def dwf(p, w, t, c):
    order = weights_first([int(word) for word in c["arch"].split("-")])
    time = affine(p, "time.2", functional.gelu(affine(p, "time.0", t[:, None])))
    h = torch.cat([w[:, order], time], 1)
    for k in range(3):
        weight, bias = (p[f"layers.{k}.norm.{part}"].reshape(-1) for part in ("weight", "bias"))
        h = affine(p, f"layers.{k}.linear", h)
        h = functional.gelu(functional.layer_norm(h, h.shape[-1:], weight, bias, 1e-5))
    return affine(p, "out", h)[:, torch.argsort(order)]


def dit(p, w, t, c):
    z = functional.silu(time_mlp(p, t, c["time"]))
    modulate = lambda x, shift, scale: norm(x) * (1 + scale[:, None]) + shift[:, None]
    tokens = functional.pad(w, (0, -w.shape[1] % c["token"])).reshape(len(w), -1, c["token"])
    x = affine(p, "in", tokens) + p["positions"]
    heads = lambda y: y.reshape(*y.shape[:2], c["heads"], -1).transpose(1, 2)
    for k in range(c["blocks"]):
        name = f"blocks.{k}."
        parts = affine(p, name + "modulation", z).chunk(6, 1)
        query, key, value = affine(p, name + "attention.qkv", modulate(x, *parts[:2])).chunk(3, 2)
        query, key, value = heads(query), heads(key), heads(value)
        y = torch.softmax(query @ key.transpose(2, 3) / math.sqrt(query.shape[3]), 3) @ value
        y = affine(p, name + "attention.proj", y.transpose(1, 2).reshape(x.shape))
        x = x + parts[2][:, None] * y
        y = functional.gelu(affine(p, name + "mlp.0", modulate(x, *parts[3:5])), approximate="tanh")
        x = x + parts[5][:, None] * affine(p, name + "mlp.2", y)
    x = affine(p, "out", modulate(x, *affine(p, "modulation", z).chunk(2, 1)))
    return x.reshape(len(w), -1)[:, : w.shape[1]]


CASES = [
    ("mlp", mlp, dict(width=33, blocks=3, time=8), "3-7-2"),
    ("mlp", mlp, dict(width=16, blocks=1, time=16), "5-40-6"),
    ("dwf", dwf, dict(width=33, time=7), "3-7-4-2"),
    ("dwf", dwf, dict(width=64, time=16), "5-40-6"),
    ("dit", dit, dict(width=12, blocks=2, heads=3, token=5, time=8), "3-7-2"),
    ("dit", dit, dict(width=32, blocks=3, heads=8, token=32, time=16), "5-40-6"),
]


# --- comparison ----------------------------------------------------------------------------------------------------------
class Case:
    def __init__(self, dump, folder, name, config, arch):
        self.folder = folder
        settings = [f"{key}={value}" for key, value in config.items()]
        self.command = lambda dtype, steps, eps, source, sink: [
            str(dump), name, arch, str(NETWORKS), "1" if dtype == np.float64 else "0", str(steps), str(eps), str(source),
            str(sink), *settings]
        text = subprocess.run(self.command(np.float64, 0, 0, "-", "-"), check=True, capture_output=True, text=True).stdout
        lines = [line.split() for line in text.splitlines()]
        self.shapes = [(name, int(rows), int(cols)) for name, rows, cols, _ in lines]
        self.decays = {name: decay == "1" for name, _, _, decay in lines}
        widths = [int(word) for word in arch.split("-")]
        self.columns = sum(a * b + b for a, b in zip(widths, widths[1:]))

    def library(self, arrays, dtype, steps, eps):
        """params, v, grad, dw of the library: at first and after each step of its AdamW."""
        source, sink = self.folder / "in.bin", self.folder / "out.bin"
        np.concatenate([np.asarray(a, dtype).reshape(-1) for a in arrays]).tofile(source)
        subprocess.run(self.command(dtype, steps, eps, source, sink), check=True)
        many, params = arrays[1].size, arrays[0].size
        out = np.fromfile(sink, dtype).reshape(steps + 1, -1)
        return [np.split(row, np.cumsum([params, many, params])) for row in out]

    def split(self, flat):
        out, at = {}, 0
        for name, rows, cols in self.shapes:
            out[name] = flat[at : at + rows * cols].reshape(rows, cols)
            at += rows * cols
        assert at == len(flat)
        return out


def difference(a, b):
    a, b = np.asarray(a, np.float64).reshape(-1), np.asarray(b, np.float64).reshape(-1)
    return np.linalg.norm(a - b) / np.linalg.norm(b) if np.linalg.norm(b) > 0 else np.linalg.norm(a)


def run_case(case, velocity, config, dtype, tolerance):
    rng = np.random.default_rng(5)
    numbers = [rng.standard_normal((rows, cols)) * (0.3 if cols == 1 else cols ** -0.5) for _, rows, cols in case.shapes]
    params = np.concatenate([x.reshape(-1) for x in numbers]).astype(np.float32)
    w, dv = rng.standard_normal((2, NETWORKS, case.columns)).astype(np.float32)
    t = rng.random(NETWORKS).astype(np.float32)
    torch_type = torch.float64 if dtype == np.float64 else torch.float32
    as_torch = lambda x: torch.tensor(np.asarray(x, dtype), dtype=torch_type)
    theirs = {name: torch.nn.Parameter(as_torch(x)) for name, x in case.split(params).items()}
    # Adam's first step is the sign of a gradient: eps lies above rounding noise, or noise would be compared by its sign.
    eps = 1e-8 if dtype == np.float64 else 1e-4
    groups = [dict(params=[p], weight_decay=0.01 if case.decays[name] else 0.0) for name, p in theirs.items()]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=eps)
    worst = ("", 0.0)

    def check(name, a, b):
        nonlocal worst
        value = difference(a, b)
        worst = max(worst, (name, value), key=lambda pair: pair[1])
        assert value <= tolerance, f"{name}: {value:.3g} > {tolerance:g}"

    for step, (ours, v, grad, dw) in enumerate(case.library([params, w, t, dv], dtype, 3, eps)):
        w_theirs = as_torch(w).requires_grad_(True)
        optimizer.zero_grad(set_to_none=False)
        v_theirs = velocity(theirs, w_theirs, as_torch(t), config)
        (v_theirs * as_torch(dv)).sum().backward()
        assert np.linalg.norm(v_theirs.detach()) > 1e-2, "the velocity is zero"
        check(f"step {step}: v", v, v_theirs.detach())
        check(f"step {step}: dw", dw, w_theirs.grad)
        for (name, value), gradient in zip(case.split(ours).items(), case.split(grad).values()):
            check(f"step {step}: {name}", value, theirs[name].detach())
            check(f"step {step}: gradient of {name}", gradient, theirs[name].grad)
        optimizer.step()
    return worst


def main():
    torch.set_num_threads(1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        dump = build_dump()
        for name, velocity, config, arch in CASES:
            case = Case(dump, pathlib.Path(folder), name, config, arch)
            for dtype, tolerance in ((np.float64, 1e-8), (np.float32, 1e-3)):
                label = f"{name} {arch} {np.dtype(dtype).name}"
                try:
                    worst = run_case(case, velocity, config | {"arch": arch}, dtype, tolerance)
                    print(f"ok {label} (worst {worst[1]:.1e}, {worst[0]})")
                except AssertionError as error:
                    failed += 1
                    print(f"not ok {label}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
