#!/usr/bin/env python3
"""Training of described networks (convolutions, poolings, norms, residual adds) against PyTorch,
update by update.

Initial weights, order of examples, flips and crops are drawn here from Philox4x32-10 as weft/rng.h
describes it and fed to torch.nn and torch.optim. In double both sides must agree to rounding after
every update, which checks every gradient; in float over three epochs with the schedule of the
paper."""
import ctypes as C
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F

from flow_internals import library
from test_forward import cases
from test_zoo import CTX, LIB, ZooDesc, check, dataset, graph, philox_words, run_tests, shuffle

INTERNALS = library()
INTERNALS.oracle_zoo_f64.argtypes = [C.c_void_p, C.c_void_p, C.POINTER(ZooDesc), C.c_void_p]
AUGMENT, SEED, FIRST = 21, 0xABCDEF0123, 7


def changed(x, rows, epoch, index, desc):
    """The images of a batch, moved and mirrored as the network `index` sees them in this epoch."""
    out = []
    pad = F.pad(x[rows], (desc.crop,) * 4, mode="reflect") if desc.crop else x[rows]
    height, width = x.shape[-2:]
    for image, row in zip(pad, rows.tolist()):
        words = philox_block(row, epoch, index)
        span = 2 * desc.crop + 1
        top, left = words[1] * span >> 32, words[2] * span >> 32
        image = image[:, top:top + height, left:left + width]
        if desc.flip and words[0] & 1:
            # column c shows the window's pixel width - 1 - c
            image = image.flip(-1)
        out.append(image)
    return torch.stack(out)


def philox_block(block, epoch, index):
    words = philox_words(SEED, index, AUGMENT, epoch, block)
    return [next(words) for _ in range(4)]


def flat(module, dtype):
    parts = [
        v.detach().reshape(-1) for k, v in module.state_dict().items() if "num_batches" not in k
    ]
    return torch.cat([p.double() for p in parts]).numpy().astype(dtype)


def set_flat(module, w):
    at = 0
    with torch.no_grad():
        for k, v in module.state_dict().items():
            if "num_batches" in k:
                continue
            v.copy_(torch.from_numpy(w[at:at + v.numel()].reshape(v.shape)))
            at += v.numel()
    assert at == len(w)


def torch_train(module, w, x, y, desc, index, dtype):
    """Yields the flat vector, running statistics included, after every update."""
    module.to(dtype).train()
    set_flat(module, w)
    optimizer = torch.optim.SGD(
        module.parameters(), lr=desc.lr, momentum=desc.momentum, nesterov=desc.nesterov,
        weight_decay=desc.weight_decay,
    )
    updates = desc.epochs * math.ceil(len(x) / desc.batch)
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates) if desc.cosine else None
    )
    x, y = torch.from_numpy(x).to(dtype), torch.from_numpy(y).long()
    for epoch in range(desc.epochs):
        for rows in torch.tensor(shuffle(SEED, index, epoch, len(x))).split(desc.batch):
            optimizer.zero_grad()
            batch = changed(x, rows, epoch, index, desc) if desc.flip or desc.crop else x[rows]
            F.cross_entropy(module(batch), y[rows], label_smoothing=desc.label_smoothing).backward()
            optimizer.step()
            if schedule:
                schedule.step()
            yield flat(module, np.float64)


def describe(**settings):
    desc = LIB.wf_zoo_desc_default()
    desc.count, desc.first, desc.seed, desc.optimizer = 1, FIRST, SEED, 1
    for key, value in settings.items():
        setattr(desc, key, value)
    desc.lr_max, desc.epochs_max = desc.lr, desc.epochs
    return desc


def images(shape, classes, n):
    rng = np.random.default_rng(11)
    y = np.ascontiguousarray(np.arange(n) % classes, dtype=np.int32)
    x = (rng.normal(size=(classes, *shape))[y] + rng.normal(size=(n, *shape))).astype(np.float32)
    return np.ascontiguousarray(x), y


def data_of(x, y, classes):
    data = dataset(x.reshape(len(x), -1), y, len(x))
    data.classes = classes
    if x.ndim == 4:
        data.channels, data.height, data.width = x.shape[1:]
    return data


def step_by_step(text, activation, shape, classes, module):
    """Four updates in double, one batch an epoch, so that `epochs` counts updates."""
    x, y = images(shape, classes, 37)
    augment = dict(flip=True, crop=2) if len(shape) == 3 else {}
    settings = dict(
        lr=0.05, batch=64, momentum=0.9, nesterov=True, weight_decay=5e-3, label_smoothing=0.1,
        **augment,
    )
    g, start = graph(text, activation), flat(module, np.float64)
    worst = 0
    reference = list(
        torch_train(module, start, x, y, describe(epochs=4, **settings), FIRST, torch.float64)
    )
    for updates in range(1, 5):
        desc, w = describe(epochs=updates, **settings), start.copy()
        if (
            INTERNALS.oracle_zoo_f64(
                g, C.byref(data_of(x, y, classes)), C.byref(desc), w.ctypes.data
            )
            != 0
        ):
            raise RuntimeError("failed")
        moved = np.linalg.norm(reference[updates - 1] - start)
        assert moved > 1e-3 * np.linalg.norm(start), "did not train"
        worst = max(
            worst,
            np.abs(w - reference[updates - 1]).max() / np.abs(reference[updates - 1] - start).max(),
        )
    return worst


def whole_run(text, activation, shape, classes, module):
    """Three epochs in float of batches whose last is smaller, cosine, and PyTorch's default initial
    weights."""
    x, y = images(shape, classes, 150)
    augment = dict(flip=True, crop=1) if len(shape) == 3 else {}
    desc = describe(
        lr=0.05, batch=47, epochs=3, momentum=0.9, nesterov=True, weight_decay=5e-4,
        label_smoothing=0.1, cosine=True, **augment,
    )
    g, n = graph(text, activation), len(flat(module, np.float32))
    w = np.zeros(n, np.float32)
    LIB.wf_zoo_init(g, desc.seed, FIRST, w.ctypes.data)
    start = w.copy()
    check(
        LIB.wf_zoo_train_from(CTX, g, C.byref(data_of(x, y, classes)), C.byref(desc), w.ctypes.data)
    )
    reference, single = (
        list(torch_train(module, start.astype(np.float64), x, y, desc, FIRST, dtype))[-1]
        for dtype in (torch.float64, torch.float32)
    )
    # Rounding flips a few maxima and signs before a relu: PyTorch's own float run shows what is to
    # be had.
    moved = np.linalg.norm(reference - start)
    theirs = np.linalg.norm(single - reference) / moved
    return max(0, np.linalg.norm(w - reference) / moved - 3 * theirs)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    tests = []
    for case in cases():
        tests.append(
            (f"each update in double {case[0][:60]}", lambda c=case: step_by_step(*c), 1e-10)
        )
        tests.append((f"three epochs in float {case[0][:60]}", lambda c=case: whole_run(*c), 2e-4))
    return run_tests(tests)


if __name__ == "__main__":
    sys.exit(main())
