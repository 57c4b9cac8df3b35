"""numpy arrays over memory of the library, without copies."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import weakref
from typing import Any, Callable

import numpy as np

from .errors import InputError

Array = np.ndarray[Any, Any]


class Owned:
    """A handle of the library, freed with the last thing that refers to it."""

    def __init__(self, handle: ctypes.c_void_p, free: Callable[[Any], None], *keep: Any) -> None:
        self.handle = handle
        self._free = free
        self._keep = keep  # what the library borrows as long as the handle lives

    def __del__(self) -> None:
        if self.handle:
            self._free(self.handle)
            self.handle = ctypes.c_void_p()


class TemporaryFolder:
    """A folder that goes with the last thing that refers to it, without a ResourceWarning."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="weft-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _View:
    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def view(
    owner: Any,
    address: int,
    shape: tuple[int, ...],
    dtype: Any = np.float32,
    strides: tuple[int, ...] | None = None,
) -> Array:
    """A read-only array at `address`, which keeps `owner` alive."""
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": np.dtype(dtype).str,
        "data": (address, True),
        "strides": strides,
    }
    if not address or 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_View(owner, interface))


def as_array(value: Any, dtype: Any = None) -> Array:
    """An array of what numpy reads, and of tensors of torch, wherever they are; without a copy
    where none is needed."""
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # which numpy does not have
            value = value.float()
        try:
            value = value.cpu().numpy()
        except (NotImplementedError, RuntimeError, TypeError) as error:  # meta, sparse, quantized
            raise InputError(
                f"a tensor ({value.dtype}, {value.layout}, on {value.device}) has no plain numbers "
                f"to read: {str(error).splitlines()[0]}"
            ) from None
    return np.asarray(value, dtype=dtype)


def pointer(array: Array | None) -> int | None:
    return None if array is None else int(array.ctypes.data)
