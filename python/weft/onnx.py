"""Networks as ONNX models, both ways.

`export` writes a network of a collection; `load` reads models that have a description. Both compare
what ONNX computes with what weft computes, where onnxruntime is installed."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NoReturn

import numpy as np

from ._description import Description, Value
from ._files import replacing
from .errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from .zoo import Zoo

OPSET = 17  # the first with LayerNormalization
TOLERANCE = 1e-5


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise UnsupportedError(
            "ONNX needs the package onnx: pip install onnx onnxruntime"
        ) from None
    return onnx


def _pair(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)] * 2


# --- export ---


class _Writer:
    """Nodes of a model, one after another; `last` of a group is the name of its value."""

    def __init__(
        self, description: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]]
    ) -> None:
        self.helper = _onnx().helper
        self.description = description
        self.tensors = tensors
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        shape = description["input"]
        self.groups: list[tuple[str, bool]] = [("input", len(shape) == 3)]  # name, an image

    def node(self, op: str, inputs: Iterable[str], name: str, **attributes: Any) -> str:
        for source in inputs:
            if source in self.tensors:
                self.constants[source] = np.ascontiguousarray(self.tensors[source])
        self.nodes.append(self.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def number(self, value: float) -> str:
        name = f"constant.{value!r}"
        self.constants[name] = np.array(value, np.float32)
        return name

    def window(self, layer: Mapping[str, Any], stride: Any) -> dict[str, list[int]]:
        padding = _pair(layer.get("padding", 0))
        return {
            "kernel_shape": _pair(layer["kernel"]),
            "strides": _pair(layer.get("stride", stride)),
            "pads": padding + padding,
        }

    def activation(self, kind: str, value: str, name: str) -> str:
        if kind in ("relu", "tanh", "sigmoid"):
            return self.node(kind.capitalize(), [value], name)
        if kind == "silu":
            return self.node("Mul", [value, self.node("Sigmoid", [value], name + ".sigmoid")], name)
        if kind == "gelu":
            scaled = self.node("Div", [value, self.number(math.sqrt(2))], name + ".scaled")
            error = self.node("Erf", [scaled], name + ".erf")
            shifted = self.node("Add", [error, self.number(1.0)], name + ".shifted")
            product = self.node("Mul", [value, shifted], name + ".product")
            return self.node("Mul", [product, self.number(0.5)], name)
        raise UnsupportedError(f"the activation {kind} has no ONNX form here")

    def layer(self, index: int, layer: Mapping[str, Any]) -> None:
        name = layer.get("name", f"layers.{index}")
        at = f"layer{index}"
        sources = layer.get("from", index)
        value, image = self.groups[sources[0] if isinstance(sources, list) else sources]
        weights = [f"{name}.weight"]
        if layer.get("bias", True):
            folded = layer.get("folded_norm", {})  # whose beta the bias may stand for
            weights.append(f"{folded['name'] if folded.get('bias') else name}.bias")
        if layer["op"] == "linear":
            if image:
                value, image = self.node("Flatten", [value], at + ".flat", axis=1), False
            value = self.node("Gemm", [value, *weights], at, transB=1)
        elif layer["op"] == "conv":
            value = self.node("Conv", [value, *weights], at, **self.window(layer, 1))
        elif layer["op"] == "add":
            value = self.node("Add", [self.groups[g][0] for g in sources], at)
        norm = layer.get("norm")
        if norm is not None:
            stem = norm.get("name", f"{name}.norm")
            scale = [f"{stem}.weight", f"{stem}.bias"]
            eps = float(norm.get("eps", 1e-5))
            if norm["kind"] == "batch":
                running = [f"{stem}.running_mean", f"{stem}.running_var"]
                value = self.node(
                    "BatchNormalization", [value, *scale, *running], at + ".norm", epsilon=eps
                )
            else:
                value = self.node(
                    "LayerNormalization", [value, *scale], at + ".norm", axis=1, epsilon=eps
                )
        if layer.get("activation", "identity") != "identity":
            value = self.activation(layer["activation"], value, at + ".activation")
        pool = layer.get("pool")
        if pool is not None and pool["kind"] == "global":
            value = self.node("GlobalAveragePool", [value], at + ".pool")
        elif pool is not None and pool["kind"] == "max":
            value = self.node("MaxPool", [value], at + ".pool", **self.window(pool, pool["kernel"]))
        elif pool is not None:
            window = self.window(pool, pool["kernel"])
            value = self.node("AveragePool", [value], at + ".pool", count_include_pad=1, **window)
        self.groups.append((value, image))

    def model(self, outputs: int) -> Any:
        onnx = _onnx()
        for index, layer in enumerate(self.description["layers"]):
            self.layer(index, layer)
        value, image = self.groups[-1]
        if image:
            value = self.node("Flatten", [value], "output.flat", axis=1)
        self.node("Identity", [value], "output")
        kind = onnx.TensorProto.FLOAT
        shape = ["N", *self.description["input"]]
        graph = self.helper.make_graph(
            self.nodes,
            "weft",
            [self.helper.make_tensor_value_info("input", kind, shape)],
            [self.helper.make_tensor_value_info("output", kind, ["N", outputs])],
            [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opset = self.helper.make_opsetid("", OPSET)
        made = self.helper.make_model(graph, opset_imports=[opset], producer_name="weft")
        made.ir_version = 8
        onnx.checker.check_model(made)
        return made


def _session(model: bytes) -> Any:
    """The model in onnxruntime; None where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _compare(zoo: Zoo, index: int, model: bytes, label: str) -> None:
    """Outputs of onnxruntime and of weft on random inputs."""
    session = _session(model)
    if session is None:
        return
    given = session.get_inputs()[0]
    batch = given.shape[0] if isinstance(given.shape[0], int) else 8  # it may be fixed
    shape = (batch, *zoo.arch.input_shape)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    theirs = np.asarray(session.run(None, {given.name: x})[0])
    ours = zoo.forward(x, index)
    error = float(np.abs(ours - theirs).max() / max(1.0, float(np.abs(ours).max())))
    if not error <= TOLERANCE:
        raise InputError(
            f"{label}: onnxruntime and weft differ by {error:.1e} of the largest output on random "
            f"inputs; the model computes something else than its description says"
        )


def export(zoo: Zoo, path: str | os.PathLike[str], index: int = 0) -> None:
    """Write network `index` of a collection as an ONNX model; equal in onnxruntime to 1e-5."""
    writer = _Writer(zoo.arch.description, zoo[index])
    made = writer.model(zoo.arch.outputs)
    data = made.SerializeToString()
    _compare(zoo, index, data, os.fspath(path))
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


# --- import ---


class _Part:
    """A value inside gelu or silu: what was computed from `source` so far."""

    def __init__(self, kind: str, source: str, factor: float = 1.0) -> None:
        self.kind, self.source, self.factor = kind, source, factor


class _Reader:
    """Walks the nodes of a model, which ONNX keeps in order of execution."""

    def __init__(self, model: Any, label: str) -> None:
        onnx = _onnx()
        self.label = label
        self.graph = model.graph
        self.array = onnx.numpy_helper.to_array
        self.attribute = onnx.helper.get_attribute_value
        self.constants = {t.name: self.array(t) for t in self.graph.initializer}
        self.names = {t.name for t in self.graph.initializer}
        self.values: dict[str, Value] = {}
        self.parts: dict[str, _Part] = {}
        self.matrix: dict[str, int] = {}  # MatMul without its bias: output -> layer
        self.users: dict[str, int] = {}
        self.tensors: dict[str, np.ndarray[Any, Any]] = {}
        self.found = Description()
        for node in self.graph.node:
            for name in node.input:
                self.users[name] = self.users.get(name, 0) + 1

    def refuse(self, what: str, node: Any) -> NoReturn:
        raise InputError(
            f"{self.label}: node {node.name or node.output[0]}: {what}, which weft cannot "
            f"describe. It reads Gemm, MatMul, Conv, BatchNormalization, LayerNormalization, Relu, "
            f"Tanh, Sigmoid, Gelu, SiLU, pooling, Flatten and Add of residual connections"
        )

    def of(self, node: Any, name: str, default: Any) -> Any:
        for attribute in node.attribute:
            if attribute.name == name:
                return self.attribute(attribute)
        return default

    def alone(self, name: str, users: int = 1) -> bool:
        return self.users.get(name, 0) <= users

    def take(self, node: Any, index: int, name: str) -> np.ndarray[Any, Any]:
        """A constant input as a tensor of the network."""
        constant = self.constants.get(node.input[index]) if index < len(node.input) else None
        if constant is None:
            self.refuse(f"input {index} of {node.op_type} is not a constant", node)
        self.tensors[name] = np.ascontiguousarray(constant, dtype=np.float32)
        return self.tensors[name]

    def layer_name(self, node: Any, index: int = 1) -> str:
        given = node.input[index]
        if given in self.names and given.endswith(".weight"):
            return str(given[: -len(".weight")])
        return f"layers.{len(self.found.layers)}"

    def read(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        inputs = [i for i in self.graph.input if i.name not in self.constants]
        if len(inputs) != 1 or len(self.graph.output) != 1:
            raise InputError(
                f"{self.label}: {len(inputs)} inputs and {len(self.graph.output)} outputs; "
                f"weft describes one of each"
            )
        dims = inputs[0].type.tensor_type.shape.dim
        shape = [int(d.dim_value) for d in dims[1:]]
        self.values[inputs[0].name] = Value(0)
        for node in self.graph.node:
            self.node(node)
        out = self.graph.output[0].name
        if out not in self.values or self.values[out].group != len(self.found.layers):
            raise InputError(f"{self.label}: the output {out} is not the last layer")
        if len(shape) not in (1, 3) or 0 in shape:
            raise InputError(
                f"{self.label}: the input has the shape {shape}; weft needs [n] or "
                f"[channels, height, width], all fixed"
            )
        return self.found.json(shape), self.tensors

    def node(self, node: Any) -> None:
        op, out = node.op_type, node.output[0]
        if op == "Constant":
            self.constants[out] = self.array(self.of(node, "value", None))
            return
        if all(name in self.constants for name in node.input):
            self.refuse(f"{op} of constants", node)
        if self.element_wise(node, op, out):
            return
        source = self.values.get(node.input[0])
        if source is None:
            self.refuse(f"{op} of something that is no layer", node)
        handler = getattr(self, "op_" + op, None)
        if handler is None:
            self.refuse(op, node)
        self.values[out] = handler(node, source)

    def scalar(self, name: str) -> float | None:
        constant = self.constants.get(name)
        return (
            float(constant.reshape(-1)[0]) if constant is not None and constant.size == 1 else None
        )

    def element_wise(self, node: Any, op: str, out: str) -> bool:
        """Biases, residual sums, and the parts of gelu and silu."""
        if (
            op == "Sigmoid"
            and self.users.get(node.input[0], 0) == 2
            and node.input[0] in self.values
        ):
            self.parts[out] = _Part("sigmoid", node.input[0])
            return True
        if op == "Erf" and node.input[0] in self.parts:
            part = self.parts[node.input[0]]
            if part.kind == "scaled" and abs(part.factor - math.sqrt(0.5)) < 1e-6:
                self.parts[out] = _Part("erf", part.source)
                return True
        if op not in ("Add", "Mul", "Div"):
            return False
        a, b = node.input
        if a in self.constants and op != "Div":
            a, b = b, a
        number = self.scalar(b)
        if op == "Add":
            return self.add(node, a, b, out, number)
        if op == "Div" and number is not None:
            number = 1 / number
        return self.multiply(a, b, out, number)

    def add(self, node: Any, a: str, b: str, out: str, number: float | None) -> bool:
        if a in self.parts and self.parts[a].kind == "erf" and number == 1:
            self.parts[out] = _Part("shifted", self.parts[a].source)
            return True
        if a in self.matrix and b in self.constants:
            layer = self.found.layers[self.matrix[a]]
            layer["bias"] = True
            self.tensors[layer["name"] + ".bias"] = np.ascontiguousarray(
                self.constants[b].reshape(-1), dtype=np.float32
            )
            self.values[out] = self.values[a]
            return True
        if a in self.values and b in self.values:
            self.values[out] = self.found.add(
                {"op": "add", "from": [self.values[a].group, self.values[b].group]}
            )
            return True
        self.refuse("a sum that is neither a bias nor a residual connection", node)

    def multiply(self, a: str, b: str, out: str, number: float | None) -> bool:
        if number is not None and a in self.values:
            self.parts[out] = _Part("scaled", a, number)
            return True
        if number == 0.5 and a in self.parts and self.parts[a].kind == "product":
            self.activate(out, "gelu", self.parts[a].source, 2)
            return True
        if number == 0.5 and a in self.parts and self.parts[a].kind == "shifted":
            self.parts[out] = _Part("halved", self.parts[a].source)
            return True
        for x, y in ((a, b), (b, a)):
            part = self.parts.get(y)
            if part is None:
                continue
            half = self.parts.get(x)
            if part.kind == "shifted" and x == part.source:
                self.parts[out] = _Part("product", x)
                return True
            if (
                part.kind == "shifted"
                and half is not None
                and half.factor == 0.5
                and half.source == part.source
            ):
                self.activate(out, "gelu", part.source, 2)
                return True
            whole = {"sigmoid": "silu", "halved": "gelu"}.get(part.kind)
            if whole is not None and x == part.source:
                self.activate(out, whole, x, 2)
                return True
        return False

    def activate(self, out: str, kind: str, source: str, users: int = 1) -> None:
        self.values[out] = self.found.attach(
            self.values[source], "activation", kind, self.alone(source, users)
        )

    # --- one method for each operation

    def op_Gemm(self, node: Any, x: Value) -> Value:
        if (
            self.of(node, "alpha", 1.0) != 1
            or self.of(node, "beta", 1.0) != 1
            or self.of(node, "transA", 0)
        ):
            self.refuse("Gemm with alpha, beta or transA", node)
        return self.linear(node, x, transposed=bool(self.of(node, "transB", 0)))

    def op_MatMul(self, node: Any, x: Value) -> Value:
        value = self.linear(node, x, transposed=False)
        self.matrix[node.output[0]] = value.group - 1
        return value

    def linear(self, node: Any, x: Value, transposed: bool) -> Value:
        name = self.layer_name(node)
        weight = self.take(node, 1, name + ".weight")
        if not transposed:
            weight = self.tensors[name + ".weight"] = np.ascontiguousarray(weight.T)
        bias = len(node.input) > 2
        if bias:
            self.tensors[name + ".bias"] = self.take(node, 2, name + ".bias").reshape(-1)
        units = weight.shape[0]
        return self.found.add(
            {"op": "linear", "from": x.group, "units": units, "bias": bias, "name": name}
        )

    def window(self, node: Any, kernel: Any) -> dict[str, Any]:
        pads = [int(p) for p in self.of(node, "pads", [0, 0, 0, 0])]
        if len(kernel) != 2 or pads[:2] != pads[2:]:
            self.refuse(
                "a window that is not two-dimensional, or padding that is not alike on both sides",
                node,
            )
        if any(d != 1 for d in self.of(node, "dilations", [1, 1])) or self.of(node, "ceil_mode", 0):
            self.refuse("dilation or ceil_mode", node)
        if self.of(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            self.refuse("auto_pad", node)
        strides = [int(s) for s in self.of(node, "strides", [1, 1])]
        return {"kernel": [int(k) for k in kernel], "stride": strides, "padding": pads[:2]}

    def op_Conv(self, node: Any, x: Value) -> Value:
        name = self.layer_name(node)
        weight = self.take(node, 1, name + ".weight")
        if self.of(node, "group", 1) != 1:
            self.refuse("a convolution with groups", node)
        bias = len(node.input) > 2
        if bias:
            self.take(node, 2, name + ".bias")
        layer = {
            "op": "conv",
            "from": x.group,
            "in": weight.shape[1],
            "units": weight.shape[0],
            "bias": bias,
            "name": name,
        }
        return self.found.add({**layer, **self.window(node, weight.shape[2:])})

    def norm(self, node: Any, x: Value, kind: str, parts: list[str]) -> Value:
        name = (
            self.layer_name(node)
            if node.input[1].endswith(".weight")
            else f"layers.{x.group - 1}.norm"
        )
        for index, part in enumerate(parts):
            self.take(node, index + 1, f"{name}.{part}")
        eps = float(f"{self.of(node, 'epsilon', 1e-5):.7g}")  # ONNX keeps it as float32
        entry = {"kind": kind, "name": name, "eps": eps}
        return self.found.attach(x, "norm", entry, self.alone(node.input[0]))

    def op_BatchNormalization(self, node: Any, x: Value) -> Value:
        if self.of(node, "training_mode", 0):
            self.refuse("batch norm in training", node)
        return self.norm(node, x, "batch", ["weight", "bias", "running_mean", "running_var"])

    def op_LayerNormalization(self, node: Any, x: Value) -> Value:
        rank = self.constants[node.input[1]].ndim if node.input[1] in self.constants else 0
        if self.of(node, "axis", -1) not in (1, -rank):
            self.refuse("layer norm over some of the dimensions", node)
        return self.norm(node, x, "layer", ["weight", "bias"])

    def simple(self, node: Any, kind: str) -> Value:
        self.activate(node.output[0], kind, node.input[0])
        return self.values[node.output[0]]

    def op_Relu(self, node: Any, x: Value) -> Value:
        return self.simple(node, "relu")

    def op_Tanh(self, node: Any, x: Value) -> Value:
        return self.simple(node, "tanh")

    def op_Sigmoid(self, node: Any, x: Value) -> Value:
        return self.simple(node, "sigmoid")

    def op_Gelu(self, node: Any, x: Value) -> Value:
        if self.of(node, "approximate", b"none") != b"none":
            self.refuse("the tanh form of gelu", node)
        return self.simple(node, "gelu")

    def pool(self, node: Any, x: Value, entry: dict[str, Any]) -> Value:
        return self.found.attach(x, "pool", entry, self.alone(node.input[0]))

    def op_MaxPool(self, node: Any, x: Value) -> Value:
        return self.pool(
            node, x, {"kind": "max", **self.window(node, self.of(node, "kernel_shape", []))}
        )

    def op_AveragePool(self, node: Any, x: Value) -> Value:
        window = self.window(node, self.of(node, "kernel_shape", []))
        if any(window["padding"]) and not self.of(node, "count_include_pad", 0):
            self.refuse("an average that leaves padding out", node)
        return self.pool(node, x, {"kind": "average", **window})

    def op_GlobalAveragePool(self, node: Any, x: Value) -> Value:
        return self.pool(node, x, {"kind": "global"})

    def op_ReduceMean(self, node: Any, x: Value) -> Value:
        axes = self.of(node, "axes", None)
        if axes is None and len(node.input) > 1:
            axes = self.constants.get(node.input[1])
        if axes is None or sorted(int(a) % 4 for a in axes) != [2, 3]:
            self.refuse("a mean that is not over the whole image", node)
        return self.pool(node, x, {"kind": "global"})

    def op_Flatten(self, node: Any, x: Value) -> Value:
        if self.of(node, "axis", 1) != 1:
            self.refuse("Flatten along another axis", node)
        return Value(x.group, flat=True)

    def op_Reshape(self, node: Any, x: Value) -> Value:
        shape = self.constants.get(node.input[1])
        if shape is None or shape.size != 2:
            self.refuse("a reshape that does not flatten", node)
        return Value(x.group, flat=True)

    def op_Identity(self, node: Any, x: Value) -> Value:
        return x

    op_Dropout = op_Identity


def load(sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Zoo:
    """A collection of the networks of ONNX files, which must be of one architecture.

    >>> import tempfile, weft
    >>> zoo = weft.generator("random").sample(2, arch=weft.Arch("2-8-3", activation="relu"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zoo.to_onnx(folder + "/first.onnx", index=0)
    ...     print(weft.onnx.load(folder + "/first.onnx"))
    <weft.Zoo of 1 networks 2-8-3, relu, 51 parameters>
    """
    from .zoo import Zoo

    onnx = _onnx()
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    descriptions, states, data = [], [], []
    labels = [os.fspath(source) for source in sources]
    if not labels:
        raise InputError("no ONNX file was given")
    for label in labels:
        try:
            model = onnx.load(label)  # with weights that lie in a file beside it
            data.append(model.SerializeToString())
        except FileNotFoundError:
            raise InputError(f"{label}: there is no such file") from None
        except Exception as error:
            raise InputError(f"{label}: not an ONNX model ({error})") from None
        description, state = _Reader(model, label).read()
        descriptions.append(description)
        states.append(state)
        if description != descriptions[0]:
            raise InputError(
                f"{label} is of another architecture than {labels[0]}: load them one by one"
            )
    zoo = Zoo.from_models(states, arch=descriptions[0], keep_norm=True)
    for index, label in enumerate(labels):
        _compare(zoo, index, data[index], label)
    return zoo
