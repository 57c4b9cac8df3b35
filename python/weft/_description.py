"""A description as it is built by the readers of modules and of ONNX files (JSON of
docs/formats.md)."""

from __future__ import annotations

from typing import Any

Layer = dict[str, Any]


class Value:
    """A result in the trace: the group that holds it (0 is the input), and whether it was
    flattened."""

    def __init__(self, group: int, flat: bool = False) -> None:
        self.group = group
        self.flat = flat


class Description:
    """Layers as they are found."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.input: list[int] | None = None  # units of the input where the first layer tells
        self.image = False  # the input is read by a convolution or a pooling

    def add(self, layer: Layer) -> Value:
        self.layers.append(layer)
        return Value(len(self.layers))

    def attach(self, value: Value, key: str, entry: Any, alone: bool) -> Value:
        """Add a norm, an activation or a pooling to the layer of `value`, or to a new one."""
        order = ["norm", "activation", "pool"]
        later = order[order.index(key) :]
        layer = self.layers[value.group - 1] if value.group > 0 else None
        if layer is not None and alone and not any(name in layer for name in later):
            layer[key] = entry
            return value
        made = self.add({"op": "pass", "from": value.group, key: entry})
        made.flat = value.flat
        return made

    def json(self, shape: list[int]) -> dict[str, Any]:
        return {"input": shape, "layers": self.layers}
