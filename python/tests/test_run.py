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
