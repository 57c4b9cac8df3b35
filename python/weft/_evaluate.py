"""Judging networks: accuracy, error-IoU, matched cosine, JWS, novelty (docs/evaluation.md)."""

from __future__ import annotations

import contextlib
import ctypes
import html
import json
import os
from typing import Any, Iterable, Iterator, Mapping, Sequence, Union

import numpy as np

from ._files import write_text
from ._generator import Generator
from ._lib import from_text, lib, owned_text, text, text_or_none
from ._memory import Array, Owned
from ._options import Options
from .context import answer, current, warn
from .data import Data, DataLike, data_of
from .errors import ShapeError, UnsupportedError, UsageError
from .zoo import Zoo, must_be_zoos

# Columns of the printed table: key, heading, key of the spread.
COLUMNS = (
    ("accuracy_mean", "accuracy", "accuracy_std"),
    ("iou_mean", "error IoU", "iou_std"),
    ("wcs_mean", "matched cosine", "wcs_std"),
    ("jws", "JWS", "jws_std"),
)


class Evaluation:
    """A table: a row for the collection itself and one for each set of networks that was judged.

    `rows` are dicts, `points` have the values of single networks. Prints as text, shows as a page
    with plots in notebooks."""

    def __init__(
        self, rows: list[dict[str, Any]], page: str, notes: str, score: str, advice: str = ""
    ) -> None:
        self.points: dict[str, dict[str, Array]] = {
            row["name"]: {key: np.asarray(v) for key, v in row.get("points", {}).items()}
            for row in rows
        }
        self.rows = [{k: v for k, v in row.items() if k != "points"} for row in rows]
        self.notes = notes
        self.score = score
        #: What would make networks and data fit better; it was a warning, too.
        self.advice = advice
        self._page = page

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The row of this name."""
        for row in self.rows:
            if row["name"] == name:
                return row
        raise KeyError(f"{name}; rows are {', '.join(str(row['name']) for row in self.rows)}")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _cells(self) -> list[list[str]]:
        head = ["networks", "n"] + [self.score if h == "accuracy" else h for _, h, _ in COLUMNS]
        body = []
        for row in self.rows:
            mark = " (copies)" if row.get("copies") else ""
            cells = [str(row["name"]) + mark, str(row["n"])]
            for key, _, spread in COLUMNS:
                value, std = row.get(key), row.get(spread)
                cells.append(
                    "-"
                    if value is None
                    else f"{value:.3f}" + ("" if std is None else f" ± {std:.3f}")
                )
            body.append(cells)
        return [head, *body]

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])])
            for row in cells
        ]
        return "\n".join(lines + ([self.notes] if self.notes else []))

    __repr__ = __str__

    def to_markdown(self) -> str:
        head, *body = self._cells()
        rule = ["---"] + ["---:"] * (len(head) - 1)
        return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame, with every column."""
        try:
            import pandas
        except ImportError:
            raise UnsupportedError(
                "this needs pandas: pip install pandas; rows are dicts: table.rows"
            ) from None
        return pandas.DataFrame(self.rows).set_index("name")

    def html(self) -> str:
        """The report as one page, with plots; it refers to nothing outside itself."""
        return self._page

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the page to a file."""
        write_text(path, self._page)
        return os.fspath(path)

    def _repr_html_(self) -> str:
        return in_frame(self._page)


def in_frame(page: str) -> str:
    """A whole page for the output of a notebook's cell."""
    source = html.escape(page, quote=True)
    return f'<iframe srcdoc="{source}" style="width:100%;height:640px;border:0"></iframe>'


Networks = Union[Zoo, Mapping[str, Zoo], Sequence[Zoo]]


def _named(networks: Networks) -> dict[str, Zoo]:
    if isinstance(networks, Zoo):
        return {"generated": networks}
    if isinstance(networks, Mapping):
        return dict(networks)
    if not isinstance(networks, Iterable):
        must_be_zoos(networks)
    return {f"generated {index + 1}": zoo for index, zoo in enumerate(networks)}


def _fits(zoo: Zoo, reference: Zoo, name: str) -> None:
    if zoo.arch != reference.arch:
        raise ShapeError(
            f"{name}: these networks are {zoo.arch.text}, the collection is {reference.arch.text}. "
            f"Networks are compared with trained ones of their own architecture; "
            f"weft.score(networks, data) judges them alone"
        )
    if not np.isfinite(zoo.weights).all():
        raise UsageError(f"{name}: a network has NaN or infinite values; leave it out")


# Arrays in place of X, by the scale that networks want.
_RESCALED = {
    "standard": "(X - X.mean(0)) / X.std(0)",
    "minmax": "(X - X.min(0)) / (X.max(0) - X.min(0))",
    "unit": "X / 255",
}


def _changes(found: Mapping[str, Any], data: Data) -> str:
    """What would fit better, as code."""
    changes = []
    scale, order = found["scale"], found["classes"]
    names = data.about["class_names"]
    opened = data._settings is not None
    if scale is not None:
        changes.append(f'scale="{scale}"' if opened else f"{_RESCALED[scale]} in place of X")
    if found["activation"] is not None:
        changes.append(f'activation="{found["activation"]}" where the networks are read')
    if order is not None and opened:
        changes.append(f'classes="{",".join(names[label] for label in order)}"')
    elif order is not None:
        changes.append(f"np.argsort({order})[y] in place of y")
    return " and ".join(changes)


def advice(zoo: Zoo, data: Data) -> str:
    """What is wrong between networks and data, and what would fit; "": nothing is far better."""
    handle = ctypes.c_void_p()
    with contextlib.ExitStack() as stack:
        if data._settings is not None:
            options = stack.enter_context(Options("wf_data_settings", data._settings))
            handle = options.pointer
        found = answer(lib.wf_zoo_suits_json, zoo._c, handle, data._c, long=True)
    changes = _changes(found, data)
    sentence = f"the networks have an accuracy of {found['accuracy']:.3f} on this data"
    if changes:
        return f"{sentence}, and about {found['best']:.3f} with {changes}"
    if found["accuracy"] < found["guessing"]:
        return (
            f"{sentence}, hardly above the largest class ({found['largest_class']:.3f}), and no "
            f"other scale, activation or order of classes is better: are these the data, columns "
            f"and order of inputs that the networks were trained on?"
        )
    return ""


def advise(zoo: Zoo, data: Data) -> str:
    """`advice` as a warning, too."""
    sentence = advice(zoo, data)
    if sentence:
        warn(sentence)
    return sentence


def score(networks: Zoo, data: DataLike, score: str = "accuracy") -> Array:
    """Accuracy, or "auc", of each network on the test part of the data.

    >>> import weft
    >>> zoo = weft.generator("random").sample(3, arch=weft.Arch("2-8-3", activation="relu"))
    >>> weft.score(zoo, "spirals").shape
    (3,)
    """
    kinds = ("accuracy", "auc")
    if score not in kinds:
        raise UsageError(f"score is {score}; there are {', '.join(kinds)}")
    must_be_zoos(networks)
    examples = data_of(data, classes=networks.arch.outputs, reads=networks._reads)
    _matching(networks, examples)
    weights = np.ascontiguousarray(networks.weights)
    scores = np.empty(len(networks), np.float32)
    current()._run(
        lib.wf_score_networks,
        networks.arch._handle,
        weights.ctypes.data,
        len(networks),
        examples._c,
        kinds.index(score),
        scores.ctypes.data,
        None,
    )
    return scores


def _matching(zoo: Zoo, data: Data) -> None:
    current()._call(lib.wf_dataset_fits, data._c, zoo.arch._handle)


def _open(zoo: Zoo, data: Data | None, settings: Mapping[str, Any]) -> Owned:
    """The reference side of the comparison."""
    handle = ctypes.c_void_p()
    with Options("wf_eval_settings", {"cache": zoo.path is not None, **settings}) as options:
        data_handle = None if data is None else data._c
        current()._run(
            lib.wf_reference_open, zoo._c, data_handle, options.pointer, ctypes.byref(handle)
        )
    return Owned(handle, lib.wf_reference_free, zoo, data)


def evaluate(
    networks: Networks,
    zoo: Zoo,
    data: DataLike | None = None,
    *,
    title: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Judge networks against the collection they were learned from.

    networks  a Zoo, or several by name: {"mine": zoo, "held out": other}
    data      (X, y): what networks are tested on. Without it there are matched cosines alone. A
              warning says where other scaling of inputs, another activation or another order of
              classes would fit a collection of other programs far better
    settings  of [eval] in recipes: score="auc", cloud, subsets ... (weft.settings("eval"))
    """
    named = _named(networks)
    must_be_zoos(zoo, *named.values())
    for name, other in named.items():
        _fits(other, zoo, name)
    examples, said = None, ""
    if data is not None:
        examples = data_of(data, classes=zoo.arch.outputs, reads=zoo._reads)
        _matching(zoo, examples)
        if not zoo.tests:  # those that weft trained or scored are known to fit
            said = advise(zoo, examples)
    reference = _open(zoo, examples, settings)
    count = len(named)
    weights = [np.ascontiguousarray(other.weights) for other in named.values()]
    rows, page = ctypes.c_void_p(), ctypes.c_void_p()
    current()._run(
        lib.wf_report_evaluation,
        text_or_none(title),
        reference.handle,
        (ctypes.c_char_p * count)(*[text(name) for name in named]),
        (ctypes.c_void_p * count)(*[w.ctypes.data for w in weights]),
        (ctypes.c_size_t * count)(*[len(w) for w in weights]),
        count,
        ctypes.byref(rows),
        ctypes.byref(page),
    )
    notes = from_text(lib.wf_reference_notes(reference.handle))
    found = json.loads(owned_text(rows))
    kind = str(settings.get("score", "accuracy"))
    return Evaluation(found, owned_text(page), notes, kind, said)


def compare(
    generators: str | Generator | Sequence[str | Generator],
    zoo: Zoo,
    data: DataLike | None = None,
    n: int = 100,
    *,
    seed: int = 0,
    sample: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Evaluation:
    """Judge generators by n networks of each. Names are of those that need no fit
    ("perturbation-0.1"); others are given as they are, flows with the settings `sample`."""
    from ._generator import Flow, generator

    must_be_zoos(zoo)
    drawn = {}
    for item in [generators] if isinstance(generators, (str, Generator)) else generators:
        made = generator(item, zoo) if isinstance(item, str) else item
        name = item if isinstance(item, str) else made.name
        options = dict(sample or {}) if isinstance(made, Flow) else {}
        drawn[name] = made.sample(n, seed=seed, **options)
    return evaluate(drawn, zoo, data, **settings)
