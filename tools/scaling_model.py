#!/usr/bin/env python3
"""scaling_model.py: predicts updates a second on many GPUs; docs/scaling.md has its table.

    scaling_model.py            the table, as Markdown
    scaling_model.py --svg      the plot: docs/scaling.svg

A prediction, not a measurement. An update takes
    fixed + networks of a GPU * each + reduction of the gradient
The reduction is a ring inside a host and one between hosts, each GPU with a network card of its
own."""
import math, sys

PARAMS = 1_958_017       # the paper's karhunen field (lstar 64 x 8)
UPDATE = 12.4e-3         # seconds, batch 256, one H200, version 0.1 (docs/results)
FIXED = 1e-3             # assumed: launches, optimiser, what does not shrink with the batch
EACH = (UPDATE - FIXED) / 256
IN_HOST = 300e9          # assumed bytes a second between GPUs of a host (NVLink, 450e9 on paper)
BETWEEN = 40e9           # assumed bytes a second and GPU between hosts (400 Gbit/s, 50e9 on paper)
LATENCY = 20e-6, 10e-6   # assumed: of a reduction, and more for each doubling of the hosts
GPUS = 8                 # of a host
HOSTS = 1, 8, 64, 512
FLEETS = [(1, 1)] + [(hosts, GPUS) for hosts in HOSTS]


def reduction(hosts, gpus):
    size = 4 * PARAMS
    if hosts * gpus == 1:
        return 0
    inside = 2 * (gpus - 1) / gpus * size / IN_HOST
    outside = 2 * (hosts - 1) / hosts * size / gpus / BETWEEN
    return inside + outside + LATENCY[0] + LATENCY[1] * math.log2(hosts)


def update(hosts, gpus, batch):
    return FIXED + batch / (hosts * gpus) * EACH + reduction(hosts, gpus)


def table():
    print(
        "| hosts x GPUs | reduction | updates a second, batch 256 | networks a second, batch 256 | "
        "networks a second, 256 a GPU | efficiency, 256 a GPU |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for hosts, gpus in FLEETS:
        n = hosts * gpus
        fixed = update(hosts, gpus, max(256, n))  # a GPU has one network at least
        growing = update(hosts, gpus, 256 * n)
        print(f"| {hosts} x {gpus} | {1e3 * reduction(hosts, gpus):.2f} ms | {1 / fixed:,.0f} | "
              f"{max(256, n) / fixed:,.0f} | {256 * n / growing:,.0f} | {UPDATE / growing:.0%} |")


def plot():
    width, height, left, top = 560, 300, 70, 20
    most = math.log2(HOSTS[-1] * GPUS)
    curves = [
        ("batch 256", "#b04030", lambda h, g: UPDATE / update(h, g, max(256, h * g))),
        ("256 networks a GPU", "#3060b0", lambda h, g: h * g * UPDATE / update(h, g, 256 * h * g)),
        ("ideal", "#999999", lambda h, g: h * g),
    ]
    x = lambda h, g: left + (width - left - 150) * math.log2(h * g) / most
    y = lambda v: height - 40 - (height - 40 - top) * math.log2(max(v, 1)) / most
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for hosts, gpus in FLEETS:
        out.append(
            f'<text x="{x(hosts, gpus):.0f}" y="{height - 22}" '
            f'text-anchor="middle">{hosts * gpus}</text>'
        )
        out.append(
            f'<text x="{left - 8}" y="{y(hosts * gpus) + 4:.0f}" '
            f'text-anchor="end">{hosts * gpus}</text>'
        )
    for name, colour, value in curves:
        points = " ".join(f"{x(h, g):.1f},{y(value(h, g)):.1f}" for h, g in FLEETS)
        end = y(value(*FLEETS[-1]))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(
            f'<text x="{x(*FLEETS[-1]) + 6:.0f}" y="{end + 4:.0f}" fill="{colour}">{name}</text>'
        )
    out.append(
        f'<text x="{width / 2 - 60:.0f}" y="{height - 5}" text-anchor="middle">GPUs '
        f'(predicted)</text>'
    )
    out.append(f'<text x="12" y="{height / 2:.0f}" transform="rotate(-90 12 {height / 2:.0f})" '
               f'text-anchor="middle">times the networks a second of one GPU</text></svg>')
    print("\n".join(out))


plot() if sys.argv[1:] == ["--svg"] else table()
