"""ONNX both ways, equal in onnxruntime to 1e-5."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
import onnx.helper  # noqa: E402
import onnx.numpy_helper  # noqa: E402
import weft  # noqa: E402

ARCHS = [
    "4-8-3",
    "4-8!-6-3",
    "4 linear8 layernorm relu linear3",
    "2x9x9 conv4 batchnorm pool conv6k5s2p1 gap linear3",
    "2x8x8 conv4k3p0 layernorm avgpool3s2p1 flatten linear8 linear3",
]
RESIDUAL = {
    "input": [2, 6, 6],
    "layers": [
        {
            "op": "conv",
            "name": "a",
            "units": 4,
            "kernel": 3,
            "padding": 1,
            "norm": {"kind": "batch", "name": "bn", "eps": 1e-3},
        },
        {
            "op": "conv",
            "name": "b",
            "units": 4,
            "kernel": [1, 3],
            "padding": [0, 1],
            "activation": "silu",
        },
        {"op": "add", "from": [1, 2], "activation": "gelu", "pool": {"kind": "max", "kernel": 2}},
        {"op": "pass", "activation": "tanh"},
        {"op": "linear", "name": "c", "units": 3, "bias": False},
    ],
}


def run(path, x):
    """The outputs by onnxruntime."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def random_zoo(arch, n=2):
    weights = np.random.default_rng(0).standard_normal((n, arch.params)).astype(np.float32) * 0.5
    zoo = weft.Zoo(arch, weights)
    for tensor in arch.tensors:
        if tensor.kind == "variance":
            zoo[tensor.name][...] = np.abs(zoo[tensor.name]) + 0.5
    return zoo


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu", "sigmoid"])
@pytest.mark.parametrize("text", [*ARCHS, "residual"])
def test_there_and_back(text, activation, tmp_path):
    arch = weft.Arch(RESIDUAL) if text == "residual" else weft.Arch(text, activation)
    zoo = random_zoo(arch)
    paths = [tmp_path / f"{index}.onnx" for index in range(2)]
    for index, path in enumerate(paths):
        zoo.to_onnx(path, index)
    x = np.random.default_rng(1).standard_normal((7, *arch.input_shape)).astype(np.float32)
    theirs = run(paths[1], x)
    ours = zoo.forward(x, 1)
    assert np.abs(theirs - ours).max() <= 1e-5 * max(1, np.abs(ours).max())
    back = weft.onnx.load(paths)
    assert back.arch == arch
    assert np.array_equal(back.weights, zoo.weights)


def test_models_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (
                nn.Conv2d(1, 4, 3, padding=1),
                nn.Conv2d(4, 4, 3, padding=1),
                nn.Linear(64, 3),
            )

        def forward(self, x):
            h = nn.functional.gelu(self.a(x))
            h = torch.max_pool2d(torch.relu(self.b(h) + h), 2)
            return self.c(torch.flatten(h, 1))

    model = Net().eval()
    x = torch.randn(2, 1, 8, 8)
    options = {"opset_version": 13, "input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    try:
        torch.onnx.export(model, x, tmp_path / "net.onnx", **options)
    except Exception as error:
        pytest.skip(f"this torch does not export: {error}")
    zoo = weft.onnx.load(tmp_path / "net.onnx")
    assert np.allclose(zoo.forward(x.numpy(), 0), model(x).detach(), atol=1e-5)
    assert "a.weight" in zoo.names


@pytest.mark.parametrize("bias", [True, False])
def test_folded_batch_norms(bias, tmp_path):
    torch = pytest.importorskip("torch")
    from torch import nn

    layers = nn.Linear(4, 8, bias=bias), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    model = nn.Sequential(*layers).eval()
    model[1].running_mean += 1
    zoo = weft.Zoo.from_models([model])
    assert "norm" not in zoo.arch.description["layers"][0]
    zoo.to_onnx(tmp_path / "net.onnx")
    x = torch.randn(5, 4)
    assert np.allclose(run(tmp_path / "net.onnx", x.numpy()), model(x).detach(), atol=1e-5)


def model_of(nodes, constants=(), shape=("n", 4), outputs=1):
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, shape)],
        [onnx.helper.make_tensor_value_info("y", kind, None)] * outputs,
        [
            onnx.numpy_helper.from_array(np.asarray(a, np.float32), n)
            for n, a in dict(constants).items()
        ],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def node(op, inputs, output, **attributes):
    return onnx.helper.make_node(op, inputs, [output], **attributes)


def test_matmul_with_its_bias(tmp_path):
    constants = {"w": np.random.rand(4, 3), "b": np.random.rand(3)}
    model = model_of([node("MatMul", ["x", "w"], "h"), node("Add", ["h", "b"], "y")], constants)
    onnx.save(model, str(tmp_path / "m.onnx"))
    zoo = weft.onnx.load(tmp_path / "m.onnx")
    x = np.random.rand(5, 4).astype(np.float32)
    assert np.allclose(zoo.forward(x, 0), x @ constants["w"] + constants["b"], atol=1e-5)


@pytest.mark.parametrize("order", ["h * (g / 2)", "(h * g) / 2", "(h / 2) * g"])
def test_gelu_in_parts(order, tmp_path):
    """In the orders in which exporters write it; g is 1 + erf(h / sqrt(2))."""
    first, second = {
        "h * (g / 2)": (["half", "g"], ["h", "m"]),
        "(h * g) / 2": (["h", "g"], ["half", "m"]),
        "(h / 2) * g": (["h", "half"], ["m", "g"]),
    }[order]
    nodes = [
        node("Gemm", ["x", "w"], "h", transB=1),
        node("Div", ["h", "root"], "d"),
        node("Erf", ["d"], "e"),
        node("Add", ["e", "one"], "g"),
        node("Mul", first, "m"),
        node("Mul", second, "a"),
        node("Gemm", ["a", "v"], "y", transB=1),
    ]
    constants = {"w": np.random.rand(5, 4) - 0.5, "v": np.random.rand(3, 5)}
    numbers = {"root": np.sqrt(2), "one": 1, "half": 0.5}
    onnx.save(model_of(nodes, {**constants, **numbers}), str(tmp_path / "m.onnx"))
    assert (
        weft.onnx.load(tmp_path / "m.onnx").arch.activation == "gelu"
    )  # compared with onnxruntime


def test_weights_in_a_file_beside_the_model(tmp_path):
    """As torch.onnx.export writes it from torch 2.9 on."""
    constants = {"w": np.random.rand(3, 4)}
    model = model_of([node("Gemm", ["x", "w"], "y", transB=1)], constants)
    beside = {"save_as_external_data": True, "location": "m.onnx.data", "size_threshold": 0}
    onnx.save_model(model, str(tmp_path / "m.onnx"), **beside)
    zoo = weft.onnx.load(tmp_path / "m.onnx")
    assert np.allclose(zoo["layers.0.weight"][0], constants["w"])
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(weft.InputError, match="m.onnx.data"):
        weft.onnx.load(tmp_path / "m.onnx")


def test_a_fixed_number_of_examples(tmp_path):
    """As torch.onnx.export writes it where nothing else is said."""
    model = model_of([node("Gemm", ["x", "w"], "y", transB=1)], {"w": np.ones((3, 4))}, (2, 4))
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert weft.onnx.load(tmp_path / "m.onnx").arch.text == "4-3!"


W = {"w": np.ones((3, 4))}
LINEAR = node("Gemm", ["x", "w"], "h", transB=1)


@pytest.mark.parametrize(
    "model, text",
    [
        (model_of([LINEAR, node("Softmax", ["h"], "y")], W), "Softmax"),
        (model_of([LINEAR, node("Mul", ["h", "h"], "y")], W), "Mul"),
        (model_of([node("Gemm", ["x", "w"], "y", transB=1, alpha=2.0)], W), "alpha"),
        (model_of([node("Gemm", ["x", "w"], "y", transB=1)], W, ("n", "m")), "all fixed"),
        (
            model_of(
                [node("Conv", ["x", "w"], "y", dilations=[2, 2])],
                {"w": np.ones((3, 4, 3, 3))},
                ("n", 4, 9, 9),
            ),
            "dilation",
        ),
        (
            model_of([LINEAR, node("Add", ["h", "c"], "y")], {**W, "c": np.ones((3, 3))}),
            "neither a bias|shape",
        ),
    ],
)
def test_models_without_a_description(model, text, tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(weft.WeftError, match=text) as caught:
        weft.onnx.load(path)
    assert caught.value.status in (2, 3, 6)


def test_files_that_are_no_models(tmp_path):
    (tmp_path / "text.onnx").write_text("text")
    with pytest.raises(weft.InputError, match="not an ONNX model|inputs"):
        weft.onnx.load(tmp_path / "text.onnx")
    with pytest.raises(weft.InputError, match="no such file"):
        weft.onnx.load(tmp_path / "none.onnx")
    with pytest.raises(weft.InputError, match="no ONNX file"):
        weft.onnx.load([])


def test_mixed_architectures(tmp_path):
    for index, text in enumerate(("4-8-3", "4-9-3")):
        random_zoo(weft.Arch(text, "relu")).to_onnx(tmp_path / f"{index}.onnx")
    with pytest.raises(weft.InputError, match="another architecture"):
        weft.onnx.load([tmp_path / "0.onnx", tmp_path / "1.onnx"])
