"""Baselines between two collections against numpy, SciPy and scikit-learn: averaged weights, direct
and after weight matching, and ensembles of logits, over alpha, as ROC AUC and as accuracy. Prints
"ok name" lines; exits 1 when one is not ok."""
import ctypes as C
import os
import shutil
import sys
import tempfile

import numpy as np
from sklearn.metrics import accuracy_score, roc_auc_score

from test_eval import ACCURACY, AUC, Net, match_units, shuffled
from test_zoo import check, graph, read_safetensors, run_tests
from weft_data import Dataset, ctx as CTX, lib as LIB

CONTROL = 16  # purpose of weft/rng.h


class MixDesc(C.Structure):
    _fields_ = [
        ("score", C.c_int), ("pairs", C.c_size_t), ("steps", C.c_int), ("n_sweeps", C.c_int),
        ("sweeps", C.c_int * 8), ("ensemble", C.c_bool), ("seed", C.c_uint64),
    ]


class Mix(C.Structure):
    _fields_ = [
        ("curves", C.c_int), ("points", C.c_int), ("n_data", C.c_int),
        ("name", C.POINTER(C.c_char * 32)), ("alpha", C.POINTER(C.c_double)),
        ("mean", C.POINTER(C.c_double)), ("std", C.POINTER(C.c_double)),
    ]


LIB.wf_mix_desc_default.restype = MixDesc
LIB.wf_eval_mix.argtypes = [
    C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_int, C.POINTER(MixDesc), C.POINTER(Mix),
]
LIB.wf_mix_free.argtypes = [C.POINTER(Mix)]
LIB.wf_zoo_open.argtypes = [C.c_void_p, C.c_char_p, C.c_void_p]
LIB.wf_zoo_free.argtypes = [C.c_void_p]


def open_set(seed, noise):
    desc = LIB.wf_data_desc_default()
    desc.name, desc.rows, desc.seed, desc.noise = b"moons", 500, seed, noise
    data = C.POINTER(Dataset)()
    check(LIB.wf_dataset_open(CTX, C.byref(desc), C.byref(data)))
    return data


def train(folder, name, arch, data, seed, count):
    desc = LIB.wf_zoo_desc_default()
    desc.count, desc.epochs, desc.batch, desc.lr, desc.seed = count, 10, 32, 1e-2, seed
    path = os.path.join(folder, name)
    check(LIB.wf_zoo_train(CTX, graph(arch, "relu"), data, C.byref(desc), path.encode(), None))
    tensors, _ = read_safetensors(path)
    zoo = C.c_void_p()
    check(LIB.wf_zoo_open(CTX, path.encode(), C.byref(zoo)))
    return zoo, [Net(tensors, i, arch.count("-")) for i in range(count)]


def picks(seed, step, count, n):
    """Shuffles of the collection, one a round."""
    return [shuffled(seed, k // count, CONTROL, step, count)[k % count] for k in range(n)]


def mixed(a, b, p, alpha):
    """Weights (1 - alpha) a + alpha (b with its hidden units at places p)."""
    net, layers = Net.__new__(Net), len(a.W)
    net.W, net.b = [], []
    for l in range(layers):
        W, bias = b.W[l], b.b[l]
        if p is not None and l > 0:
            W = W[:, p[l - 1]]
        if p is not None and l + 1 < layers:
            W, bias = W[p[l]], bias[p[l]]
        net.W.append((1 - alpha) * a.W[l] + alpha * W)
        net.b.append((1 - alpha) * a.b[l] + alpha * bias)
    return net


def task_score(logits, y, score):
    return (
        roc_auc_score(y, logits[:, 1] - logits[:, 0])
        if score == AUC
        else accuracy_score(y, logits.argmax(1))
    )


def compare(arch, score):
    folder = tempfile.mkdtemp()
    try:
        sets = [open_set(1, 0.2), open_set(2, 0.5)]
        xy = []
        for data in sets:
            d = data.contents
            xy.append((np.ctypeslib.as_array(d.x_test, (d.n_test, d.inputs)).astype(np.float64),
                       np.ctypeslib.as_array(d.y_test, (d.n_test,)).copy()))
        zoo_a, nets_a = train(folder, "a", arch, sets[0], 3, 9)
        zoo_b, nets_b = train(folder, "b", arch, sets[1], 4, 7)
        desc = LIB.wf_mix_desc_default()
        assert (desc.pairs, desc.steps, desc.n_sweeps, list(desc.sweeps)[:4], desc.score) == (
            50, 10, 4, [0, 1, 5, 50], AUC,
        )
        desc.score, desc.pairs, desc.steps, desc.seed = score, 12, 4, 21
        mix, array = Mix(), (C.POINTER(Dataset) * 2)(*sets)
        check(LIB.wf_eval_mix(CTX, zoo_a, zoo_b, array, 2, C.byref(desc), C.byref(mix)))
        shape = (mix.curves, mix.points, mix.n_data)
        assert shape == (5, 5, 2), shape
        names = [mix.name[c].value.decode() for c in range(5)]
        assert names == ["average", "average-1", "average-5", "average-50", "ensemble"], names
        mean = np.ctypeslib.as_array(mix.mean, shape).copy()
        std = np.ctypeslib.as_array(mix.std, shape).copy()
        LIB.wf_mix_free(C.byref(mix))
        pairs = list(zip(picks(21, 1, 9, 12), picks(21, 3, 7, 12)))
        worst = 0.0
        for c, sweeps in enumerate([0, 1, 5, 50, None]):
            for k, alpha in enumerate(np.linspace(0, 1, 5)):
                for s, (x, y) in enumerate(xy):
                    scores = []
                    for i, j in pairs:
                        a, b = nets_a[i], nets_b[j]
                        if sweeps is None:
                            logits = (1 - alpha) * a.logits(x) + alpha * b.logits(x)
                        else:
                            logits = mixed(
                                a, b, match_units(a, b, sweeps, 21) if sweeps else None, alpha
                            ).logits(x)
                        scores.append(task_score(logits, y, score))
                    worst = max(
                        worst,
                        abs(np.mean(scores) - mean[c, k, s]),
                        abs(np.std(scores) - std[c, k, s]),
                    )
        LIB.wf_zoo_free(zoo_a)
        LIB.wf_zoo_free(zoo_b)
        for data in sets:
            LIB.wf_dataset_free(data)
        return worst
    finally:
        shutil.rmtree(folder)


def main():
    return run_tests([("mixes of 2-8-6-2, ROC AUC", lambda: compare("2-8-6-2", AUC), 1e-6),
                      ("mixes of 2-12-2, accuracy", lambda: compare("2-12-2", ACCURACY), 1e-6)])


if __name__ == "__main__":
    sys.exit(main())
