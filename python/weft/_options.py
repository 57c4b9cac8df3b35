"""Settings as structs of the library, by their tables; no layout is known here."""

from __future__ import annotations

import ctypes
import json
import math
from typing import Any, Iterable, Mapping

from ._lib import from_text, lib, text
from .context import answer, current
from .errors import UsageError

#: Sections of recipes and the tables behind them.
TABLES = {
    "data": "wf_data_settings",
    "zoo": "wf_zoo_settings",
    "model": "wf_field_settings",
    "train": "wf_fit_settings",
    "sample": "wf_sample_settings",
    "eval": "wf_eval_settings",
}


class Options:
    """A struct of settings with the given values; freed at the end of its `with`."""

    def __init__(self, table: str | int, values: Mapping[str, Any]) -> None:
        """table  the function that returns it, or its address"""
        rows = getattr(lib, table)() if isinstance(table, str) else table
        self.pointer = ctypes.c_void_p()
        out = ctypes.byref(self.pointer)
        current()._call(lib.wf_settings_create, rows, as_json(values), out)

    def __enter__(self) -> Options:
        return self

    def __exit__(self, *_: object) -> None:
        lib.wf_free(self.pointer)
        self.pointer = ctypes.c_void_p()


def as_json(values: Mapping[str, Any]) -> bytes:
    """Options as the library takes them; None is left out, and so is what it stands for."""
    return json.dumps(_plain(values), allow_nan=False).encode()


def _plain(value: Any) -> Any:
    """Numbers of numpy, paths. What JSON has no number for goes as text: the library refuses it by
    the name of the setting."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items() if part is not None}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return str(value)


def keys(rows: int) -> set[str]:
    """Names of the settings of a table."""
    return {row["key"] for row in describe(rows)}


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that `word` probably misspells."""
    array = [*map(text, sorted(names)), None]
    found = lib.wf_nearest_name(text(word), (ctypes.c_char_p * len(array))(*array))
    return from_text(found) or None


def describe(rows: int) -> list[dict[str, Any]]:
    """The settings of a table."""
    found: list[dict[str, Any]] = answer(lib.wf_settings_describe, rows)
    return found


def settings(section: str, generator: str = "gmn") -> list[dict[str, Any]]:
    """What can be set in a section of a recipe, and so by keyword: key, type, default, allowed,
    help. Section model is that of a generator.

    >>> import weft
    >>> next(row for row in weft.settings("sample") if row["key"] == "solver")["default"]
    'dopri5'
    >>> [row["key"] for row in weft.settings("model", generator="mlp")][:2]
    ['width', 'blocks']
    """
    if section not in TABLES:
        raise UsageError(f"there are no settings {section}; sections are {', '.join(TABLES)}")
    named = section == "model" and generator != "gmn"
    rows = lib.wf_generator_settings(text(generator)) if named else getattr(lib, TABLES[section])()
    if not rows:
        raise UsageError(f"no generator of the name {generator} has settings")
    return describe(rows)
