"""Architectures: what a network is made of, and in which order its parameters lie."""

from __future__ import annotations

import ctypes
import functools
import json
from dataclasses import dataclass
from typing import Any, Mapping, Union

import numpy as np

from ._lib import from_text, lib, text
from ._memory import Array, as_numbers
from .context import answer, current
from .errors import ShapeError, UsageError

_KINDS = ("weight", "bias", "gamma", "beta", "mean", "variance")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a network's parameters and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    count: int
    kind: str  # weight, bias, gamma, beta; mean and variance are buffers of a batch norm

    @property
    def is_buffer(self) -> bool:
        return self.kind in ("mean", "variance")


class Arch:
    """A network as data: a text as "64-16-8-10", a description as a dict (docs/formats.md), or a
    JSON file.

    >>> import weft
    >>> arch = weft.Arch("64-16-8-10", activation="relu")
    >>> arch.params, arch.inputs, arch.outputs
    (1266, 64, 10)
    >>> arch.scaled(2).text
    '64-32-16-10'
    >>> [t.name for t in arch.tensors][:2], arch.tensors[0].shape
    (['layers.0.weight', 'layers.0.bias'], (16, 64))
    """

    def __init__(self, arch: str | Mapping[str, Any], activation: str | None = None) -> None:
        self._handle = ctypes.c_void_p()
        if isinstance(arch, str):
            if activation is None and "{" not in arch and not arch.endswith(".json"):
                raise UsageError(
                    f"{arch}: the text does not say which activation the hidden layers have; give "
                    'activation="relu" (or tanh, gelu, silu, sigmoid, identity)'
                )
            source = arch
        elif isinstance(arch, Mapping):
            source = json.dumps(arch)
        else:
            raise UsageError(
                f"an architecture has the type {type(arch).__name__}; give a text (64-16-8-10), a "
                f"dict (docs/formats.md) or a weft.Arch"
            )
        handle = ctypes.c_void_p()
        current()._call(
            lib.wf_graph_parse, text(source), text(activation or "relu"), 0, ctypes.byref(handle)
        )
        self._handle = handle

    @classmethod
    def _own(cls, handle: ctypes.c_void_p) -> Arch:
        """Takes over a graph of the library."""
        arch = cls.__new__(cls)
        arch._handle = handle
        return arch

    @classmethod
    def _copy(cls, borrowed: int) -> Arch:
        """A copy of a graph that belongs to something else."""
        handle = ctypes.c_void_p()
        current()._call(lib.wf_graph_clone, borrowed, ctypes.byref(handle))
        return cls._own(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.wf_graph_free(self._handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Arch, (self.description,))

    @functools.cached_property
    def text(self) -> str:
        """As people write it: "64-16-8-10"."""
        return from_text(lib.wf_graph_text(self._handle))

    @functools.cached_property
    def activation(self) -> str:
        """Of the hidden layers; "mixed" where they differ."""
        return from_text(lib.wf_graph_activation(self._handle))

    @functools.cached_property
    def params(self) -> int:
        """Numbers of a network, running statistics of batch norms included."""
        return int(lib.wf_graph_params(self._handle))

    @functools.cached_property
    def inputs(self) -> int:
        return int(lib.wf_graph_inputs(self._handle))

    @functools.cached_property
    def outputs(self) -> int:
        return int(lib.wf_graph_outputs(self._handle))

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """The layers as JSON has them (docs/formats.md)."""
        found: dict[str, Any] = answer(lib.wf_graph_json, self._handle)
        return found

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(n,) or (channels, height, width)."""
        return tuple(self.description["input"])

    @functools.cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of a network in the order of its flat vector."""
        found = []
        offset, count = ctypes.c_size_t(), ctypes.c_size_t()
        rank, kind = ctypes.c_int(), ctypes.c_int()
        shape = (ctypes.c_size_t * 4)()
        parts = [ctypes.byref(part) for part in (offset, count, rank)]
        for index in range(lib.wf_graph_tensors(self._handle)):
            name = lib.wf_graph_tensor(self._handle, index, *parts, shape, ctypes.byref(kind))
            own_shape = tuple(shape[: rank.value])
            found.append(
                Tensor(from_text(name), own_shape, offset.value, count.value, _KINDS[kind.value])
            )
        return tuple(found)

    def scaled(self, width: float) -> Arch:
        """The same network with hidden widths times `width`."""
        handle = ctypes.c_void_p()
        current()._call(lib.wf_graph_scale_width, self._handle, float(width), ctypes.byref(handle))
        return Arch._own(handle)

    def inputs_of(self, x: Any) -> Array:
        """Examples as the library takes them: (n, inputs), float32, contiguous."""
        array = as_numbers(x, "x")
        if array.ndim < 2 or array[0:1].size != self.inputs:
            image = f" or (n, {', '.join(map(str, self.input_shape))})"
            raise ShapeError(
                f"examples have the shape {tuple(array.shape)}; {self.text} reads {self.inputs} "
                f"numbers each: give (n, {self.inputs})"
                + (image if len(self.input_shape) > 1 else "")
            )
        return array.reshape(len(array), -1)

    def weights_of(self, weights: Any) -> Array:
        """Flat weights as the library takes them: (n, params), float32, contiguous."""
        array = as_numbers(weights, "weights")
        if array.ndim != 2 or array.shape[1] != self.params:
            raise ShapeError(
                f"weights have the shape {tuple(array.shape)}; {self.text} has {self.params} "
                f"parameters: give (networks, {self.params})"
            )
        return array

    def forward(self, weights: Any, x: Any) -> Array:
        """Logits (outputs of n examples) of one network with flat weights `weights`.

        >>> import numpy as np, weft
        >>> arch = weft.Arch("2-3", activation="relu")
        >>> arch.forward(np.ones(arch.params, np.float32), [[1.0, 2.0]])
        array([[4., 4., 4.]], dtype=float32)
        """
        flat = self.weights_of(as_numbers(weights, "weights").reshape(1, -1))
        examples = self.inputs_of(x)
        out = np.empty((len(examples), self.outputs), np.float32)
        current()._call(
            lib.wf_graph_forward,
            self._handle,
            flat.ctypes.data,
            examples.ctypes.data,
            len(examples),
            out.ctypes.data,
        )
        return out

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arch):
            return NotImplemented
        return bool(lib.wf_graph_equal(self._handle, other._handle))

    def __hash__(self) -> int:
        return hash(self.params)

    def __repr__(self) -> str:
        return f"<weft.Arch {self.text}, {self.activation}, {self.params} parameters>"


ArchLike = Union[Arch, str, Mapping[str, Any]]


def arch_of(arch: ArchLike, activation: str | None = None) -> Arch:
    return arch if isinstance(arch, Arch) else Arch(arch, activation)
