"""Notebooks: the examples run from beginning to end, and what they keep is small; progress and
Ctrl-C in a cell.

WEFT_KEEP_OUTPUTS=1 writes what the cells print into the notebooks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytest.importorskip("jupyter_client")
from jupyter_client.manager import start_new_kernel  # noqa: E402

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
NEEDS = {"own_checkpoints": "torch", "reading_the_evaluation": "pandas"}


def test_there_are_six():
    assert len(EXAMPLES) == 6


@pytest.fixture(autouse=True)
def kernel_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path, monkeypatch):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    assert path.stat().st_size < 30_000
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources, record_timing=False
    ).execute()
    outputs = outputs_of(notebook)
    assert outputs and not any(output["output_type"] == "error" for output in outputs)
    if os.environ.get("WEFT_KEEP_OUTPUTS"):
        for cell in notebook.cells:
            if "outputs" in cell:
                cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        nbformat.write(notebook, path)
    assert len(outputs_of(nbformat.read(path, as_version=4))) >= 2  # readers see results


FIT = """
import weft
zoo = weft.generator("random").sample(40, arch=weft.Arch("2-8-3", activation="relu"))
weft.fit(zoo, updates=10**6, node=16, edge=16, time=16, blocks=2, batch=8, path="f.safetensors")
"""


def test_a_bar_and_an_interrupted_cell(tmp_path):
    """The button that interrupts a kernel does what Ctrl-C does."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    shown, pressed = [], []

    def show(message):
        shown.append(str(message["content"]))
        bar = message["msg_type"] in ("stream", "display_data") and "training the flow" in shown[-1]
        if bar and not pressed:  # again, it might come after the call, which is Python's own then
            pressed.append(manager.interrupt_kernel())

    try:
        reply = client.execute_interactive(FIT, output_hook=show, timeout=120)["content"]
        assert (reply["status"], reply["ename"]) == ("error", "Interrupted"), shown
        assert "stopping after this step" in "".join(shown)
        kept = "print('kept', weft.Flow.open('f.safetensors').about['updates'] > 0)"
        client.execute_interactive(kept, output_hook=show, timeout=60)
        assert "kept True" in shown[-2]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
