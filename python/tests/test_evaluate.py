"""The table: what it says, how it shows, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import weft


@pytest.fixture(scope="module")
def table(zoo, flow, data):
    return weft.evaluate({"flow": flow.sample(10), "copies": zoo[:10]}, zoo, data, subsets=5)


def test_rows(table):
    assert [row["name"] for row in table] == ["reference", "flow", "copies"]
    assert table["flow"]["n"] == 10 and len(table) == 3
    assert table["copies"]["wcs_mean"] == pytest.approx(1, abs=1e-5)  # found as copies
    assert table["reference"]["jws"] is None and 0 <= table["flow"]["jws"] <= 1
    assert table.points["flow"]["wcs"].shape == (10,)
    with pytest.raises(KeyError, match="reference, flow, copies"):
        table["other"]


def test_scores_are_those_of_plain_numpy(zoo, data):
    accuracy = weft.score(zoo, data)
    logits = zoo.forward(data.x_test)
    expected = (logits.argmax(-1) == data.y_test).mean(-1)
    assert np.allclose(accuracy, expected, atol=1e-6) and np.allclose(
        accuracy, zoo.scores(), atol=1e-6
    )
    table = weft.evaluate(zoo[:5], zoo, (data.x_test, data.y_test), subsets=2)
    assert table["generated"]["accuracy_mean"] == pytest.approx(expected[:5].mean(), abs=1e-6)


def test_text_markdown_html(table):
    lines = str(table).splitlines()
    assert lines[0].split()[:3] == ["networks", "n", "accuracy"] and lines[2].startswith("flow")
    assert table.to_markdown().splitlines()[1].startswith("| --- |")
    page = table._repr_html_()
    assert page.startswith("<iframe") and "svg" in page
    assert "<svg" in table.html() and "http://" not in table.html().replace("http://www.w3.org", "")


def test_save(table, tmp_path):
    path = table.save(tmp_path / "report.html")
    assert "<svg" in open(path).read()


def test_pandas(table):
    pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert frame.loc["flow", "n"] == 10 and frame.loc["copies", "wcs_mean"] > 0.999


def test_without_data(zoo):
    table = weft.evaluate(zoo[:3], zoo)
    assert table["generated"]["accuracy_mean"] is None and table["generated"]["wcs_mean"] > 0.99


def test_auc():
    data = weft.Data.open("moons", rows=200)
    zoo = weft.train_zoo("2-6-2", data, 8, epochs=30, lr=0.01)
    table = weft.evaluate(zoo[:3], zoo, data, score="auc", subsets=2)
    assert "auc" in str(table) and table["generated"]["accuracy_mean"] > 0.5
    assert weft.score(zoo, data, "auc").mean() > 0.5


def test_compare(zoo, flow, data):
    table = weft.compare(["random", "perturbation-0.1", flow], zoo, data, n=5, subsets=2)
    assert [row["name"] for row in table] == ["reference", "random", "perturbation-0.1", "gmn"]


def test_refused(zoo, flow, data):
    with pytest.raises(weft.ShapeError, match="2-16-3, the collection is 2-8-3"):
        weft.evaluate(flow.sample(2, width=2), zoo, data)
    with pytest.raises(weft.ShapeError):
        weft.evaluate(zoo[:2], zoo, (np.zeros((5, 3)), [0, 1, 2, 0, 1]))
    with pytest.raises(weft.WeftError, match="class|label"):
        weft.evaluate(zoo[:2], zoo, (np.zeros((5, 2)), [0, 1, 2, 3, 4]))
    with pytest.raises(weft.UsageError, match="subsets"):
        weft.evaluate(zoo[:2], zoo, data, subset=3)
    with pytest.raises(weft.UsageError, match="accuracy, auc"):
        weft.score(zoo, data, "f1")
    broken = zoo.weights[:2].copy()
    broken[0, 0] = np.inf
    with pytest.raises(weft.UsageError, match="NaN"):
        weft.evaluate(weft.Zoo(zoo.arch, broken), zoo, data)
