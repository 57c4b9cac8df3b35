#!/usr/bin/env python3
"""The GMN velocity field against an independent PyTorch implementation in textbook form.

Here every MLP takes the concatenation of its inputs, every edge is handled one by one through index
lists, gradients come from autograd, steps from torch.optim.AdamW, and nothing is factorised.
Compared with the library's field and its own AdamW, which makes three steps without seeing a number
of PyTorch's: velocity, gradient of every parameter tensor by name, gradient by the weights, and the
parameters behind each step; random values in ALL parameters. double: 1e-8 by norm per tensor,
float: 1e-3.
"""
import functools, math, sys
import numpy as np
import torch
from torch_case import STEPS, Comparison, Dump, run_cases

LEAN, LSTAR = 0, 1
SUM, MEAN, ATTENTION = 0, 1, 2
SINE, FOURIER, SCALAR = 0, 1, 2
DEFAULT, SILU, GELU = 0, 1, 2
NONE, LINEAR, MLP = 0, 1, 2


# --- the graph of a network, written from its description alone -----------------------------------
def conv_layers(arch):
    """(units, coefficients of an edge) of each layer, the input first: "2x6x6 conv3k5 pool3
    linear2"."""
    words = arch.split()
    channels, height, width = map(int, words[0].split("x"))
    layers = [(channels, 0)]
    for word in words[1:]:
        kind, rest = word.rstrip("0123456789k"), word[len(word.rstrip("0123456789k")):]
        if kind == "pool":
            height, width = height // int(rest), width // int(rest)
        elif kind == "conv":
            units, kernel = map(int, rest.split("k"))
            layers.append((units, kernel * kernel))
        else:
            layers.append((int(rest), height * width))
            height = width = 1
    return layers


def conv_graph(arch):
    """graph_of for a chain of convolutions and linear layers: an edge carries a kernel."""
    layers = conv_layers(arch)
    last = len(layers) - 1
    nodes, first, edges, parameter = [], [], [], 0
    for l, (units, _) in enumerate(layers):
        first.append(len(nodes))
        kind = 0 if l == 0 else 2 if l == last else 1
        nodes += [(l, i if kind != 1 else -1, kind) for i in range(units)]
    for l in range(1, last + 1):
        (n_in, _), (n_out, coef), bias_node = layers[l - 1], layers[l], len(nodes)
        nodes.append((l, -1, 3))
        for i in range(n_out):
            for j in range(n_in):
                edges.append(
                    (
                        first[l] + i, first[l - 1] + j, l - 1, 0, parameter + (i * n_in + j) * coef,
                        coef,
                    )
                )
        parameter += n_out * n_in * coef
        edges += [(first[l] + i, bias_node, l - 1, 1, parameter + i, 1) for i in range(n_out)]
        parameter += n_out
    return nodes, edges, [], parameter


def graph_of(arch):
    """Nodes (layer, order, type), edges (dst, src, layer, type, parameter, coefficients), folded
    rows (node, parameters)."""
    if " " in arch:
        return conv_graph(arch)
    fold = arch.startswith("*")
    words = arch.lstrip("*").split("-")
    bias = [not word.endswith("!") for word in words[1:]]
    widths = [int(word.rstrip("!")) for word in words]
    layers = len(widths) - 1
    nodes, first = [], []
    for l, width in enumerate(widths):
        first.append(len(nodes))
        if l == 0 and fold:
            continue
        kind = 0 if l == 0 else 2 if l == layers else 1
        nodes += [(l, i if kind != 1 else -1, kind) for i in range(width)]
    bias_node = {}
    for l in range(layers):
        if bias[l] and not (l == 0 and fold):
            bias_node[l] = len(nodes)
            nodes.append((l + 1, -1, 3))
    edges, folds, parameter = [], [], 0
    for l in range(layers):
        n_in, n_out = widths[l], widths[l + 1]
        weight = parameter
        parameter += n_in * n_out
        if l == 0 and fold:
            rows = [list(range(weight + i * n_in, weight + (i + 1) * n_in)) for i in range(n_out)]
            if bias[0]:
                for i in range(n_out):
                    rows[i].append(parameter + i)
            folds = [(first[1] + i, rows[i]) for i in range(n_out)]
        else:
            for i in range(n_out):
                for j in range(n_in):
                    edges.append((first[l + 1] + i, first[l] + j, l, 0, weight + i * n_in + j, 1))
            if bias[l]:
                for i in range(n_out):
                    edges.append((first[l + 1] + i, bias_node[l], l, 1, parameter + i, 1))
        if bias[l]:
            parameter += n_out
    return nodes, edges, folds, parameter


# --- the network ----------------------------------------------------------------------------------
def norm(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-6)


class Field:
    def __init__(self, config, tensors, frequencies):
        self.c, self.p = config, tensors
        half = config["edge"] // 2
        self.frequencies = dict(
            value=frequencies[:half, None],
            layer=frequencies[half : 2 * half, None],
            position=frequencies[2 * half :].reshape(half, 3),
        )
        gelu = config["activation"] == GELU or (
            config["activation"] == DEFAULT and config["layout"] == LEAN
        )
        self.act = (
            (lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
            if gelu
            else torch.nn.functional.silu
        )

    def vector(self, name):
        return self.p[name].reshape(-1)

    def affine(self, name, x, parts=None):
        """parts: suffixes of the operands, in the order of the concatenation x."""
        weight = (
            self.p[name + ".weight"]
            if parts is None
            else torch.cat([self.p[f"{name}.weight_{s}"] for s in parts], 1)
        )
        return x @ weight.T + self.vector(name + ".bias")

    def time(self, t, cond, drop):
        half = self.c["time"] // 2
        frequency = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float64) / half)
        phase = 1000.0 * t.double()[:, None] * frequency
        features = torch.cat([torch.cos(phase), torch.sin(phase)], 1).to(t.dtype)
        silu = torch.nn.functional.silu
        z = self.affine("time.2", silu(self.affine("time.0", features)))
        if self.c["cond"] != NONE:
            code = self.affine("cond.0", cond)
            if self.c["cond"] == MLP:
                code = self.affine("cond.2", silu(code))
            code = torch.where(drop[:, None], self.vector("cond.null")[None, :], code)
            if self.c["cond"] == LINEAR:
                z = z + code
            else:
                z = self.affine("fuse", torch.cat([z, code], 1), ["time", "cond"])
        return silu(z)

    def sine(self, name, x):
        return torch.sin(self.affine(name, x))

    def edge_code(self, name, x):
        if self.c["encoder"] == FOURIER:
            phase = 2 * math.pi * (x.double() @ self.frequencies[name].T)
            return torch.cat([torch.sin(phase), torch.cos(phase)], 1).to(x.dtype)
        code = self.affine("edge_encoder." + name, x)
        return (
            code
            if self.c["encoder"] == SCALAR and name not in ("layer", "position")
            else torch.sin(code)
        )

    def kernels(self):
        """Coefficients of an edge -> suffix of its tensors' names."""
        out = {1: None}
        for name in self.p:
            if name.startswith("kernel_readout") and name.endswith(".2.weight"):
                out[self.p[name].shape[0]] = name[len("kernel_readout"):-len(".2.weight")]
        return out

    def forward_one(self, graph, w, s):
        """Velocity of one network."""
        nodes, edges, folds, count = graph
        c, p, dtype = self.c, self.p, w.dtype
        dn, de = c["node"], c["edge"]
        role = torch.tensor(nodes, dtype=torch.long)
        h = self.affine(
            "node_encoder.projection",
            torch.cat(
                [
                    self.sine("node_encoder.layer", role[:, :1].to(dtype)),
                    self.sine("node_encoder.order", role[:, 1:2].to(dtype)),
                    p["node_encoder.type"][role[:, 2]],
                ],
                1,
            ),
            ["layer", "order", "type"],
        )
        edge = torch.tensor(edges, dtype=torch.long).reshape(-1, 6)
        sizes = [
            (coef, suffix, torch.nonzero(edge[:, 5] == coef)[:, 0])
            for coef, suffix in self.kernels().items()
        ]
        taken = {coef: edge[some, 4, None] + torch.arange(coef) for coef, _, some in sizes}
        values = torch.zeros(len(edges), de, dtype=dtype)
        for coef, suffix, some in sizes:
            name = "value" if suffix is None else "kernel" + suffix
            if len(some):
                values = values.index_add(0, some, self.edge_code(name, w[taken[coef]]))
        dst, src = edge[:, 0], edge[:, 1]
        position = torch.full((len(edges), 3), -1.0, dtype=dtype)
        e = self.affine(
            "edge_encoder.projection",
            torch.cat(
                [
                    values, self.edge_code("layer", edge[:, 2:3].to(dtype)),
                    p["edge_encoder.type"][edge[:, 3]], self.edge_code("position", position),
                ],
                1,
            ),
            ["value", "layer", "type", "position"],
        )
        u = self.vector("global_start")
        if folds:
            at = torch.tensor([node for node, _ in folds])
            rows = torch.tensor([row for _, row in folds])
            h = h.index_add(0, at, self.affine("fold_encoder", w[rows]))
        for k in range(c["blocks"]):
            h, e, u = self.block(f"blocks.{k}.", h, e, u, s, dst, src)
        v = torch.zeros_like(w)
        for coef, suffix, some in sizes:
            name = "readout" if suffix is None else "kernel_readout" + suffix
            y = self.affine(name + ".2", self.act(self.affine(name + ".0", norm(e[some]))))
            v = v.index_add(0, taken[coef].reshape(-1), y.reshape(-1))
        if folds:
            v = v.index_add(
                0, rows.reshape(-1), self.affine("fold_decoder", norm(h[at])).reshape(-1)
            )
        return v

    def block(self, b, h, e, u, s, dst, src):
        c = self.c
        dn, de = c["node"], c["edge"]
        lean = c["layout"] == LEAN
        modulation = self.affine(b + "adaln", s)
        widths = [d for width in (dn, de, de) for d in [width] * (3 if lean else 2)]
        parts = torch.split(modulation, widths)
        step = 3 if lean else 2
        hb = norm(h) * (1 + parts[1]) + parts[0]
        eb = norm(e) * (1 + parts[step + 1]) + parts[step]
        ub = norm(u) * (1 + parts[2 * step + 1]) + parts[2 * step]
        gates = [1 + parts[i * step + 2] for i in range(3)] if lean else [1, 1, 1]
        nodes, many = h.shape[0], eb.shape[0]
        every = lambda rows: ub.expand(rows, -1)
        # messages entering nodes: (receiver, message in the space the sum is taken in, message)
        if lean:
            x = self.act(
                self.affine(
                    b + "edge.0",
                    torch.cat([eb, hb[dst], hb[src], every(many)], 1),
                    ["e", "d", "s", "u"],
                )
            )
            m, z = x[:, : 2 * de], x[:, 2 * de :]
            e_new = e + gates[1] * self.affine(b + "edge.2", z)
            to_dst = m @ self.p[b + "msg.forward.weight"].T
            to_src = m @ self.p[b + "msg.backward.weight"].T
            weights = self.weights(b, torch.cat([to_dst, to_src]), torch.cat([dst, src]), nodes)
            zero = torch.zeros(nodes, dn, dtype=h.dtype)
            incoming = [zero.index_add(0, dst, weights[:many, None] * to_dst),
                        zero.index_add(0, src, weights[many:, None] * to_src)]
            x = torch.cat([hb, *incoming, every(nodes)], 1)
            x = self.affine(
                b + "node.2", self.act(self.affine(b + "node.0", x, ["h", "f", "b", "u"]))
            )
        else:
            def mlp(name, x, parts):
                x = self.act(self.affine(b + name + ".0", x, parts))
                return self.affine(b + name + ".4", self.act(self.affine(b + name + ".2", x)))
            receiver, sender = torch.cat([dst, src]), torch.cat([src, dst])
            message = mlp(
                "msg",
                torch.cat([torch.cat([eb, eb]), hb[receiver], hb[sender], every(2 * many)], 1),
                ["e", "i", "j", "u"],
            )
            weights = self.weights(b, message, receiver, nodes)
            total = torch.zeros(nodes, dn, dtype=h.dtype).index_add(
                0, receiver, weights[:, None] * message
            )
            e_new = e + mlp(
                "edge", torch.cat([eb, hb[dst], hb[src], every(many)], 1), ["e", "i", "j", "u"]
            )
            x = mlp("node", torch.cat([hb, total, every(nodes)], 1), ["h", "m", "u"])
        h_new = h + gates[0] * x
        mean_e = eb.mean(0) if many else torch.zeros(de, dtype=h.dtype)
        g = self.act(
            self.affine(b + "global.0", torch.cat([hb.mean(0), mean_e, ub]), ["h", "e", "u"])
        )
        g = (
            self.affine(b + "global.2", g)
            if lean
            else self.affine(b + "global.4", self.act(self.affine(b + "global.2", g)))
        )
        return h_new, e_new, u + gates[2] * g

    def weights(self, b, message, receiver, nodes):
        """What each message counts at its receiver."""
        if self.c["messages"] == SUM:
            return torch.ones(len(receiver), dtype=message.dtype)
        if self.c["messages"] == MEAN:
            degree = torch.bincount(receiver, minlength=nodes)
            return 1 / degree[receiver].to(message.dtype)
        logit = self.affine(b + "logit", message)[:, 0]
        weights = torch.empty_like(logit)
        for node in range(nodes):
            at = torch.nonzero(receiver == node)[:, 0]
            weights = weights.index_put((at,), torch.softmax(logit[at], 0))
        return weights


# --- comparison -----------------------------------------------------------------------------------
def oracle(config, graphs, frequencies, params, w, t, cond, drop, dv):
    w.requires_grad_(True)
    # not None: AdamW passes over such a tensor, without its decay
    for tensor in [*params.values(), w]:
        tensor.grad = torch.zeros_like(tensor)
    field = Field(config, params, frequencies)
    s = field.time(t, cond, drop)
    v, at = [], 0
    for k, graph in enumerate(graphs):
        v.append(field.forward_one(graph, w[at : at + graph[3]], s[k]))
        at += graph[3]
    v = torch.cat(v)
    (v * dv).sum().backward()
    return v.detach()


def run_case(config, archs, program, folder, dtype, tolerance):
    keys = (
        "layout node edge time blocks messages encoder activation cond cond_size fold_rows".split()
    )
    dump = Dump(program, folder, [config[key] for key in keys], archs)
    graphs = [graph_of(arch) for arch in archs]
    rng = np.random.default_rng(5)
    params = dump.random_params(rng)
    many = sum(graph[3] for graph in graphs)
    w, dv = rng.standard_normal(many).astype(np.float32), rng.standard_normal(many).astype(
        np.float32
    )
    t = rng.random(len(archs)).astype(np.float32)
    cond = rng.standard_normal((len(archs), config["cond_size"])).astype(np.float32)
    drop = np.arange(len(archs)) % 3 == 1
    torch_side = Comparison(dump, params, dtype, tolerance)
    check, theirs, as_torch = torch_side.check, torch_side.params, torch_side.tensor
    # params, v, grad, dw of the library: at first and after each step of its AdamW; then the
    # Fourier encoder's frequencies
    raw = dump.run([params, w, t, cond, drop, dv], dtype, torch_side.eps)
    rows = np.frombuffer(raw, dtype, (STEPS + 1) * 2 * (many + params.size)).reshape(STEPS + 1, -1)
    frequencies = torch.tensor(np.frombuffer(raw, np.float64, offset=rows.nbytes).copy())
    for step, row in enumerate(rows):
        ours, v, grad, dw = np.split(row, np.cumsum([params.size, many, params.size]))
        w_torch = as_torch(w)
        v_theirs = oracle(
            config, graphs, frequencies, theirs, w_torch, as_torch(t), as_torch(cond),
            torch.tensor(drop), as_torch(dv),
        )
        assert np.linalg.norm(v_theirs) > 1e-2, "the velocity is zero"
        check(f"step {step}: v", v, v_theirs)
        check(f"step {step}: dw", dw, w_torch.grad)
        whole = math.sqrt(sum(float((p.grad**2).sum()) for p in theirs.values()))
        for (name, value), gradient in zip(dump.split(ours).items(), dump.split(grad).values()):
            # cancels in the softmax: its gradient is rounding only, and so are its steps
            if name.endswith("logit.bias"):
                assert np.linalg.norm(gradient) <= tolerance * whole, name
                continue
            check(f"step {step}: {name}", value, theirs[name].detach())
            check(f"step {step}: gradient of {name}", gradient, theirs[name].grad)
        torch_side.optimizer.step()
    return torch_side


def config(layout, **changes):
    base = dict(
        layout=layout, node=6, edge=10, time=8, blocks=2, messages=SUM, encoder=SINE,
        activation=DEFAULT, cond=NONE, cond_size=0, fold_rows=0,
    )
    return {**base, **changes}


MIXED = ["3-4-2", "2-3-3-2", "5-2", "4-3!-2", "2-16-3"]
KERNELS = ["2x6x6 conv3k5 conv4k1 pool3 conv3k3 linear2", "1x4x4 conv2k3 conv2k5 linear2"]
FOLDED = ["*5-4-3", "*5-3-2-2", "*5-6-3"]
CASES = [
    ("sum", dict(), MIXED),
    ("equal widths", dict(node=16, edge=16, time=16, blocks=3), MIXED),
    ("mean", dict(messages=MEAN, encoder=SCALAR), MIXED),
    ("attention, linear condition", dict(messages=ATTENTION, cond=LINEAR, cond_size=3), MIXED),
    (
        "attention, mlp condition, gelu",
        dict(messages=ATTENTION, cond=MLP, cond_size=1, activation=GELU),
        MIXED,
    ),
    ("fourier", dict(encoder=FOURIER), MIXED),
    ("kernels of four sizes", dict(), KERNELS),
    ("kernels, scalar encoder, attention", dict(encoder=SCALAR, messages=ATTENTION), KERNELS),
    ("folded, silu", dict(fold_rows=6, activation=SILU), FOLDED),
    ("folded attention", dict(fold_rows=6, messages=ATTENTION), FOLDED),
]


def main():
    return run_cases("field_dump", [(f"gmn {'lstar' if layout else 'lean'} {label}",
                                     functools.partial(run_case, config(layout, **changes), archs))
                                    for layout in (LEAN, LSTAR) for label, changes, archs in CASES])


if __name__ == "__main__":
    sys.exit(main())
