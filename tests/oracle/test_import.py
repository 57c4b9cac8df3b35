"""Import, export and info against PyTorch: files that torch.save itself wrote, and a network taken
back into torch.

Prints "ok name" lines; exits 1 when one is not ok."""
import collections
import ctypes as C
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import numpy as np
import torch
import torch.nn as nn

from weft_data import Data, ctx as CTX, lib as LIB

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "examples" / "load_network.py"
spec = importlib.util.spec_from_file_location("load_network", SCRIPT)
load_network = importlib.util.module_from_spec(spec)
spec.loader.exec_module(load_network)


class ImportDesc(C.Structure):
    _fields_ = [("activation", C.c_char_p), ("arch", C.c_char_p),
                ("layers", C.c_char_p), ("name", C.c_char_p), ("recursive", C.c_bool),
                ("inputs", C.c_int), ("outputs", C.c_int), ("keep_norm", C.c_bool)]


class Collection(C.Structure):
    _fields_ = [
        ("path", C.c_char_p), ("arch", C.c_char_p), ("count", C.c_size_t),
        ("non_finite", C.c_size_t), ("folded_norms", C.c_int),
    ]


class ImportResult(C.Structure):
    _fields_ = [("files", C.c_size_t), ("networks", C.c_size_t), ("non_finite", C.c_size_t),
                ("n_collections", C.c_int), ("collections", C.POINTER(Collection))]


class Score(C.Structure):
    _fields_ = [
        ("name", C.c_char * 64), ("mean", C.c_double), ("std", C.c_double), ("min", C.c_double),
        ("max", C.c_double),
    ]


class Duplicate(C.Structure):
    _fields_ = [("index", C.c_size_t), ("earlier", C.c_size_t), ("permuted", C.c_bool)]


class Summary(C.Structure):
    _fields_ = [
        ("count", C.c_size_t), ("parameters", C.c_size_t), ("n_tests", C.c_int),
        ("tests", Score * 8), ("duplicates", C.c_size_t), ("permuted_duplicates", C.c_size_t),
        ("examples", Duplicate * 8), ("n_examples", C.c_int), ("hidden_units", C.c_size_t),
        ("dead_units", C.c_size_t), ("dead_networks", C.c_size_t),
        ("non_finite_values", C.c_size_t), ("non_finite_networks", C.c_size_t),
        ("first_non_finite", C.c_size_t), ("near", C.c_double), ("far", C.c_double),
        ("kinship", C.c_int), ("warning", C.c_char * 512),
    ]


INDEPENDENT, TRAJECTORY, RELATED = 0, 1, 2
LIB.wf_zoo_import.argtypes = [
    C.c_void_p, C.c_char_p, C.POINTER(ImportDesc), C.c_char_p, C.POINTER(ImportResult),
]
LIB.wf_import_result_free.argtypes = [C.POINTER(ImportResult)]
LIB.wf_zoo_export.argtypes = [C.c_void_p, C.c_void_p, C.c_size_t, C.c_char_p, C.c_char_p]
LIB.wf_zoo_info.argtypes = [C.c_void_p, C.c_void_p, C.POINTER(Summary)]
LIB.wf_zoo_open.argtypes = [C.c_void_p, C.c_char_p, C.c_void_p]
LIB.wf_zoo_free.argtypes = [C.c_void_p]
LIB.wf_zoo_graph.restype = C.c_void_p
LIB.wf_zoo_graph.argtypes = [C.c_void_p]
LIB.wf_graph_params.restype, LIB.wf_graph_params.argtypes = C.c_size_t, [C.c_void_p]
LIB.wf_zoo_get.argtypes = [C.c_void_p, C.c_size_t, C.c_void_p]
LIB.wf_graph_forward.argtypes = [
    C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p,
]


def check(status):
    if status != 0:
        raise ValueError(LIB.wf_last_error(CTX).decode())


def do_import(source, out, activation="relu", layers=None, arch=None, keep_norm=False):
    """[(path, arch, count)] of the collections written."""
    desc = ImportDesc(
        activation.encode(), arch.encode() if arch else None, layers.encode() if layers else None,
        None,
    )
    desc.keep_norm = keep_norm
    result = ImportResult()
    check(
        LIB.wf_zoo_import(
            CTX, str(source).encode(), C.byref(desc), str(out).encode(), C.byref(result)
        )
    )
    made = [
        (c.path.decode(), c.arch.decode(), c.count)
        for c in result.collections[: result.n_collections]
    ]
    LIB.wf_import_result_free(C.byref(result))
    return made


class Zoo:
    def __init__(self, path):
        self.handle = C.c_void_p()
        check(LIB.wf_zoo_open(CTX, str(path).encode(), C.byref(self.handle)))

    def export(self, index, path, names=None):
        check(
            LIB.wf_zoo_export(
                CTX, self.handle, index, str(path).encode(), names.encode() if names else None
            )
        )

    def logits(self, index, x, outputs):
        parameters = LIB.wf_graph_params(LIB.wf_zoo_graph(self.handle))
        w, x = np.zeros(parameters, np.float32), np.ascontiguousarray(x, np.float32)
        out = np.zeros((len(x), outputs), np.float32)
        LIB.wf_zoo_get(self.handle, index, w.ctypes.data)
        check(
            LIB.wf_graph_forward(
                CTX, LIB.wf_zoo_graph(self.handle), w.ctypes.data, x.ctypes.data, len(x),
                out.ctypes.data,
            )
        )
        return out

    def info(self):
        summary = Summary()
        check(LIB.wf_zoo_info(CTX, self.handle, C.byref(summary)))
        return summary

    def __del__(self):
        LIB.wf_zoo_free(self.handle)


def save_safetensors(tensors, path):
    header, data = {}, b""
    names = {
        torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
    }
    for name, t in tensors.items():
        raw = t.detach().contiguous()
        raw = (raw.view(torch.int16) if raw.dtype == torch.bfloat16 else raw).numpy().tobytes()
        header[name] = {
            "dtype": names[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def mlp(*widths, act=nn.ReLU, bias=True):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b, bias=bias), act()]
    return nn.Sequential(*layers[:-1])


def flat(tensors):
    return np.concatenate([t.detach().float().numpy().ravel() for t in tensors])


def collection_flat(path):
    tensors, metadata = load_network.load_tensors(path)
    parts = [
        ".".join(filter(None, (layer.get("name", f"layers.{i}"), tail)))
        for i, layer in enumerate(json.loads(metadata["weft.graph"])["layers"])
        for tail in ("weight", "bias")
    ]
    blocks = [tensors[n].numpy().reshape(len(tensors[n]), -1) for n in parts if n in tensors]
    return np.concatenate(blocks, 1), metadata


def fails(words, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ValueError as error:
        assert all(word in str(error) for word in words), f"{error} (expected {words})"
        return
    raise AssertionError(f"no failure, expected {words}")


# --- tests ----------------------------------------------------------------------------------------
def torch_files(tmp):
    """Everything people save, in one folder: all of it is the same architecture."""
    (tmp / "nets").mkdir()
    expected = []

    def save(model, thing, **options):
        torch.save(thing, tmp / "nets" / f"net{len(expected) + 8}.pt", **options)
        expected.append(flat(model.state_dict().values()))

    for _ in range(3):
        model = mlp(6, 5, 4, 3)
        save(model, model.state_dict())
    model = mlp(6, 5, 4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
    save(
        model,
        {
            "epoch": 12, "loss": 0.5, "state_dict": model.state_dict(), "history": [1.0, None, "x"],
            "optimizer": optimizer.state_dict(),
        },
    )
    model = mlp(6, 5, 4, 3)
    save(
        model,
        {"model": {"module." + k: v for k, v in model.state_dict().items()}},
        pickle_protocol=4,
    )
    model = mlp(6, 5, 4, 3)
    save(model, dict(model.named_parameters()))  # Parameters, in a plain dict
    model = mlp(6, 5, 4, 3)
    save(
        model,
        collections.OrderedDict((f"_orig_mod.net.{k}", v) for k, v in model.state_dict().items()),
        pickle_protocol=5,
    )
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        model = mlp(6, 5, 4, 3).to(kind)
        save(model, model.state_dict())
    model = mlp(6, 5, 4, 3)  # transposed storage, slices of one large tensor
    big = torch.randn(10, 50)
    with torch.no_grad():
        model[0].weight.copy_(big[2:7, 1:7])
        model[2].bias.copy_(big[1, 5:9])
    state = model.state_dict()
    state["0.weight"] = big[2:7, 1:7]
    state["2.bias"] = big[1, 5:9]
    state["4.weight"] = model[4].weight.detach().t().contiguous().t()
    assert not state["4.weight"].is_contiguous() and not state["0.weight"].is_contiguous()
    save(model, state)
    made = do_import(tmp / "nets", tmp / "all.safetensors")
    assert made == [(str(tmp / "all.safetensors"), "6-5-4-3", len(expected))], made
    weights, metadata = collection_flat(made[0][0])
    assert weights.shape == (len(expected), len(expected[0]))
    for i, one in enumerate(expected):
        np.testing.assert_array_equal(weights[i], one, err_msg=f"network {i}")
    assert json.loads(metadata["weft.sources"]) == [f"net{i + 8}.pt" for i in range(len(expected))]


def stacked_and_safetensors(tmp):
    models = [mlp(6, 5, 3) for _ in range(7)]
    stacked = {k: torch.stack([m.state_dict()[k] for m in models]) for k in models[0].state_dict()}
    expected = np.stack([flat(m.state_dict().values()) for m in models])
    save_safetensors(stacked, tmp / "stack.safetensors")
    (path, arch, count), = do_import(tmp / "stack.safetensors", tmp / "a")
    assert (arch, count) == ("6-5-3", 7)
    np.testing.assert_array_equal(collection_flat(path)[0], expected)
    torch.save(stacked, tmp / "stack.pt")
    (path, arch, count), = do_import(tmp / "stack.pt", tmp / "b")
    np.testing.assert_array_equal(collection_flat(path)[0], expected)
    (tmp / "folder").mkdir()
    for i, m in enumerate(models):
        save_safetensors(m.state_dict(), tmp / "folder" / f"{i}.safetensors")
    wide = mlp(6, 9, 3, bias=False)
    save_safetensors(wide.half().state_dict(), tmp / "folder" / "99.safetensors")
    made = do_import(tmp / "folder", tmp / "c")
    assert [m[1:] for m in made] == [("6-5-3", 7), ("6-9!-3!", 1)]
    np.testing.assert_array_equal(collection_flat(made[0][0])[0], expected)
    np.testing.assert_array_equal(
        collection_flat(made[1][0])[0][0], flat(wide.state_dict().values())
    )


def again(tmp, zoo, fresh, model, x, exact):
    """Network 1, exported both ways, goes into a module of its user by the names that it had, and
    computes the same."""
    for name in ("one.safetensors", "one.pt"):
        zoo.export(1, tmp / name)
        tensors = (
            torch.load(tmp / name)
            if name.endswith(".pt")
            else load_network.load_tensors(tmp / name)[0]
        )
        fresh.load_state_dict(tensors)  # strict: each name, each shape
        mine, theirs = fresh.eval()(x), model(x)
        error = float((mine - theirs).abs().max() / theirs.abs().max())
        assert error == 0 if exact else error < 1e-5, error


def described_networks(tmp):
    """Convolutions and norms by their description, in and out: names, shapes, logits, bits."""
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1, self.fc = (
                nn.Conv2d(2, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.Linear(4, 3),
            )

        def forward(self, x):
            return self.fc(torch.tanh(self.bn1(self.conv1(x))).mean((2, 3)))

    arch = "2x6x5 conv4 batchnorm tanh gap linear3"
    makers = [lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(),
                                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), Named]
    for k, make in enumerate(makers):
        folder = tmp / f"nets{k}"
        folder.mkdir()
        models = [make() for _ in range(3)]
        for i, model in enumerate(models):
            with torch.no_grad():
                (model[1] if k == 0 else model.bn1).running_var.uniform_(0.5, 2)
                (model[1] if k == 0 else model.bn1).running_mean.normal_()
            torch.save(model.eval().state_dict(), folder / f"{i}.pt")
        x = torch.randn(70, 2, 6, 5)
        for keep in (True, False):
            [(path, text, count)] = do_import(
                folder, tmp / f"out{k}{keep}", arch=arch, keep_norm=keep
            )
            assert count == 3 and text.startswith(
                "2x6x5 conv4 batchnorm" if keep else "2x6x5 conv4 gap"
            ), (text, count)
            zoo = Zoo(path)
            for i, model in enumerate(models):
                theirs = model(x).detach().numpy()
                mine = zoo.logits(i, x.numpy(), 3)
                assert np.abs(mine - theirs).max() < 1e-5 * np.abs(theirs).max(), np.abs(
                    mine - theirs
                ).max()
            again(tmp, zoo, make(), models[1], x, exact=keep)
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    save_safetensors(
        {n: torch.stack([t] * 5) for n, t in plain.state_dict().items()}, tmp / "stack.safetensors"
    )
    [(path, text, count)] = do_import(
        tmp / "stack.safetensors", tmp / "stacked", arch="1x4x4 conv3p0 linear2"
    )
    assert count == 5, count
    fails(
        ["'0.weight'", "[4,2,3,3]", "[5,2,3,3]", "layer 1"], do_import, tmp / "nets0", tmp / "bad",
        arch="2x6x5 conv5 batchnorm tanh gap linear3",
    )
    fails(["no tensor"], do_import, tmp / "nets0", tmp / "bad", arch="2x6x5 conv4 tanh gap linear3")
    fails(["num_batches_tracked"], do_import, tmp / "nets0", tmp / "bad")
    assert not (tmp / "bad.safetensors").exists()


class Block(nn.Module):
    """The basic block of torchvision's ResNets, with its names."""

    def __init__(self, inputs, units, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, units, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(units)
        self.conv2 = nn.Conv2d(units, units, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(units)
        self.downsample = None
        if stride != 1 or inputs != units:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, units, 1, stride, bias=False), nn.BatchNorm2d(units)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet(nn.Module):
    """torchvision.models.ResNet with basic blocks: 7x7 stem and pooling, or a 3x3 stem for small
    images."""

    def __init__(self, widths, blocks, classes, small):
        super().__init__()
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(3, widths[0], kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        before = widths[0]
        for stage, (units, count) in enumerate(zip(widths, blocks)):
            parts = [
                Block(before if b == 0 else units, units, 2 if b == 0 and stage > 0 else 1)
                for b in range(count)
            ]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*parts))
            before = units
        self.stages, self.fc = len(widths), nn.Linear(before, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def resnets(tmp):
    """ResNets with basic blocks by a text, in and out, norms folded or kept: values of PyTorch."""
    cases = [
        (
            "3x12x10 conv4! batchnorm basic4x2 basic6x2s2 gap linear5",
            lambda: ResNet([4, 6], [2, 2], 5, True), 12, 10,
        ),
        (
            "3x40x40 conv6k7s2! batchnorm pool3s2p1 basic6x2 basic8x2s2 basic10x2s2 basic12x2s2 "
            "gap linear7",
            lambda: ResNet([6, 8, 10, 12], [2, 2, 2, 2], 7, False),
            40,
            40,
        ),
    ]
    for k, (arch, make, height, width) in enumerate(cases):
        folder = tmp / f"resnets{k}"
        folder.mkdir()
        models = [make() for _ in range(2)]
        x = torch.randn(33, 3, height, width)
        for i, model in enumerate(models):
            model.train()(x)  # statistics that are not those of the start
            for name, value in model.state_dict().items():
                if "bn" in name and name.endswith("weight"):
                    value.uniform_(0.5, 1.5)
            torch.save(model.eval().state_dict(), folder / f"{i}.pt")
        for keep in (True, False):
            [(path, text, count)] = do_import(
                folder, tmp / f"res{k}{keep}", arch=arch, keep_norm=keep
            )
            assert count == 2, count
            zoo = Zoo(path)
            for i, model in enumerate(models):
                theirs = model(x).detach().numpy()
                mine = zoo.logits(i, x.numpy(), theirs.shape[1])
                error = np.abs(mine - theirs).max() / np.abs(theirs).max()
                assert error < 1e-5, (arch, keep, error)
            again(tmp, zoo, make(), models[1], x, exact=keep)
    wrong = cases[0][0].replace("basic6x2s2", "basic6x3s2")
    fails(
        ["layer2.2.conv1.weight", "no tensor"], do_import, tmp / "resnets0", tmp / "bad", arch=wrong
    )
    fails(["layer5.0.conv1.weight", "no tensor"], do_import, tmp / "resnets1", tmp / "bad",
          arch=cases[1][0].replace("basic6x2 ", "basic6x2 basic6x2s2 "))
    assert not (tmp / "bad.safetensors").exists()


def not_described(tmp):
    """What no description has is named."""
    torch.save(nn.TransformerEncoderLayer(8, 2, 16).state_dict(), tmp / "transformer.pt")
    for arch in (None, "8 linear8 linear3"):
        fails(
            ["'self_attn.in_proj_bias'", "attention layer", "no description"], do_import,
            tmp / "transformer.pt", tmp / "never", arch=arch,
        )
    torch.save(
        {"embedding.weight": torch.zeros(9, 4), "fc.weight": torch.zeros(2, 4)}, tmp / "text.pt"
    )
    fails(["'embedding.weight'", "an embedding"], do_import, tmp / "text.pt", tmp / "never")
    act_first = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2)
    )
    torch.save(act_first.state_dict(), tmp / "late.pt")
    arch = "1x4x4 conv3 relu pass batchnorm linear2"
    fails(
        [
            "layer 2", 'batch norm "2"', "expected a convolution or linear layer before it",
            "found", "--keep-norm",
        ],
        do_import,
        tmp / "late.pt",
        tmp / "never",
        arch=arch,
    )
    [(path, _, _)] = do_import(tmp / "late.pt", tmp / "late", arch=arch, keep_norm=True)
    x = torch.randn(5, 1, 4, 4)
    assert (
        np.abs(Zoo(path).logits(0, x.numpy(), 2) - act_first.eval()(x).detach().numpy()).max()
        < 1e-5
    )
    assert not (tmp / "never.safetensors").exists()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def refused(tmp):
    def attempt(thing, *words, layers=None, **options):
        torch.save(thing, tmp / "x.pt", **options)
        fails(words, do_import, tmp / "x.pt", tmp / "never", layers=layers)

    attempt(mlp(3, 2), "Sequential", "state_dict()")
    attempt({"a": Evil(tmp / "ran")}, "system", "no code is ever run")
    attempt({"w": torch.zeros(2, 3), "evil": Evil(tmp / "ran")}, "system", pickle_protocol=4)
    attempt(mlp(3, 2).state_dict(), "before 1.6", _use_new_zipfile_serialization=False)
    attempt(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).state_dict(),
            "1.num_batches_tracked I64", "normalisation")
    attempt(
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).state_dict(), "1.bias",
        "1.weight", "left over",
    )
    attempt(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 2)).state_dict(),
        "0.weight F32 [4,1,3,3]",
    )
    attempt(nn.LSTM(3, 4).state_dict(), "weight_hh_l0")
    attempt({"a": mlp(3, 2).state_dict(), "ema": mlp(3, 2).state_dict()}, "'a', 'ema'", "which one")
    attempt({"a.weight": torch.zeros(4, 4), "b.weight": torch.zeros(4, 4)}, "ambiguous", "--layers")
    attempt({"w": torch.zeros(2, 3, dtype=torch.complex64)}, "ComplexFloatStorage")
    attempt({"w": torch.zeros(1, 1).expand(100, 100)}, ".contiguous()")
    attempt([torch.zeros(2, 3)], "no dictionary")
    torch.jit.save(torch.jit.script(mlp(3, 2)), str(tmp / "x.pt"))
    fails(["TorchScript"], do_import, tmp / "x.pt", tmp / "never")
    assert not (tmp / "ran").exists() and not (tmp / "never.safetensors").exists()
    torch.save({"a.weight": torch.ones(4, 4), "b.weight": torch.zeros(4, 4)}, tmp / "x.pt")
    (path, arch, _), = do_import(tmp / "x.pt", tmp / "named", layers="b,a")
    assert arch == "4-4!-4!"
    np.testing.assert_array_equal(collection_flat(path)[0][0], [0] * 16 + [1] * 16)


def exported_network(tmp):
    """Torch trains it, weft imports and exports it, the documented script loads it: same logits,
    same accuracy."""
    data = Data(name="spirals")
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train).long()
    for name, act in (("relu", nn.ReLU), ("tanh", nn.Tanh), ("gelu", nn.GELU), ("silu", nn.SiLU),
                      ("sigmoid", nn.Sigmoid), ("identity", nn.Identity)):
        torch.manual_seed(1)
        model = mlp(data.inputs, 16, 8, data.classes, act=act)
        optimizer = torch.optim.Adam(model.parameters(), 2e-2)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save(model.state_dict(), tmp / "net.pt")
        (path, arch, _), = do_import(tmp / "net.pt", tmp / "zoo", activation=name)
        zoo = Zoo(path)
        assert arch == f"{data.inputs}-16-8-{data.classes}"
        ours = zoo.logits(0, data.x_test, data.classes)
        with torch.no_grad():
            theirs = model(torch.from_numpy(data.x_test)).numpy()
            zoo.export(0, tmp / "net.safetensors")
            loaded = load_network.load_network(tmp / "net.safetensors")
            again = loaded(torch.from_numpy(data.x_test)).numpy()
            zoo.export(0, tmp / "named.safetensors", "0,2,4")
            renamed = mlp(data.inputs, 16, 8, data.classes, act=act)
            renamed.load_state_dict(load_network.load_tensors(tmp / "named.safetensors")[0])
            np.testing.assert_array_equal(
                flat(renamed.state_dict().values()), flat(model.state_dict().values())
            )
        np.testing.assert_array_equal(again, theirs)  # the very same numbers went round
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        if name != "relu":
            continue  # the script itself once: starting torch takes seconds
        np.save(tmp / "x.npy", data.x_test)
        np.save(tmp / "y.npy", data.y_test)
        out = subprocess.run(
            [sys.executable, SCRIPT, tmp / "net.safetensors", tmp / "x.npy", tmp / "y.npy"],
            check=True, capture_output=True, text=True,
        ).stdout
        accuracy = (ours.argmax(1) == data.y_test).mean()
        assert out == f"accuracy {accuracy:.6f}\n", (out, accuracy)
        assert (
            accuracy > 1.2 / data.classes
        ), "the network has learned nothing: the comparison would be empty"


def lightning_checkpoints(tmp):
    """What Lightning saves beside the weights: hyperparameters in a class of its own, optimisers,
    callbacks."""
    for module in ("lightning.fabric.utilities.data", "pytorch_lightning.utilities.parsing"):
        cls = type("AttributeDict", (dict,), {"__module__": module})
        for i in range(1, module.count(".") + 2):
            sys.modules[".".join(module.split(".")[:i])] = types.ModuleType(
                ".".join(module.split(".")[:i])
            )
        sys.modules[module].AttributeDict = cls
        model = mlp(4, 5, 3)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.zeros(2, 4)).sum().backward()
        optimizer.step()
        torch.save(
            (
                {
                    "epoch": 3, "pytorch-lightning_version": "2.1.0",
                    "optimizer_states": [optimizer.state_dict()],
                    "state_dict": {"net." + k: v for k, v in model.state_dict().items()},
                    "hyper_parameters": cls(lr=0.1, sizes=[4, 5]),
                    "callbacks": {"best": torch.tensor(0.5)},
                    "loops": {"fit_loop": {"state_dict": {}}},
                }
                if module[0] == "l"
                else {"state_dict": model.state_dict(), "hyper_parameters": cls(lr=0.1)}
            ),
            tmp / "last.ckpt",
        )
        (path, arch, count), = do_import(tmp / "last.ckpt", tmp / "lightning")
        assert (arch, count) == ("4-5-3", 1)
        np.testing.assert_array_equal(
            collection_flat(path)[0][0], flat(model.state_dict().values())
        )


def written_for_torch(tmp):
    """A .pt that weft wrote is one for torch: under the names it was imported with, as plain data,
    mapped."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6))
            self.head = nn.Linear(6, 3)

    models = [Own() for _ in range(12)]
    folder = tmp / "own"
    folder.mkdir()
    for i, model in enumerate(models):
        torch.save({"epoch": i, "model": model.state_dict()}, folder / f"net{i}.ckpt")
    (path, arch, count), = do_import(folder, tmp / "own_zoo")
    assert (arch, count) == ("5-7-6-3", 12)
    zoo = Zoo(path)
    for i in (0, 2, 11):
        zoo.export(i, tmp / "out.pt")
        for options in ({}, {"weights_only": True}):
            state = torch.load(tmp / "out.pt", **options)
            assert list(state) == list(models[i].state_dict()), list(state)
            fresh = Own()
            fresh.load_state_dict(state)
            np.testing.assert_array_equal(
                flat(fresh.state_dict().values()), flat(models[i].state_dict().values())
            )
    (again, _, _), = do_import(tmp / "out.pt", tmp / "again_zoo")
    Zoo(again).export(0, tmp / "again.pt")
    assert (tmp / "again.pt").read_bytes() == (tmp / "out.pt").read_bytes()


def info_of_collections(tmp):
    """Medians against numpy; verdicts on networks that torch trained."""
    data = Data(name="spirals")
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train).long()

    def train(seed, steps, keep):
        torch.manual_seed(seed)
        model = mlp(data.inputs, 16, data.classes)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        kept = []
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            kept.append({k: v.clone() for k, v in model.state_dict().items()})
        return kept[-keep:]

    def summary(states):
        save_safetensors(
            {k: torch.stack([s[k] for s in states]) for k in states[0]}, tmp / "s.safetensors"
        )
        (path, _, _), = do_import(tmp / "s.safetensors", tmp / "info")
        w = collection_flat(path)[0].astype(np.float64)
        w /= np.linalg.norm(w, axis=1, keepdims=True)
        n = len(w)
        info = Zoo(path).info()
        assert abs(info.near - np.median((w[1:] * w[:-1]).sum(1))) < 1e-6
        far = [
            w[int(k * n / (n - 1))] @ w[(int(k * n / (n - 1)) + n // 2) % n] for k in range(n - 1)
        ]
        assert abs(info.far - np.median(far)) < 1e-6, (info.far, np.median(far))
        return info

    independent = summary([train(seed, 60, 1)[0] for seed in range(24)])
    assert independent.kinship == INDEPENDENT and independent.warning == b"", independent.near
    trajectory = summary(train(1, 60, 40))
    assert trajectory.kinship == TRAJECTORY and b"training run" in trajectory.warning, (
        trajectory.near,
        trajectory.far,
    )
    print(f"# independent near {independent.near:.3f} far {independent.far:.3f}, "
          f"trajectory near {trajectory.near:.4f} far {trajectory.far:.4f}")


def main():
    failed = 0
    for test in (
        torch_files, stacked_and_safetensors, described_networks, resnets, not_described, refused,
        exported_network, lightning_checkpoints, written_for_torch, info_of_collections,
    ):
        tmp = pathlib.Path(tempfile.mkdtemp())
        torch.manual_seed(0)
        try:
            test(tmp)
            print(f"ok {test.__name__}")
        except Exception as error:  # every test reports, also after a failure
            failed += 1
            print(f"not ok {test.__name__}: {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(tmp)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
