"""The table: what it says, how it shows, what it refuses."""

from __future__ import annotations

import re
import warnings

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


@pytest.fixture(scope="module")
def mine(data):
    """Good networks without a word on where they come from; they read standardised inputs."""
    trained = weft.train_zoo("2-12-3", data, 12, epochs=60, lr=0.02, batch=32)
    assert trained.scores().mean() > 0.85
    return weft.Zoo(trained.arch, trained.weights)


def judged(zoo, data):
    """The advice of an evaluation, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = weft.evaluate(zoo[:3], zoo, data, subsets=2)
    assert [str(warning.message) for warning in caught] == ([table.advice] if table.advice else [])
    assert all(warning.category is weft.WeftWarning for warning in caught)
    return table.advice


def test_data_that_fits_needs_no_advice(mine, zoo, data):
    assert judged(mine, (data.x_test, data.y_test)) == "" == judged(mine, data)
    assert judged(zoo, (10 * data.x_test, data.y_test)) == ""  # weft knows its own


def test_inputs_on_another_scale(mine, data):
    x, y = 7 * data.x_test + 3, data.y_test
    said = judged(mine, (x, y))
    assert re.search(r"about 0\.[89].* with \(X - X.mean\(0\)\) / X.std\(0\) in place of X$", said)
    assert judged(mine, ((x - x.mean(0)) / x.std(0), y)) == ""
    assert judged(mine, {"name": "spirals", "rows": 300, "scale": "none"}).endswith(
        'with scale="standard"'
    )


def test_labels_in_another_order(mine, data):
    y = (data.y_test + 1) % 3
    said = judged(mine, (data.x_test, y))
    assert said.endswith("with np.argsort([1, 2, 0])[y] in place of y")
    assert judged(mine, (data.x_test, np.argsort([1, 2, 0])[y])) == ""
    settings = {"name": "spirals", "rows": 300, "classes": "2,0,1"}
    assert judged(mine, settings).endswith('with classes="0,1,2"')


def test_another_activation(mine, data):
    wrong = weft.Zoo(weft.Arch("2-12-3", activation="sigmoid"), mine.weights)
    assert 'activation="relu" where the networks are read' in judged(wrong, data)


def test_data_that_is_not_theirs(mine):
    draw = np.random.default_rng(0)
    said = judged(mine, (draw.standard_normal((300, 2)), draw.integers(0, 3, 300)))
    assert "hardly above the largest class (0.3" in said and said.endswith("were trained on?")


def test_data_by_name_is_read_as_the_networks_want_it(zoo, flow, data, tmp_path):
    """As the program does: trained networks say their scale, imported ones take numbers as they
    are; so do networks from a flow of them."""
    named = {"name": "spirals", "rows": 300}
    assert np.array_equal(weft.score(zoo, named), weft.score(zoo, data))
    assert np.array_equal(weft.score(flow.sample(4), named), weft.score(flow.sample(4), data))
    raw = weft.Data.open("spirals", rows=300, scale="none")
    imported = weft.Zoo.from_models(
        {name: zoo[name] for name in zoo.names}, arch=zoo.arch, activation="relu"
    )
    assert np.array_equal(weft.score(imported, named), weft.score(imported, raw))
    said = {**named, "scale": "standard"}
    assert np.array_equal(weft.score(imported, said), weft.score(zoo, data))


def test_compare(zoo, flow, data):
    table = weft.compare(["random", "perturbation-0.1", flow], zoo, data, n=5, subsets=2)
    assert [row["name"] for row in table] == ["reference", "random", "perturbation-0.1", "gmn"]
    alone = weft.compare("random", zoo, data, n=5, subsets=2)
    assert alone["random"] == table["random"]


def test_refused(zoo, flow, data):
    with pytest.raises(weft.ShapeError, match="2-16-3, the collection is 2-8-3"):
        weft.evaluate(flow.sample(2, width=2), zoo, data)
    with pytest.raises(weft.ShapeError):
        weft.evaluate(zoo[:2], zoo, (np.zeros((5, 3)), [0, 1, 2, 0, 1]))
    with pytest.raises(weft.WeftError, match="class|label"):
        weft.evaluate(zoo[:2], zoo, (np.zeros((5, 2)), [0, 1, 2, 3, 4]))
    with pytest.raises(weft.UsageError, match="subsets"):
        weft.evaluate(zoo[:2], zoo, data, subset=3)
    with pytest.raises(weft.UsageError, match=r"not a Flow: its sample\(n\) makes one"):
        weft.evaluate(flow, zoo, data)
    with pytest.raises(weft.UsageError, match="accuracy, auc"):
        weft.score(zoo, data, "f1")
    broken = zoo.weights[:2].copy()
    broken[0, 0] = np.inf
    with pytest.raises(weft.UsageError, match="NaN"):
        weft.evaluate(weft.Zoo(zoo.arch, broken), zoo, data)
