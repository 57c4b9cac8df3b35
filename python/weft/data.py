"""Labelled data: arrays, built-in sets, files."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Mapping, Union

import numpy as np

from ._lib import lib, text
from ._memory import Array, Owned, as_array, as_numbers, view
from ._options import Options
from .context import answer, current
from .errors import InputError, ShapeError, UsageError


MOST_CLASSES = 2**31  # labels are int32 in the library


class Data:
    """A labelled data set with a training and a test part.

    >>> import weft
    >>> data = weft.Data.open("spirals", rows=300)
    >>> data.inputs, data.classes, data.x_train.shape
    (2, 3, (240, 2))
    >>> data.x_train.dtype, data.y_train[:3].dtype
    (dtype('float32'), dtype('int32'))
    """

    def __init__(self, handle: ctypes.c_void_p, settings: Mapping[str, Any] | None = None) -> None:
        self._owned = Owned(handle, lib.wf_dataset_free)
        self._settings = settings  # that it was opened by; None: numbers of the caller's

    @classmethod
    def open(cls, name: str | os.PathLike[str], **settings: Any) -> Data:
        """A built-in set ("spirals", "moons", "digits") or a file of CSV, TSV, ARFF, NumPy or IDX:
        where its name says, else under the folder that WEFT_DATA names. Settings are those of
        [data] in recipes: weft.settings("data")."""
        given = os.fspath(name)
        key = "path" if os.sep in given or "." in given else "name"
        if key == "path" and os.path.exists(given):
            given = os.path.abspath(given)
        return _opened({key: given, **settings})

    @classmethod
    def of_arrays(
        cls,
        x: Any,
        y: Any,
        x_test: Any = None,
        y_test: Any = None,
        *,
        name: str = "data",
        classes: int = 0,
    ) -> Data:
        """Of arrays in memory: examples (n, ...) and labels 0, 1, ... (n). Without a test part
        these examples are the test part: what networks are judged on."""
        examples, labels = _examples(x, "X"), _labels(y, len(x), "y")
        none: tuple[int | None, int | None, int] = (None, None, 0)
        train, test = none, none
        if x_test is None:
            test = (examples.ctypes.data, labels.ctypes.data, len(labels))
        else:
            other, other_labels = (
                _examples(x_test, "X_test"),
                _labels(y_test, len(x_test), "y_test"),
            )
            if other.shape[1] != examples.shape[1]:
                raise ShapeError(
                    f"X has {examples.shape[1]} numbers an example, X_test {other.shape[1]}; "
                    f"they must be alike"
                )
            train = (examples.ctypes.data, labels.ctypes.data, len(labels))
            test = (other.ctypes.data, other_labels.ctypes.data, len(other_labels))
        handle = ctypes.c_void_p()
        out = ctypes.byref(handle)
        inputs = examples.shape[1]
        current()._call(lib.wf_dataset_from_memory, text(name), inputs, classes, *train, *test, out)
        return cls(handle)

    @classmethod
    def split(
        cls,
        x: Any,
        y: Any,
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        classes: int = 0,
        name: str = "data",
    ) -> Data:
        """Of arrays, split at random into a training and a test part with the same mix of
        classes."""
        examples, labels = _examples(x, "X"), _labels(y, len(x), "y")
        handle = ctypes.c_void_p()
        current()._call(
            lib.wf_dataset_split,
            text(name),
            examples.shape[1],
            classes,
            examples.ctypes.data,
            labels.ctypes.data,
            len(labels),
            test_fraction,
            seed,
            ctypes.byref(handle),
        )
        return cls(handle)

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Name, sizes, names of classes and inputs, fingerprint, preparation."""
        found: dict[str, Any] = answer(lib.wf_dataset_json, self._c)
        return found

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def inputs(self) -> int:
        return int(self.about["inputs"])

    @property
    def classes(self) -> int:
        return int(self.about["classes"])

    def _part(self, function: Any, test: bool, width: int | None, dtype: Any) -> Array:
        n = ctypes.c_size_t()
        address = function(self._c, test, ctypes.byref(n))
        shape = (n.value,) if width is None else (n.value, width)
        return view(self._owned, address or 0, shape, dtype)

    @property
    def x_train(self) -> Array:
        return self._part(lib.wf_dataset_x, False, self.inputs, np.float32)

    @property
    def y_train(self) -> Array:
        return self._part(lib.wf_dataset_y, False, None, np.int32)

    @property
    def x_test(self) -> Array:
        return self._part(lib.wf_dataset_x, True, self.inputs, np.float32)

    @property
    def y_test(self) -> Array:
        return self._part(lib.wf_dataset_y, True, None, np.int32)

    def __reduce__(self) -> tuple[Any, ...]:
        """Data that was opened by a name is opened again; arrays go with their values."""
        if self._settings is not None:
            return (_opened, (self._settings,))
        parts = [self.x_train, self.y_train, self.x_test, self.y_test]
        parts = [np.array(part) for part in parts[0 if len(parts[1]) else 2 :]]
        return (_of_parts, (parts, self.name, self.classes))

    @property
    def _c(self) -> ctypes.c_void_p:
        return self._owned.handle

    def __repr__(self) -> str:
        about = self.about
        return (
            f"<weft.Data {about['name']}: {about['inputs']} inputs, {about['classes']} classes, "
            f"{about['n_train']} + {about['n_test']} examples>"
        )


def _opened(settings: Mapping[str, Any]) -> Data:
    with Options("wf_data_settings", settings) as options:
        handle = ctypes.c_void_p()
        current()._run(lib.wf_dataset_open, options.pointer, ctypes.byref(handle))
    return Data(handle, settings)


def _of_parts(parts: list[Array], name: str, classes: int) -> Data:
    return Data.of_arrays(*parts, name=name, classes=classes)


DataLike = Union[Data, str, "os.PathLike[str]", Mapping[str, Any], "tuple[Any, ...]"]


def data_of(
    data: DataLike,
    *,
    classes: int = 0,
    train: bool = False,
    reads: Mapping[str, Any] | None = None,
) -> Data:
    """Data however it is given. (X, y) is a test part, or, to train on, is split.

    reads  how networks want what is opened here by its name: scale, order of classes"""
    if isinstance(data, Data):
        return data
    if isinstance(data, (str, os.PathLike)):
        return Data.open(data, **(reads or {}))
    if isinstance(data, Mapping):
        settings = {**(reads or {}), **data}
        name = settings.pop("name", None) or settings.pop("path", None)
        if name is None:
            raise UsageError('data as a dict needs "name" or "path"')
        return Data.open(name, **settings)
    if isinstance(data, (tuple, list)) and len(data) == 2:
        if train:
            return Data.split(*data, classes=classes)
        return Data.of_arrays(*data, classes=classes)
    if isinstance(data, (tuple, list)) and len(data) == 4:
        return Data.of_arrays(*data, classes=classes)
    raise UsageError(
        "data is (X, y), (X, y, X_test, y_test), the name of a built-in set, a path, a dict of "
        f"settings or weft.Data; not {type(data).__name__}"
    )


def _examples(x: Any, name: str) -> Array:
    array = as_numbers(x, name)
    if array.ndim < 2 or len(array) == 0:
        raise ShapeError(f"{name} has the shape {tuple(array.shape)}; give (examples, inputs)")
    array = array.reshape(len(array), -1)
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise InputError(
            f"{name} has NaN or infinite values, the first in row {row}: impute or drop such rows"
        )
    return array


def _labels(y: Any, n: int, name: str) -> Array:
    array = as_array(y)
    if array.shape != (n,):
        how = ""
        if array.ndim == 2 and len(array) == n:
            how = f": {name}.argmax(1), where a row has a 1 for its class"
            how = how if array.shape[1] > 1 else f": {name}.reshape(-1)"
        raise ShapeError(
            f"{name} has the shape {tuple(array.shape)}; {n} examples need ({n},){how}"
        )
    if array.dtype.kind not in "iub":
        whole = array.dtype.kind == "f" and bool(np.all(array == np.round(array)))
        if not whole:
            if array.dtype.kind == "f":
                raise InputError(
                    f"{name} holds numbers with fractions: that is regression, which is not "
                    f"supported. Labels are whole numbers from 0, the index of the network's output"
                )
            raise InputError(
                f"{name} holds {array.dtype}; labels are whole numbers from 0, the index of the "
                f"network's output: np.unique(y, return_inverse=True)[1] makes such"
            )
    if array.size and int(array.min()) < 0:
        raise InputError(f"{name} holds {int(array.min())}; labels count from 0")
    if array.size and int(array.max()) >= MOST_CLASSES:
        raise InputError(
            f"{name} holds {int(array.max())}; labels are the index of the network's output: "
            f"np.unique({name}, return_inverse=True)[1] makes such"
        )
    return np.ascontiguousarray(array, dtype=np.int32)


__all__ = ["Data", "DataLike", "data_of"]
