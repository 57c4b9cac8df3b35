"""Examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import weft

NAMES = {module.name for module in pkgutil.iter_modules(weft.__path__)} - {"libweft"}
MODULES = ["weft", *(f"weft.{name}" for name in sorted(NAMES))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name == "weft.onnx":
        pytest.importorskip("onnx")
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    examples = 0
    for name in MODULES:
        examples += sum(len(t.examples) for t in finder.find(importlib.import_module(name)))
    assert examples > 30
