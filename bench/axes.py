#!/usr/bin/env python3
"""How much a Gaussian along principal axes would explain of each layer: ZOO.safetensors ...

Rows of a first layer stand over inputs, columns of a last layer over outputs: coordinates that keep
their order in every network. Layers between hidden units have none. For each the variances along
the principal axes, of weights brought to mean 0 and deviation 1 as a flow sees them; the nats a
number by which a Gaussian with these variances is nearer to the weights than one with variance 1;
and the nats of a whole network."""
import json
import sys

import numpy as np


def weights(path):
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    body = data[8 + size:]
    for name, entry in tensors.items():
        if name.endswith("weight"):
            begin, end = entry["data_offsets"]
            yield name, np.frombuffer(body[begin:end], np.float32).reshape(entry["shape"])


def axes(rows):
    rows = (rows - rows.mean()) / rows.std()
    variances = np.linalg.eigvalsh(rows.T @ rows / len(rows))[::-1]
    nats = 0.5 * np.mean(variances - 1 - np.log(np.maximum(variances, 1e-6)))
    return variances, nats


for path in sys.argv[1:]:
    layers = [(name, w.astype(float)) for name, w in weights(path)]
    (first, w0), (last, w1) = layers[0], layers[-1]
    for what, w in ((f"{first}, rows", w0.reshape(w0.shape[0] * w0.shape[1], -1)),
                    (f"{last}, columns", w1.transpose(0, 2, 1).reshape(-1, w1.shape[1]))):
        variances, nats = axes(w)
        least = max(variances[-1], 1e-6)
        print(f"{path}: {what} of {w.shape[1]}: variances {variances[0]:.3g} to {least:.3g}, "
              f"{nats:.3f} nats a number, {nats * w.size / len(w0):.0f} a network")
