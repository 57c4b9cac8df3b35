"""Runs of recipes, and what they leave in their folder."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any, Iterator, Mapping

from ._evaluate import Evaluation, in_frame
from ._generator import Flow
from ._lib import lib, owned_text, text
from ._options import as_json
from .context import current
from .errors import InputError
from .logs import read_log
from .zoo import Zoo


class Report:
    """A page of weft, shown inline in notebooks."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        if not os.path.exists(self.path):
            raise InputError(f"{self.path}: there is no such page")

    @property
    def html(self) -> str:
        return Path(self.path).read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        return in_frame(self.html)

    def __repr__(self) -> str:
        return f"<weft.Report {self.path}>"


class Run:
    """The folder of a run: its collection, flow, networks, table, page and log."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        if not os.path.isfile(self._file("recipe.conf")):
            raise InputError(
                f"{self.folder}: there is no recipe.conf; this is not the folder of a run"
            )

    def _file(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @property
    def zoo(self) -> Zoo:
        """The collection that the flow was fitted to."""
        return Zoo.open(self._file("zoo.safetensors"))

    @property
    def flow(self) -> Flow:
        return Flow.open(self._file("flow.safetensors"))

    @property
    def networks(self) -> Zoo:
        """The networks that were sampled."""
        return Zoo.open(self._file("nets.safetensors"))

    @property
    def table(self) -> Evaluation:
        """The rows of eval.json; shows as the run's page in notebooks."""
        try:
            found = json.loads(Path(self._file("eval.json")).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{self.folder}: the run has no eval.json yet") from None
        page = self.report.html if os.path.exists(self._file("report.html")) else ""
        score = str(found.get("score", "accuracy"))
        return Evaluation(found["rows"], page, str(found.get("notes") or ""), score)

    @property
    def report(self) -> Report:
        return Report(self._file("report.html"))

    @property
    def recipe(self) -> str:
        """The recipe with all overrides."""
        return Path(self._file("recipe.conf")).read_text(encoding="utf-8")

    def iter_log(self) -> Iterator[dict[str, Any]]:
        return read_log(self._file("flow.safetensors.log.jsonl"))

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the training log."""
        return list(self.iter_log())

    def __repr__(self) -> str:
        return f"<weft.Run {self.folder}>"


def run(
    recipe: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    seed: int | None = None,
    redo: bool = False,
) -> Run:
    """Run a recipe, as `weft run` does. Stages that are done already are kept, and a run that was
    interrupted goes on.

    recipe  its file, or the name of one that is installed; "demo" is that of `weft demo`
    folder  of the results; None: runs/NAME of the recipe
    set     settings in place of the recipe's: {"zoo.count": 100, "train.updates": 500}
    seed    of all that is drawn, in place of the recipe's
    redo    replace results of other settings
    """
    options = {"folder": folder, "set": set, "seed": seed, "redo": redo}
    out = ctypes.c_void_p()
    context = current()
    context._run(
        lib.wf_run_json,
        text(recipe),
        None,
        as_json(options),
        context._on_line,
        None,
        ctypes.byref(out),
    )
    return Run(json.loads(owned_text(out))["folder"])
