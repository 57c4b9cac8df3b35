"""The examples run from beginning to end; what they keep is small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
NEEDS = {"own_checkpoints": "torch", "reading_the_evaluation": "pandas"}


def test_there_are_six():
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path, monkeypatch):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    assert path.stat().st_size < 30_000
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs and not any(output["output_type"] == "error" for output in outputs)
