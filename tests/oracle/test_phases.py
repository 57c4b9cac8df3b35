#!/usr/bin/env python3
"""Phases of P-diff and SANE against PyTorch: loss, gradients of every parameter tensor, the
parameters behind three steps of AdamW, and the network that samples (running statistics), with
random values in all parameters. double: 1e-8 by norm per tensor, float: 1e-3."""
import functools, sys
import numpy as np
import torch
from torch.nn import functional
import test_fields
from test_fields import affine, sinusoids
from torch_case import STEPS, Comparison, Dump, run_cases

NETWORKS = 4


# --- P-diff: layers over (B, channels, positions) with parameters p and running statistics s by
# name --------------------------
class Net:
    def __init__(self, p, statistics, training):
        self.p, self.s, self.training = p, statistics, training

    def conv(self, name, x, out, stride=1):
        """The library keeps the taps of a filter one after another: (out, kernel, channels)."""
        weight = self.p[name + ".weight"].reshape(out, 7, x.shape[1]).transpose(1, 2)
        return functional.conv1d(x, weight, self.p[name + ".bias"].reshape(-1), stride, 3)

    def spread(self, name, x, out):
        weight = self.p[name + ".weight"].reshape(x.shape[1], 7, out).transpose(1, 2)
        return functional.conv_transpose1d(x, weight, self.p[name + ".bias"].reshape(-1), 2, 3, 1)

    def norm(self, name, x):
        mean, var = self.s.setdefault(
            name, (torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype))
        )
        weight, bias = (self.p[f"{name}.{part}"].reshape(-1) for part in ("weight", "bias"))
        return functional.batch_norm(x, mean, var, weight, bias, self.training, 0.1, 1e-5)


def pdiff_encode(net, x, c):
    k, h = c["channels"], x[:, None]
    for i, out in enumerate((k, 2 * k, 4 * k, 4 * k, k // 2)):
        h = functional.leaky_relu(
            net.norm(f"encoder.{i}.norm", net.conv(f"encoder.{i}.conv", h, out, 2)), 0.01
        )
    # the library flattens position by position
    h = affine(net.p, "encoder.out", h.transpose(1, 2).reshape(len(x), -1))
    return affine(net.p, "encoder.mu", h)


def pdiff_decode(net, z, c):
    k = c["channels"]
    h = affine(net.p, "decoder.in", z).reshape(len(z), -1, k // 2).transpose(1, 2)
    for i, out in enumerate((4 * k, 4 * k, 2 * k, k, k)):
        h = functional.elu(net.norm(f"decoder.{i}.norm", net.spread(f"decoder.{i}.conv", h, out)))
    return net.conv("decoder.out", h, 1)[:, 0]


def pdiff_noise(net, x, t, c):
    k = c["channels"]
    step = affine(
        net.p, "time.2", functional.silu(affine(net.p, "time.0", sinusoids(t[:, 0], c["time"])))
    )[:, None]
    h, kept = x[:, None], []
    for i, out in enumerate((k, 2 * k, 4 * k, 8 * k, 4 * k, 2 * k, k)):
        if i in (5, 6):
            h = h + kept[7 - i]
        h = functional.elu(net.norm(f"{i}.norm", net.conv(f"{i}.conv", h + step, out)))
        kept.append(h)
    return net.conv("7.conv", h + kept[0] + step, 1)[:, 0]


def vae(net, inputs, c):
    x, target, noise = inputs
    return functional.mse_loss(pdiff_decode(net, pdiff_encode(net, x, c) + noise, c), target), None


def ddpm(net, inputs, c):
    x, t, noise = inputs
    return functional.mse_loss(pdiff_noise(net, x, t, c), noise), None


# --- SANE -----------------------------------------------------------------------------------------
def tokens_of(arch, width):
    """Places in the flat vector of each token's numbers (-1: none), and the token's unit, layer and
    channel."""
    places, positions, at, unit = [], [], 0, 0
    longest = max(arch[:-1]) + 1
    width = width or longest
    for layer, (inputs, outputs) in enumerate(zip(arch, arch[1:])):
        for channel in range(outputs):
            row = [at + channel * inputs + i for i in range(inputs)] + [
                at + inputs * outputs + channel
            ]
            while row:
                places.append(row[:width] + [-1] * (width - len(row[:width])))
                positions.append((unit, layer, channel))
                row = row[width:]
            unit += 1
        at += inputs * outputs + outputs
    return torch.tensor(places), torch.tensor(positions)


class Sane:
    def __init__(self, p, c):
        self.p, self.c = p, c
        self.places, positions = tokens_of(
            [int(word) for word in c["arch"].split("-")], c.get("token", 0)
        )
        self.mask = (self.places >= 0).to(p["encoder.in.weight"].dtype)
        index, layer, channel = (p["positions." + name] for name in ("index", "layer", "channel"))
        self.position = torch.cat(
            [index[positions[:, 0]] + layer[positions[:, 1]], channel[positions[:, 2]]], 1
        )

    def layer_norm(self, name, y):
        bias = self.p[name + ".bias"].reshape(-1) if name + ".bias" in self.p else None
        return functional.layer_norm(
            y, y.shape[-1:], self.p[name + ".weight"].reshape(-1), bias, 1e-5
        )

    def blocks(self, part, h):
        heads = lambda y: y.reshape(*y.shape[:2], self.c["heads"], -1).transpose(1, 2)
        for k in range(self.c["blocks"]):
            name = f"{part}.blocks.{k}."
            query, key, value = (
                heads(y)
                for y in affine(
                    self.p, name + "attention.qkv", self.layer_norm(name + "norm1", h)
                ).chunk(3, 2)
            )
            y = test_fields.attention(query, key, value)
            h = h + affine(self.p, name + "attention.proj", y.transpose(1, 2).reshape(h.shape))
            h = h + affine(
                self.p,
                name + "mlp.2",
                functional.gelu(affine(self.p, name + "mlp.0", self.layer_norm(name + "norm2", h))),
            )
        return h

    def tokens(self, flat):
        return flat[:, self.places.clamp(min=0)] * self.mask

    def encode(self, tokens):
        return affine(
            self.p,
            "encoder.out",
            self.blocks("encoder", affine(self.p, "encoder.in", tokens) + self.position),
        )

    def decode(self, z):
        return (
            affine(
                self.p,
                "decoder.out",
                self.blocks("decoder", affine(self.p, "decoder.in", z) + self.position),
            )
            * self.mask
        )

    def head(self, z):
        h = functional.relu(
            self.layer_norm("head.1", affine(self.p, "head.0", z.reshape(len(z), -1)))
        )
        return functional.relu(self.layer_norm("head.4", affine(self.p, "head.3", h)))

    def flat(self, tokens):
        out = tokens.new_zeros(len(tokens), int((self.places >= 0).sum()))
        out[:, self.places[self.places >= 0]] = tokens[:, self.places >= 0]
        return out


def autoencoder(net, inputs, c):
    sane, (views,) = Sane(net.p, c), inputs
    x = sane.tokens(views)
    z = sane.encode(x)
    h = functional.normalize(sane.head(z), dim=1)
    n = len(h) // 2
    similar = (h @ h.T / 0.1).masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    contrast = functional.cross_entropy(
        similar, torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    )
    return contrast, ((sane.decode(z) - x) ** 2).mean()


CASES = [
    ("vae", vae, dict(latent=5, channels=4, time=4), "3-7-2"),
    ("vae", vae, dict(latent=16, channels=6, time=4), "5-20-3"),
    ("ddpm", ddpm, dict(latent=6, channels=4, time=8), "3-7-2"),
    ("ddpm", ddpm, dict(latent=33, channels=6, time=16), "3-7-2"),
    ("autoencoder", autoencoder, dict(width=12, blocks=2, heads=3, latent=5, token=4), "3-7-4-2"),
    ("autoencoder", autoencoder, dict(width=32, blocks=1, heads=8, latent=8), "5-20-6"),
]


def run_case(name, network, config, arch, program, folder, dtype, tolerance):
    dump = Dump(
        program, folder, [name, arch, NETWORKS], [f"{key}={value}" for key, value in config.items()]
    )
    rng = np.random.default_rng(7)
    params = dump.random_params(rng, norms=1.0)
    values = [rng.standard_normal(shape) for shape in dump.inputs]
    if name == "ddpm":
        values[1] = rng.random(dump.inputs[1])
    values = [x.astype(np.float32) for x in values]
    torch_side = Comparison(dump, params, dtype, tolerance)
    check, theirs = torch_side.check, torch_side.params
    out = np.frombuffer(dump.run([params, *values], dtype, torch_side.eps), dtype)
    each, statistics = 2 * params.size + 2, {}
    weight = (1.0, 0.0) if name != "autoencoder" else (0.05, 0.95)
    config = config | {"arch": arch}
    given = [torch_side.tensor(x) for x in values]
    scale = 1.0
    # the library's second term is a mean over the flat vector, without what stands after rows
    if name == "autoencoder":
        places, _ = tokens_of([int(word) for word in arch.split("-")], config.get("token", 0))
        scale = places.numel() / int((places >= 0).sum())
    for step in range(STEPS + 1):
        row = out[step * each : (step + 1) * each]
        ours, loss, grad = (
            row[: params.size],
            row[params.size : params.size + 2],
            row[params.size + 2 :],
        )
        torch_side.optimizer.zero_grad(set_to_none=False)
        for p in theirs.values():
            p.grad = torch.zeros_like(p)
        first, second = network(Net(theirs, statistics, True), given, config)
        total = weight[0] * first + (weight[1] * second if second is not None else 0)
        total.backward()
        check(f"step {step}: loss", loss[:1], first.detach().reshape(1))
        if second is not None:
            check(f"step {step}: second loss", loss[1:], scale * second.detach().reshape(1))
        # A bias before a batch norm has no gradient but rounding: compared beside the largest of
        # its layer.
        for (tensor, value), gradient in zip(dump.split(ours).items(), dump.split(grad).values()):
            reference = theirs[tensor].grad
            check(f"step {step}: {tensor}", value, theirs[tensor].detach())
            if (
                tensor.endswith("conv.bias")
                and tensor.replace("conv.bias", "norm.weight") in theirs
            ):
                largest = float(theirs[tensor.replace(".bias", ".weight")].grad.norm())
                assert (
                    np.linalg.norm(gradient.reshape(-1) - reference.numpy().reshape(-1))
                    <= tolerance * largest
                ), tensor
            else:
                check(f"step {step}: gradient of {tensor}", gradient, reference)
        torch_side.optimizer.step()
    rest = out[(STEPS + 1) * each :]
    # The library's AdamW made the same three steps; the fourth of PyTorch's is taken back for what
    # follows.
    frozen = {
        tensor: torch_side.tensor(x)
        for tensor, x in dump.split(out[STEPS * each : STEPS * each + params.size]).items()
    }
    with torch.no_grad():
        first, second = network(Net(frozen, statistics, False), given, config)
    check("sampling network: loss", rest[:1], first.reshape(1))
    if statistics:
        flat = torch.cat([torch.cat(pair) for pair in statistics.values()])
        check("running statistics", rest[2:], flat)
    return torch_side


def main():
    return run_cases(
        "phase_dump",
        [
            (f"{name} {arch}", functools.partial(run_case, name, network, config, arch))
            for name, network, config, arch in CASES
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
