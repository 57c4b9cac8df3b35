"""Generators: flows that are fitted to collections, and controls that a generated network must
beat."""

from __future__ import annotations

import ctypes
import functools
import json
import operator
import os
import shutil
import threading
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Sequence, Union

import numpy as np

from ._files import replacing
from ._hub import OnHub, downloaded
from ._lib import lib, owned_text, text, text_or_none
from ._memory import Array, Owned, TemporaryFolder, as_numbers, pointer
from ._options import Options, as_json
from .arch import Arch, ArchLike, arch_of
from .context import answer, current
from .errors import ShapeError, UsageError
from .logs import read_log
from .zoo import Zoo, must_be_zoos

DEFAULT = "gmn"


@dataclass(frozen=True)
class Kind:
    """A kind of generator by its name."""

    name: str
    about: str
    traits: frozenset[str]
    fitted: bool  # by weft.fit; others are made by weft.generator


def generators() -> list[Kind]:
    """Every kind of generator there is.

    >>> import weft
    >>> {"gmn", "random", "perturbation"} <= {kind.name for kind in weft.generators()}
    True
    """
    found = []
    for index in range(lib.wf_generator_count()):
        kind = answer(lib.wf_generator_json, index)
        traits = frozenset(kind["traits"])
        found.append(Kind(kind["name"], kind["about"], traits, bool(kind["fitted"])))
    return found


class Generator:
    """Something that makes networks. `sample` gives a Zoo."""

    def __init__(
        self,
        name: str | None,
        path: str | os.PathLike[str] | None = None,
        zoo: Zoo | None = None,
        *keep: Any,
    ) -> None:
        """name  of a generator that needs no fit, or path  of one that was fitted"""
        handle, collection = ctypes.c_void_p(), None if zoo is None else zoo._c
        names = (text_or_none(name), text_or_none(path))
        current()._run(lib.wf_generator_open_json, *names, collection, None, ctypes.byref(handle))
        self._owned = Owned(handle, lib.wf_generator_free, zoo, *keep)
        self._zoo = zoo
        self._keep = keep
        self._lock = threading.Lock()  # one call at a time: a generator has working memory
        self.name = name or ""

    @property
    def _c(self) -> ctypes.c_void_p:
        return self._owned.handle

    @property
    def arch(self) -> Arch:
        """The architecture that is sampled where none is asked for."""
        graph = lib.wf_generator_graph(self._c)
        if graph:
            return Arch._copy(graph)
        if self._zoo is None:
            raise UsageError(f"{self.name} makes networks of any architecture: give arch=")
        return self._zoo.arch

    def sample(
        self,
        n: int,
        *,
        arch: ArchLike | None = None,
        width: float | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Zoo:
        """n new networks. Settings are those of [sample] in recipes: weft.settings("sample")."""
        like = self.arch if arch is None or self._zoo is not None else None
        graph = self._arch_for(arch, like, width)
        reads = {} if self._zoo is None else self._zoo._reads
        return self._draw(n, graph, {"sample": {"seed": seed, **settings}}, reads)

    def _arch_for(self, arch: ArchLike | None, like: Arch | None, width: float | None) -> Arch:
        if arch is not None:
            activation = like.activation if like is not None else None
            graph = arch_of(arch, activation)
        else:
            assert like is not None
            graph = like
        return graph if width is None else graph.scaled(width)

    def _draw(
        self, n: int, graph: Arch, request: Mapping[str, Any], reads: Mapping[str, Any]
    ) -> Zoo:
        """reads  scale and classes of the data that the networks want; "" where nothing is known"""
        n = int(operator.index(n))
        if n < 1:
            raise UsageError(f"n is {n}; at least one network is drawn")
        weights = np.empty((n, graph.params), np.float32)
        stats = ctypes.c_void_p()
        with self._lock:
            current()._run(
                lib.wf_generator_sample_json,
                self._c,
                graph._handle,
                n,
                as_json(request),
                weights.ctypes.data,
                None,
                ctypes.byref(stats),
            )
        meta = {f"weft.{key}": reads[key] for key in ("scale", "classes") if reads.get(key)}
        zoo = Zoo(graph, weights, meta=meta)
        zoo.stats = json.loads(owned_text(stats) or "{}")
        return zoo

    def __reduce__(self) -> tuple[Any, ...]:
        return (Generator, (self.name, None, self._zoo))

    def __repr__(self) -> str:
        return f"<weft.Generator {self.name}>"


class Flow(Generator, OnHub):
    """A fitted generator, with its file and its log."""

    _kind = "model"

    def __init__(
        self, path: str | os.PathLike[str], zoo: Zoo | None = None, keep: Any = None
    ) -> None:
        super().__init__(None, path, zoo, keep)
        self.path = os.fspath(path)
        kind = lib.wf_generator_kind_of(self._c)
        index = next(i for i in range(lib.wf_generator_count()) if lib.wf_generator_at(i) == kind)
        self.name = generators()[index].name
        self._about: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the file again, which must be there as long."""
        if any(isinstance(kept, TemporaryFolder) for kept in self._keep):
            raise UsageError(
                "the flow is in a temporary file, which goes with it: flow.save(path), and "
                "weft.Flow.open(path) is one that can be copied and pickled; or fit it with path="
            )
        return (Flow, (os.path.abspath(self.path), self._zoo))

    @classmethod
    def open(cls, path: str | os.PathLike[str], zoo: Zoo | None = None) -> Flow:
        """A flow that was saved; kinds that keep their collection need it again."""
        return cls(path, zoo)

    @property
    def about(self) -> dict[str, Any]:
        """Generator, parameters, updates, settings, and the collections it was fitted to."""
        if self._about is None:
            flow = lib.wf_generator_flow(self._c)
            if not flow:
                return {"generator": self.name, "sources": [], "cond_size": 0}
            self._about = answer(lib.wf_flow_json, flow)
        assert self._about is not None
        return self._about

    @functools.cached_property
    def sampling(self) -> dict[str, Any]:
        """Settings of [sample] that hold where a call says nothing else: those of the plan or
        recipe that the flow was fitted by, over the defaults."""
        flow = lib.wf_generator_flow(self._c)
        if not flow:
            return {}
        with Options("wf_sample_settings", {}) as options:
            lib.wf_flow_sampling(flow, options.pointer)
            found = ctypes.c_void_p(lib.wf_settings_json(lib.wf_sample_settings(), options.pointer))
        settings: dict[str, Any] = json.loads(owned_text(found))
        return settings

    @property
    def tasks(self) -> list[str]:
        """Names of the collections it was fitted to, where they have names."""
        named = [str(source["task"]) for source in self.about["sources"] if source.get("task")]
        return list(dict.fromkeys(named))

    def _arch_of(self, index: int) -> Arch:
        """The architecture of a collection it was fitted to."""
        flow = lib.wf_generator_flow(self._c)
        if not flow:
            return super().arch
        unfolded = ctypes.c_void_p()
        graph = lib.wf_flow_source_graph(flow, index)
        current()._call(lib.wf_graph_fold, graph, 0, ctypes.byref(unfolded))
        return Arch._own(unfolded)

    @property
    def arch(self) -> Arch:
        return self._arch_of(0)

    def _check_ends(self, graph: Arch, index: int | None) -> None:
        """Hidden layers alone may differ from the networks it was fitted to: those of collection
        `index`, or of any."""
        indices = range(len(self.about["sources"])) if index is None else [index]
        known = [self._arch_of(i) for i in indices]
        if any((a.inputs, a.outputs) == (graph.inputs, graph.outputs) for a in known):
            return
        raise ShapeError(
            f"{graph.text} has {graph.inputs} inputs and {graph.outputs} outputs; the flow was "
            f"fitted to networks of {known[0].text} and makes no others: give "
            f"{known[0].inputs}-...-{known[0].outputs}"
        )

    def sample(
        self,
        n: int,
        *,
        arch: ArchLike | None = None,
        width: float | None = None,
        task: str | None = None,
        cond: Sequence[float] | float | str | None = None,
        guidance: float | None = None,
        refine: Sequence[float] | bool | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Zoo:
        """n new networks.

        arch      another architecture than the one fitted to
        width     hidden widths times this number
        task      the name of a collection it was fitted to
        cond      or a condition, as numbers; "none" for the learned null
        guidance  1 is plain; above it the condition counts more
        refine    (t, cycles) or (t, cycles, steps): back to time t and to the end again; True is
                  (0.75, 10), False none
        seed      of the noise; network k is the same whatever n
        settings  of [sample] in recipes: solver, steps, rtol ... (weft.settings("sample"))
        """
        index, values = self._condition(task, cond)
        graph = self._arch_for(arch, self._arch_of(index), width)
        if arch is not None and self.about["sources"]:
            self._check_ends(graph, index if task is not None else None)
        given = {key: v for key, v in {"guidance": guidance, **settings}.items() if v is not None}
        chosen: dict[str, Any] = {**self.sampling, "seed": seed, **given}
        if refine is False:
            chosen["refine_cycles"] = 0
        elif refine is not None:
            parts = (0.75, 10) if refine is True else refine
            if not isinstance(parts, (tuple, list)) or not 2 <= len(parts) <= 3:
                raise UsageError(
                    f"refine is {refine!r}; give (t, cycles) or (t, cycles, steps), as (0.75, 10)"
                )
            chosen.update(zip(("refine_t", "refine_cycles", "refine_steps"), parts))
        request: dict[str, Any] = {"sample": chosen}
        if values is not None:
            request["cond"] = values
        sources = self.about["sources"]
        return self._draw(n, graph, request, sources[index] if sources else {})

    def _condition(
        self, task: str | None, cond: Sequence[float] | float | str | None
    ) -> tuple[int, Array | None]:
        """The collection that is meant, and the condition's numbers."""
        size = int(self.about["cond_size"])
        flow = lib.wf_generator_flow(self._c)
        if task is not None and cond is not None:
            raise UsageError("give task or cond, not both: a task has its condition")
        if task is not None:
            index = ctypes.c_int()
            current()._call(lib.wf_flow_find_task, flow, text(task), ctypes.byref(index))
            values = self.about["sources"][index.value].get("cond")
            return index.value, np.asarray(values, np.float32) if values else None
        if cond is None or isinstance(cond, str):
            if cond not in (None, "none"):
                raise UsageError(f'cond is {cond!r}; give {size} numbers, or "none"')
            if size and cond != "none":
                named = f"task= ({', '.join(self.tasks)}) or " if self.tasks else ""
                raise UsageError(
                    f'the flow has conditions: give {named}cond= ({size} numbers, or "none")'
                )
            return 0, None
        numbers = np.atleast_1d(_finite(as_numbers(cond, "cond"), "cond"))
        if numbers.shape != (size,):
            raise ShapeError(f"cond has {numbers.size} numbers, the flow's conditions have {size}")
        return lib.wf_flow_nearest(flow, numbers.ctypes.data), numbers

    def velocity(
        self,
        weights: Any,
        t: float | Sequence[float],
        *,
        arch: ArchLike | None = None,
        task: str | None = None,
        cond: Sequence[float] | float | str | None = None,
        guidance: float = 1.0,
        normalised: bool = False,
    ) -> Array:
        """dw/dt at weights w (networks, parameters) and time t, one or one for each network; noise
        is at t = 0, networks at t = 1.

        normalised  weights and velocity are in the space that the flow works in, where parameters
                    are scaled by group; otherwise on the networks' own scale
        """
        flow = lib.wf_generator_flow(self._c)
        if not flow:
            raise UsageError(f"{self.name} is no flow and has no velocity")
        index, values = self._condition(task, cond)
        if isinstance(weights, Zoo):
            graph, weights = weights.arch, weights.weights
        else:
            graph = self._arch_for(arch, self._arch_of(index), None)
        flat = _finite(graph.weights_of(weights), "weights")
        times = as_numbers(t, "t")
        if times.shape not in ((), (len(flat),)):
            raise ShapeError(
                f"t has the shape {times.shape}; give one time, or one for each of the "
                f"{len(flat)} networks"
            )
        times = np.ascontiguousarray(np.broadcast_to(times, (len(flat),)))
        out = np.empty_like(flat)
        with self._lock:
            current()._run(
                lib.wf_flow_velocity,
                flow,
                graph._handle,
                flat.ctypes.data,
                times.ctypes.data,
                len(flat),
                pointer(values),
                float(guidance),
                normalised,
                out.ctypes.data,
            )
        return out

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of its training log."""
        return list(self.iter_log())

    def iter_log(self) -> Iterator[dict[str, Any]]:
        return read_log(self.path + ".log.jsonl")

    def save(self, path: str | os.PathLike[str]) -> str:
        """Copy the flow and its log to `path`."""
        target = os.fspath(path)
        for suffix in ("", ".log.jsonl"):
            if os.path.exists(self.path + suffix):
                with replacing(target + suffix) as temporary:
                    shutil.copyfile(self.path + suffix, temporary)
        return target

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], *, zoo: Zoo | None = None, **options: Any
    ) -> Flow:
        """A flow from a folder, or downloaded from a model of the hub: "owner/name".

        zoo      for kinds that keep their collection
        options  of huggingface_hub.snapshot_download: revision, token, cache_dir ...
        """
        return cls(downloaded(source, "model", options), zoo)

    def __repr__(self) -> str:
        about = self.about
        names = ", ".join(self.tasks) or (self.arch.text if about["sources"] else "")
        size = f"{about.get('params', 0)} parameters, {about.get('updates', 0)} updates"
        return f"<weft.Flow {self.name} of {names}, {size}>"


def generator(name: str, zoo: Zoo | None = None) -> Generator:
    """A generator that needs no fit, by its name: "random", "perturbation-0.1", "average" ...

    >>> import weft
    >>> weft.generator("random").sample(3, arch=weft.Arch("2-8-3", activation="relu"))
    <weft.Zoo of 3 networks 2-8-3, relu, 51 parameters>
    """
    for kind in generators():
        if kind.name == name and kind.fitted:
            raise UsageError(f'{name} is fitted first: weft.fit(zoo, generator="{name}")')
    return Generator(name, None, zoo)


Zoos = Union[Zoo, Sequence[Zoo], Mapping[str, Zoo]]


def sources_of(zoos: Zoos) -> tuple[list[Zoo], list[str | None]]:
    """Collections, and the names of their tasks."""
    tasks: list[str | None] = []
    if isinstance(zoos, Zoo):
        zoos = [zoos]
    elif isinstance(zoos, Mapping):
        tasks = [str(name) for name in zoos]
        zoos = list(zoos.values())
    elif not isinstance(zoos, Iterable):
        must_be_zoos(zoos)
    found = list(zoos)
    must_be_zoos(*found)
    return found, tasks or [None] * len(found)


def _finite(numbers: Array, name: str) -> Array:
    if not np.isfinite(numbers).all():
        raise UsageError(f"{name} has NaN or infinite values; finite numbers are needed")
    return numbers


def conditions(conds: Any, tasks: Sequence[str | None]) -> Array | None:
    """A row of numbers for each collection: given, or one-hot by task."""
    if conds is not None:
        if isinstance(conds, Mapping):
            missing = [str(task) for task in tasks if task not in conds]
            if missing:
                raise UsageError(f"conds has no row for {', '.join(missing)}")
            conds = [conds[task] for task in tasks]
        rows = _finite(as_numbers(conds, "conds"), "conds")
        rows = rows.reshape(len(rows), -1)
        if len(rows) != len(tasks):
            raise ShapeError(f"conds has {len(rows)} rows for {len(tasks)} collections")
        return np.ascontiguousarray(rows)
    if len(tasks) < 2 or any(task is None for task in tasks):
        return None
    return np.eye(len(tasks), dtype=np.float32)
