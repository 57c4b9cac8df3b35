"""PyTorch both ways: modules and state_dicts into collections, and back."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from ._lib import lib, text
from ._memory import Array
from .arch import Arch, ArchLike, arch_of
from .context import current
from .errors import InputError, ShapeError, UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

    from .zoo import Zoo

TOLERANCE = 1e-4  # of the largest output, between a module and its description
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
    return hasattr(value, "named_parameters") and hasattr(value, "state_dict") and callable(value)


def _array(value: Any) -> Array:
    """A tensor or array as float32; without a copy where it is that already."""
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) != "torch.float32":
            value = value.float()
        value = value.cpu().numpy()
    array = np.asarray(value)
    if (
        not (np.issubdtype(array.dtype, np.number) or array.dtype == bool)
        or array.dtype.kind == "c"
    ):
        raise InputError(f"a tensor of {array.dtype}; weft reads real numbers")
    return array if array.dtype == np.float32 else array.astype(np.float32)


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict without counters and without the prefixes of wrappers."""
    plain = {}
    for name, value in state.items():
        if not hasattr(value, "shape"):
            raise InputError(
                f"{name} is a {type(value).__name__}, no tensor: give model.state_dict()"
            )
        name = name.replace("_orig_mod.", "")
        name = name[len("module.") :] if name.startswith("module.") else name
        if not name.endswith(COUNTER):
            plain[name] = value
    return plain


# --- in ---


def from_models(
    cls: type[Zoo],
    models: Any,
    *,
    module: Any,
    arch: ArchLike | None,
    activation: str | None,
    layers: Sequence[str] | None,
    input_shape: Sequence[int] | None,
    verify: bool,
    skip_non_finite: bool,
) -> Zoo:
    shape = None if input_shape is None else tuple(int(n) for n in input_shape)
    if arch is not None and layers is not None:
        arch, layers = _named(arch_of(arch, activation), layers), None
    if _is_module(models):
        models = [models]
    if isinstance(models, (str, os.PathLike)):
        models = [models]
    elif not isinstance(models, (Mapping, tuple)):
        models = list(models)
    states: Sequence[Any] = []
    if _are_paths(models):
        if arch is None and module is not None:
            arch = _described(module, shape)
        zoo = _import_files(cls, models, arch, activation, layers)
    elif isinstance(models, Mapping) or _is_stacked_pair(models):
        tensors = dict(models) if isinstance(models, Mapping) else {**models[0], **models[1]}
        zoo = _of_stacked(cls, _plain(tensors), module, arch, activation, layers, shape)
    else:
        states = list(models)
        if not states:
            raise InputError("no models were given")
        zoo = _of_states(cls, states, module, arch, activation, layers, shape)
    if verify:
        _verify(zoo, states, module)
    return _finite(zoo, skip_non_finite)


def _are_paths(models: Any) -> bool:
    return (
        not isinstance(models, Mapping)
        and len(models) > 0
        and all(isinstance(model, (str, os.PathLike)) for model in models)
    )


def _is_stacked_pair(models: Any) -> bool:
    return (
        isinstance(models, tuple)
        and len(models) == 2
        and all(isinstance(part, Mapping) for part in models)
        and (not models[1] or next(iter(models[0])) not in models[1])
    )


def _described(module: Any, shape: tuple[int, ...] | None) -> Arch:
    from ._trace import describe

    return Arch(describe(_instance(module), shape))


def _named(arch: Arch, layers: Sequence[str]) -> Arch:
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
    """The module itself, or one that a class or function makes."""
    made = module if _is_module(module) and not isinstance(module, type) else module()
    if not _is_module(made):
        raise UsageError(f"{module} made a {type(made).__name__}, no nn.Module")
    return made


def _of_states(
    cls: type[Zoo],
    states: Sequence[Any],
    module: Any,
    arch: ArchLike | None,
    activation: str | None,
    layers: Sequence[str] | None,
    shape: tuple[int, ...] | None,
) -> Zoo:
    """Of modules or state_dicts, one network each."""
    from ._trace import unwrap

    template = module
    plain = []
    order: list[str] = []
    for index, state in enumerate(states):
        if _is_module(state):
            template = template if template is not None else state
            state = unwrap(state).state_dict()
        elif not isinstance(state, Mapping):
            raise InputError(
                f"model {index} is a {type(state).__name__}; give nn.Modules, state_dicts, "
                f"paths or stacked tensors"
            )
        order = order or [name for name in _plain(state)]
        plain.append(_plain(state))
    _same_shapes(plain)
    traced = arch is None and template is not None
    if traced:
        arch = _described(template, shape)
    if arch is None:
        stacked = {name: np.stack([_array(p[name]) for p in plain]) for name in plain[0]}
        return _import_stacked(cls, stacked, None, activation, layers)
    made = arch_of(arch, activation)
    if {t.name for t in made.tensors} != set(plain[0]):
        if traced:
            _unplaced(made, plain[0])
        stacked = {name: np.stack([_array(p[name]) for p in plain]) for name in plain[0]}
        return _import_stacked(cls, stacked, made, activation, layers)
    weights = np.empty((len(plain), made.params), np.float32)
    for tensor in made.tensors:
        part = weights[:, tensor.offset : tensor.offset + tensor.count]
        for index, state in enumerate(plain):
            array = _array(state[tensor.name])
            _fits(tensor.name, array.shape, tensor.shape, made)
            part[index] = array.reshape(-1)
    zoo = cls(made, weights)
    zoo._order = order
    return zoo


def _same_shapes(states: Sequence[Mapping[str, Any]]) -> None:
    """All of one architecture, as far as names and shapes tell."""
    first = states[0]
    for index, state in enumerate(states):
        if set(state) != set(first):
            odd = sorted(set(state) ^ set(first))[0]
            raise ShapeError(
                f"mixed architectures: model {index} and model 0 do not have the same tensors "
                f"({odd} is in one of them). "
                "A Zoo holds one architecture: make one for each, weft.fit takes a list of them"
            )
        for name, value in state.items():
            if tuple(value.shape) != tuple(first[name].shape):
                raise ShapeError(
                    f"mixed architectures: {name} is {list(value.shape)} in model {index} and "
                    f"{list(first[name].shape)} in "
                    "model 0. A Zoo holds one architecture: make one for each, weft.fit takes a "
                    "list of them"
                )


def _fits(name: str, have: tuple[int, ...], want: tuple[int, ...], arch: Arch) -> None:
    if tuple(have) != tuple(want):
        raise ShapeError(f"{name} is {list(have)}; {arch.text} needs {list(want)}")


def _unplaced(arch: Arch, state: Mapping[str, Any]) -> None:
    """Names of a traced module and of its state_dict differ."""
    known = {t.name for t in arch.tensors}
    left, missing = sorted(set(state) - known), sorted(known - set(state))
    if left and not missing:
        raise InputError(
            f"{', '.join(left[:4])}: parameters that the traced forward does not use as layers "
            f"of a network; weft would "
            "lose them. Remove them from the module, or describe the network with arch="
        )
    raise InputError(
        f"the state_dict has {', '.join(left[:4]) or 'nothing else'}; the module {arch.text} "
        f"needs {', '.join(missing[:4])}"
    )


def _of_stacked(
    cls: type[Zoo],
    tensors: Mapping[str, Any],
    module: Any,
    arch: ArchLike | None,
    activation: str | None,
    layers: Sequence[str] | None,
    shape: tuple[int, ...] | None,
) -> Zoo:
    """Of tensors with the networks in front, or of a single state_dict."""
    if not tensors:
        raise InputError("no tensors were given")
    arrays = {name: _array(value) for name, value in tensors.items()}
    traced = arch is None and module is not None
    if traced:
        arch = _described(module, shape)
    made = None if arch is None else arch_of(arch, activation)
    if made is None or {t.name for t in made.tensors} != set(arrays):
        if made is not None and traced:
            _unplaced(made, arrays)
        return _import_stacked(cls, arrays, made, activation, layers)
    first = made.tensors[0]
    if arrays[first.name].ndim == len(first.shape):
        arrays = {name: array[None] for name, array in arrays.items()}
    count = len(arrays[first.name])
    for tensor in made.tensors:
        _fits(tensor.name, arrays[tensor.name].shape, (count, *tensor.shape), made)
    return cls._of_tensors(made, arrays, list(arrays))


# --- files, by the rules of the library (docs/import.md) ---


class _Import(ctypes.Structure):
    _fields_ = [
        ("activation", ctypes.c_char_p),
        ("arch", ctypes.c_char_p),
        ("layers", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("recursive", ctypes.c_bool),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("later", ctypes.c_char * 256),  # zeros for what later versions add at the end
    ]


def _import_files(
    cls: type[Zoo],
    sources: Sequence[str | os.PathLike[str]],
    arch: ArchLike | None,
    activation: str | None,
    layers: Sequence[str] | None,
) -> Zoo:
    if arch is None and activation is None:
        raise UsageError(
            "state_dicts do not say which activation the networks have: give module= (an "
            "nn.Module of that kind, which is "
            'traced), or activation="relu", or arch='
        )
    if arch is not None:
        described = arch_of(arch, activation)
        arch = json.dumps(described.description)
    desc = _Import(text(activation), text(arch), text(",".join(layers) if layers else None))
    names = (ctypes.c_char_p * len(sources))(*[text(source) for source in sources])
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        out = text(os.path.join(folder, "zoo.safetensors"))
        current().run(lib.wf_zoo_import_all, names, len(sources), ctypes.byref(desc), out, None)
        written = sorted(Path(folder).glob("*.safetensors"))
        if len(written) != 1:
            kinds = ", ".join(cls.open(path).arch.text for path in written)
            raise ShapeError(
                f"mixed architectures: the models are {kinds}. A Zoo holds one: give the files "
                f"of each architecture by "
                "themselves; weft.fit takes a list of collections"
            )
        zoo = cls.open(written[0])  # stays mapped when the file's name is gone
    zoo.path = None
    return zoo


def _import_stacked(
    cls: type[Zoo],
    tensors: Mapping[str, Array],
    arch: Arch | None,
    activation: str | None,
    layers: Sequence[str] | None,
) -> Zoo:
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        path = os.path.join(folder, "stacked.safetensors")
        _write_safetensors(path, tensors)
        return _import_files(cls, [path], arch, activation, layers)


def _write_safetensors(path: str, tensors: Mapping[str, Array]) -> None:
    header, at = {}, 0
    for name, array in tensors.items():
        size = array.size * 4
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + size]}
        at += size
    encoded = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, dtype="<f4").tobytes())


# --- checks ---


def _finite(zoo: Zoo, skip: bool) -> Zoo:
    bad: dict[int, str] = {}
    for tensor in zoo.arch.tensors:
        values = zoo[tensor.name].reshape(len(zoo), -1)
        for index in np.flatnonzero(~np.isfinite(values).all(axis=1)):
            bad.setdefault(int(index), tensor.name)
    if not bad:
        return zoo
    if skip and len(bad) < len(zoo):
        return zoo.take(index for index in range(len(zoo)) if index not in bad)
    first = min(bad)
    raise InputError(
        f"{len(bad)} of {len(zoo)} models have NaN or infinite values, the first is model "
        f"{first} ({bad[first]}). Leave "
        "them out, or give skip_non_finite=True"
    )


def _verify(zoo: Zoo, models: Sequence[Any], module: Any) -> None:
    """Outputs of the modules and of weft on random inputs."""
    candidates = [(i, m) for i, m in enumerate(models) if _is_module(m)]
    if not candidates and module is not None:
        candidates = [(i, None) for i in sorted({0, len(zoo) // 2, len(zoo) - 1})]
    if not candidates:
        return
    torch = _torch()
    x = np.random.default_rng(0).standard_normal((4, *zoo.arch.input_shape)).astype(np.float32)
    for index, model in candidates:
        if model is None:
            model = copy.deepcopy(_instance(module))
            load(model, zoo, index)
        theirs = _outputs(torch, model, x)
        ours = zoo.forward(x, index)
        if theirs.shape != ours.shape:
            raise InputError(
                f"model {index} gives outputs of shape {list(theirs.shape)}, its description "
                f"{list(ours.shape)}"
            )
        error = float(np.abs(theirs - ours).max() / max(1e-6, float(np.abs(theirs).max())))
        if not error <= TOLERANCE and np.isfinite(theirs).all():
            raise InputError(
                f"model {index} and its description {zoo.arch.text} ({zoo.arch.activation}) "
                f"differ by {error:.2g} of the "
                "largest output on random inputs: the module computes something else. Check "
                "arch= and activation=, or "
                "let the module be traced"
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
    arrays = zoo[index]
    state = {name: _tensor(torch, arrays[name], device) for name in arrays}
    for name in _counters(zoo):
        state[name] = torch.zeros((), dtype=torch.int64, device=device)
    return state


def stacked(zoo: Zoo, device: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch = _torch()
    buffers = {t.name for t in zoo.arch.tensors if t.is_buffer}
    made = {name: _tensor(torch, zoo[name], device) for name in zoo.names}
    params = {name: tensor for name, tensor in made.items() if name not in buffers}
    rest = {name: tensor for name, tensor in made.items() if name in buffers}
    for name in _counters(zoo):
        rest[name] = torch.zeros(len(zoo), dtype=torch.int64, device=device)
    return params, rest


def _renaming(zoo: Zoo, module: Any) -> dict[str, str]:
    """Names of this collection's tensors in a module; the same where they fit."""
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
            f"networks are {zoo.arch.text} "
            f"({zoo.arch.activation}): give a class or function that makes a module of that shape"
        )
    return {ours.name: theirs.name for ours, theirs in zip(zoo.arch.tensors, described.tensors)}


def load(module: Any, zoo: Zoo, index: int, names: Mapping[str, str] | None = None) -> None:
    """Load network `index` into an nn.Module."""
    from ._trace import unwrap

    inner = unwrap(module)
    names = _renaming(zoo, inner) if names is None else names
    state = {names.get(name, name): value for name, value in state_dict(zoo, index, None).items()}
    counters = {name for name in inner.state_dict() if name.endswith(COUNTER)}
    state = {name: value for name, value in state.items() if not name.endswith(COUNTER)}
    state.update({name: inner.state_dict()[name] for name in counters})
    inner.load_state_dict(state)


def modules(zoo: Zoo, module: Any, device: Any) -> list[torch.nn.Module]:
    _torch()
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
