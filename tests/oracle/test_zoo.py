"""The zoo engine against PyTorch: same initial weights, same order of examples, same optimiser.

The order of examples is computed here from Philox4x32-10 as weft/rng.h describes it, training is
torch.nn and torch.optim in float32 and float64, and scores and error masks of a collection file
come from a numpy forward pass. Prints "ok name" lines; exits 1 when one is not ok."""
import ctypes as C
import json
import math
import os
import shutil
import sys
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from weft_data import Dataset, ctx as CTX, lib as LIB


class ZooDesc(C.Structure):
    _fields_ = [
        ("count", C.c_size_t), ("first", C.c_size_t), ("seed", C.c_uint64), ("optimizer", C.c_int),
        ("lr", C.c_double), ("lr_max", C.c_double), ("epochs", C.c_int), ("epochs_max", C.c_int),
        ("batch", C.c_int), ("momentum", C.c_double), ("nesterov", C.c_bool),
        ("weight_decay", C.c_double), ("beta1", C.c_double), ("beta2", C.c_double),
        ("eps", C.c_double), ("cosine", C.c_bool), ("label_smoothing", C.c_double),
        ("flip", C.c_bool), ("crop", C.c_int), ("shard", C.c_size_t), ("fp32", C.c_bool),
        ("test_name", C.c_char_p),
    ]


LIB.wf_zoo_desc_default.restype = ZooDesc
LIB.wf_graph_parse.argtypes = [C.c_void_p, C.c_char_p, C.c_char_p, C.c_uint, C.c_void_p]
LIB.wf_zoo_init.argtypes = [C.c_void_p, C.c_uint64, C.c_uint32, C.c_void_p]
LIB.wf_zoo_train_from.argtypes = [
    C.c_void_p, C.c_void_p, C.POINTER(Dataset), C.POINTER(ZooDesc), C.c_void_p,
]
LIB.wf_zoo_train.argtypes = LIB.wf_zoo_train_from.argtypes[:4] + [C.c_char_p, C.c_void_p]


def check(status):
    if status != 0:
        raise RuntimeError(LIB.wf_last_error(CTX).decode())


def graph(arch, activation):
    out = C.c_void_p()
    check(LIB.wf_graph_parse(CTX, arch.encode(), activation.encode(), 0, C.byref(out)))
    return out


# --- Philox, from its definition ------------------------------------------------------------------
def philox_words(seed, network, purpose, step, first=0):
    mask, index = 0xFFFFFFFF, first
    while True:
        c, k0, k1 = [index, step, network, purpose], seed & mask, seed >> 32
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        yield from c
        index += 1


def below(words, n):
    while True:
        product = next(words) * n
        if (product & 0xFFFFFFFF) >= (1 << 32) % n:
            return product >> 32


def shuffle(seed, network, epoch, n):
    words, order = philox_words(seed, network, 2, epoch), list(range(n))
    for i in range(n, 1, -1):
        j = below(words, i)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


# --- the same networks in PyTorch -----------------------------------------------------------------
def parse(arch):
    widths = [int(part.rstrip("!")) for part in arch.split("-")]
    return widths, [not part.endswith("!") for part in arch.split("-")[1:]]


def module(arch, activation, dtype):
    widths, bias = parse(arch)
    acts = {
        "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid,
        "identity": nn.Identity,
    }
    layers = []
    for l in range(len(bias)):
        layers += [nn.Linear(widths[l], widths[l + 1], bias=bias[l])] + (
            [acts[activation]()] if l + 1 < len(bias) else []
        )
    return nn.Sequential(*layers).to(dtype)


def set_flat(net, w):
    at = 0
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.from_numpy(w[at:at + p.numel()].reshape(p.shape)))
            at += p.numel()
    assert at == len(w)


def torch_train(arch, activation, w, x, y, desc, index, dtype):
    net = module(arch, activation, dtype)
    set_flat(net, w)
    if desc.optimizer == 0:
        optimizer = torch.optim.Adam(
            net.parameters(), lr=desc.lr, betas=(desc.beta1, desc.beta2), eps=desc.eps,
            weight_decay=desc.weight_decay,
        )
    else:
        optimizer = torch.optim.SGD(
            net.parameters(), lr=desc.lr, momentum=desc.momentum, nesterov=desc.nesterov,
            weight_decay=desc.weight_decay,
        )
    updates = desc.epochs * math.ceil(len(x) / desc.batch)
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates) if desc.cosine else None
    )
    x, y = torch.from_numpy(x).to(dtype), torch.from_numpy(y).long()
    for epoch in range(desc.epochs):
        order = torch.tensor(shuffle(desc.seed, index, epoch, len(x)))
        for rows in order.split(desc.batch):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows], label_smoothing=desc.label_smoothing).backward()
            optimizer.step()
            if schedule:
                schedule.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).double().numpy()


def make_data(inputs, classes, n, seed):
    rng = np.random.default_rng(seed)
    y = np.ascontiguousarray(np.arange(n) % classes, dtype=np.int32)
    x = (rng.normal(size=(classes, inputs))[y] + rng.normal(size=(n, inputs))).astype(np.float32)
    return np.ascontiguousarray(x), y


def dataset(x, y, n_train):
    floats, ints = C.POINTER(C.c_float), C.POINTER(C.c_int32)
    return Dataset(
        name=b"clusters", n_train=n_train, n_test=len(x) - n_train, inputs=x.shape[1],
        classes=int(y.max()) + 1, x_train=x.ctypes.data_as(floats), y_train=y.ctypes.data_as(ints),
        x_test=x[n_train:].ctypes.data_as(floats), y_test=y[n_train:].ctypes.data_as(ints),
    )


# arch, activation, settings
CASES = [
    ("64-16-8-10", "relu", dict(optimizer=0, lr=1e-3, batch=128)),
    ("64-16-8-10", "relu", dict(optimizer=1, lr=5e-2, batch=128)),
    ("9-7-5", "tanh", dict(optimizer=0, lr=5e-3, batch=32, weight_decay=1e-2, cosine=True)),
    ("9-32-32-5", "gelu", dict(optimizer=1, lr=5e-2, batch=50, momentum=0.9, weight_decay=1e-3)),
    (
        "9-33!-17-5!",
        "silu",
        dict(optimizer=1, lr=3e-2, batch=77, momentum=0.9, nesterov=True, label_smoothing=0.1),
    ),
    ("9-16-5", "sigmoid", dict(optimizer=0, lr=1e-2, batch=300, label_smoothing=0.2, cosine=True)),
    ("9-5", "relu", dict(optimizer=0, lr=1e-2, batch=64, beta1=0.8, beta2=0.9, eps=1e-4)),
    (
        "9-8-8-8-5",
        "identity",
        dict(
            optimizer=1, lr=2e-2, batch=64, momentum=0.5, nesterov=True, cosine=True,
            weight_decay=1e-2,
        ),
    ),
]


def compare_training(arch, activation, settings):
    widths, _ = parse(arch)
    x, y = make_data(widths[0], widths[-1], 333, 5)
    desc = LIB.wf_zoo_desc_default()
    desc.count, desc.first, desc.seed, desc.epochs, desc.epochs_max = 2, 31, 0x123456789ABC, 3, 3
    for key, value in settings.items():
        setattr(desc, key, value)
    desc.lr_max = desc.lr
    g, n = graph(arch, activation), sum(
        p.numel() for p in module(arch, activation, torch.float32).parameters()
    )
    w = np.zeros((2, n), np.float32)
    for i in range(2):
        LIB.wf_zoo_init(g, desc.seed, 31 + i, w[i].ctypes.data)
    start = w.copy()
    check(
        LIB.wf_zoo_train_from(CTX, g, C.byref(dataset(x, y, len(x))), C.byref(desc), w.ctypes.data)
    )
    worst = 0
    for i in range(2):
        reference = torch_train(arch, activation, start[i], x, y, desc, 31 + i, torch.float64)
        single = torch_train(arch, activation, start[i], x, y, desc, 31 + i, torch.float32)
        moved = np.linalg.norm(reference - start[i])
        assert moved > 0.01 * np.linalg.norm(start[i]), "did not train"
        # the float error counts against the distance travelled; torch's own float32 run shows what
        # is to be had
        for other in (reference, single):
            worst = max(worst, np.linalg.norm(w[i] - other) / moved)
    return worst


def read_safetensors(path):
    raw = open(path, "rb").read()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
    meta = header.pop("__metadata__")
    tensors = {
        k: np.frombuffer(
            raw[8 + size + v["data_offsets"][0] : 8 + size + v["data_offsets"][1]],
            types[v["dtype"]],
        ).reshape(v["shape"])
        for k, v in header.items()
    }
    return tensors, meta


def compare_collection():
    x, y = make_data(12, 4, 500, 9)
    desc = LIB.wf_zoo_desc_default()
    desc.count, desc.first, desc.batch, desc.epochs, desc.epochs_max = 20, 3, 64, 2, 5
    desc.lr, desc.lr_max, desc.test_name = 1e-3, 1e-2, b"t"
    folder = tempfile.mkdtemp()
    try:
        path = os.path.join(folder, "zoo.safetensors")
        check(
            LIB.wf_zoo_train(
                CTX, graph("12-16-8-4", "relu"), C.byref(dataset(x, y, 400)), C.byref(desc),
                path.encode(), None,
            )
        )
        t, meta = read_safetensors(path)
    finally:
        shutil.rmtree(folder)
    assert meta["weft.arch"] == "12-16-8-4" and meta["weft.activation"] == "relu"
    assert list(t["weft.seed"]) == list(range(3, 23))
    h = np.repeat(x[None, 400:].astype(np.float64), 20, 0)
    for l in range(3):
        h = (
            h @ t[f"layers.{l}.weight"].astype(np.float64).transpose(0, 2, 1)
            + t[f"layers.{l}.bias"][:, None]
        )
        h = np.maximum(h, 0) if l < 2 else h
    wrong = h.argmax(-1) != y[None, 400:]
    bits = np.unpackbits(t["weft.errors.t"], axis=1, bitorder="little")
    assert bits[:, 100:].sum() == 0 and np.array_equal(bits[:, :100], wrong), "error masks differ"
    assert np.abs(t["weft.score.t"] - (1 - wrong.mean(1))).max() < 1e-6, "scores differ"
    for i in range(20):  # learning rate and epochs from their own addresses
        u = (next(philox_words(desc.seed, 3 + i, 3, 0)) >> 8) * 2.0 ** -24
        assert abs(t["weft.lr"][i] / (1e-3 * 10 ** u) - 1) < 1e-5, "learning rate differs"
        assert t["weft.epochs"][i] == 2 + below(
            philox_words(desc.seed, 3 + i, 3, 1), 4
        ), "epochs differ"
    return 0.0


def run_tests(tests):
    """Runs (name, function that returns an error, tolerance) and prints a line for each; 1 when one
    is not ok."""
    failed = 0
    for name, run, tolerance in tests:
        try:
            error = run()
            good = error <= tolerance
        except (AssertionError, RuntimeError) as reason:
            error, good = reason, False
        print(
            f"{'ok' if good else 'not ok'} {name}: "
            f"{error if isinstance(error, Exception) else f'{error:.1e}'}"
        )
        failed += not good
    return 1 if failed else 0


def main():
    torch.set_num_threads(1)
    tests = [("zoo " + a + " " + act + " " + ",".join(f"{k}={v}" for k, v in s.items()),
              lambda a=a, act=act, s=s: compare_training(a, act, s), 1e-4) for a, act, s in CASES]
    tests.append(("zoo collection file, scores and error masks", compare_collection, 0.0))
    return run_tests(tests)


if __name__ == "__main__":
    sys.exit(main())
