"""Training: flows on collections, collections on data."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Mapping, Sequence

from ._evaluate import advise
from ._generator import DEFAULT, Flow, Zoos, conditions, generators, sources_of
from ._lib import lib, text
from ._memory import TemporaryFolder
from ._options import Options, as_json, keys, nearest
from .arch import ArchLike, arch_of
from .context import answer, current
from .data import DataLike, data_of
from .errors import UsageError, WeftError
from .zoo import Zoo, kept_for_later, must_be_zoos, opened, output


def train_zoo(
    arch: ArchLike,
    data: DataLike,
    count: int,
    *,
    activation: str = "relu",
    path: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Zoo:
    """Train `count` networks on a data set. Settings are those of [zoo] in recipes:
    weft.settings("zoo").

    path  the file to write; a call that broke off goes on there. None: the collection is in memory
          alone

    >>> import weft
    >>> zoo = weft.train_zoo("2-8-3", weft.Data.open("spirals", rows=200), 4, epochs=3)
    >>> zoo, zoo.scores().shape
    (<weft.Zoo of 4 networks 2-8-3, relu, 51 parameters>, (4,))
    """
    graph = arch_of(arch, activation)
    examples = data_of(data, classes=graph.outputs, train=True)
    with Options("wf_zoo_settings", {"count": count, **settings}) as options, output(path) as out:
        current()._run(
            lib.wf_zoo_train, graph._handle, examples._c, options.pointer, text(out), None
        )
        return opened(out, path)


def handles(zoos: Sequence[Zoo]) -> Any:
    """Collections as the library takes several."""
    return (ctypes.c_void_p * len(zoos))(*[zoo._c.value for zoo in zoos])


def plan(zoo: Zoo, minutes: float | None = None) -> dict[str, Any]:
    """How weft.fit would fit a flow to a collection in so many minutes: settings of [model],
    [train] and [sample], the estimate in seconds. The speed is measured, which takes a second or
    two."""
    must_be_zoos(zoo)
    if isinstance(minutes, str) or (minutes is not None and not minutes > 0):
        raise UsageError(f"minutes is {minutes!r}; give a number above 0")
    found: dict[str, Any] = answer(lib.wf_plan_json, zoo._c, minutes or 0.0, long=True)
    return found


def describe_plan(planned: Mapping[str, Any]) -> str:
    """The estimate in a sentence."""
    seconds = planned["seconds"]
    time = f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return (
        f"fitting {planned['networks']} networks: {planned['field_params']} parameters, "
        f"{planned['train']['updates']} updates, about {time}"
    )


def _begun(path: str | os.PathLike[str] | None) -> Flow | None:
    """The flow that a fit has begun at `path`."""
    if path is None or not os.path.isfile(path):
        return None
    try:
        flow = Flow.open(path)
    except WeftError:
        return None  # the fit says what stands there
    return flow if "train" in flow.about else None


def _planned(zoo: Zoo, minutes: float | None, path: str | os.PathLike[str] | None) -> Any:
    """The plan of a fit, which is said. One that was begun at `path` keeps its own."""
    planned = plan(zoo, minutes)
    begun = _begun(path)
    if begun is None:
        print(describe_plan(planned))
        return planned
    train = {**planned["train"], **begun.about["train"]}
    train["max_seconds"] = planned["train"]["max_seconds"]  # which no flow remembers
    done = lib.wf_flow_position(lib.wf_generator_flow(begun._c))
    of = train["updates"]
    said = f"goes on from update {done} of {of}" if done < of else f"has its {of} updates"
    print(f"{begun.path}: {said}")
    return {**planned, "model": begun.about["model"], "train": train}


def known_settings(generator: str) -> set[str]:
    """Names of the settings of a generator's own."""
    rows = lib.wf_generator_settings(text(generator))
    return keys(rows) if rows else set()


def _split_settings(
    generator: str, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords by table: [model] of the generator's kind and [train]. `seed` is of both."""
    of_model = known_settings(generator)
    of_train = keys(lib.wf_fit_settings())
    for key in settings:
        if key not in of_model | of_train:
            near = nearest(key, of_model | of_train)
            listed = f'weft.settings("train") and weft.settings("model", "{generator}") list them'
            how = f'did you mean "{near}"?' if near else listed
            raise UsageError(f'weft.fit of {generator} has no setting "{key}"; {how}')
    model = {key: value for key, value in settings.items() if key in of_model}
    train = {key: value for key, value in settings.items() if key in of_train}
    return model, train


def fit(
    zoo: Zoos,
    data: DataLike | None = None,
    *,
    generator: str = DEFAULT,
    path: str | os.PathLike[str] | None = None,
    held_out: Zoos | None = None,
    conds: Any = None,
    minutes: float | None = None,
    model: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Flow:
    """Fit a generator to a collection, to several (a list), or to tasks ({"name": zoo}).

    Without `updates` the fit is planned: its size and length are chosen for this machine and the
    minutes there are (5), and the estimate is printed first. See weft.plan.

    data       (X, y): the networks are tried on it before the work begins; a warning says where
               they do not fit, and what would
    minutes    of training, for the plan
    path       the file to write; a fit that was interrupted goes on there, with the plan it had.
               None: a temporary file, which lives as long as the flow
    held_out   networks trained like those of `zoo`, for the validation loss
    conds      numbers that tell collections apart, a row each; tasks have one-hot rows without it
    settings   of [model] and [train] in recipes: updates, batch, lr, node, edge, blocks ... Where
               a name is in both, model={...} and train={...} say which
    on_log     a function of each line of the log, as a dict
    """
    zoos, tasks = sources_of(zoo)
    if not zoos:
        raise UsageError("no collection was given")
    others = sources_of(held_out)[0] if held_out is not None else []
    if others and len(others) != len(zoos):
        raise UsageError(f"{len(others)} held-out collections for {len(zoos)} collections")
    names = [kind.name for kind in generators() if kind.fitted]
    if generator not in names:
        raise UsageError(
            f"there is no generator {generator} to fit; weft.fit knows {', '.join(names)}"
        )
    rows = conditions(conds, tasks)
    of_model, of_train = _split_settings(generator, settings)
    sampling: dict[str, Any] = {}
    with Options("wf_fit_settings", {**of_train, **(train or {})}):
        pass  # a wrong setting is said before anything takes time
    if data is not None:
        advise(zoos[0], data_of(data, classes=zoos[0].arch.outputs, reads=zoos[0]._reads))
    if generator == DEFAULT and "updates" not in {**settings, **(train or {})}:
        planned = _planned(max(zoos, key=len), minutes, path)
        chosen = {k: v for k, v in planned["model"].items() if k not in ("cond", "cond_size")}
        of_model = {**chosen, **of_model}
        of_train = {**planned["train"], **of_train}
        sampling = planned["sample"]
    elif minutes is not None:
        raise UsageError("minutes is for plans: leave updates out, and the generator gmn")
    if rows is not None and "cond" in known_settings(generator):
        of_model.setdefault("cond", "linear")
    request = {
        "model": {**of_model, **(model or {})},
        "train": {**of_train, **(train or {})},
        "sources": [
            {"task": task, "cond": None if rows is None else rows[index]}
            for index, task in enumerate(tasks)
        ],
    }
    folder = TemporaryFolder() if path is None else None
    out = os.path.join(folder.path, "flow.safetensors") if folder else os.fspath(path or "")
    context = current()
    with context._logging(on_log), kept_for_later(folder, out):
        context._run(
            lib.wf_generator_fit_json,
            text(generator),
            handles(zoos),
            handles(others) if others else None,
            len(zoos),
            as_json(request),
            text(out),
        )
    if sampling:
        with Options("wf_sample_settings", sampling) as options:
            context._call(lib.wf_flow_keep_sampling, text(out), options.pointer)
    return Flow(out, zoos[0], folder)
