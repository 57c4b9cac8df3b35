#!/usr/bin/env python3
"""Samples of short fits of every rival against those of an independent PyTorch implementation: 6
fits of each, pairwise from the same initial weights but with batches and noise of their own, 34
networks a fit. A fit is judged by the mean over its networks of each layer's mean, each layer's
standard deviation, and the accuracy; the six differences must not be distinguishable from zero (p >
0.01 in a paired t-test). Fits, not networks, are the independent draws: networks of one fit share
its weights."""
import pathlib, subprocess, sys, tempfile
import numpy as np
import torch
from scipy import stats
from torch.nn import functional
import test_fields
from test_phases import Net, Sane, autoencoder, ddpm, pdiff_decode, pdiff_encode, pdiff_noise, vae
from test_zoo import read_safetensors
from weft_data import Data, build

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = str(ROOT / build / "weft") if not build.startswith("/") else build + "/weft"
ARCH, FITS, NETWORKS, COUNT, BATCH = "64-16-8-10", 6, 34, 60, 12
WIDTHS = [int(word) for word in ARCH.split("-")]
PARAMS = sum(a * b + b for a, b in zip(WIDTHS, WIDTHS[1:]))


def weft(*args):
    subprocess.run([WEFT, *map(str, args), "-q"], check=True, stdout=subprocess.DEVNULL)


def settings(pairs):
    return [word for key, value in pairs.items() for word in ("--set", f"{key}={value}")]


# --- networks -------------------------------------------------------------------------------------
def blocks():
    """(first, last, layer) of weights and biases in the flat vector."""
    at = 0
    for layer, (a, b) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        yield at, at + a * b, layer
        yield at + a * b, at + a * b + b, layer
        at += a * b + b


def flat_networks(path):
    tensors, _ = read_safetensors(path)
    count = len(tensors["layers.0.weight"])
    parts = [
        np.asarray(tensors[f"layers.{k}.{part}"], np.float32).reshape(count, -1)
        for k in range(len(WIDTHS) - 1)
        for part in ("weight", "bias")
    ]
    return torch.tensor(np.concatenate(parts, 1))


def summary(nets, data):
    """Of each network: mean and deviation of each layer, accuracy; then the means over networks."""
    rows, layers = [], len(WIDTHS) - 1
    ranges = [[(a, b) for a, b, l in blocks() if l == layer] for layer in range(layers)]
    for w in nets:
        x, row = torch.tensor(data.x_test[:200]), []
        for layer, (weight, bias) in enumerate(ranges):
            values = w[weight[0] : bias[1]]
            row += [float(values.mean()), float(values.std())]
            x = functional.linear(
                x, w[slice(*weight)].reshape(WIDTHS[layer + 1], -1), w[slice(*bias)]
            )
            x = functional.relu(x) if layer < layers - 1 else x
        row.append(float((x.argmax(1).numpy() == data.y_test[:200]).mean()))
        rows.append(row)
    return np.mean(rows, 0)


NAMES = [f"layer {k} {what}" for k in range(len(WIDTHS) - 1) for what in ("mean", "std")] + [
    "accuracy"
]


# --- normalisations: shift and scale of each coordinate -------------------------------------------
def normal(nets, groups, deviation):
    shift, scale = torch.zeros(PARAMS), torch.ones(PARAMS)
    for group in groups:
        values = torch.cat([nets[:, a:b] for a, b in group], 1)
        mean, std = deviation(values)
        for a, b in group:
            shift[a:b], scale[a:b] = mean, std
    return shift, scale


BY_BLOCK = [[(a, b)] for a, b, _ in blocks()]
BY_LAYER = [[(a, b) for a, b, l in blocks() if l == layer] for layer in range(len(WIDTHS) - 1)]
POOLED = lambda v: (v.mean(), v.std(unbiased=False))
MEAN_STD = lambda v: (v.mean(1).mean(), v.std(1, unbiased=False).mean())
ROOT_MEAN_VAR = lambda v: (v.mean(1).mean(), v.var(1, unbiased=False).mean().sqrt())


# --- PyTorch's fits -------------------------------------------------------------------------------
def train(p, loss, updates, lr, decays, decay=0.0, beta2=0.999):
    """AdamW with a cosine to zero; loss(update)."""
    groups = [
        dict(params=[p[name]], weight_decay=decay if decays(name, p[name]) else 0.0) for name in p
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2))
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1 + np.cos(np.pi * update / updates))
        optimizer.zero_grad()
        loss(update).backward()
        optimizer.step()


def parameters(tensors, prefix):
    def shaped(x):
        x = torch.tensor(np.asarray(x, np.float32))
        return torch.nn.Parameter(x.reshape(len(x), -1) if x.ndim < 2 else x)
    return {name[len(prefix):]: shaped(x) for name, x in tensors.items() if name.startswith(prefix)}


def dropped(field, p, w, t, c):
    """The field of dwf with dropout after the first and the second layer."""
    gelu, calls = functional.gelu, [0]
    def gelu_dropped(x, *args, **more):
        calls[0] += 1
        y = gelu(x, *args, **more)
        # the first is the time embedding's
        return functional.dropout(y, 0.1) if calls[0] in (2, 3) else y
    functional.gelu = gelu_dropped
    try:
        return field(p, w, t, c)
    finally:
        functional.gelu = gelu


def flow(nets, p, c, spec):
    field = getattr(test_fields, spec["field"])
    dwf = spec["field"] == "dwf"
    shift, scale = (
        (torch.zeros(PARAMS), torch.ones(PARAMS)) if dwf else normal(nets, BY_BLOCK, POOLED)
    )
    x1 = (nets - shift) / scale
    std, orders = (0.01 if dwf else 1.0), {}
    table = torch.randn(COUNT, PARAMS) * std

    def epoch(which, update):  # an order of its own for each epoch, whole batches alone
        each = COUNT // BATCH
        order = orders.setdefault((which, update // each), torch.randperm(COUNT))
        return order[update % each * BATCH :][:BATCH]

    def loss(update):
        rows = epoch(0, update) if dwf else torch.randint(COUNT, (BATCH,))
        start = table[epoch(1, update)] if dwf else torch.randn(BATCH, PARAMS)
        t = torch.rand(BATCH)
        at = (
            (1 - t[:, None]) * start
            + t[:, None] * x1[rows]
            + (0.001 * torch.randn(BATCH, PARAMS) if dwf else 0)
        )
        v = dropped(field, p, at, t, c) if dwf else field(p, at, t, c)
        return ((v - (x1[rows] - start)) ** 2).mean()

    train(p, loss, spec["updates"], spec["lr"], lambda *_: False)
    x, steps = torch.randn(NETWORKS, PARAMS) * std, 10
    with torch.no_grad():
        for k in range(steps):
            x = x + field(p, x, torch.full((NETWORKS,), k / steps), c) / steps
    return x * scale + shift


def pdiff(nets, p, c, spec):
    shift, scale = normal(nets, BY_BLOCK, MEAN_STD)
    padded = functional.pad((nets - shift) / scale, (0, -PARAMS % 64))
    statistics, steps = {}, c["diffusion_steps"]
    rows = lambda: torch.randperm(COUNT)[:BATCH]

    def first(_):
        x = padded[rows()]
        noise = 0.1 * torch.randn(BATCH, c["latent"])
        return vae(Net(p["vae"], statistics, True), (x + 0.001 * torch.randn_like(x), x, noise), c)[
            0
        ]

    everything = lambda *_: True
    train(p["vae"], first, spec["first"], spec["lr"], everything, 1e-5)
    with torch.no_grad():
        latents = pdiff_encode(Net(p["vae"], statistics, False), padded, c)
    beta = torch.linspace(1e-4, 0.02, steps, dtype=torch.float64) * 1000 / steps
    kept, of_noise = torch.cumprod(1 - beta, 0), {}

    def second(_):
        step, noise = torch.randint(steps, (BATCH,)), torch.randn(BATCH, c["latent"])
        share = kept[step].float()[:, None]
        x = share.sqrt() * latents[rows()] + (1 - share).sqrt() * noise
        return ddpm(Net(p["ddpm"], of_noise, True), (x, step[:, None] / steps, noise), c)[0]

    train(p["ddpm"], second, spec["updates"], spec["lr"], everything, 1e-5)
    x = torch.randn(NETWORKS, c["latent"])
    with torch.no_grad():
        for step in reversed(range(steps)):
            noise = pdiff_noise(
                Net(p["ddpm"], of_noise, False), x, torch.full((NETWORKS, 1), step / steps), c
            )
            x = (x - float(beta[step] / (1 - kept[step]).sqrt()) * noise) / float(
                (1 - beta[step]).sqrt()
            )
            if step > 0:
                x = x + float(
                    (beta[step] * (1 - kept[step - 1]) / (1 - kept[step])).sqrt()
                ) * torch.randn_like(x)
        made = pdiff_decode(Net(p["vae"], statistics, False), x, c)[:, :PARAMS]
    return made * scale + shift


def relabelled(w, perms):
    """A network with its hidden units in another order."""
    out, order = [], [torch.arange(WIDTHS[0]), *perms, torch.arange(WIDTHS[-1])]
    parts = list(blocks())
    for layer in range(len(WIDTHS) - 1):
        (a, b, _), (c, d, _) = parts[2 * layer : 2 * layer + 2]
        out += [
            w[a:b].reshape(WIDTHS[layer + 1], -1)[order[layer + 1]][:, order[layer]].reshape(-1),
            w[c:d][order[layer + 1]],
        ]
    return torch.cat(out)


def sane(nets, p, c, spec):
    shift, scale = normal(nets, BY_LAYER, ROOT_MEAN_VAR)
    x = (nets - shift) / scale
    perms = [[torch.randperm(n) for n in WIDTHS[1:-1]] for _ in range(200)]
    copies = [torch.randperm(200)[:5] for _ in range(COUNT)]

    def loss(_):
        rows = torch.randperm(COUNT)[:BATCH].tolist()
        second = [relabelled(x[i], perms[copies[i][torch.randint(5, ())]]) for i in rows]
        views = torch.cat([x[rows], torch.stack(second)])
        contrast, rebuilt = autoencoder(
            Net(p, {}, True), (views * (1 + 0.1 * torch.randn_like(views)),), c
        )
        return 0.05 * contrast + 0.95 * rebuilt

    train(p, loss, spec["updates"], spec["lr"], lambda *_: False)
    net = Sane(p, c)
    with torch.no_grad():
        z = net.encode(net.tokens(x))
        if spec["kde"]:
            z = z[torch.randint(COUNT, (NETWORKS,))] + 0.2 * torch.randn(NETWORKS, 1, 1)
        else:
            z = z.mean(0) + z.std(0, unbiased=False) * torch.randn(NETWORKS, *z.shape[1:])
        return net.flat(net.decode(z)) * scale + shift


FLOW = {
    "train.precondition": "no", "train.coupling": "independent", "sample.solver": "euler",
    "sample.steps": 10,
}
DWF = FLOW | {
    "train.normalise": "no", "train.source_std": 0.01, "train.path_noise": 0.001,
    "train.noise_table": COUNT, "train.draw": "epochs",
}
SANE = dict(width=16, blocks=1, heads=2, latent=8)
CASES = {
    "mlp": (flow, dict(width=32, blocks=1, time=8), dict(field="mlp", updates=60, lr=0.003), FLOW),
    "dit": (
        flow, dict(width=16, blocks=1, heads=2, token=32, time=8),
        dict(field="dit", updates=25, lr=0.003), FLOW,
    ),
    "dwf": (flow, dict(width=32, time=8), dict(field="dwf", updates=60, lr=0.003), DWF),
    "sane-kde": (sane, SANE, dict(updates=25, lr=0.005, kde=True), {}),
    "sane-gauss": (sane, SANE, dict(updates=25, lr=0.005, kde=False), {}),
    "pdiff": (
        pdiff, dict(latent=8, channels=4, time=8, diffusion_steps=25),
        dict(updates=40, lr=0.005, first=25), {},
    ),
}


def library_fit(folder, name, config, spec, more, seed, untrained):
    """The path of a fit; untrained: its weights are the initial ones."""
    path = folder / f"{name}-{seed}-{untrained}.safetensors"
    values = {f"model.{key}": value for key, value in config.items()} | {
        "model.seed": seed,
        "train.seed": seed,
        **more,
    }
    values = {key: value for key, value in values.items() if not key.startswith("sample.")}
    values |= {
        "train.updates": 1 if untrained else spec["updates"],
        "train.lr": 1e-30 if untrained else spec["lr"],
    }
    if name == "pdiff":
        values |= {
            "model.vae_updates": 1 if untrained else spec["first"],
            "model.vae_lr": 1e-30 if untrained else spec["lr"],
            "train.weight_decay": 1e-5,
        }
    recipe = folder / f"{name}.conf"
    recipe.write_text(
        f"[model]\ngenerator = {name}\n[train]\noptimizer = adamw\nbatch = {BATCH}\nclip = 0\nema "
        f"= 0\n"
    )
    zoo = folder / ("aligned.safetensors" if name.startswith("sane") else "zoo.safetensors")
    weft("train", recipe, "--zoo", zoo, "-o", path, *settings(values))
    return path


def run_case(folder, name, data):
    method, config, spec, more = CASES[name]
    nets = flat_networks(
        folder / ("aligned.safetensors" if name.startswith("sane") else "zoo.safetensors")
    )
    config_there, differences = config | {"arch": ARCH}, []
    for seed in range(FITS):
        fitted = library_fit(folder, name, config, spec, more, seed, False)
        made = folder / f"{name}-{seed}-made.safetensors"
        solver = ["--solver", "euler", "--steps", "10"] if method is flow else []
        weft("sample", fitted, "-n", NETWORKS, "--seed", seed, "-o", made, *solver)
        start, _ = read_safetensors(library_fit(folder, name, config, spec, more, seed, True))
        p = (
            {part: parameters(start, part + ".weights.") for part in ("vae", "ddpm")}
            if name == "pdiff"
            else parameters(start, "autoencoder.weights." if method is sane else "weights.")
        )
        torch.manual_seed(seed)
        theirs = method(nets, p, config_there, spec)
        differences.append(summary(flat_networks(made), data) - summary(theirs, data))
    p_values = stats.ttest_1samp(np.array(differences), 0).pvalue
    worst = int(np.nanargmin(np.where(np.isnan(p_values), 1, p_values)))
    assert not (
        p_values < 0.01
    ).any(), (
        f"{NAMES[worst]}: p = {p_values[worst]:.2g}, differences {np.array(differences)[:, worst]}"
    )
    return f"least p {p_values[worst]:.2f}, {NAMES[worst]}"


def main():
    torch.set_num_threads(1)
    failed, data = 0, Data(name="digits")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        recipe = folder / "zoo.conf"
        recipe.write_text(
            f"[data]\nname = digits\n[zoo]\narch = {ARCH}\nepochs = 4\nbatch = 64\nlr = 0.003\n"
        )
        weft("zoo", "train", recipe, "-n", COUNT, "-o", folder / "zoo.safetensors")
        weft("align", folder / "zoo.safetensors", "-o", folder / "aligned.safetensors")
        for name in sys.argv[1:] or CASES:
            try:
                print(f"ok {name} ({run_case(folder, name, data)})")
            except AssertionError as error:
                failed += 1
                print(f"not ok {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
