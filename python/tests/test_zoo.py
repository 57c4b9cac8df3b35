"""Collections: architectures, memory, files."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time

import numpy as np
import pytest
import weft


@pytest.fixture
def weights():
    return np.random.default_rng(0).standard_normal((6, 27)).astype(np.float32)


@pytest.fixture
def arch():
    return weft.Arch("2-4-3", activation="tanh")


def test_arch_compares_and_pickles(arch):
    assert arch == weft.Arch(arch.description) and arch != weft.Arch("2-5-3", activation="tanh")
    assert pickle.loads(pickle.dumps(arch)) == arch
    assert arch.input_shape == (2,) and arch.activation == "tanh"


def test_arch_asks_for_the_activation():
    with pytest.raises(weft.UsageError, match="activation="):
        weft.Arch("2-4-3")


def test_arch_of_images():
    arch = weft.Arch("3x8x8 conv4 batchnorm relu pool linear5", activation="relu")
    assert arch.input_shape == (3, 8, 8) and arch.outputs == 5
    assert [t.name for t in arch.tensors if t.is_buffer] == ["1.running_mean", "1.running_var"]


@pytest.mark.parametrize("text", ["64-16-cat", "", "64", "3x8x8 conv", "-1-2"])
def test_bad_texts_have_the_library_s_sentence(text):
    with pytest.raises(weft.UsageError) as caught:
        weft.Arch(text, activation="relu")
    assert len(str(caught.value)) > 10


def test_views_share_memory(arch, weights):
    zoo = weft.Zoo(arch, weights)
    assert zoo.weights is weights or np.shares_memory(zoo.weights, weights)
    for name in zoo.names:
        assert np.shares_memory(zoo[name], weights)
        assert np.shares_memory(zoo[2][name], weights)
    assert np.shares_memory(zoo[1:3].weights, weights)
    assert np.array_equal(zoo["layers.0.weight"][1].reshape(-1), weights[1, :8])


def test_other_types_are_converted(arch, weights):
    zoo = weft.Zoo(arch, weights.astype(np.float64).tolist())
    assert zoo.weights.dtype == np.float32 and np.allclose(zoo.weights, weights)


def test_save_open(arch, weights, tmp_path):
    path = weft.Zoo(arch, weights, meta={"note": "hello"}).save(tmp_path / "zoo.safetensors")
    zoo = weft.Zoo.open(path)
    assert np.array_equal(zoo.weights, weights) and zoo.meta["note"] == "hello"
    assert zoo.arch == arch and zoo.path == path
    with pytest.raises(weft.UsageError, match=r"is a file, .* zoo\[:\].save"):
        zoo.save(tmp_path / "copy.safetensors", more="words")
    zoo[:].save(tmp_path / "copy.safetensors", more="words")
    assert weft.Zoo.open(tmp_path / "copy.safetensors").meta["more"] == "words"
    view = zoo["layers.0.bias"]
    del zoo
    assert np.array_equal(view, weights[:, 8:12])  # the mapping lives as long as its views
    with pytest.raises(ValueError):
        view[0] = 1  # and is not to be written


def test_many_files_are_one_collection(arch, weights, tmp_path):
    weft.Zoo(arch, weights[:4]).save(tmp_path / "part-0.safetensors")
    weft.Zoo(arch, weights[4:]).save(tmp_path / "part-1.safetensors")
    zoo = weft.Zoo.open(tmp_path / "part-*.safetensors")
    assert np.array_equal(zoo.weights, weights)
    assert np.array_equal(zoo["layers.0.bias"], weights[:, 8:12])
    assert np.shares_memory(zoo["layers.0.bias"], zoo.weights) and zoo.info()["count"] == 6
    views = zoo[1:3]["layers.0.bias"]
    del zoo
    assert np.array_equal(views, weights[1:3, 8:12])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda zoo: pickle.loads(pickle.dumps(zoo))])
def test_collections_are_copied_and_pickled(arch, weights, zoo, tmp_path, again):
    memory = weft.Zoo(arch, weights, meta={"weft.scale": "none"})
    assert memory._c  # the library's side stays behind
    opened = weft.Zoo.open(memory.save(tmp_path / "zoo.safetensors"))
    for one in (memory, opened, memory[::2], zoo):
        other = again(one)
        assert np.array_equal(other.weights, one.weights) and other.names == one.names
        assert other.arch == one.arch and other.path == one.path and other._reads == one._reads


def test_parts_know_how_their_networks_read_data(arch, weights, zoo, tmp_path):
    path = weft.Zoo(arch, weights, meta={"weft.scale": "unit"}).save(tmp_path / "zoo.safetensors")
    opened = weft.Zoo.open(path)
    for part in (opened[2:], opened[:3].take([1]), opened[weights[:, 0] > 0], opened[2:][1:]):
        assert part._reads == {"scale": "unit"}
    assert zoo[:3]._reads == zoo._reads == {"scale": "standard"}


def test_slices_and_strides_reach_the_library(arch, weights, tmp_path):
    for part in (slice(1, 5, 2), slice(None, None, -1)):
        path = weft.Zoo(arch, weights)[part].save(tmp_path / "part.safetensors")
        assert np.array_equal(weft.Zoo.open(path).weights, weights[part])


def test_memory_that_is_not_of_whole_numbers_of_floats(arch, weights, tmp_path):
    packed = np.zeros(6, np.dtype([("before", "u1"), ("all", "<f4", 27)]))  # 109 bytes a network
    packed["all"] = weights
    stacked = {}
    for tensor in arch.tensors:
        part = packed["all"][:, tensor.offset : tensor.offset + tensor.count]
        stacked[tensor.name] = part.reshape(6, *tensor.shape)
    zoo = weft.Zoo.from_models(stacked, arch=arch)
    assert np.array_equal(weft.Zoo.open(zoo.save(tmp_path / "zoo.safetensors")).weights, weights)


def test_threads_share_a_collection(arch, weights, monkeypatch):
    """The library's side of it is made once: a second would free the first, which is in use."""
    slowly = weft.zoo.current

    def current():
        time.sleep(0.05)
        return slowly()

    monkeypatch.setattr(weft.zoo, "current", current)
    zoo = weft.Zoo(arch, weights, meta={"note": "hello"})
    found = []
    threads = [threading.Thread(target=lambda: found.append(zoo._c)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len({handle.value for handle in found}) == 1


def test_forward(arch, weights):
    zoo = weft.Zoo(arch, weights)
    x = np.random.default_rng(1).standard_normal((5, 2)).astype(np.float32)
    w = zoo[3]
    hidden = np.tanh(x @ w["layers.0.weight"].T + w["layers.0.bias"])
    expected = hidden @ w["layers.1.weight"].T + w["layers.1.bias"]
    assert np.allclose(zoo.forward(x, 3), expected, atol=1e-5)
    assert zoo.forward(x).shape == (6, 5, 3) and zoo[:0].forward(x).shape == (0, 5, 3)


def test_scores_of_a_trained_collection(zoo, data):
    assert zoo.scores().shape == (30,) and zoo.tests == ["spirals"]
    assert zoo.scores("other") is None


def test_info(arch, weights, zoo):
    weights[4] = weights[1]
    weights[5, 3] = np.nan
    info = weft.Zoo(arch, weights).info()
    assert (info["count"], info["arch"], info["activation"]) == (6, "2-4-3", "tanh")
    assert info["duplicates"] == 1 and info["non_finite_networks"] == 1
    assert info["duplicate_examples"] == [{"index": 4, "earlier": 1, "permuted": False}]
    assert info["tests"] == [] and info["kinship"] == "independent" and info["warning"] == ""
    trained = zoo.info()["tests"][0]
    assert trained["name"] == "spirals"
    assert trained["mean"] == pytest.approx(zoo.scores().mean(), abs=1e-6)


def test_iteration(arch, weights):
    zoo = weft.Zoo(arch, weights)
    assert len(list(zoo)) == len(zoo) == 6
    assert np.array_equal(zoo.take([5, 0]).weights, weights[[5, 0]])
    assert np.array_equal(zoo[[5, 0]].weights, weights[[5, 0]])
    assert np.array_equal(zoo[weights[:, 0] > 0].weights, weights[weights[:, 0] > 0])
    assert len(zoo[[]]) == 0 == len(zoo[np.zeros(6, bool)])
    with pytest.raises(TypeError):
        zoo[1.5]


def test_bad_calls(arch, weights, tmp_path):
    with pytest.raises(weft.ShapeError, match=r"\(networks, 27\)"):
        weft.Zoo(arch, weights[:, :26])
    zoo = weft.Zoo(arch, weights)
    with pytest.raises(KeyError, match="layers.0.weight"):
        zoo["fc1.weight"]
    with pytest.raises(IndexError):
        zoo[6]
    with pytest.raises(weft.ShapeError, match=r"give \(n, 2\)"):
        zoo.forward(np.zeros((5, 3)), 0)
    with pytest.raises(weft.InputError, match="none.safetensors"):
        weft.Zoo.open(tmp_path / "none.safetensors")
    with pytest.raises(weft.DiskError):
        zoo.save(tmp_path / "no folder" / "zoo.safetensors")
    with pytest.raises(weft.InputError, match="real numbers"):
        weft.Zoo(arch, [["a"]])
    with pytest.raises(weft.InputError, match=r'a folder.* weft.Zoo.from_models\("'):
        weft.Zoo.open(tmp_path)
    for wrong in (None, 3, "a\0b"):
        with pytest.raises(weft.UsageError, match="a text or a pathlib.Path|of value 0"):
            weft.Zoo.open(wrong)
        with pytest.raises(weft.UsageError, match="a text or a pathlib.Path|of value 0"):
            zoo.save(wrong)


def test_names_that_are_no_utf_8(arch, weights, tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.safetensors")
    opened = weft.Zoo.open(weft.Zoo(arch, weights).save(path))
    assert np.array_equal(opened.weights, weights) and os.path.exists(path)


def test_align_and_matched_cosine(arch, weights):
    zoo = weft.Zoo(arch, weights)
    aligned = weft.align(zoo, 2)
    x = np.ones((3, 2), np.float32)
    assert np.allclose(aligned.forward(x), zoo.forward(x), atol=1e-5)
    assert np.array_equal(aligned.weights[2], weights[2])
    cosine, which = weft.matched_cosine(aligned, zoo)
    assert np.allclose(cosine, 1, atol=1e-5) and which.tolist() == list(range(6))
    leave_out, _ = weft.matched_cosine(zoo)
    assert leave_out.max() < 0.999
    with pytest.raises(weft.UsageError, match="reference"):
        weft.align(zoo, 6)
    with pytest.raises(weft.ShapeError, match="one architecture"):
        weft.matched_cosine(zoo, weft.generator("random").sample(2, arch=arch.scaled(2)))
