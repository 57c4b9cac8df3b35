#!/usr/bin/env python3
"""Load a network that `weft zoo export` wrote into PyTorch, with nothing but torch and numpy.

    load_network.py NET.safetensors X.npy Y.npy      prints the accuracy on inputs X (n, inputs)
                                                     with labels Y (n)

With the safetensors package installed, safetensors.torch.load_file(path) reads the tensors just as
well."""
import json
import sys

import numpy as np
import torch

ACTIVATIONS = {
    "relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "gelu": torch.nn.GELU, "silu": torch.nn.SiLU,
    "sigmoid": torch.nn.Sigmoid, "identity": torch.nn.Identity,
}


def load_tensors(path):
    """A safetensors file: u64 header size, JSON header, raw little-endian data."""
    raw = open(path, "rb").read()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    data = bytearray(raw[8 + size:])
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4,
                                         offset=begin).reshape(entry["shape"])
    return tensors, metadata


def load_network(path):
    """The exported network as a torch.nn.Sequential; the description has its layers in order."""
    tensors, metadata = load_tensors(path)
    modules = []
    for number, described in enumerate(json.loads(metadata["weft.graph"])["layers"]):
        name = described.get("name", f"layers.{number}")
        prefix = name + "." if name else ""  # a bare Linear has "weight" and "bias"
        weight, bias = tensors[prefix + "weight"], tensors.get(prefix + "bias")
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        layer.load_state_dict({"weight": weight, **({} if bias is None else {"bias": bias})})
        modules += [layer, ACTIVATIONS[metadata["weft.activation"]]()]
    return torch.nn.Sequential(*modules[:-1])  # no activation after the last layer


if __name__ == "__main__":
    network = load_network(sys.argv[1])
    x, y = np.load(sys.argv[2]), np.load(sys.argv[3])
    with torch.no_grad():
        logits = network(torch.from_numpy(x).float()).numpy()
    print(f"accuracy {(logits.argmax(1) == y).mean():.6f}")
