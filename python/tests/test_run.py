"""Folders of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import weft

GOLDEN = Path(__file__).parent.parent.parent / "tests" / "golden" / "0.1" / "run"


@pytest.mark.skipif(not GOLDEN.exists(), reason="not in the repository")
def test_a_folder_of_version_0_1():
    run = weft.Run(GOLDEN)
    assert run.table["held-out"]["jws"] == pytest.approx(0.9757, abs=1e-3)
    assert len(run.zoo) == 12 and len(run.networks) == 4 and run.flow.name == "gmn"
    assert "[zoo]" in run.recipe and run.log[-1]["update"] > 0


def test_faults(tmp_path):
    with pytest.raises(weft.InputError, match="not the folder of a run"):
        weft.Run(tmp_path)
    with pytest.raises(weft.InputError, match="no such page"):
        weft.Report(tmp_path / "report.html")


def test_a_page_inline(tmp_path):
    (tmp_path / "report.html").write_text("<p>&</p>")
    assert 'srcdoc="&lt;p&gt;' in weft.Report(tmp_path / "report.html")._repr_html_()


RECIPE = """[data]
name = spirals
rows = 200
[zoo]
arch = 2-6-3
count = 12
held_out = 4
epochs = 3
[model]
node = 8
edge = 8
time = 8
blocks = 1
[train]
updates = 20
batch = 4
[sample]
count = 4
solver = euler
steps = 5
[eval]
subsets = 3
"""


def test_a_recipe(tmp_path, capsys):
    recipe = tmp_path / "tiny.conf"
    recipe.write_text(RECIPE)
    run = weft.run(recipe, tmp_path / "run", set={"train.updates": 30, "train.log_every": 10})
    assert "training" in capsys.readouterr().out
    assert run.log[-1]["update"] == 30 and len(run.networks) == 4
    assert {"reference", "held-out", "gmn"} <= {row["name"] for row in run.table}
    assert "<svg" in run.report.html and run.table._repr_html_().startswith("<iframe")
    again = weft.run(recipe, tmp_path / "run", set={"train.updates": 30, "train.log_every": 10})
    assert "done before" in capsys.readouterr().out and again.folder == run.folder


def test_faults_of_recipes(tmp_path):
    with pytest.raises(weft.WeftError, match="none.conf"):
        weft.run(tmp_path / "none.conf")
    recipe = tmp_path / "tiny.conf"
    recipe.write_text(RECIPE)
    with pytest.raises(weft.UsageError, match="updates"):
        weft.run(recipe, tmp_path / "run", set={"train.updats": 3})
    for wrong in ("a", 1.5, -1):
        with pytest.raises(weft.UsageError, match="seed"):
            weft.run(recipe, tmp_path / "run", seed=wrong)
    with pytest.raises(weft.UsageError, match="train.lr is .nan"):
        weft.run(recipe, tmp_path / "run", set={"train.lr": float("nan")})
