"""Networks from a flow without weft: written from docs/method.md and docs/flow.md alone, in numpy
and SciPy. Slow, and for reading: fields of the layout `lean` without folded rows or conditions,
Euler steps, and collections of one architecture of dense layers with biases.

    sample_flow.py FLOW SEED COUNT      prints the weights of the networks of
                                        weft sample FLOW --seed SEED -n COUNT, one network a line
tests/oracle/test_documents.py compares the two."""
import json
import math
import struct
import sys

import numpy as np
from scipy.optimize import linear_sum_assignment

SAMPLE, REFINE, MATCH = 11, 12, 13  # purposes of random streams


def read_safetensors(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    meta, tensors = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "F32":
            values = np.frombuffer(data[8 + size + begin:8 + size + end], np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors, meta


# --- random numbers -------------------------------------------------------------------------------

def philox(counter, key):
    c, k0, k1 = list(counter), key & 0xffffffff, key >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k0, q & 0xffffffff, (p >> 32) ^ c[3] ^ k1, p & 0xffffffff]
        k0, k1 = (k0 + 0x9E3779B9) & 0xffffffff, (k1 + 0xBB67AE85) & 0xffffffff
    return c


def words(seed, network, purpose, step):
    k = 0
    while True:
        yield from philox((k, step, network, purpose), seed)
        k += 1


def normals(seed, network, purpose, step, n):
    stream, out = words(seed, network, purpose, step), []
    while len(out) < n:
        a, b = next(stream) >> 8, next(stream) >> 8
        r, angle = math.sqrt(-2 * math.log((a + 1) * 2.0**-24)), 2 * math.pi * b * 2.0**-24
        out += [r * math.cos(angle), r * math.sin(angle)]
    return np.array(out[:n])


def below(n, stream):
    while True:
        product = next(stream) * n
        if product & 0xffffffff >= (2**32 - n) % n:
            return product >> 32


def shuffle(n, stream):
    order = list(range(n))
    for i in range(n, 1, -1):
        j = below(i, stream)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


# --- the velocity field ---------------------------------------------------------------------------

UNITS = {"silu": lambda x: x / (1 + np.exp(-x)),
         "gelu": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2}
UNITS["default"] = UNITS["gelu"]  # of lean


def norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


class Flow:
    def __init__(self, path):
        tensors, meta = read_safetensors(path)
        ema = "ema." if float(meta["fit.ema"]) > 0 else "weights."
        kind = {"ema": ema, "final": "weights."}.get(meta["fit.kept"], "best.")
        self.p = {k[len(kind):]: v.astype(float) for k, v in tensors.items() if k.startswith(kind)}
        self.meta, self.widths = meta, [int(w) for w in meta["arch.0"].split("-")]
        self.field = {k[6:]: v for k, v in meta.items() if k.startswith("field.")}
        self.unit = UNITS[self.field["activation"]]
        known = {"layout": "lean", "messages": "sum", "cond": "none", "fold_rows": "0"}
        assert all(self.field[k] == v for k, v in known.items()), self.field
        assert self.field["encoder"] in ("scalar", "sine"), self.field["encoder"]
        assert meta["fit.precondition"] == "yes" and meta["fit.principal"] == "no", meta
        assert meta["stocks"] == "1", "several architectures"
        self.number_graph()
        self.mean = np.repeat(tensors["norm.0.mean"], self.sizes)
        self.std = np.repeat(tensors["norm.0.std"], self.sizes)

    def number_graph(self):
        """Nodes: units layer by layer, then one for each bias. Edges: the parameters in order."""
        w, last = self.widths, len(self.widths) - 1
        first = np.cumsum([0] + w)
        units = [(g, i) for g in range(last + 1) for i in range(w[g])]
        self.n_nodes = len(units) + last
        self.layer = [g for g, _ in units] + list(range(1, last + 1))
        self.order = [i if g in (0, last) else -1 for g, i in units] + [-1] * last
        self.type = [{0: 0, last: 2}.get(g, 1) for g, _ in units] + [3] * last
        edges, self.sizes = [], []
        for l in range(last):
            into = range(first[l + 1], first[l + 2])
            edges += [(i, j, l, 0) for i in into for j in range(first[l], first[l + 1])]
            edges += [(i, len(units) + l, l, 1) for i in into]
            self.sizes += [w[l + 1] * w[l], w[l + 1]]
        self.dst, self.src, self.edge_layer, self.edge_type = np.array(edges).T

    def lin(self, name, x):
        return x @ self.p[name + ".weight"].T + self.p[name + ".bias"]

    def split(self, name, **operands):
        parts = [x @ self.p[f"{name}.weight_{k}"].T for k, x in operands.items()]
        return sum(parts) + self.p[name + ".bias"]

    def affine(self, name, x):
        weight = self.p[name + ".weight"]
        x = np.asarray(x, float).reshape(len(x), -1)
        return x @ weight.reshape(len(weight), -1).T + self.p[name + ".bias"]

    def sine(self, name, x):
        return np.sin(self.affine(name, x))

    def network(self, w, t):
        """F at weights w and time t."""
        p, width = self.p, int(self.field["time"])
        silu, dst, src = UNITS["silu"], self.dst, self.src
        frequency = float(self.field["time_frequency"])
        angle = frequency * t * 10000.0 ** (-2 * np.arange(width // 2) / width)
        f = np.concatenate([np.cos(angle), np.sin(angle)])
        z = self.lin("time.2", silu(self.lin("time.0", f)))
        code = self.sine if self.field["encoder"] == "sine" else self.affine
        h = self.split("node_encoder.projection", layer=self.sine("node_encoder.layer", self.layer),
                       order=self.sine("node_encoder.order", self.order),
                       type=p["node_encoder.type"][self.type])
        e = self.split("edge_encoder.projection", value=code("edge_encoder.value", w),
                       layer=self.sine("edge_encoder.layer", self.edge_layer),
                       type=p["edge_encoder.type"][self.edge_type],
                       position=self.sine("edge_encoder.position", -np.ones((len(w), 3))))
        u = p["global_start"]
        for block in range(int(self.field["blocks"])):
            at = f"blocks.{block}."
            modulation = self.lin(at + "adaln", silu(z))
            cuts = np.cumsum([len(x) for x in (h[0], e[0], u) for _ in range(3)])[:-1]
            hs, hc, hg, es, ec, eg, us, uc, ug = np.split(modulation, cuts)
            hb, eb, ub = norm(h) * (1 + hc) + hs, norm(e) * (1 + ec) + es, norm(u) * (1 + uc) + us
            both = self.unit(self.split(at + "edge.0", e=eb, d=hb[dst], s=hb[src], u=ub))
            m, rest = np.split(both, 2, 1)
            sums = np.zeros((2, self.n_nodes, m.shape[1]))
            np.add.at(sums[0], dst, m)
            np.add.at(sums[1], src, m)
            into = sums[0] @ p[at + "msg.forward.weight"].T
            out = sums[1] @ p[at + "msg.backward.weight"].T
            e = e + (1 + eg) * self.lin(at + "edge.2", rest)
            inner = self.unit(self.split(at + "global.0", h=hb.mean(0), e=eb.mean(0), u=ub))
            u = u + (1 + ug) * self.lin(at + "global.2", inner)
            inner = self.unit(self.split(at + "node.0", h=hb, f=into, b=out, u=ub))
            h = h + (1 + hg) * self.lin(at + "node.2", inner)
        return self.lin("readout.2", self.unit(self.lin("readout.0", norm(e))))[:, 0]

    def velocity(self, w, t):
        s = float(self.meta["fit.source_std"])
        q = float(self.meta["fit.path_noise"])
        a = t * t + s * s * (1 - t)**2 + q * q
        scale = math.sqrt((s * s + (1 + s * s) * q * q) / a)
        return (t - s * s * (1 - t)) / a * w + scale * self.network(w / math.sqrt(a), t)

    # --- matching ---------------------------------------------------------------------------------

    def layers(self, flat):
        parts, w = np.split(flat, np.cumsum(self.sizes)[:-1]), self.widths
        weights = [parts[2 * l].reshape(w[l + 1], w[l]) for l in range(len(w) - 1)]
        return list(zip(weights, parts[1::2]))

    def match(self, to, flat):
        """`flat` with its hidden units in the order that is nearest to `to`."""
        a, b, w = self.layers(to), self.layers(flat), self.widths
        order = [np.arange(k) for k in w]
        for sweep in range(int(self.meta["fit.match_sweeps"])):
            for g in shuffle(len(w) - 2, words(int(self.meta["fit.seed"]), 0, MATCH, sweep)):
                into, bias, out = b[g][0][:, order[g]], b[g][1], b[g + 1][0][order[g + 2]]
                alike = a[g][0] @ into.T + np.outer(a[g][1], bias) + a[g + 1][0].T @ out
                order[g + 1] = linear_sum_assignment(alike, maximize=True)[1]
        turned = []
        for l, (weight, bias) in enumerate(b):
            turned += [weight[order[l + 1]][:, order[l]].ravel(), bias[order[l + 1]]]
        return np.concatenate(turned)

    # --- sampling ---------------------------------------------------------------------------------

    def sample(self, seed, k):
        """Network k, as the flow's own [sample] settings say."""
        said = {k[7:]: value for k, value in self.meta.items() if k.startswith("sample.")}
        steps, s = int(said["steps"]), float(self.meta["fit.source_std"])
        assert said["solver"] == "euler" and int(said["refine_steps"]) > 0
        w = s * normals(seed, k, SAMPLE, 0, sum(self.sizes))
        for i in range(steps):
            w = w + self.velocity(w, i / steps) / steps
        t, jumps = float(said["refine_t"]), int(said["refine_steps"])
        for cycle in range(int(said["refine_cycles"])):
            noise = s * normals(seed, k, REFINE, cycle, len(w))
            if said["refine_matched"] == "yes":
                noise = self.match(w, noise)
            w = t * w + (1 - t) * noise
            for i in range(jumps):
                w = w + self.velocity(w, t + (1 - t) * i / jumps) * (1 - t) / jumps
        return w * self.std + self.mean


if __name__ == "__main__":
    path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    flow = Flow(path)
    for network in range(count):
        print(" ".join(f"{x:.7g}" for x in flow.sample(seed, network)))
