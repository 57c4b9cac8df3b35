"""The description of an nn.Module, as JSON of docs/formats.md, from a trace by torch.fx.

A layer of a description is an op, then a norm, an activation and a pooling. The trace is walked in
order of execution; each operation is put into the layer that made its input where it fits there
and nothing else reads that input, otherwise it begins a layer of its own ("pass"). What has no
description is refused with the name of the operation and of the module."""

from __future__ import annotations

import inspect
import operator
from typing import Any, Callable, NoReturn

from ._description import Description, Value
from .errors import InputError

HOW = (
    "weft describes chains of nn.Linear and nn.Conv2d with BatchNorm, LayerNorm, poolings, "
    "residual sums and the activations relu, tanh, gelu, silu, sigmoid. Give arch= and activation= "
    "where the module computes the same in another way."
)
LOGITS = "weft works with logits: leave it out of the module, whose parameters stay the same."


def _refuse(what: str, where: str) -> NoReturn:
    how = LOGITS if "softmax" in what.lower() else HOW
    raise InputError(f"{where}: {what}, which weft cannot describe. {how}")


def _pair(value: Any) -> list[int]:
    return [int(v) for v in value] if isinstance(value, (tuple, list)) else [int(value), int(value)]


def _compact(value: Any) -> int | list[int]:
    pair = _pair(value)
    return pair[0] if pair[0] == pair[1] else pair


# --- modules ---


def _linear(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
    if x.group == 0 and d.input is None:
        d.input = [int(m.in_features)]
    return d.add(
        {
            "op": "linear",
            "from": x.group,
            "units": int(m.out_features),
            "bias": m.bias is not None,
            "name": name,
        }
    )


def _conv(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
    if x.flat:
        _refuse("a convolution of flattened values", name)
    for attribute, plain in (("dilation", (1, 1)), ("groups", 1), ("padding_mode", "zeros")):
        if getattr(m, attribute) != plain:
            _refuse(f"nn.Conv2d with {attribute}={getattr(m, attribute)}", name)
    padding = m.padding
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if any(k % 2 == 0 for k in _pair(m.kernel_size)) or _pair(m.stride) != [1, 1]:
            _refuse("padding='same' of an even kernel or with a stride", name)
        padding = [k // 2 for k in _pair(m.kernel_size)]
    if x.group == 0:
        d.image = True
        d.input = [int(m.in_channels)]
    return d.add(
        {
            "op": "conv",
            "from": x.group,
            "in": int(m.in_channels),
            "units": int(m.out_channels),
            "kernel": _compact(m.kernel_size),
            "stride": _compact(m.stride),
            "padding": _compact(padding),
            "bias": m.bias is not None,
            "name": name,
        }
    )


def _norm(kind: str) -> Callable[..., Value]:
    def add(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
        if m.weight is None or m.bias is None:
            _refuse(f"nn.{type(m).__name__} without gamma and beta", name)
        if kind == "batch" and m.running_mean is None:
            _refuse(f"nn.{type(m).__name__} without running statistics", name)
        return d.attach(x, "norm", {"kind": kind, "name": name, "eps": float(m.eps)}, alone)

    return add


def _activation(function: str) -> Callable[..., Value]:
    def add(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
        if function == "gelu" and getattr(m, "approximate", "none") != "none":
            _refuse("the tanh form of gelu", name)
        return d.attach(x, "activation", function, alone)

    return add


def _pool(kind: str) -> Callable[..., Value]:
    def add(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
        plain = {
            "dilation": 1,
            "ceil_mode": False,
            "return_indices": False,
            "count_include_pad": True,
            "divisor_override": None,
        }
        for attribute, value in plain.items():
            if getattr(m, attribute, value) != value:
                _refuse(f"nn.{type(m).__name__} with {attribute}={getattr(m, attribute)}", name)
        d.image |= x.group == 0
        stride = m.kernel_size if m.stride is None else m.stride
        window = {
            "kernel": _compact(m.kernel_size),
            "stride": _compact(stride),
            "padding": _compact(m.padding),
        }
        return d.attach(x, "pool", {"kind": kind, **window}, alone)

    return add


def _global_pool(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
    if _pair(m.output_size) != [1, 1]:
        _refuse(f"nn.AdaptiveAvgPool2d({m.output_size}); only output_size=1 is described", name)
    return d.attach(x, "pool", {"kind": "global"}, alone)


def _flatten(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
    if (m.start_dim, m.end_dim) != (1, -1):
        _refuse(f"nn.Flatten({m.start_dim}, {m.end_dim})", name)
    return Value(x.group, flat=True)


def _same(d: Description, x: Value, m: Any, name: str, alone: bool) -> Value:
    return x


MODULES: dict[str, Callable[..., Value]] = {
    "Linear": _linear,
    "Conv2d": _conv,
    "BatchNorm1d": _norm("batch"),
    "BatchNorm2d": _norm("batch"),
    "LayerNorm": _norm("layer"),
    "ReLU": _activation("relu"),
    "Tanh": _activation("tanh"),
    "GELU": _activation("gelu"),
    "SiLU": _activation("silu"),
    "Sigmoid": _activation("sigmoid"),
    "MaxPool2d": _pool("max"),
    "AvgPool2d": _pool("average"),
    "AdaptiveAvgPool2d": _global_pool,
    "Flatten": _flatten,
    "Identity": _same,
    "Dropout": _same,  # described as it is in evaluation
    "Dropout1d": _same,
    "Dropout2d": _same,
    "AlphaDropout": _same,
}

# --- functions and methods ---


class _Arguments:
    """Arguments of a function under the names of the module that does the same."""

    def __init__(self, names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stride = None
        self.padding = 0
        for name, value in zip(names.split(), args):
            setattr(self, name, value)
        for name, value in kwargs.items():
            setattr(self, name, value)


_MAX_POOL = "kernel_size stride padding dilation ceil_mode return_indices"
_AVERAGE_POOL = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
# name -> what it does, names of the arguments after the first
FUNCTIONS: dict[str, tuple[Callable[..., Value], str]] = {
    "relu": (_activation("relu"), "inplace"),
    "relu_": (_activation("relu"), ""),
    "tanh": (_activation("tanh"), ""),
    "sigmoid": (_activation("sigmoid"), ""),
    "gelu": (_activation("gelu"), "approximate"),
    "silu": (_activation("silu"), "inplace"),
    "max_pool2d": (_pool("max"), _MAX_POOL),
    "avg_pool2d": (_pool("average"), _AVERAGE_POOL),
    "adaptive_avg_pool2d": (_global_pool, "output_size"),
    "dropout": (_same, ""),
    "contiguous": (_same, ""),
    "float": (_same, ""),
    "detach": (_same, ""),
    "clone": (_same, ""),
}


def _is_flattening(name: str, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """flatten(x, 1), x.view(x.size(0), -1), x.reshape(-1, 784): all but the first dimension
    joined."""
    if name == "flatten":
        start = kwargs.get("start_dim", arguments[0] if arguments else 0)
        return bool(start == 1) and len(arguments) < 2 and "end_dim" not in kwargs
    shape = arguments[0] if len(arguments) == 1 else arguments
    return isinstance(shape, (tuple, list)) and len(shape) == 2


def _is_global_mean(arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dims = kwargs.get("dim", arguments[0] if arguments else None)
    return isinstance(dims, (tuple, list)) and [int(d) % 4 for d in dims] in ([2, 3], [3, 2])


class _Walk:
    """One pass over the nodes of a traced module."""

    def __init__(self, graph: Any, module: Any) -> None:
        self.modules = dict(module.named_modules())
        self.nodes = list(graph.nodes)
        self.values: dict[Any, Value] = {}
        self.sizes: set[Any] = set()  # nodes that hold sizes, for x.view(x.size(0), -1)
        self.owners: dict[int, Any] = {}  # node that uses a parameter, by the parameter's id
        self.description = Description()

    def is_node(self, value: Any) -> bool:
        """A result of the trace, and no constant, list or dict."""
        return isinstance(value, type(self.nodes[0]))

    def value(self, node: Any, where: str) -> Value:
        if not self.is_node(node) or node not in self.values:
            _refuse(f"an operation on {node}", where)
        return self.values[node]

    def run(self) -> Description:
        for node in self.nodes:
            if node.op == "placeholder":
                self.values[node] = Value(0)
            elif node.op == "call_module":
                self.values[node] = self.call_module(node)
            elif node.op in ("call_function", "call_method"):
                result = self.call_function(node)
                if result is not None:
                    self.values[node] = result
            elif node.op == "get_attr":
                _refuse("a parameter that belongs to no layer", _inside(node.target))
            elif node.op == "output":
                result = node.args[0]
                if not self.is_node(result) or result not in self.values:
                    kind = "" if self.is_node(result) else f", but a {type(result).__name__}"
                    kind = kind.replace("immutable_", "")  # what torch.fx makes of lists and dicts
                    _refuse(f"an output that is not one tensor{kind}", "forward")
                if self.values[result].group != len(self.description.layers):
                    _refuse("layers after the one that is returned", "forward")
        return self.description

    def alone(self, node: Any) -> bool:
        """Nothing else reads this value."""
        return sum(user not in self.sizes for user in node.users) <= 1

    def call_module(self, node: Any) -> Value:
        name = _inside(node.target)
        module = self.modules[name]
        kind = type(module).__name__
        if kind not in MODULES or not type(module).__module__.startswith("torch.nn"):
            _refuse(f"nn.{kind}" if kind not in MODULES else kind, name)
        for parameter in module.parameters():
            if self.owners.setdefault(id(parameter), node) is not node:
                _refuse("a layer that is used twice, or that shares weights with another", name)
        source = node.args[0] if node.args else node.kwargs.get("input")
        return MODULES[kind](
            self.description, self.value(source, name), module, name, self.alone(source)
        )

    def call_function(self, node: Any) -> Value | None:
        target = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        source = node.args[0] if node.args else node.kwargs.get("input")
        rest = tuple(node.args[1:])
        kwargs = {k: v for k, v in node.kwargs.items() if k != "input"}
        of_shape = name in ("size", "dim") or (name == "getattr" and rest[:1] == ("shape",))
        if of_shape or (self.is_node(source) and source in self.sizes):
            self.sizes.add(node)
            return None
        where = f"forward ({name})"
        if target in (operator.add, operator.iadd) or name in ("add", "add_"):
            other = rest[0] if rest else kwargs.pop("other", None)
            a, b = self.value(source, where), self.value(other, where)
            if kwargs:
                _refuse("a sum with a factor", where)
            return self.description.add({"op": "add", "from": [a.group, b.group]})
        if not self.is_node(source):
            _refuse(f"the operation {name}", where)
        value = self.value(source, where)
        if name in ("flatten", "view", "reshape"):
            if not _is_flattening(name, rest, kwargs):
                _refuse(f"{name} to another shape", where)
            return Value(value.group, flat=True)
        if name == "mean":
            if _is_global_mean(rest, kwargs) and not kwargs.get("keepdim", False):
                entry = {"kind": "global"}
                return self.description.attach(value, "pool", entry, self.alone(source))
            _refuse("a mean that is not over the whole image", where)
        if name not in FUNCTIONS:
            _refuse(f"the operation {name}", where)
        function, names = FUNCTIONS[name]
        return function(
            self.description, value, _Arguments(names, rest, kwargs), where, self.alone(source)
        )


def _inside(target: Any) -> str:
    """The name in the module itself, not in the one that is traced around it."""
    name = str(target)
    return name[len(AROUND) :] if name.startswith(AROUND) else name


def _trace(module: Any) -> Any:
    """The graph of a module that is called with one input: other arguments of its forward have
    their defaults."""
    import torch
    import torch.fx

    class Around(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            return self.inner.forward(x)

    return torch.fx.Tracer().trace(Around())


AROUND = "inner."


def unwrap(module: Any) -> Any:
    """The module inside DataParallel and torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = module.module
        if inner is None:
            return module
        module = inner


def _one_input(module: Any) -> None:
    """Refuses a forward that needs more than its first argument."""
    parameters = list(inspect.signature(module.forward).parameters.values())[1:]
    for parameter in parameters:
        plain = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if plain and parameter.default is parameter.empty:
            _refuse("a second input", f"forward ({parameter.name})")


def describe(module: Any, input_shape: tuple[int, ...] | None = None) -> dict[str, Any]:
    """The description of a module as docs/formats.md has it.

    input_shape  (channels, height, width) for networks that read images; (n,) or None otherwise
    """
    module = unwrap(module)
    name = type(module).__name__
    if type(module).__name__ in MODULES and type(module).__module__.startswith("torch.nn"):
        raise InputError(
            f"{name} is a single layer; weft needs a network, as nn.Sequential({name.lower()})"
        )
    _one_input(module)
    try:
        graph = _trace(module)
    except Exception as error:
        raise InputError(
            f"{name} cannot be traced by torch.fx ({type(error).__name__}: {error}). Its forward "
            f"must not depend on values of its input. {HOW}"
        ) from None
    found = _Walk(graph, module).run()
    if not found.layers:
        raise InputError(f"{name} has no layer. {HOW}")
    if input_shape is not None:
        shape = [int(n) for n in input_shape]
    elif found.image:
        channels = found.input[0] if found.input else "channels"
        raise InputError(
            f"{name} reads images, and a module does not say how large they are: give "
            f"input_shape=({channels}, height, width)"
        )
    elif found.input is None:
        raise InputError(
            f"{name} does not say how many numbers it reads: give input_shape=(inputs,)"
        )
    else:
        shape = found.input
    return found.json(shape)
