#!/usr/bin/env python3
"""One training step of the velocity field in PyTorch: both layouts, 64 x 8 on karhunen's
64-16-8-10, or 128 x 8 on MNIST's 784-32-32-10 with the first layer folded into its hidden nodes.

The textbook form: every MLP takes the concatenation of its inputs, messages are computed edge by
edge in both directions and added up at their receivers; gathering and summing are broadcasts and
sums over dense blocks, which is much faster in PyTorch than index lists. Networks of a batch are
stacked: (B, E, d). Forward, backward, clipping, AdamW.
  torch_step.py LAYOUT SECONDS THREADS                     this machine's cores, fp32, eager,
                                                           milliseconds a network
  torch_step.py LAYOUT SECONDS THREADS cuda CASE MODE      the GPU, bf16 autocast, batches of 256,
                                                           CASE karhunen or mnist, MODE eager or
                                                           compile: milliseconds a step, and of a
                                                           velocity of 100 networks
  ... FOLDER N                                             one of N such programs that compile side
                                                           by side and are then timed in turn"""
import atexit, fcntl, json, math, os, sys, time
import torch
from torch import nn
from torch.nn import functional as F

LAYOUT, SECONDS, THREADS = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
DEVICE, CASE, MODE = sys.argv[4:7] if len(sys.argv) > 4 else ("cpu", "karhunen", "eager")
GPU = DEVICE == "cuda"
TURNS, PROGRAMS = (sys.argv[7], int(sys.argv[8])) if len(sys.argv) > 8 else (None, 1)
BATCH, BLOCKS = 256 if GPU else 16, 8
# Widths of the groups that have nodes; a folded input layer has none: each node of the first group
# carries FOLD parameters.
WIDTHS, D, FOLD = ([64, 16, 8, 10], 64, 0) if CASE == "karhunen" else ([32, 32, 10], 128, 785)


def graph():
    """Node groups and dense blocks (receiving group, sending group), as tensors of roles and lists
    of slices."""
    groups, nodes = [], []
    for l, width in enumerate(WIDTHS):
        groups.append(slice(len(nodes), len(nodes) + width))
        kind = 0 if l == 0 and not FOLD else 2 if l == len(WIDTHS) - 1 else 1
        nodes += [(l, i if kind != 1 else -1, kind) for i in range(width)]
    blocks, edges = [], []
    for l in range(len(WIDTHS) - 1):
        groups.append(slice(len(nodes), len(nodes) + 1))
        nodes.append((l + 1, -1, 3))
        blocks += [(l + 1, l), (l + 1, len(groups) - 1)]
        edges += [(l, 0)] * (WIDTHS[l] * WIDTHS[l + 1]) + [(l, 1)] * WIDTHS[l + 1]
    return torch.tensor(nodes, device=DEVICE), torch.tensor(edges, device=DEVICE), groups, blocks


NODES, EDGES, GROUPS, BLOCK_LIST = graph()
VALUES = len(EDGES) + WIDTHS[0] * FOLD  # parameters of a network


def sizes(block):
    return [GROUPS[g].stop - GROUPS[g].start for g in block]


def spread(h):
    """Features of every edge's receiver and sender, (B, E, D) each: broadcasts, because blocks are
    dense."""
    receivers, senders = [], []
    for dst, src in BLOCK_LIST:
        n_dst, n_src = sizes((dst, src))
        receivers.append(h[:, GROUPS[dst], None].expand(-1, -1, n_src, -1).flatten(1, 2))
        senders.append(h[:, None, GROUPS[src]].expand(-1, n_dst, -1, -1).flatten(1, 2))
    return torch.cat(receivers, 1), torch.cat(senders, 1)


def collect(to_dst, to_src):
    """Sums of messages towards both ends, two tensors (B, N, D)."""
    forward, backward = [None] * len(GROUPS), [None] * len(GROUPS)
    add = lambda old, new: new if old is None else old + new
    at = 0
    for dst, src in BLOCK_LIST:
        n_dst, n_src = sizes((dst, src))
        one, other = (
            m[:, at : at + n_dst * n_src].unflatten(1, (n_dst, n_src)) for m in (to_dst, to_src)
        )
        forward[dst], backward[src] = add(forward[dst], one.sum(2)), add(
            backward[src], other.sum(1)
        )
        at += n_dst * n_src
    fill = lambda sums: torch.cat(
        [
            to_dst.new_zeros(len(to_dst), sizes([g])[0], to_dst.shape[2]) if s is None else s
            for g, s in enumerate(sums)
        ],
        1,
    )
    return fill(forward), fill(backward)


def norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def mlp(act, *sizes):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers += [nn.Linear(a, b)] + ([act()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*layers)


class TanhGELU(nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


class Block(nn.Module):
    def __init__(self, lean):
        super().__init__()
        self.lean = lean
        self.adaln = nn.Linear(D, (9 if lean else 6) * D)
        if lean:
            self.edge_in, self.edge_out = nn.Linear(4 * D, 4 * D), nn.Linear(2 * D, D)
            self.to_dst, self.to_src = nn.Linear(2 * D, D, bias=False), nn.Linear(
                2 * D, D, bias=False
            )
            self.node, self.glob = mlp(TanhGELU, 4 * D, 2 * D, D), mlp(TanhGELU, 3 * D, 2 * D, D)
        else:
            self.msg, self.edge = mlp(nn.SiLU, 4 * D, 2 * D, 2 * D, D), mlp(
                nn.SiLU, 4 * D, 2 * D, 2 * D, D
            )
            self.node, self.glob = mlp(nn.SiLU, 3 * D, 2 * D, 2 * D, D), mlp(
                nn.SiLU, 3 * D, 2 * D, 2 * D, D
            )

    def forward(self, h, e, u, s):
        parts = self.adaln(s).chunk(9 if self.lean else 6, -1)
        step = 3 if self.lean else 2
        modulate = (
            lambda x, k: norm(x) * (1 + parts[k * step + 1])[:, None] + parts[k * step][:, None]
        )
        hb, eb, ub = modulate(h, 0), modulate(e, 1), modulate(u, 2)
        gate = [1 + parts[k * step + 2][:, None] for k in range(3)] if self.lean else [1, 1, 1]
        every = lambda n: ub.expand(-1, n, -1)
        receiver, sender = spread(hb)
        if self.lean:
            x = F.gelu(
                self.edge_in(torch.cat([eb, receiver, sender, every(e.shape[1])], -1)),
                approximate="tanh",
            )
            m, z = x.split(2 * D, -1)
            delta = self.edge_out(z)
            sums = collect(self.to_dst(m), self.to_src(m))
            x = self.node(torch.cat([hb, *sums, every(h.shape[1])], -1))
        else:
            forward = self.msg(torch.cat([eb, receiver, sender, every(e.shape[1])], -1))
            backward = self.msg(torch.cat([eb, sender, receiver, every(e.shape[1])], -1))
            delta = self.edge(torch.cat([eb, receiver, sender, every(e.shape[1])], -1))
            x = self.node(torch.cat([hb, sum(collect(forward, backward)), every(h.shape[1])], -1))
        g = self.glob(torch.cat([hb.mean(1, True), eb.mean(1, True), ub], -1))
        return h + gate[0] * x, e + gate[1] * delta, u + gate[2] * g


class Field(nn.Module):
    def __init__(self, lean):
        super().__init__()
        sine = lambda k: nn.Linear(k, D)
        self.layer, self.order, self.kind, self.node_projection = (
            sine(1), sine(1), nn.Embedding(17, D), nn.Linear(3 * D, D),
        )
        self.value, self.elayer, self.ekind, self.position = (
            sine(1), sine(1), nn.Embedding(14, D), sine(3),
        )
        self.edge_projection = nn.Linear(4 * D, D)
        self.time = mlp(nn.SiLU, D, D, D)
        self.start = nn.Parameter(torch.randn(D) * 0.02)
        self.blocks = nn.ModuleList(Block(lean) for _ in range(BLOCKS))
        self.readout = mlp(TanhGELU if lean else nn.SiLU, D, D, 1)
        if FOLD:
            self.fold_in, self.fold_out = nn.Linear(FOLD, D), nn.Linear(D, FOLD)

    def forward(self, w, t):
        half = D // 2
        phase = (
            1000 * t[:, None] * torch.exp(-math.log(1e4) * torch.arange(half, device=DEVICE) / half)
        )
        s = F.silu(self.time(torch.cat([phase.cos(), phase.sin()], -1)))
        nodes, edges = NODES, EDGES
        w, rows = w[:, : len(edges)], (
            w[:, len(edges) :].unflatten(1, (WIDTHS[0], FOLD)) if FOLD else None
        )
        h = self.node_projection(
            torch.cat(
                [
                    self.layer(nodes[:, :1].float()).sin(),
                    self.order(nodes[:, 1:2].float()).sin(),
                    self.kind(nodes[:, 2]),
                ],
                -1,
            )
        ).expand(len(w), -1, -1)
        if FOLD:
            h = torch.cat([h[:, :WIDTHS[0]] + self.fold_in(rows), h[:, WIDTHS[0]:]], 1)
        roles = torch.cat([self.elayer(edges[:, :1].float()).sin(), self.ekind(edges[:, 1]),
                           self.position(-torch.ones(len(edges), 3, device=DEVICE)).sin()], -1)
        e = self.edge_projection(
            torch.cat([self.value(w[..., None]).sin(), roles.expand(len(w), -1, -1)], -1)
        )
        u = self.start.expand(len(w), 1, -1)
        for block in self.blocks:
            h, e, u = block(h, e, u, s)
        v = self.readout(norm(e))[..., 0]
        return torch.cat([v, self.fold_out(norm(h[:, :WIDTHS[0]])).flatten(1)], 1) if FOLD else v


torch.set_num_threads(THREADS)
torch.manual_seed(1)
field = Field(LAYOUT == "lean").to(DEVICE)
run = torch.compile(field) if MODE == "compile" else field
optimizer = torch.optim.AdamW(field.parameters(), 1e-3, **({"fused": True} if GPU else {}))
data = torch.randn(256, VALUES, device=DEVICE)


def velocity(w, t):
    with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
        return run(w, t)


def step():
    w1, w0 = data[torch.randint(256, (BATCH,), device=DEVICE)], torch.randn(
        BATCH, VALUES, device=DEVICE
    )
    t = torch.rand(BATCH, device=DEVICE)
    loss = (
        (velocity((1 - t[:, None]) * w0 + t[:, None] * w1, t).float() - (w1 - w0)).square().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(field.parameters(), 1.0)
    optimizer.step()


@torch.no_grad()
def sample():
    velocity(data[:100], torch.full((100,), 0.5, device=DEVICE))


def wait():
    if GPU:
        torch.cuda.synchronize()


def my_turn():
    """Returns when all programs have compiled (or died) and no other is being timed; held until
    this one ends."""
    ready = lambda: open(os.path.join(TURNS, f"{os.getpid()}.ready"), "w").close()
    atexit.register(ready)
    for action in (step, sample) * 2:
        action()
    wait()
    ready()
    while sum(name.endswith(".ready") for name in os.listdir(TURNS)) < PROGRAMS:
        time.sleep(0.05)
    my_turn.lock = open(os.path.join(TURNS, "turn"), "w")
    fcntl.flock(my_turn.lock, fcntl.LOCK_EX)


def best(action):
    """Milliseconds, best of the runs that fit into SECONDS; two more before."""
    times = []
    for _ in range(2):
        action()
    wait()
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        action()
        wait()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


if TURNS:
    my_turn()
count = f"{sum(p.numel() for p in field.parameters()):,} parameters"
if GPU:
    took, peak = best(step), torch.cuda.max_memory_allocated() / 2**30
    print(
        json.dumps(
            {
                "name": f"{CASE} {LAYOUT}", "mode": MODE, "step": took, "GiB": peak,
                "velocity": best(sample), "note": count,
            }
        )
    )
else:
    print(
        json.dumps(
            {
                "name": LAYOUT, "value": best(step) / BATCH, "unit": "ms a network",
                "note": f"eager, textbook form, {count}",
            }
        )
    )
