#!/usr/bin/env python3
"""Weight matchings of 64-16-8-10 networks a second on one core: PyTorch products, SciPy's
assignment, five sweeps.
  torch_wcs.py SECONDS"""
import json, sys, time
import torch
from scipy.optimize import linear_sum_assignment

WIDTHS = [64, 16, 8, 10]
torch.set_num_threads(1)
torch.manual_seed(1)


def network():
    return [(torch.randn(b, a), torch.randn(b)) for a, b in zip(WIDTHS, WIDTHS[1:])]


def cosine(a, b):
    """Largest cosine found: hidden layers in turn, each matched with the others fixed."""
    order = [torch.arange(width) for width in WIDTHS]
    for _ in range(5):
        for l in range(1, len(WIDTHS) - 1):
            (wa, ba), (wb, bb) = a[l - 1], b[l - 1]
            score = wa @ wb[:, order[l - 1]].T + torch.outer(ba, bb)
            score += a[l][0].T @ b[l][0][order[l + 1]]
            order[l] = torch.from_numpy(linear_sum_assignment(score.numpy(), maximize=True)[1])
    moved = [(w[order[l + 1]][:, order[l]], c[order[l + 1]]) for l, (w, c) in enumerate(b)]
    flat = lambda net: torch.cat([torch.cat([w.flatten(), c]) for w, c in net])
    return torch.nn.functional.cosine_similarity(flat(a), flat(moved), 0).item()


seconds = float(sys.argv[1])
a, others = network(), [network() for _ in range(32)]
cosine(a, others[0])
count, begin = 0, time.perf_counter()
while count < 32 or time.perf_counter() - begin < seconds:
    cosine(a, others[count % 32])
    count += 1
print(
    json.dumps(
        {
            "name": "wcs", "value": count / (time.perf_counter() - begin), "unit": "pairs/s a core",
            "note": "PyTorch and SciPy, pair by pair",
        }
    )
)
