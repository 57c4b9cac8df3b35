"""AdamW against torch.optim.AdamW with torch's clipping; Muon against a plain PyTorch writing of
it; EMA."""
import ctypes as C
import sys

import numpy as np
import torch

from flow_internals import library, report

LIB = library()


class Tensor(C.Structure):
    _fields_ = [("offset", C.c_size_t), ("rows", C.c_int), ("cols", C.c_int), ("matrix", C.c_bool),
                ("decay", C.c_bool)]


class Desc(C.Structure):
    _fields_ = [
        ("lr", C.c_double), ("weight_decay", C.c_double), ("beta1", C.c_double),
        ("beta2", C.c_double), ("eps", C.c_double), ("muon", C.c_bool), ("muon_lr", C.c_double),
        ("muon_momentum", C.c_double), ("clip", C.c_double), ("ema", C.c_double),
        ("dtype", C.c_int),
    ]


LIB.oracle_optim.argtypes = [
    C.POINTER(Desc), C.POINTER(Tensor), C.c_int, C.c_size_t, C.c_int, C.c_void_p, C.c_void_p,
    C.c_void_p, C.c_void_p,
]

# rows, cols, matrix, decay
SHAPES = [
    (128, 32, True, True), (32, 1, False, False), (32, 128, True, True), (17, 23, False, True),
    (9, 1, False, False), (64, 64, True, False),
]
UPDATES = 30


def ours(desc, weights, grads, factors):
    real = np.float64 if desc.dtype else np.float32
    tensors, offset = (Tensor * len(SHAPES))(), 0
    for i, (rows, cols, matrix, decay) in enumerate(SHAPES):
        tensors[i] = Tensor(offset, rows, cols, matrix, decay)
        offset += rows * cols
    w = np.concatenate([x.ravel() for x in weights]).astype(real)
    g = np.stack([np.concatenate([x.ravel() for x in step]) for step in grads]).astype(real)
    f = np.asarray(factors, dtype=np.float64)
    ema = np.empty_like(w)
    status = LIB.oracle_optim(
        C.byref(desc), tensors, len(SHAPES), w.size, len(grads), g.ctypes.data, f.ctypes.data,
        w.ctypes.data, ema.ctypes.data if desc.ema > 0 else None,
    )
    assert status == 0
    return w, ema


def newton_schulz(g):
    x = g / (g.norm() + 1e-7)
    turned = x.shape[0] > x.shape[1]
    if turned:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if turned else x


def theirs(desc, weights, grads, factors, dtype):
    params = [torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for w in weights]
    use_muon = [desc.muon and shape[2] for shape in SHAPES]
    groups = [{"params": [p], "weight_decay": desc.weight_decay if shape[3] else 0.0}
              for p, shape, muon in zip(params, SHAPES, use_muon) if not muon]
    adamw = torch.optim.AdamW(groups, lr=desc.lr, betas=(desc.beta1, desc.beta2), eps=desc.eps)
    momentum = [torch.zeros_like(p) for p in params]
    ema = [p.detach().clone() for p in params]
    for n, (step, factor) in enumerate(zip(grads, factors)):
        for p, g in zip(params, step):
            p.grad = torch.tensor(g, dtype=dtype)
        if desc.clip > 0:
            torch.nn.utils.clip_grad_norm_(params, desc.clip)
        for group in adamw.param_groups:
            group["lr"] = desc.lr * factor
        adamw.step()
        with torch.no_grad():
            for i, p in enumerate(params):
                if not use_muon[i]:
                    continue
                momentum[i].mul_(desc.muon_momentum).add_(p.grad)
                update = newton_schulz(p.grad + desc.muon_momentum * momentum[i])
                rate = desc.muon_lr * factor
                p.mul_(1 - rate * (desc.weight_decay if SHAPES[i][3] else 0.0))
                p.sub_(rate * max(1, p.shape[0] / p.shape[1]) ** 0.5 * update)
            decay = min(desc.ema, (1 + n) / (10 + n))
            for e, p in zip(ema, params):
                e.mul_(decay).add_(p, alpha=1 - decay)
    flat = lambda list_: torch.cat([x.detach().flatten() for x in list_]).double().numpy()
    return flat(params), flat(ema)


def main():
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=(r, c)).astype(np.float32) for r, c, _, _ in SHAPES]
    grads = [
        [(0.02 * rng.normal(size=(r, c))).astype(np.float32) for r, c, _, _ in SHAPES]
        for _ in range(UPDATES)
    ]
    factors = [min(1, (i + 1) / 5) * 0.98**i for i in range(UPDATES)]
    good = True
    for muon in (False, True):
        for clip in (0.0, 1.0):
            # Muon multiplies matrices in the type of the arrays.
            for dtype, bound in ((0, 1e-5 if muon else 1e-6), (1, 1e-13)):
                desc = Desc(3e-3, 0.05, 0.9, 0.99, 1e-8, muon, 0.02, 0.95, clip, 0.95, dtype)
                w, ema = ours(desc, weights, grads, factors)
                tw, tema = theirs(desc, weights, grads, factors, torch.float64)
                error = np.linalg.norm(w - tw) / np.linalg.norm(tw)
                ema_error = np.linalg.norm(ema - tema) / np.linalg.norm(tema)
                name = (
                    f"optim_{'muon' if muon else 'adamw'}_clip{clip:g}_{('float', 'double')[dtype]}"
                )
                good &= report(name, error < bound and ema_error < bound,
                               f"relative difference {error:.1e}, ema {ema_error:.1e}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
