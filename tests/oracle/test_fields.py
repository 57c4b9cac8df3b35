#!/usr/bin/env python3
"""Velocity fields of one architecture against PyTorch: forward, gradients of every parameter tensor
and of the networks, and the parameters behind three steps of AdamW, with random values in all
parameters. double: 1e-8 by norm per tensor, float: 1e-3."""
import functools, math, sys
import numpy as np
import torch
from torch.nn import functional
from torch_case import STEPS, Comparison, Dump, run_cases

NETWORKS = 5


# --- the fields: velocity of w (B, P) at t (B) with parameters p by name --------------------------
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


def attention(query, key, value):
    return torch.softmax(query @ key.transpose(2, 3) / math.sqrt(query.shape[3]), 3) @ value


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
        y = attention(heads(query), heads(key), heads(value))
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


# --- comparison -----------------------------------------------------------------------------------
def run_case(field, settings, arch, program, folder, dtype, tolerance):
    name, velocity = field
    dump = Dump(
        program, folder, [name, arch, NETWORKS],
        [f"{key}={value}" for key, value in settings.items()],
    )
    widths = [int(word) for word in arch.split("-")]
    columns = sum(a * b + b for a, b in zip(widths, widths[1:]))
    rng = np.random.default_rng(5)
    params = dump.random_params(rng)
    w, dv = rng.standard_normal((2, NETWORKS, columns)).astype(np.float32)
    t = rng.random(NETWORKS).astype(np.float32)
    torch_side = Comparison(dump, params, dtype, tolerance)
    check, theirs = torch_side.check, torch_side.params
    # params, v, grad, dw of the library: at first and after each step of its AdamW
    rows = np.frombuffer(dump.run([params, w, t, dv], dtype, torch_side.eps), dtype).reshape(
        STEPS + 1, -1
    )
    for step, row in enumerate(rows):
        ours, v, grad, dw = np.split(row, np.cumsum([params.size, w.size, params.size]))
        w_theirs = torch_side.tensor(w).requires_grad_(True)
        torch_side.optimizer.zero_grad(set_to_none=False)
        v_theirs = velocity(theirs, w_theirs, torch_side.tensor(t), settings | {"arch": arch})
        (v_theirs * torch_side.tensor(dv)).sum().backward()
        assert np.linalg.norm(v_theirs.detach()) > 1e-2, "the velocity is zero"
        check(f"step {step}: v", v, v_theirs.detach())
        check(f"step {step}: dw", dw, w_theirs.grad)
        for (tensor, value), gradient in zip(dump.split(ours).items(), dump.split(grad).values()):
            check(f"step {step}: {tensor}", value, theirs[tensor].detach())
            check(f"step {step}: gradient of {tensor}", gradient, theirs[tensor].grad)
        torch_side.optimizer.step()
    return torch_side


def main():
    return run_cases(
        "net_dump",
        [
            (f"{name} {arch}", functools.partial(run_case, (name, velocity), settings, arch))
            for name, velocity, settings, arch in CASES
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
