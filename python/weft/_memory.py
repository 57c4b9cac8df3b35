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
        if getattr(self, "handle", None):
            self._free(self.handle)
            self.handle = ctypes.c_void_p()


class TemporaryFolder:
    """A folder that goes with the last thing that refers to it, without a ResourceWarning."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="weft-")
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def keep(self) -> None:
        """It stays when nothing refers to it any more."""
        self._end.detach()


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


def as_array(value: Any) -> Array:
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
    return np.asarray(value)


def as_numbers(value: Any, name: str) -> Array:
    """An array of float32, contiguous, of what holds real numbers; `name` is the caller's for
    it."""
    try:
        array = as_array(value)
        if array.dtype.kind == "c":
            raise TypeError("numbers are complex")
        with np.errstate(over="ignore"):  # values beyond float32 are infinite, and told as such
            return np.asarray(array, dtype=np.float32, order="C")
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} is no array of real numbers: {error}") from None


def pointer(array: Array | None) -> int | None:
    return None if array is None else int(array.ctypes.data)
