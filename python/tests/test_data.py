"""Labelled data in memory and from files."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import weft
from weft.data import data_of

X = np.random.default_rng(0).standard_normal((60, 4))
Y = np.arange(60) % 3


def test_arrays_are_the_test_part():
    data = weft.Data.of_arrays(X, Y)
    assert data.x_train.shape == (0, 4) and np.allclose(data.x_test, X.astype(np.float32))
    assert data.y_test.tolist() == Y.tolist() and data.classes == 3


def test_both_parts_and_images():
    images = np.zeros((10, 1, 2, 2))
    data = weft.Data.of_arrays(images, [0, 1] * 5, images[:4], [0, 1, 0, 1], name="squares")
    assert (
        data.inputs == 4
        and data.name == "squares"
        and len(data.y_train) == 10
        and len(data.y_test) == 4
    )


def test_regression_is_said():
    with pytest.raises(weft.InputError, match="regression, which is not supported"):
        weft.Data.of_arrays(X, X[:, 0])


def test_split_keeps_the_mix_of_classes():
    data = weft.Data.split(X, Y, test_fraction=0.5)
    assert np.bincount(data.y_test).tolist() == [10, 10, 10]


def test_however_it_is_given(tmp_path, data):
    assert data_of(data) is data
    assert data_of("moons").classes == 2
    assert data_of({"name": "spirals", "rows": 30}).inputs == 2
    assert len(data_of((X, Y), train=True).y_train) == 48
    assert len(data_of((X, Y, X[:6], Y[:6])).y_test) == 6 == len(data_of([X[:6], Y[:6]]).y_test)
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "\n".join(f"{i},{i % 5},{'xy'[i % 2]}" for i in range(40)))
    assert data_of(str(table)).about["class_names"] == ["x", "y"]


def test_a_file_lies_where_its_name_says(tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("a,b\n" + "\n".join(f"{i},{i % 2}" for i in range(20)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "elsewhere"))
    assert weft.Data.open("mine.csv").classes == 2
    monkeypatch.chdir("elsewhere")
    monkeypatch.setenv("WEFT_DATA", str(tmp_path))
    assert weft.Data.open("mine.csv").classes == 2


@pytest.mark.parametrize("again", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_data_is_copied_and_pickled(data, again):
    arrays = weft.Data.of_arrays(X, Y, name="mine", classes=5)
    for one in (data, arrays, weft.Data.split(X, Y)):
        other = again(one)
        assert other.about == one.about
        assert np.array_equal(other.x_train, one.x_train)
        assert np.array_equal(other.y_test, one.y_test)


def test_labels_may_be_whole_floats():
    assert weft.Data.of_arrays(X, Y.astype(float)).y_test.tolist() == Y.tolist()


@pytest.mark.parametrize(
    "x, y, error, text",
    [
        (X[:, 0], Y, weft.ShapeError, "examples, inputs"),
        (X, Y[:-1], weft.ShapeError, "60 examples need"),
        (X, ["a"] * 60, weft.InputError, "np.unique"),
        (X, Y - 1, weft.InputError, "count from 0"),
        (np.where(X == X[7, 1], np.nan, X), Y, weft.InputError, "row 7"),
        (X[:0], Y[:0], weft.ShapeError, "examples, inputs"),
        (X, Y[:, None], weft.ShapeError, r"need \(60,\): y.reshape\(-1\)"),
        (X, np.eye(3)[Y], weft.ShapeError, r"y.argmax\(1\)"),
        (X, Y + 2**32, weft.InputError, "holds 4294967298; .*np.unique"),
        (X + 1j, Y, weft.InputError, "X is no array of real numbers"),
        ([[1, 2], [3]], Y[:2], weft.InputError, "X is no array of real numbers"),
        (np.full(X.shape, "x"), Y, weft.InputError, "X is no array of real numbers"),
        (1e300 * X, Y, weft.InputError, "row 0"),
    ],
)
def test_bad_arrays(x, y, error, text):
    with pytest.raises(error, match=text):
        weft.Data.of_arrays(x, y)


def test_other_faults():
    with pytest.raises(weft.ShapeError, match="alike"):
        weft.Data.of_arrays(X, Y, X[:, :2], Y)
    with pytest.raises(weft.UsageError, match="X, y"):
        data_of(3)
    with pytest.raises(weft.UsageError, match="name"):
        data_of({"rows": 3})
    with pytest.raises(weft.WeftError, match="nothing"):
        weft.Data.open("nothing")
    with pytest.raises(weft.UsageError, match="noise"):
        weft.Data.open("spirals", noize=1)
