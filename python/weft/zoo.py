"""Collections of networks of one architecture."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence, overload

import numpy as np

from ._hub import OnHub, downloaded
from ._lib import from_text, lib, text, text_or_none
from ._memory import Array, Owned, TemporaryFolder, view
from ._options import settings
from .arch import Arch, ArchLike, arch_of
from .context import answer, current
from .errors import Interrupted, ShapeError, UsageError

if TYPE_CHECKING:
    import torch


class Zoo(OnHub):
    """Networks of one architecture, in memory or in a mapped file; numpy views of them without
    copies.

    >>> import numpy as np, weft
    >>> weights = np.random.default_rng(0).standard_normal((5, 27), dtype=np.float32)
    >>> zoo = weft.Zoo(weft.Arch("2-4-3", activation="relu"), weights)
    >>> zoo
    <weft.Zoo of 5 networks 2-4-3, relu, 27 parameters>
    >>> zoo["layers.0.weight"].shape, np.shares_memory(zoo["layers.0.weight"], weights)
    ((5, 4, 2), True)
    >>> len(zoo[1:3]), zoo[0]["layers.1.bias"].shape
    (2, (3,))
    """

    _kind = "dataset"

    def __init__(
        self,
        arch: ArchLike,
        weights: Any,
        *,
        activation: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> None:
        """weights  (networks, parameters), flat in the order of `arch.tensors`; float32 is not
        copied"""
        self.arch = arch_of(arch, activation)
        flat = self.arch.weights_of(weights)
        self._flat: Array | None = flat
        self._setup(_cut(self.arch, flat), meta)

    def _setup(self, tensors: dict[str, Array], meta: Mapping[str, str] | None) -> None:
        self._tensors = tensors
        self._order = list(tensors)
        self._meta = dict(meta or {})
        self._owned: Owned | None = None
        self._making = threading.Lock()
        self.path: str | None = None
        #: Of sampled networks: evaluations of the field, steps, seconds.
        self.stats: dict[str, float] = {}

    @classmethod
    def _of_tensors(
        cls, arch: Arch, tensors: Mapping[str, Array], order: Sequence[str] | None = None
    ) -> Zoo:
        """Of stacked tensors (M, ...), which are not copied."""
        zoo = cls.__new__(cls)
        zoo.arch = arch
        zoo._flat = None
        zoo._setup({t.name: tensors[t.name] for t in arch.tensors}, None)
        if order is not None:
            zoo._order = list(order)
        return zoo

    @classmethod
    def _of_handle(cls, handle: ctypes.c_void_p) -> Zoo:
        """Takes over an open collection of the library."""
        owner = Owned(handle, lib.wf_zoo_free)
        arch = Arch._copy(lib.wf_zoo_graph(handle))
        count = int(lib.wf_zoo_count(handle))
        tensors, flat = {}, None
        stride = ctypes.c_size_t()
        for block, tensor in enumerate(arch.tensors):
            address = lib.wf_zoo_tensor(handle, block, ctypes.byref(stride))
            if not address:
                flat = _loaded(handle, count, arch.params)
                tensors = _cut(arch, flat)
                break
            inner = np.empty(tensor.shape, np.float32).strides
            strides = (int(stride.value) * 4, *inner)
            tensors[tensor.name] = view(owner, address, (count, *tensor.shape), np.float32, strides)
        zoo = cls._of_tensors(arch, tensors)
        zoo._flat, zoo._owned = flat, owner
        if not lib.wf_zoo_in_memory(handle):
            zoo.path = from_text(lib.wf_zoo_path(handle))
        return zoo

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Zoo:
        """A collection that weft wrote. The file is mapped, not read; with a pattern
        ("part-*.safetensors") all files that match it are one collection, which is read."""
        handle = ctypes.c_void_p()
        current()._call(lib.wf_zoo_open, text(path), ctypes.byref(handle))
        return cls._of_handle(handle)

    @classmethod
    def from_models(
        cls,
        models: Any,
        *,
        module: Any = None,
        arch: ArchLike | None = None,
        activation: str | None = None,
        layers: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        recursive: bool = False,
        keep_norm: bool = False,
        verify: bool = True,
        skip_non_finite: bool = False,
    ) -> Zoo:
        """A collection of networks that were trained elsewhere.

        models  nn.Modules; state_dicts; a folder or a glob of their files (.pt, .pth,
                .safetensors); one such file; stacked tensors, as torch.func.stack_module_state
                gives them: a dict or (params, buffers)

        Where order of layers and activation come from:
        an nn.Module       is traced with torch.fx
        module             an nn.Module of the same kind, traced for state_dicts, files and stacked
                           tensors
        arch, activation   a description, in place of a trace; docs/formats.md
        activation, layers fully connected networks alone: layers are found by names and shapes, or
        named in order

        input_shape        (channels, height, width) of networks that read images
        recursive          a folder with all folders below it
        keep_norm          keep batch norms as gamma, beta and statistics; otherwise they are folded
                           into the layers before them, which in evaluation compute the same, and
                           state_dict(), modules() ... have them again
        verify             compare outputs with those of the module on random inputs, refuse a
                           difference
        skip_non_finite    leave networks with NaN or infinite values out; otherwise they are
                           refused
        """
        from .models import from_models

        return from_models(
            cls,
            models,
            module=module,
            arch=arch,
            activation=activation,
            layers=layers,
            input_shape=input_shape,
            recursive=recursive,
            keep_norm=keep_norm,
            verify=verify,
            skip_non_finite=skip_non_finite,
        )

    # --- what it holds ---

    def __len__(self) -> int:
        return len(next(iter(self._tensors.values())))

    @property
    def names(self) -> list[str]:
        """Names of the tensors, as a state_dict of these networks has them and in that order."""
        return list(self._order)

    @property
    def weights(self) -> Array:
        """All parameters, (networks, parameters). A view, except where the networks came as stacked
        tensors or from a file: then they are gathered once."""
        if self._flat is None:
            flat = np.empty((len(self), self.arch.params), np.float32)
            for tensor in self.arch.tensors:
                part = flat[:, tensor.offset : tensor.offset + tensor.count]
                part[...] = self._tensors[tensor.name].reshape(len(self), -1)
            self._flat = flat
        return self._flat

    @overload
    def __getitem__(self, key: str) -> Array: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Array]: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | Array) -> Zoo: ...
    def __getitem__(self, key: str | int | slice | Sequence[int] | Array) -> Any:
        """By name: the tensor of all networks. By index: the tensors of one. By slice: a Zoo. All
        are views. By a list of indices or a mask: a Zoo of copies, as `take` makes it."""
        if isinstance(key, str):
            if key not in self._tensors:
                raise KeyError(f"{key}; there are {', '.join(self._tensors)}")
            return self._tensors[key]
        if isinstance(key, slice):
            part = Zoo._of_tensors(self.arch, {n: t[key] for n, t in self._tensors.items()})
            if self._flat is not None:
                part._flat = self._flat[key]
            return part._part_of(self)
        if np.ndim(key) == 1:
            indices = np.asarray(key) if len(key) else np.empty(0, int)  # type: ignore[arg-type]
            return self.take(np.arange(len(self))[indices])
        index = operator.index(key)  # type: ignore[arg-type]
        if not -len(self) <= index < len(self):
            raise IndexError(f"network {index} of {len(self)}")
        return {name: self._tensors[name][index] for name in self._order}

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return (self[index] for index in range(len(self)))

    def take(self, indices: Iterable[int]) -> Zoo:
        """The networks of these indices, copied."""
        return Zoo(self.arch, self.weights[list(indices)])._part_of(self)

    def _part_of(self, whole: Zoo) -> Zoo:
        """With what is said of the whole: order of names, how the networks read data."""
        reads = {} if whole._owned is None else whole._reads
        self._order = list(whole._order)
        self._meta = {**whole._meta, **{f"weft.{key}": value for key, value in reads.items()}}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A collection in a file is opened again; another goes with its weights."""
        if self.path is not None:
            return (Zoo.open, (os.path.abspath(self.path),))
        part = self[:]
        return (_made_again, (part.arch, part.weights, part._order, part._meta))

    @property
    def meta(self) -> dict[str, str]:
        """What the file says of the collection: weft.data, weft.recipe ..."""
        found: dict[str, str] = {}
        key, value = ctypes.c_char_p(), ctypes.c_char_p()
        for index in range(lib.wf_zoo_meta_count(self._c)):
            lib.wf_zoo_meta_at(self._c, index, ctypes.byref(key), ctypes.byref(value))
            found[from_text(key.value)] = from_text(value.value)
        return found

    @property
    def tests(self) -> list[str]:
        """Test sets that the file has scores for."""
        found: list[str] = []
        while True:
            name = lib.wf_zoo_test(self._c, len(found))
            if name is None:
                return found
            found.append(from_text(name))

    def scores(self, test: str | None = None) -> Array | None:
        """Scores of the networks on a test set (None: the first); None where the file has none."""
        address = lib.wf_zoo_scores(self._c, text_or_none(test))
        return view(self._owned, address, (len(self),)) if address else None

    @property
    def _reads(self) -> dict[str, str]:
        """How the networks want data that is opened by its name, as far as the collection says:
        settings of [data]."""
        scale, found = ctypes.c_int(), {}
        if lib.wf_zoo_scale(self._c, ctypes.byref(scale)):
            row = next(row for row in settings("data") if row["key"] == "scale")
            found["scale"] = str(row["names"][scale.value])
        if "weft.classes" in self.meta:
            found["classes"] = self.meta["weft.classes"]
        return found

    def info(self) -> dict[str, Any]:
        """What can be said of the collection without data, as `weft zoo info` says it: scores,
        duplicates (also after relabelling hidden units), units that cannot change an output, values
        that are not finite, and by `kinship` and `warning` whether the networks are independent.

        >>> import weft
        >>> zoo = weft.generator("random").sample(5, arch=weft.Arch("2-8-3", activation="relu"))
        >>> info = zoo.info()
        >>> info["count"], info["parameters"], info["duplicates"], info["kinship"]
        (5, 51, 0, 'independent')
        """
        found: dict[str, Any] = answer(lib.wf_zoo_info_json, self._c, long=True)
        return found

    def __repr__(self) -> str:
        arch = self.arch
        kind = f"{arch.text}, {arch.activation}, {arch.params} parameters"
        return f"<weft.Zoo of {len(self)} networks {kind}>"

    # --- the library's side ---

    @property
    def _c(self) -> ctypes.c_void_p:
        """The collection as the library sees it: the same memory. Made once, whatever threads
        ask."""
        with self._making:
            if self._owned is None:
                self._owned = self._in_library()
        return self._owned.handle

    def _in_library(self) -> Owned:
        n = len(self.arch.tensors)
        base = (ctypes.c_void_p * n)()
        stride = (ctypes.c_size_t * n)()
        keep = []
        for block, tensor in enumerate(self.arch.tensors):
            array = self._tensors[tensor.name]
            inner = np.empty(tensor.shape, np.float32).strides
            stride_fits = array.strides[0] >= 0 and array.strides[0] % 4 == 0
            if array.dtype != np.float32 or array.strides[1:] != inner or not stride_fits:
                array = np.ascontiguousarray(array, dtype=np.float32)
            keep.append(array)
            base[block] = array.ctypes.data
            stride[block] = array.strides[0] // 4
        handle = ctypes.c_void_p()
        graph, out = self.arch._handle, ctypes.byref(handle)
        current()._call(lib.wf_zoo_from_tensors, None, graph, base, stride, len(self), out)
        made = Owned(handle, lib.wf_zoo_free, keep)
        for key, value in self._meta.items():
            current()._call(lib.wf_zoo_set_meta, handle, text(key), text(value))
        return made

    def save(self, path: str | os.PathLike[str], **meta: str) -> str:
        """Write the collection as a safetensors file. The file appears whole or not at all.

        meta  more to keep in the file, of a collection that is in memory"""
        if meta and not lib.wf_zoo_in_memory(self._c):
            raise UsageError(
                f"{self.path or 'the collection'} is a file, and what it says of itself stays: "
                f"zoo[:].save(path, ...) writes a copy that says more, without scores"
            )
        for key, value in meta.items():
            current()._call(lib.wf_zoo_set_meta, self._c, text(key), text(value))
        current()._run(lib.wf_zoo_save, self._c, text(path))
        return os.fspath(path)

    def forward(self, x: Any, index: int | None = None) -> Array:
        """Logits of network `index`, (n, outputs), or of all, (networks, n, outputs)."""
        if index is not None:
            return self.arch.forward(self._flat_of(index), x)
        every = [self.arch.forward(self._flat_of(i), x) for i in range(len(self))]
        return np.stack(every) if every else np.empty((0, len(x), self.arch.outputs), np.float32)

    def _flat_of(self, index: int) -> Array:
        if self._flat is not None:
            return np.asarray(self._flat[index])
        return np.concatenate([self._tensors[t.name][index].reshape(-1) for t in self.arch.tensors])

    # --- PyTorch ---

    def state_dict(self, index: int, *, device: Any = None) -> dict[str, torch.Tensor]:
        """The state_dict of one network, as load_state_dict takes it. Its tensors share this
        collection's memory, unless `device` is another than the CPU."""
        from .models import state_dict

        return state_dict(self, index, device)

    def stacked(
        self, *, device: Any = None
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """(params, buffers) as torch.func.stack_module_state gives them, without copies."""
        from .models import stacked

        return stacked(self, device)

    def modules(self, module: Any, *, device: Any = None) -> list[torch.nn.Module]:
        """The networks as nn.Modules. module: a class or function that makes one, or an nn.Module
        to copy."""
        from .models import modules

        return modules(self, module, device)

    def ensemble(self, module: Any, *, device: Any = None) -> Callable[..., torch.Tensor]:
        """All networks as one callable: inputs (n, ...) to outputs (networks, n, ...), by vmap."""
        from .models import ensemble

        return ensemble(self, module, device)

    def to_onnx(self, path: str | os.PathLike[str], index: int = 0) -> None:
        """Write one network as an ONNX model."""
        from .onnx import export

        export(self, path, index)

    # --- the hub ---

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], **options: Any) -> Zoo:
        """A collection from a folder, or downloaded from a data set of the hub: "owner/name".

        options  of huggingface_hub.snapshot_download: revision, token, cache_dir ...
        """
        return cls.open(downloaded(source, "dataset", options))


def _cut(arch: Arch, flat: Array) -> dict[str, Array]:
    """Views of the tensors in a flat matrix."""
    cut = {}
    for tensor in arch.tensors:
        part = flat[:, tensor.offset : tensor.offset + tensor.count]
        cut[tensor.name] = part.reshape(len(flat), *tensor.shape)
    return cut


def _made_again(arch: Arch, weights: Array, order: list[str], meta: dict[str, str]) -> Zoo:
    zoo = Zoo(arch, weights, meta=meta)
    zoo._order = order
    return zoo


def _loaded(handle: ctypes.c_void_p, count: int, params: int) -> Array:
    """The weights of a collection in memory of their own."""
    address = ctypes.c_void_p()
    current()._run(lib.wf_zoo_load, handle, 0, count, ctypes.byref(address))
    return view(Owned(address, lib.wf_free), address.value or 0, (count, params))


@contextlib.contextmanager
def output(path: str | os.PathLike[str] | None) -> Iterator[str]:
    """Where the library writes a collection: `path`, or a file that is gone after the `with`,
    unless Ctrl-C came in between and the work can go on from there."""
    if path is not None:
        yield os.fspath(path)
        return
    folder = TemporaryFolder()
    out = os.path.join(folder.path, "zoo.safetensors")
    with kept_for_later(folder, out):
        yield out


@contextlib.contextmanager
def kept_for_later(folder: TemporaryFolder | None, out: str) -> Iterator[None]:
    """What Ctrl-C left in a temporary folder stays, and the exception says how to go on from
    it."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        if folder is None or not (os.path.exists(out) or os.path.exists(out + ".parts")):
            raise
        folder.keep()
        said = str(stopped) or "interrupted"
        raise Interrupted(f"{said}; the same call with path={out!r} goes on from there") from None


def opened(written: str, path: str | os.PathLike[str] | None) -> Zoo:
    """The collection in a file of `output`. It stays mapped when the file's name is gone."""
    zoo = Zoo.open(written)
    if path is None:
        zoo.path = None
    return zoo


def must_be_zoos(*values: Any) -> None:
    for value in values:
        if not isinstance(value, Zoo):
            how = "weft.Zoo.open(path) and weft.Zoo.from_models(models) make one"
            if hasattr(value, "sample"):
                how = "its sample(n) makes one"
            raise UsageError(
                f"a collection is a weft.Zoo, not a {type(value).__name__}: {how}"
            )


def same_arch(zoos: Sequence[Zoo], what: str) -> None:
    for zoo in zoos[1:]:
        if zoo.arch != zoos[0].arch:
            raise ShapeError(
                f"{what} needs one architecture, got {zoos[0].arch.text} and {zoo.arch.text}"
            )


__all__ = ["Zoo", "must_be_zoos", "opened", "output", "same_arch"]
