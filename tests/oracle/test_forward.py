#!/usr/bin/env python3
"""Logits of described networks beside those of PyTorch modules with the same parameters."""
import ctypes as C, json, os, pathlib, sys
import numpy as np, torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIB = C.CDLL(str(ROOT / os.environ.get("BUILD", "build") / "libweft.so"))
LIB.wf_ctx_create.argtypes = [C.c_void_p, C.c_void_p]
LIB.wf_last_error.argtypes, LIB.wf_last_error.restype = [C.c_void_p], C.c_char_p
LIB.wf_graph_parse.argtypes = [C.c_void_p, C.c_char_p, C.c_char_p, C.c_uint, C.c_void_p]
LIB.wf_graph_free.argtypes = [C.c_void_p]
LIB.wf_graph_forward.argtypes = [
    C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p,
]
CTX = C.c_void_p()
assert LIB.wf_ctx_create(None, C.byref(CTX)) == 0


def ours(text, w, x, outputs, activation="relu"):
    graph, out = C.c_void_p(), np.zeros((len(x), outputs), np.float32)
    if LIB.wf_graph_parse(
        CTX, text.encode(), activation.encode(), 0, C.byref(graph)
    ) or LIB.wf_graph_forward(CTX, graph, w.ctypes.data, x.ctypes.data, len(x), out.ctypes.data):
        sys.exit(f"{text}: {LIB.wf_last_error(CTX).decode()}")
    LIB.wf_graph_free(graph)
    return out


def flat(module):
    parts = [
        v.detach().numpy().ravel() for k, v in module.state_dict().items() if "num_batches" not in k
    ]
    return np.ascontiguousarray(np.concatenate(parts), np.float32)


class Residual(nn.Module):
    """Two basic blocks, the second with a stride and a projection."""

    def __init__(self):
        super().__init__()
        conv = lambda a, b, k, s: nn.Conv2d(a, b, k, s, k // 2, bias=False)
        self.conv1, self.bn1 = conv(3, 4, 3, 1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = conv(4, 4, 3, 1), nn.BatchNorm2d(4)
        self.conv3, self.bn3 = conv(4, 6, 3, 2), nn.BatchNorm2d(6)
        self.down, self.bnd = conv(4, 6, 1, 2), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        a = torch.relu(self.bn1(self.conv1(x)))
        b = torch.relu(self.bn2(self.conv2(a)) + a)
        c = torch.relu(self.bn3(self.conv3(b)) + self.bnd(self.down(b)))
        return self.fc(c.mean((2, 3)))


def conv(source, n, kernel, stride, activation):
    layer = {
        "op": "conv", "from": source, "units": n, "kernel": [kernel] * 2, "stride": [stride] * 2,
        "padding": [kernel // 2] * 2, "bias": False, "norm": {"kind": "batch"},
        "activation": activation,
    }
    return layer


def cases():
    L = nn.Flatten
    yield (
        "3x32x32 conv16 pool conv32 pool conv48 gap linear10",
        "relu",
        (3, 32, 32),
        10,
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), L(),
            nn.Linear(48, 10),
        ),
    )
    yield (
        "2x11x9 conv5k5s2p1 avgpool3s2p1 conv4k1! linear7 linear3",
        "tanh",
        (2, 11, 9),
        3,
        nn.Sequential(
            nn.Conv2d(2, 5, 5, 2, 1), nn.Tanh(), nn.AvgPool2d(3, 2, 1),
            nn.Conv2d(5, 4, 1, bias=False), nn.Tanh(), L(), nn.Linear(4 * 3 * 2, 7), nn.Tanh(),
            nn.Linear(7, 3),
        ),
    )
    yield (
        "1x10x10 conv6 batchnorm gelu pool3s2p1 conv3k3p0 layernorm silu linear4",
        "relu",
        (1, 10, 10),
        4,
        nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.GELU(), nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(6, 3, 3), nn.LayerNorm((3, 3, 3)), nn.SiLU(), L(), nn.Linear(27, 4),
        ),
    )
    yield (
        "9 linear8 batchnorm sigmoid linear6 layernorm relu linear2",
        "relu",
        (9,),
        2,
        nn.Sequential(
            nn.Linear(9, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Linear(8, 6), nn.LayerNorm(6),
            nn.ReLU(), nn.Linear(6, 2),
        ),
    )
    layers = [
        conv(0, 4, 3, 1, "relu"), conv(1, 4, 3, 1, "identity"),
        {"op": "add", "from": [2, 1], "activation": "relu"}, conv(3, 6, 3, 2, "identity"),
        conv(3, 6, 1, 2, "identity"),
        {"op": "add", "from": [4, 5], "activation": "relu", "pool": {"kind": "global"}},
        {"op": "linear", "from": 6, "units": 5, "activation": "identity"},
    ]
    yield json.dumps({"input": [3, 8, 8], "layers": layers}), "relu", (3, 8, 8), 5, Residual()


def compare(text, activation, shape, outputs, module):
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.3, 2)
            elif value.is_floating_point():
                value.add_(0.2 * torch.randn_like(value))
    x = torch.randn(130, *shape)
    module.eval()
    with torch.no_grad():
        theirs = module.double()(x.double()).numpy()
    module.float()
    mine = ours(text, flat(module), np.ascontiguousarray(x.numpy()), outputs, activation)
    error = np.abs(mine - theirs).max() / np.abs(theirs).max()
    print(f"{'ok' if error < 1e-5 else 'not ok'} {text[:70]} ({error:.1e} from PyTorch)")
    return error < 1e-5


if __name__ == "__main__":
    torch.manual_seed(3)
    sys.exit(0 if all([compare(*case) for case in cases()]) else 1)
