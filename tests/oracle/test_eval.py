"""Evaluation against SciPy, scikit-learn and numpy: assignment, WCS, IoU, ROC AUC and every column
of the table.

A collection is trained by the library and read from its file here. Forward passes are numpy in
double, assignments scipy.optimize.linear_sum_assignment, ROC AUC sklearn.metrics.roc_auc_score; the
reference cloud, the subsets of JWS and the order of layers come from Philox as weft/rng.h describes
it. Prints "ok name" lines; exits 1 when one is not ok."""
import ctypes as C
import os
import shutil
import sys
import tempfile

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import roc_auc_score

from test_zoo import ZooDesc, below, check, graph, philox_words, read_safetensors, run_tests
from weft_data import Dataset, ctx as CTX, lib as LIB

MATCH, CLOUD, JWS = 13, 14, 15  # purposes of weft/rng.h
ACCURACY, AUC = 0, 1


class EvalDesc(C.Structure):
    _fields_ = [
        ("score", C.c_int), ("cloud", C.c_size_t), ("subsets", C.c_int), ("sweeps", C.c_int),
        ("seed", C.c_uint64), ("cache", C.c_bool),
    ]


COLUMNS = [
    "accuracy_mean", "accuracy_std", "iou_mean", "iou_std", "wcs_mean", "wcs_std", "jws", "jws_std",
    "jws_raw", "jws_no_sqrt3", "diversity_iou_mean", "diversity_iou_std", "diversity_wcs_mean",
    "diversity_wcs_std",
]


class EvalRow(C.Structure):
    _fields_ = [("name", C.c_char * 64), ("n", C.c_size_t)] + [
        (column, C.c_double) for column in COLUMNS
    ]


class MatchDesc(C.Structure):
    _fields_ = [
        ("sweeps", C.c_int), ("tolerance", C.c_double), ("restarts", C.c_int), ("seed", C.c_uint64),
    ]


LIB.wf_roc_auc.restype = C.c_double
LIB.wf_roc_auc.argtypes = [C.c_void_p, C.c_void_p, C.c_size_t]
LIB.wf_assign_max.argtypes = [C.c_void_p, C.c_int, C.c_void_p, C.c_void_p]
LIB.wf_wcs_max.argtypes = [
    C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p, C.c_size_t, C.c_void_p,
    C.POINTER(MatchDesc), C.c_void_p, C.c_void_p,
]
LIB.wf_zoo_open.argtypes = [C.c_void_p, C.c_char_p, C.c_void_p]
LIB.wf_zoo_free.argtypes = [C.c_void_p]
LIB.wf_eval_desc_default.restype = EvalDesc
LIB.wf_reference_open.argtypes = [
    C.c_void_p, C.c_void_p, C.POINTER(Dataset), C.POINTER(EvalDesc), C.c_void_p,
]
LIB.wf_reference_free.argtypes = [C.c_void_p]
LIB.wf_eval_reference.argtypes = [C.c_void_p, C.c_void_p, C.POINTER(EvalRow), C.c_void_p]
LIB.wf_eval_networks.argtypes = [
    C.c_void_p, C.c_void_p, C.c_char_p, C.c_void_p, C.c_size_t, C.POINTER(EvalRow), C.c_void_p,
]


def pointer(array):
    return array.ctypes.data_as(C.c_void_p)


def shuffled(seed, network, purpose, step, n):
    words, order = philox_words(seed, network, purpose, step), list(range(n))
    for i in range(n, 1, -1):
        j = below(words, i)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


# --- the definitions, in numpy --------------------------------------------------------------------
class Net:
    """Weights W[l] (out, in) and biases b[l] of one multilayer perceptron, in double."""

    def __init__(self, tensors, index, layers):
        self.W = [tensors[f"layers.{l}.weight"][index].astype(np.float64) for l in range(layers)]
        self.b = [tensors[f"layers.{l}.bias"][index].astype(np.float64) for l in range(layers)]

    def flat(self):
        return np.concatenate(
            [np.concatenate([W.ravel(), b]) for W, b in zip(self.W, self.b)]
        ).astype(np.float32)

    def logits(self, x):
        for l, (W, b) in enumerate(zip(self.W, self.b)):
            x = x @ W.T + b
            x = np.maximum(x, 0) if l + 1 < len(self.W) else x
        return x


def match_units(a, b, sweeps, seed):
    """Git Re-Basin weight matching: b's unit p[l][r] stands at place r of hidden layer l."""
    hidden = len(a.W) - 1
    p = [np.arange(len(a.b[l])) for l in range(hidden)]
    for sweep in range(sweeps):
        gained = False
        for l in shuffled(seed, 0, MATCH, sweep, hidden):
            before = p[l - 1] if l > 0 else slice(None)
            after = p[l + 1] if l + 1 < hidden else slice(None)
            score = (
                a.W[l] @ b.W[l][:, before].T
                + np.outer(a.b[l], b.b[l])
                + a.W[l + 1].T @ b.W[l + 1][after]
            )
            columns = linear_sum_assignment(score, maximize=True)[1]
            rows = np.arange(len(columns))
            if score[rows, columns].sum() - score[rows, p[l]].sum() > 1e-12:
                p[l], gained = columns, True
        if not gained:
            break
    return p


def matched_cosine(a, b, sweeps, seed):
    hidden, p = len(a.W) - 1, match_units(a, b, sweeps, seed)
    dot = norm_a = norm_b = 0.0
    for l in range(hidden + 1):
        W, bias = b.W[l], b.b[l]
        if l > 0:
            W = W[:, p[l - 1]]
        if l < hidden:
            W, bias = W[p[l]], bias[p[l]]
        dot += (a.W[l] * W).sum() + (a.b[l] * bias).sum()
        norm_a += (a.W[l] ** 2).sum() + (a.b[l] ** 2).sum()
        norm_b += (W ** 2).sum() + (bias ** 2).sum()
    return dot / np.sqrt(norm_a * norm_b)


def iou(a, b):
    either = (a | b).sum()
    return (a & b).sum() / either if either else 0.0


class Oracle:
    """One collection, its scores and its reference cloud."""

    def __init__(self, nets, x, y, score, cloud, seed, sweeps=5):
        self.nets, self.x, self.y, self.score, self.seed, self.sweeps = (
            nets, x, y, score, seed, sweeps,
        )
        self.task = np.array([self.task_score(net) for net in nets])
        self.wrong = [self.errors(net) for net in nets]
        self.iou = np.array([max(iou(e, f) for j, f in enumerate(self.wrong) if j != i)
                             for i, e in enumerate(self.wrong)])
        self.cloud = shuffled(seed, 0, CLOUD, 0, len(nets))[:cloud]
        self.wcs = np.array([self.best_cosine(nets[i], nets, i) for i in self.cloud])
        self.points = np.stack([self.task[self.cloud], self.iou[self.cloud], self.wcs], 1)
        mean = self.points.mean(0)
        self.scales = np.maximum(mean, 1 - mean)

    def errors(self, net):
        return net.logits(self.x).argmax(1) != self.y

    def task_score(self, net):
        logits = net.logits(self.x)
        return roc_auc_score(self.y, logits[:, 1] - logits[:, 0]) if self.score == AUC else (
            logits.argmax(1) == self.y).mean()

    def best_cosine(self, net, others, skip=None):
        return max(
            matched_cosine(net, other, self.sweeps, self.seed)
            for j, other in enumerate(others)
            if j != skip
        )

    def distances(self, points, scales, subsets):
        out = []
        for b in range(subsets):
            subset = (
                self.points[shuffled(self.seed, 0, JWS, b, len(self.points))[: len(points)]]
                / scales
            )
            cost = ((points[:, None] / scales - subset[None]) ** 2).sum(-1)
            out.append(np.sqrt(cost[linear_sum_assignment(cost)].mean()))
        return np.array(out)

    def reference_row(self):
        row = {"accuracy": self.task, "iou": self.iou, "wcs": self.wcs}
        return {f"{k}_{s}": getattr(np, s)(v) for k, v in row.items() for s in ("mean", "std")}

    def row(self, nets, subsets):
        wrong = [self.errors(net) for net in nets]
        points = np.stack([[self.task_score(net) for net in nets],
                           [max(iou(e, f) for f in self.wrong) for e in wrong],
                           [self.best_cosine(net, self.nets) for net in nets]], 1)
        diversity = {
            "iou": np.array(
                [max(iou(e, f) for j, f in enumerate(wrong) if j != i) for i, e in enumerate(wrong)]
            ),
            "wcs": np.array([self.best_cosine(net, nets, i) for i, net in enumerate(nets)]),
        }
        row = {
            f"{k}_{s}": getattr(np, s)(points[:, c])
            for c, k in enumerate(("accuracy", "iou", "wcs"))
            for s in ("mean", "std")
        }
        row.update(
            {
                f"diversity_{k}_{s}": getattr(np, s)(v)
                for k, v in diversity.items()
                for s in ("mean", "std")
            }
        )
        scaled, raw = self.distances(points, self.scales, subsets), self.distances(
            points, np.ones(3), subsets
        )
        row.update(
            {
                "jws": max(0, 1 - scaled.mean() / 3**0.5), "jws_std": scaled.std() / 3**0.5,
                "jws_raw": max(0, 1 - raw.mean() / 3**0.5),
                "jws_no_sqrt3": max(0, 1 - scaled.mean()),
            }
        )
        return row


# --- comparisons ----------------------------------------------------------------------------------
def compare_assignment():
    worst, rng = 0.0, np.random.default_rng(1)
    for n in [1, 2, 3, 7, 16, 33, 100, 200]:
        for kind in range(3):
            score = (
                rng.normal(size=(n, n)) if kind == 0 else rng.integers(0, 4, (n, n)).astype(float)
            )
            if kind == 2:  # squared distances of points, as JWS has them
                points = rng.normal(size=(2, n, 3))
                score = -((points[0][:, None] - points[1][None]) ** 2).sum(-1)
            match = np.zeros(n, np.uint32)
            check(LIB.wf_assign_max(CTX, n, pointer(score), pointer(match)))
            assert sorted(match) == list(range(n)), "not a permutation"
            best = score[linear_sum_assignment(score, maximize=True)].sum()
            worst = max(worst, abs(score[np.arange(n), match].sum() - best))
    return worst


def compare_auc():
    worst, rng = 0.0, np.random.default_rng(2)
    for trial in range(20):
        n = 50 + 37 * trial
        y = (rng.random(n) < 0.3).astype(np.int32)
        score = rng.normal(size=n).astype(np.float32) + y
        # half of the trials have many ties
        score = np.round(score, 1 if trial % 2 else 6).astype(np.float32)
        worst = max(
            worst, abs(LIB.wf_roc_auc(pointer(score), pointer(y), n) - roc_auc_score(y, score))
        )
    return worst


def compare_cosines():
    """wf_wcs_max pair by pair on random weights, which have many local optima."""
    worst, rng = 0.0, np.random.default_rng(3)
    for arch in ["2-16-3", "64-16-8-10", "5-9-7-6-3", "6-20-2"]:
        widths = [int(w) for w in arch.split("-")]
        layers = len(widths) - 1
        tensors = {}
        for l in range(layers):
            tensors[f"layers.{l}.weight"] = rng.normal(size=(12, widths[l + 1], widths[l])).astype(
                np.float32
            )
            tensors[f"layers.{l}.bias"] = rng.normal(size=(12, widths[l + 1])).astype(np.float32)
        nets = [Net(tensors, i, layers) for i in range(12)]
        g, desc = graph(arch, "relu"), MatchDesc(5, 1e-12, 0, 17)
        for i in range(6):
            for j in range(6, 12):
                a, b, best = nets[i].flat(), nets[j].flat(), np.zeros(1, np.float32)
                check(
                    LIB.wf_wcs_max(
                        CTX, g, pointer(a), 1, pointer(b), 1, None, C.byref(desc), pointer(best),
                        None,
                    )
                )
                worst = max(worst, abs(best[0] - matched_cosine(nets[i], nets[j], 5, 17)))
    return worst


# Tensors of two descriptions in flat order: shape, orbits of its first two axes (None: fixed),
# whether it is trained.
CNN = "2x6x5 conv7k3s2p1 pool conv9k2! batchnorm linear6 linear3"
RESNET = """{"input":[3,8,8],"layers":[
 {"op":"conv","name":"stem","units":8,"kernel":3,"padding":1,"activation":"relu"},
 {"op":"conv","name":"a","units":5,"kernel":[3,1],"padding":[1,0],"activation":"relu"},
 {"op":"conv","name":"b","units":8,"kernel":1,"norm":{"kind":"layer","name":"n"}},
 {"op":"add","from":[3,1],"activation":"relu"},
 {"op":"conv","name":"c","units":8,"kernel":3,"padding":1},
 {"op":"add","from":[4,5],"activation":"relu","pool":{"kind":"global"}},
 {"op":"linear","name":"fc","units":4}]}"""


def described():
    bn = [((9,), 1, None, t) for t in (True, True, False, False)]
    cnn = [((7, 2, 3, 3), 0, None, True), ((7,), 0, None, True), ((9, 7, 2, 2), 1, 0, True)] + bn
    # The second convolution leaves 2 x 2 places of each of its 9 channels.
    cnn += [
        ((6, 9, 4), 2, 1, True), ((6,), 2, None, True), ((3, 6), None, 2, True),
        ((3,), None, None, True),
    ]
    resnet = [
        ((8, 3, 3, 3), 0, None, True), ((8,), 0, None, True), ((5, 8, 3, 1), 1, 0, True),
        ((5,), 1, None, True), ((8, 5, 1, 1), 0, 1, True), ((8,), 0, None, True),
        ((8, 8, 8), 0, None, True), ((8, 8, 8), 0, None, True), ((8, 8, 3, 3), 0, 0, True),
        ((8,), 0, None, True), ((4, 8), None, 0, True), ((4,), None, None, True),
    ]
    return [(CNN, [7, 9, 6], cnn), (RESNET, [8, 5], resnet)]


def match_tensors(a, b, kinds, widths, sweeps, seed):
    """The same for any list of tensors: an axis moves with its orbit, kernels flatten into the
    feature axis. Returns the dot product after the matching."""
    p = [np.arange(n) for n in widths]

    def placed(tensor, kind, but=None):
        for axis, orbit in enumerate(kind[1:3]):
            if orbit is not None and axis != but:
                tensor = np.take(tensor, p[orbit], axis)
        return tensor

    def dot():
        return sum((s * placed(t, kind)).sum() for s, t, kind in zip(a, b, kinds) if kind[3])

    for sweep in range(sweeps):
        gained = False
        for o in shuffled(seed, 0, MATCH, sweep, len(widths)):
            score, loop = np.zeros((widths[o], widths[o])), False
            for s, t, kind in zip(a, b, kinds):
                loop |= kind[1] == o and kind[2] == o
                for axis in (0, 1):
                    if kind[3] and kind[1 + axis] == o:
                        rows = np.moveaxis(s, axis, 0).reshape(widths[o], -1)
                        score += (
                            rows
                            @ np.moveaxis(placed(t, kind, axis), axis, 0).reshape(widths[o], -1).T
                        )
            columns, rows = linear_sum_assignment(score, maximize=True)[1], np.arange(widths[o])
            if score[rows, columns].sum() - score[rows, p[o]].sum() <= 1e-12:
                continue
            before, old, p[o] = dot(), p[o], columns
            if loop and dot() - before <= 1e-12:
                p[o] = old
            else:
                gained = True
        if not gained:
            break
    return dot()


def compare_described():
    """Convolutional and residual networks: shared orbits, one with a block from itself to itself,
    running statistics."""
    worst, rng = 0.0, np.random.default_rng(5)
    for text, widths, kinds in described():
        g, desc = graph(text, "relu"), MatchDesc(5, 1e-12, 0, 23)
        for trial in range(30):
            a, b = (
                [rng.normal(size=kind[0]).astype(np.float32).astype(np.float64) for kind in kinds]
                for _ in "ab"
            )
            norms = [
                np.sqrt(sum((t**2).sum() for t, kind in zip(net, kinds) if kind[3]))
                for net in (a, b)
            ]
            expected = match_tensors(a, b, kinds, widths, 5, 23) / (norms[0] * norms[1])
            flat = [np.concatenate([t.ravel() for t in net]).astype(np.float32) for net in (a, b)]
            best = np.zeros(1, np.float32)
            check(
                LIB.wf_wcs_max(
                    CTX, g, pointer(flat[0]), 1, pointer(flat[1]), 1, None, C.byref(desc),
                    pointer(best), None,
                )
            )
            worst = max(worst, abs(best[0] - expected))
    return worst


def compare_table(data_name, arch, rows, score):
    """Both rows of the table, on a collection trained here."""
    folder = tempfile.mkdtemp()
    try:
        data_desc = LIB.wf_data_desc_default()
        data_desc.name, data_desc.rows = data_name.encode(), rows
        data = C.POINTER(Dataset)()
        check(LIB.wf_dataset_open(CTX, C.byref(data_desc), C.byref(data)))
        d = data.contents
        x = np.ctypeslib.as_array(d.x_test, (d.n_test, d.inputs)).astype(np.float64)
        y = np.ctypeslib.as_array(d.y_test, (d.n_test,)).copy()
        zoo_desc = LIB.wf_zoo_desc_default()
        zoo_desc.count, zoo_desc.epochs, zoo_desc.batch, zoo_desc.lr = 26, 12, 32, 5e-3
        path = os.path.join(folder, "zoo.safetensors")
        check(
            LIB.wf_zoo_train(CTX, graph(arch, "relu"), data, C.byref(zoo_desc), path.encode(), None)
        )
        tensors, _ = read_safetensors(path)
        layers = arch.count("-")
        nets = [Net(tensors, i, layers) for i in range(26)]

        rng = np.random.default_rng(4)  # six networks to judge: perturbed copies and averages
        judged = []
        for k in range(6):
            net, other = Net(tensors, k, layers), Net(tensors, k + 6, layers)
            net.W = [
                W + 0.2 * rng.normal(size=W.shape) if k % 2 else (W + V) / 2
                for W, V in zip(net.W, other.W)
            ]
            net.W = [W.astype(np.float32).astype(np.float64) for W in net.W]
            judged.append(net)
        flat = np.stack([net.flat() for net in judged])

        desc = LIB.wf_eval_desc_default()
        desc.score, desc.cloud, desc.subsets, desc.seed, desc.cache = score, 15, 20, 5, False
        zoo, reference, row, own = C.c_void_p(), C.c_void_p(), EvalRow(), EvalRow()
        check(LIB.wf_zoo_open(CTX, path.encode(), C.byref(zoo)))
        check(LIB.wf_reference_open(CTX, zoo, data, C.byref(desc), C.byref(reference)))
        check(LIB.wf_eval_reference(CTX, reference, C.byref(own), None))
        check(LIB.wf_eval_networks(CTX, reference, b"judged", pointer(flat), 6, C.byref(row), None))
        LIB.wf_reference_free(reference)
        LIB.wf_zoo_free(zoo)

        oracle = Oracle(nets, x, y, score, 15, 5)
        worst = 0.0
        for got, expected in [(own, oracle.reference_row()), (row, oracle.row(judged, 20))]:
            for column, value in expected.items():
                error = abs(getattr(got, column) - value)
                assert (
                    error <= 1e-6
                ), f"{column} is {getattr(got, column):.9f}, expected {value:.9f}"
                worst = max(worst, error)
        LIB.wf_dataset_free(data)
        return worst
    finally:
        shutil.rmtree(folder)


def main():
    tests = [
        ("assignment equals SciPy", compare_assignment, 1e-9),
        ("ROC AUC equals scikit-learn", compare_auc, 1e-12),
        ("matched cosine equals SciPy", compare_cosines, 1e-6),
        ("convolutional and residual networks equal SciPy", compare_described, 1e-6),
        (
            "table on moons, accuracy",
            lambda: compare_table("moons", "2-8-6-2", 600, ACCURACY),
            1e-6,
        ),
        ("table on moons, ROC AUC", lambda: compare_table("moons", "2-16-2", 600, AUC), 1e-6),
        ("table on digits", lambda: compare_table("digits", "64-16-8-10", 800, ACCURACY), 1e-6),
    ]
    return run_tests(tests)


if __name__ == "__main__":
    sys.exit(main())
