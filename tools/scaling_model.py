#!/usr/bin/env python3
"""scaling_model.py: predicts updates a second on many GPUs; docs/scaling.md has its table.

    scaling_model.py            the table, as Markdown, and where more GPUs stop paying
    scaling_model.py --svg      the plot: docs/scaling.svg

A prediction from figures of one GPU. An update takes
    fixed + networks of a GPU * each + what is seen of the sums + the gather of Muon's matrices
The gradient is summed in stages, beside the backward pass of the next stage: a ring inside a host
and one between hosts, each GPU with a network card of its own."""
import math, sys

# Measured on one H200: docs/results/2026-11-19-ranks-h200.md
PARAMS = 1_660_033       # karhunen.conf's field: lean, 64 x 8
UPDATE = 6.748e-3        # seconds of an update of 256, bf16, without NCCL
NCCL = 0.0008            # of it: what NCCL's way costs one rank, at most
LINE = (56, 2.40e-3), (256, 6.69e-3)  # updates of two batches, in one run
STAGES = 4               # of the sum
BACKWARD = 0.6           # of the time of a network; assumed
# Assumed, because only one GPU was there.
IN_HOST = 300e9          # bytes a second between GPUs of a host (NVLink, 450e9 on paper)
BETWEEN = 40e9           # bytes a second and GPU between hosts (400 Gbit/s, 50e9 on paper)
LATENCY = 20e-6, 10e-6   # of a call, and more for each doubling of the hosts
PAYS = 1.25              # a doubling that pays makes this many times the updates
GPUS = 8                 # of a host
HOSTS = 1, 8, 64, 512
FLEETS = [(1, 1)] + [(hosts, GPUS) for hosts in HOSTS]

SLOPE = (LINE[1][1] - LINE[0][1]) / (LINE[1][0] - LINE[0][0])
FIXED = LINE[0][1] - LINE[0][0] * SLOPE
EACH = (UPDATE - FIXED) / 256


def call(hosts, gpus, passes):
    """A ring that sends the gradient `passes` times: 2 a sum, 1 a gather. Seconds for latency, and
    for bytes."""
    size = 4 * PARAMS
    inside = passes * (gpus - 1) / gpus * size / IN_HOST
    outside = passes * (hosts - 1) / hosts * size / gpus / BETWEEN
    return LATENCY[0] + LATENCY[1] * math.log2(hosts), inside + outside


def ranks_cost(hosts, gpus, batch):
    """What several ranks add: all sums, what is seen of them beside the backward pass, and the
    gather."""
    if hosts * gpus == 1:
        return 0, 0, 0
    latency, moving = call(hosts, gpus, 2)
    stage = latency + moving / STAGES
    backward = batch / (hosts * gpus) * EACH * BACKWARD / STAGES
    seen = stage + (STAGES - 1) * max(0, stage - backward) + latency  # that of the losses
    return STAGES * stage + latency, seen, sum(call(hosts, gpus, 1))


def update(hosts, gpus, batch):
    _, seen, gather = ranks_cost(hosts, gpus, batch)
    alone = FIXED + batch / (hosts * gpus) * EACH
    return alone if hosts * gpus == 1 else alone * (1 + NCCL) + seen + gather


def fixed_batch(hosts, gpus):
    return max(256, hosts * gpus)  # a GPU has one network at least


def table():
    print(
        "| hosts x GPUs | sums and gather | seen of them, batch 256 | "
        "updates a second, batch 256 | networks a second, batch 256 | "
        "networks a second, 256 a GPU | efficiency, 256 a GPU |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for hosts, gpus in FLEETS:
        n, batch = hosts * gpus, fixed_batch(hosts, gpus)
        fixed, growing = update(hosts, gpus, batch), update(hosts, gpus, 256 * n)
        sums, seen, gather = ranks_cost(hosts, gpus, batch)
        print(
            f"| {hosts} x {gpus} | {1e3 * (sums + gather):.2f} ms | "
            f"{1e3 * (seen + gather):.2f} ms | {1 / fixed:,.0f} | {batch / fixed:,.0f} | "
            f"{256 * n / growing:,.0f} | {UPDATE / growing:.0%} |"
        )


def stops_paying():
    """Doublings of one GPU; those with the batch fixed end where each GPU has one network."""
    fleets = [(1, 1), (1, 2), (1, 4)] + [(2 ** k, GPUS) for k in range(6)]
    speed = [update(1, 1, 256) / update(h, g, 256) for h, g in fleets]
    last = next(k for k in range(1, len(fleets)) if speed[k] < PAYS * speed[k - 1]) - 1
    most = max(range(len(fleets)), key=lambda k: speed[k])
    gpus = [h * g for h, g in fleets]
    print(
        f"With the batch fixed at 256, {gpus[last]} GPUs still pay ({speed[last]:.1f} times the "
        f"updates of one); {gpus[last + 1]} make {speed[last + 1]:.1f} times."
    )
    print(
        f"More than {gpus[most]} GPUs make an update no faster: "
        f"{speed[most]:.1f} times at the most."
    )


def plot():
    width, height, left, top = 560, 300, 70, 20
    most = math.log2(HOSTS[-1] * GPUS)
    curves = [
        ("batch 256", "#b04030", lambda h, g: UPDATE / update(h, g, fixed_batch(h, g))),
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
               f'text-anchor="middle">speed, one GPU = 1</text></svg>')
    print("\n".join(out))


if sys.argv[1:] == ["--svg"]:
    plot()
else:
    table()
    print()
    stops_paying()
