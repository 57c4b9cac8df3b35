"""PyTorch both ways: modules and state_dicts into collections, and back."""

from __future__ import annotations

import copy
import ctypes
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from ._lib import lib, text
from ._memory import Array, as_array
from ._options import as_json
from ._trace import describe, unwrap
from .arch import Arch, ArchLike, arch_of
from .context import current
from .errors import InputError, ShapeError, UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

    from .zoo import Zoo

TOLERANCE = 1e-4  # of the largest output, between a module and its description
MODELS = "give nn.Modules, state_dicts, paths or stacked tensors (flat weights: weft.Zoo(arch, w))"
AS_IT_IS = {"weft.scale": "none"}  # what the library's importer says of networks
ONE_ARCHITECTURE = "A Zoo holds one architecture: make one for each, weft.fit takes a list of them"
COUNTER = "num_batches_tracked"  # of batch norms: part of a state_dict, of no network


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UnsupportedError(
            "this needs PyTorch: pip install torch, or apt install python3-torch; without it "
            "collections are numpy arrays: zoo[index], zoo[name]"
        ) from None
    return torch


def _is_module(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "named_parameters")


def _array(value: Any) -> Array:
    """A tensor or array as float32; without a copy where it is that already."""
    array = as_array(value)
    if array.dtype.kind not in "fiub":
        raise InputError(f"a tensor of {array.dtype}; weft reads real numbers")
    return array.astype(np.float32, copy=False)


def _instead_of(value: Any, name: str) -> str:
    """What to give in place of a dict that has something else than tensors."""
    if _is_module(value):
        return "give the modules as a list: list(models.values())"
    if isinstance(value, Mapping):
        return f'give the state_dict itself, model["{name}"], or several as a list'
    return "give the state_dict alone, as model.state_dict() has it where nothing is quantized"


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict without counters and without the prefixes of wrappers."""
    plain = {}
    for name, value in state.items():
        if type(value).__name__.startswith("Uninitialized"):
            raise InputError(
                f"{name} has no shape yet, as lazy layers have it: call the module on an example "
                f"first"
            )
        if not hasattr(value, "shape"):
            raise InputError(
                f"{name} has the type {type(value).__name__}, no tensor: {_instead_of(value, name)}"
            )
        if getattr(value, "is_meta", False):
            raise InputError(
                f"{name} is on the meta device, where tensors have no values: "
                f'module.to_empty(device="cpu"), then load_state_dict, gives it some'
            )
        name = name.replace("_orig_mod.", "")
        name = name[len("module.") :] if name.startswith("module.") else name
        if not name.endswith(COUNTER):
            plain[name] = value
    return plain


# --- in ---


@dataclass(frozen=True)
class _Given:
    """What a caller says of networks besides their weights; docs: Zoo.from_models."""

    module: Any
    arch: Arch | None
    activation: str | None
    layers: Sequence[str] | None
    input_shape: tuple[int, ...] | None
    recursive: bool

    def described_by(self, template: Any) -> Arch | None:
        """The architecture: as it was given, else by a trace of `template`; None: not known."""
        if self.arch is not None or template is None:
            return self.arch
        traced = _described(template, self.input_shape)
        if self.activation not in (None, traced.activation):
            raise UsageError(
                f"activation is {self.activation}, but the module has {traced.activation}, as its "
                f"trace says: leave activation out, or give arch= too, which takes its place"
            )
        return traced if self.layers is None else _renamed(traced, self.layers)


def from_models(
    cls: type[Zoo],
    models: Any,
    *,
    module: Any,
    arch: ArchLike | None,
    activation: str | None,
    layers: Sequence[str] | None,
    input_shape: Sequence[int] | None,
    recursive: bool,
    keep_norm: bool,
    verify: bool,
    skip_non_finite: bool,
) -> Zoo:
    made = None if arch is None else arch_of(arch, activation)
    if made is not None and layers is not None:
        made, layers = _renamed(made, layers), None
    shape = None if input_shape is None else tuple(int(n) for n in input_shape)
    given = _Given(module, made, activation, layers, shape, recursive)
    models = _listed(models)
    states: Sequence[Any] = []
    if _are_paths(models):
        zoo = _import_files(cls, models, given)
    elif isinstance(models, Mapping):
        zoo = _of_stacked(cls, models, given)
    elif _is_stacked_pair(models):
        zoo = _of_stacked(cls, {**models[0], **models[1]}, given)
    else:
        states = models
        zoo = _of_states(cls, states, given)
    if verify:
        _verify(zoo, states, given)
    zoo = _finite(zoo, skip_non_finite)
    return zoo if keep_norm else _folded(zoo)


def _listed(models: Any) -> Any:
    """One model or path as a list of one; mappings and tuples, which may be stacked, as they
    are."""
    if isinstance(models, (Mapping, tuple)):
        return models
    alone = isinstance(models, (str, os.PathLike)) or _is_module(models)
    if alone and type(models).__name__ != "ModuleList":
        return [models]
    if not isinstance(models, Iterable):
        raise InputError(f"models has the type {type(models).__name__}; {MODELS}")
    return list(models)


def _are_paths(models: Any) -> bool:
    return (
        not isinstance(models, Mapping)
        and len(models) > 0
        and all(isinstance(model, (str, os.PathLike)) for model in models)
    )


def _is_stacked_pair(models: Any) -> bool:
    """(params, buffers) of stack_module_state, and not two state_dicts: those have names in
    common."""
    return (
        isinstance(models, tuple)
        and len(models) == 2
        and all(isinstance(part, Mapping) for part in models)
        and (not models[1] or next(iter(models[0])) not in models[1])
    )


def _described(module: Any, shape: tuple[int, ...] | None) -> Arch:
    return Arch(describe(_instance(module), shape))


def _renamed(arch: Arch, layers: Sequence[str]) -> Arch:
    """The same description with other names of the layers that have weights."""
    description = copy.deepcopy(arch.description)
    weighted = [layer for layer in description["layers"] if layer["op"] in ("linear", "conv")]
    if len(weighted) != len(layers):
        raise UsageError(
            f"layers has {len(layers)} names; {arch.text} has {len(weighted)} layers with weights"
        )
    for layer, name in zip(weighted, layers):
        layer["name"] = name
    return Arch(description)


def _instance(module: Any) -> Any:
    """The module itself, or one that a class or function makes. One on the meta device, which has
    no memory to load into, as a copy with zeros on the CPU."""
    made = module
    if not _is_module(module):
        if not callable(module):
            raise UsageError(
                f"module has the type {type(module).__name__}: give a class or function that makes "
                f"an nn.Module, or an nn.Module"
            )
        try:
            made = module()
        except TypeError as error:  # it wants arguments
            name = getattr(module, "__name__", "Net")
            raise UsageError(
                f"module: {name}() gave {type(error).__name__}: {error}. Give a function that "
                f"needs no arguments: lambda: {name}(...)"
            ) from error
    if not _is_module(made):
        raise UsageError(f"{module} gave something of type {type(made).__name__}, no nn.Module")
    tensors = [*made.parameters(), *made.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        made = copy.deepcopy(made).to_empty(device="cpu")
        for tensor in [*made.parameters(), *made.buffers()]:
            tensor.data.zero_()
    return made


def _of_states(cls: type[Zoo], states: Sequence[Any], given: _Given) -> Zoo:
    """Of modules or state_dicts, one network each."""
    if not states:
        raise InputError("no models were given")
    template = given.module
    tensors = []
    for index, state in enumerate(states):
        if _is_module(state):
            template = state if template is None else template
            state = unwrap(state).state_dict()
        elif not isinstance(state, Mapping):
            raise InputError(f"model {index} has the type {type(state).__name__}; {MODELS}")
        tensors.append(_plain(state))
    _same_shapes(tensors)
    arch = given.described_by(template)
    if not _places_all(arch, tensors[0], given):
        stacked = {name: np.stack([_array(t[name]) for t in tensors]) for name in tensors[0]}
        return _import_stacked(cls, stacked, arch, given)
    assert arch is not None
    weights = np.empty((len(tensors), arch.params), np.float32)
    for tensor in arch.tensors:
        _fits(tensor.name, tensors[0][tensor.name].shape, tensor.shape, arch)
        part = weights[:, tensor.offset : tensor.offset + tensor.count]
        for index, state in enumerate(tensors):
            part[index] = _array(state[tensor.name]).reshape(-1)
    zoo = cls(arch, weights, meta=AS_IT_IS)
    zoo._order = list(tensors[0])
    return zoo


def _of_stacked(cls: type[Zoo], stacked: Mapping[str, Any], given: _Given) -> Zoo:
    """Of tensors with the networks in front, which are not copied, or of a single state_dict."""
    if not stacked:
        raise InputError("no tensors were given")
    arrays = {name: _array(value) for name, value in _plain(stacked).items()}
    arch = given.described_by(given.module)
    if not _places_all(arch, arrays, given):
        imported = _import_stacked(cls, arrays, arch, given)
        if set(arrays) != set(imported.names):
            return imported
        arch = imported.arch  # its layers were looked for; the caller's tensors serve as they are
    assert arch is not None
    first = arch.tensors[0]
    if arrays[first.name].ndim == len(first.shape):
        arrays = {name: array[None] for name, array in arrays.items()}
    count = len(arrays[first.name])
    if count == 0:
        raise InputError(f"no models were given: {first.name} has 0 networks")
    for tensor in arch.tensors:
        _fits(tensor.name, arrays[tensor.name].shape, (count, *tensor.shape), arch)
    zoo = cls._of_tensors(arch, arrays, list(arrays))
    zoo._meta.update(AS_IT_IS)
    return zoo


def _same_shapes(states: Sequence[Mapping[str, Any]]) -> None:
    """All of one architecture, as far as names and shapes tell."""
    first = states[0]
    for index, state in enumerate(states):
        if set(state) != set(first):
            odd = sorted(set(state) ^ set(first))[0]
            raise ShapeError(
                f"mixed architectures: model {index} and model 0 do not have the same tensors "
                f"({odd} is in one of them). {ONE_ARCHITECTURE}"
            )
        for name, value in state.items():
            if tuple(value.shape) != tuple(first[name].shape):
                raise ShapeError(
                    f"mixed architectures: {name} is {list(value.shape)} in model {index} and "
                    f"{list(first[name].shape)} in model 0. {ONE_ARCHITECTURE}"
                )


def _fits(name: str, have: Sequence[int], want: Sequence[int], arch: Arch) -> None:
    if tuple(have) != tuple(want):
        raise ShapeError(f"{name} is {list(have)}; {arch.text} needs {list(want)}")


def _places_all(arch: Arch | None, state: Mapping[str, Any], given: _Given) -> bool:
    """Whether the tensors have the names of the architecture. Those of a traced module must."""
    if arch is None:
        return False
    known = {tensor.name for tensor in arch.tensors}
    left, missing = sorted(set(state) - known), sorted(known - set(state))
    if given.arch is not None or not (left or missing):
        return not (left or missing)
    if left and not missing:
        raise InputError(
            f"{', '.join(left[:4])}: parameters that the traced forward does not use as layers of "
            f"a network; weft would lose them. Remove them from the module, or describe the "
            f"network with arch="
        )
    raise InputError(
        f"the state_dict has {', '.join(left[:4]) or 'nothing else'}; the module {arch.text} "
        f"needs {', '.join(missing[:4])}. Weight norms, pruning and other parametrizations are "
        f"made permanent first: torch.nn.utils.remove_weight_norm, prune.remove, "
        f"parametrize.remove_parametrizations"
    )


# --- by the importer of the library (docs/import.md): files, and tensors whose layers it finds ---


def _import_options(arch: Arch | None, given: _Given) -> bytes:
    if arch is None and given.activation is None:
        raise UsageError(
            "state_dicts do not say which activation the networks have: give module= (an "
            'nn.Module of that kind, which is traced), or activation="relu", or arch='
        )
    described = None if arch is None else json.dumps(arch.description)
    layers = ",".join(given.layers) if given.layers is not None and arch is None else None
    options = {
        "activation": given.activation,
        "arch": described,
        "layers": layers,
        "recursive": given.recursive,
        "keep_norm": True,  # they are folded once all is verified
    }
    return as_json(options)


def _import_files(cls: type[Zoo], paths: Sequence[str | os.PathLike[str]], given: _Given) -> Zoo:
    options = _import_options(given.described_by(given.module), given)
    sources = (ctypes.c_char_p * len(paths))(*[text(path) for path in paths])
    handle = ctypes.c_void_p()
    try:
        current()._run(lib.wf_zoo_import_json, sources, len(sources), options, ctypes.byref(handle))
    except InputError as error:
        if given.arch is None:  # the description is that of the module
            raise InputError(str(error).replace("another arch=", "another module=")) from None
        raise
    return cls._of_handle(handle)


def _import_stacked(
    cls: type[Zoo], tensors: Mapping[str, Array], arch: Arch | None, given: _Given
) -> Zoo:
    options = _import_options(arch, given)
    arrays = [np.ascontiguousarray(array) for array in tensors.values()]
    dimensions = [n for array in arrays for n in array.shape]
    handle = ctypes.c_void_p()
    current()._run(
        lib.wf_zoo_import_tensors,
        (ctypes.c_char_p * len(arrays))(*[text(name) for name in tensors]),
        (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays]),
        (ctypes.c_int * len(arrays))(*[array.ndim for array in arrays]),
        (ctypes.c_size_t * len(dimensions))(*dimensions),
        len(arrays),
        options,
        ctypes.byref(handle),
    )
    zoo = cls._of_handle(handle)
    if set(tensors) == set(zoo.names):
        zoo._order = list(tensors)
    return zoo


# --- batch norms in evaluation: a factor and a shift of the layer before them ---


def _has(zoo: Zoo, what: Callable[[Mapping[str, Any]], bool]) -> bool:
    return any(what(layer) for layer in zoo.arch.description["layers"])


def _folded(zoo: Zoo) -> Zoo:
    """With batch norms multiplied into weights and biases."""
    if not _has(zoo, lambda layer: layer.get("norm", {}).get("kind") == "batch"):
        return zoo
    return _converted(zoo, lib.wf_graph_fold_norms)


def unfolded(zoo: Zoo) -> Zoo:
    """With the batch norms that were folded, as their module has them."""
    if not _has(zoo, lambda layer: "folded_norm" in layer):
        return zoo
    return _converted(zoo, lib.wf_graph_unfold_norms)


def _converted(zoo: Zoo, convert: Any) -> Zoo:
    handle = ctypes.c_void_p()
    current()._call(convert, zoo.arch._handle, ctypes.byref(handle))
    arch = Arch._own(handle)
    given = np.ascontiguousarray(zoo.weights)
    made = np.empty((len(zoo), arch.params), np.float32)
    for one, other in zip(given, made):
        lib.wf_graph_convert_norms(zoo.arch._handle, handle, one.ctypes.data, other.ctypes.data)
    return type(zoo)(arch, made, meta=zoo.meta)


# --- checks ---


def _finite(zoo: Zoo, skip: bool) -> Zoo:
    bad: dict[int, str] = {}
    for tensor in zoo.arch.tensors:
        values = zoo[tensor.name].reshape(len(zoo), -1)
        for index in np.flatnonzero(~np.isfinite(values).all(axis=1)):
            bad.setdefault(int(index), tensor.name)
    if not bad:
        return zoo
    if skip and len(bad) == len(zoo):
        raise InputError(f"all {len(zoo)} models have NaN or infinite values; none is left")
    if skip:
        return zoo.take(index for index in range(len(zoo)) if index not in bad)
    first = min(bad)
    raise InputError(
        f"{len(bad)} of {len(zoo)} models have NaN or infinite values, the first is model {first} "
        f"({bad[first]}). Leave them out, or give skip_non_finite=True"
    )


def _verify(zoo: Zoo, models: Sequence[Any], given: _Given) -> None:
    """Outputs of the modules and of weft on random inputs."""
    candidates = [(i, m) for i, m in enumerate(models) if _is_module(m)]
    if not candidates and given.module is not None:
        candidates = [(i, None) for i in sorted({0, len(zoo) // 2, len(zoo) - 1})]
    if not candidates:
        return
    torch = _torch()
    x = np.random.default_rng(0).standard_normal((4, *zoo.arch.input_shape)).astype(np.float32)
    for index, model in candidates:
        if model is None:
            model = copy.deepcopy(_instance(given.module))
            load(model, zoo, index)
        theirs = _outputs(torch, model, x)
        if not np.isfinite(theirs).all():
            continue  # _finite says why
        ours = zoo.forward(x, index)
        if theirs.shape != ours.shape:
            raise InputError(
                f"model {index} gives outputs of shape {list(theirs.shape)}, its description "
                f"{list(ours.shape)}"
            )
        error = float(np.abs(theirs - ours).max() / max(1e-6, float(np.abs(theirs).max())))
        if not error <= TOLERANCE:
            if given.arch is None:
                _same_layers(index, model, zoo.arch)
            raise InputError(
                f"model {index} and its description {zoo.arch.text} ({zoo.arch.activation}) "
                f"differ by {error:.2g} of the largest output on random inputs: the module "
                f"computes something else. Check arch= and activation= where they are given; hooks "
                f"of modules are not described"
            )


def _same_layers(index: int, model: Any, arch: Arch) -> None:
    """Refuses a module whose own trace is of another architecture than the collection."""
    shape = arch.input_shape
    own = _described(model, shape if len(shape) == 3 else None)
    if own != arch:
        raise ShapeError(
            f"mixed architectures: model {index} is {own.text} ({own.activation}), not {arch.text} "
            f"({arch.activation}). {ONE_ARCHITECTURE}"
        )


def _outputs(torch: Any, model: Any, x: Array) -> Array:
    """What a module gives in evaluation, on the CPU and in float32, and left as it was."""
    tensors = [*model.parameters(), *model.buffers()]
    plain = all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.int64) for t in tensors)
    if not plain:
        model = copy.deepcopy(model).cpu().float()
    was_training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        with torch.no_grad():
            return np.asarray(model(torch.from_numpy(x)).reshape(len(x), -1).numpy())
    finally:
        for part in was_training:
            part.training = True


# --- out ---


def _tensor(torch: Any, array: Array, device: Any) -> Any:
    """Shares the array's memory on the CPU. Memory of a mapped file is read-only and is copied."""
    if not array.flags.writeable:
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if device is None else tensor.to(device)


def _counters(zoo: Zoo) -> list[str]:
    return [
        t.name[: -len("running_var")] + COUNTER for t in zoo.arch.tensors if t.kind == "variance"
    ]


def state_dict(zoo: Zoo, index: int, device: Any) -> dict[str, torch.Tensor]:
    torch = _torch()
    if _has(zoo, lambda layer: "folded_norm" in layer):
        zoo, index = unfolded(zoo.take([index])), 0
    arrays = zoo[index]
    state = {name: _tensor(torch, arrays[name], device) for name in arrays}
    for name in _counters(zoo):
        state[name] = torch.zeros((), dtype=torch.int64, device=device)
    return state


def stacked(zoo: Zoo, device: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch = _torch()
    zoo = unfolded(zoo)
    buffers = {t.name for t in zoo.arch.tensors if t.is_buffer}
    made = {name: _tensor(torch, zoo[name], device) for name in zoo.names}
    params = {name: tensor for name, tensor in made.items() if name not in buffers}
    rest = {name: tensor for name, tensor in made.items() if name in buffers}
    for name in _counters(zoo):
        rest[name] = torch.zeros(len(zoo), dtype=torch.int64, device=device)
    return params, rest


def _renaming(zoo: Zoo, module: Any) -> dict[str, str]:
    """Names of this collection's tensors in a module; the same where they fit."""
    zoo = unfolded(zoo)
    have = set(_plain(module.state_dict()))
    names = [t.name for t in zoo.arch.tensors]
    shapes = {name: tuple(value.shape) for name, value in _plain(module.state_dict()).items()}
    if have == set(names) and all(shapes[t.name] == t.shape for t in zoo.arch.tensors):
        return {name: name for name in names}
    shape = zoo.arch.input_shape
    described = _described(module, shape if len(shape) == 3 else None)
    if described != zoo.arch:
        raise ShapeError(
            f"{type(module).__name__} is {described.text} ({described.activation}), these "
            f"networks are {zoo.arch.text} ({zoo.arch.activation}): give a class or function that "
            f"makes a module of that shape"
        )
    return {ours.name: theirs.name for ours, theirs in zip(zoo.arch.tensors, described.tensors)}


def load(module: Any, zoo: Zoo, index: int, names: Mapping[str, str] | None = None) -> None:
    """Load network `index` into an nn.Module."""
    inner = unwrap(module)
    names = _renaming(zoo, inner) if names is None else names
    state = {names.get(name, name): value for name, value in state_dict(zoo, index, None).items()}
    counters = {name for name in inner.state_dict() if name.endswith(COUNTER)}
    state = {name: value for name, value in state.items() if not name.endswith(COUNTER)}
    state.update({name: inner.state_dict()[name] for name in counters})
    inner.load_state_dict(state)


def modules(zoo: Zoo, module: Any, device: Any) -> list[torch.nn.Module]:
    _torch()
    zoo = unfolded(zoo)
    first = _instance(module)
    names = _renaming(zoo, first)
    made = []
    for index in range(len(zoo)):
        copied = copy.deepcopy(first)
        load(copied, zoo, index, names)
        made.append(copied if device is None else copied.to(device))
    return made


def ensemble(zoo: Zoo, module: Any, device: Any) -> Callable[..., torch.Tensor]:
    torch = _torch()
    base = copy.deepcopy(_instance(module)).eval()
    names = _renaming(zoo, base)
    params, buffers = stacked(zoo, device)
    if device is not None:
        base = base.to(device)
    everything = {
        names.get(n, n): t for n, t in {**params, **buffers}.items() if not n.endswith(COUNTER)
    }
    try:
        from torch.func import functional_call, vmap
    except ImportError:  # before torch 2.0
        from functorch import vmap
        from torch.nn.utils.stateless import functional_call

    def one(state: dict[str, Any], x: Any) -> Any:
        return functional_call(base, state, (x,))

    stacked_call = vmap(one, in_dims=(0, None))

    def call(x: Any) -> Any:
        with torch.no_grad():
            return stacked_call(everything, x)

    return call
