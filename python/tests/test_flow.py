"""Fitting and sampling: widths, tasks, conditions, refinement, velocity; faults."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import warnings

import numpy as np
import pytest
import weft
from conftest import SMALL


def test_sampling_is_addressed_by_index_and_seed(flow):
    many, few = flow.sample(6, seed=1), flow.sample(2, seed=1)
    assert np.array_equal(many.weights[:2], few.weights)
    assert not np.array_equal(flow.sample(2, seed=2).weights, few.weights)
    assert np.isfinite(many.weights).all() and many.stats["evaluations"] > 0


def test_widths_and_architectures(flow):
    assert flow.sample(2, width=2).arch.text == "2-16-3"
    assert flow.sample(2, arch="2-5-3").arch.text == "2-5-3"
    with pytest.raises(weft.UnsupportedError, match="other layers"):
        flow.sample(2, arch="2-5-4-3")
    assert flow.sample(1, arch=weft.Arch("2-6-3", "relu")).arch.text == "2-6-3"
    for other in ("4-5-3", "2-5-6"):
        with pytest.raises(weft.ShapeError, match="give 2-...-3"):
            flow.sample(2, arch=other)


def test_refinement(flow):
    plain, refined = flow.sample(3), flow.sample(3, refine=(0.5, 2))
    assert not np.array_equal(plain.weights, refined.weights)
    assert refined.stats["evaluations"] > plain.stats["evaluations"]
    assert flow.sample(1, refine=True).weights.shape == (1, 51)
    for wrong in ((2, 2), 10, "yes", (0.75,)):
        with pytest.raises(weft.UsageError, match="refine"):
            flow.sample(1, refine=wrong)


def test_solvers_agree(flow):
    fine = flow.sample(3, solver="dopri5", rtol=1e-5, atol=1e-5)
    rough = flow.sample(3, solver="rk4", steps=50)
    assert np.allclose(fine.weights, rough.weights, atol=0.05)


def test_velocity(flow):
    zoo = flow.sample(2)
    velocity = flow.velocity(zoo, 0.5)
    assert velocity.shape == zoo.weights.shape and np.isfinite(velocity).all()
    assert np.allclose(flow.velocity(zoo.weights, [0.5, 0.5]), velocity)
    assert not np.allclose(flow.velocity(zoo, 0.1), velocity)
    assert not np.allclose(flow.velocity(zoo, 0.5, normalised=True), velocity)
    alone = flow.velocity(zoo[1:], 0.5)
    assert np.allclose(alone[0], velocity[1], atol=1e-5)  # whatever else is in the batch
    with pytest.raises(weft.UsageError, match="t|time"):
        flow.velocity(zoo, 2)
    with pytest.raises(weft.ShapeError, match="one for each of the 2 networks"):
        flow.velocity(zoo, [0.1, 0.2, 0.3])
    with pytest.raises(weft.InputError, match="t is no array of real numbers"):
        flow.velocity(zoo, "a")
    with pytest.raises(weft.UsageError, match="weights has NaN"):
        flow.velocity(zoo.weights * np.nan, 0.5)


def test_log(flow):
    lines = flow.log
    assert lines and lines[-1]["update"] == 100
    assert all(a["update"] < b["update"] for a, b in zip(lines, lines[1:]))


def test_on_log(zoo):
    lines = []
    flow = weft.fit(zoo, updates=20, log_every=5, on_log=lines.append, **SMALL)
    assert lines == flow.log


def test_the_file_of_a_flow_goes_with_it(zoo):
    flow = weft.fit(zoo, updates=2, **SMALL)
    path = flow.path
    assert os.path.exists(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del flow
        gc.collect()
    assert not os.path.exists(os.path.dirname(path))


def test_save_and_open(flow, tmp_path):
    path = flow.save(tmp_path / "saved.safetensors")
    again = weft.Flow.open(path)
    assert np.array_equal(again.sample(2).weights, flow.sample(2).weights)
    assert again.log == flow.log


def test_copies_and_pickles(flow, zoo, data, tmp_path):
    again = pickle.loads(pickle.dumps(weft.Flow.open(flow.save(tmp_path / "flow.safetensors"))))
    assert np.array_equal(again.sample(2).weights, flow.sample(2).weights)
    with pytest.raises(weft.UsageError, match="temporary file"):
        copy.deepcopy(flow)
    control = weft.generator("perturbation-0.1", zoo)
    other = pickle.loads(pickle.dumps(control))
    assert np.array_equal(other.sample(2).weights, control.sample(2).weights)


def test_tasks(data):
    zoos = {
        name: weft.train_zoo("2-6-3", data, 8, epochs=3, seed=seed)
        for seed, name in enumerate(("red", "blue"), 1)
    }
    flow = weft.fit(zoos, updates=30, cond_drop=0.1, **SMALL)
    assert flow.tasks == ["red", "blue"]
    red, blue = flow.sample(2, task="red"), flow.sample(2, task="blue")
    assert not np.array_equal(red.weights, blue.weights)
    assert np.array_equal(flow.sample(2, cond=[1, 0]).weights, red.weights)
    assert not np.array_equal(flow.sample(2, task="red", guidance=3).weights, red.weights)
    assert flow.sample(1, cond="none", width=2).arch.text == "2-12-3"
    with pytest.raises(weft.UsageError, match="red, blue"):
        flow.sample(1, task="green")
    with pytest.raises(weft.UsageError, match="task= .red, blue."):
        flow.sample(1)
    with pytest.raises(weft.ShapeError, match="3 numbers"):
        flow.sample(1, cond=[1, 0, 0])
    with pytest.raises(weft.UsageError, match="not both"):
        flow.sample(1, task="red", cond=[1, 0])


def test_conditions_between_domains(data):
    zoos = [weft.train_zoo("2-6-3", data, 8, epochs=3, seed=seed) for seed in (1, 2)]
    flow = weft.fit(zoos, conds=[0.0, 1.0], updates=20, **SMALL)
    assert flow.sample(2, cond=0.5).weights.shape == (2, 39)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", weft.WeftWarning)
        assert weft.fit(zoos, conds=[0.0, 1.0], minutes=0.02).about["cond_size"] == 1
    with pytest.raises(weft.ShapeError, match="conds"):
        weft.fit(zoos, conds=[0.0, 1.0, 2.0], updates=20, **SMALL)


def test_several_architectures(data):
    zoos = [weft.train_zoo(arch, data, 6, epochs=2) for arch in ("2-4-3", "2-5-3")]
    flow = weft.fit(zoos, updates=10, **SMALL)
    assert flow.sample(1, arch="2-5-3").arch.text == "2-5-3"


@pytest.mark.parametrize("name", [k.name for k in weft.generators() if not k.fitted])
def test_every_control_by_name(name, zoo):
    assert np.isfinite(weft.generator(name, zoo).sample(3, seed=1).weights).all()


# Small ones of every kind that is fitted.
TOKENS = {"width": 16, "blocks": 1, "heads": 2, "latent": 8}
KINDS = {
    "gmn": {"node": 16, "edge": 16, "time": 16, "blocks": 2},
    "mlp": {"width": 16, "blocks": 1, "time": 8},
    "dit": {"width": 16, "blocks": 1, "heads": 2},
    "dwf": {},
    "dwf-aligned": {},
    "sane-kde": TOKENS,
    "sane-gauss": TOKENS,
    "pdiff": {"vae_updates": 5, "latent": 8, "channels": 4, "time": 8},
}


@pytest.mark.parametrize("kind", [k for k in weft.generators() if k.fitted], ids=lambda k: k.name)
def test_every_fitted_kind_by_name(kind, zoo):
    collection = weft.align(zoo) if "wants-aligned" in kind.traits else zoo
    flow = weft.fit(collection, generator=kind.name, updates=5, batch=8, **KINDS[kind.name])
    new = flow.sample(2)
    assert flow.name == kind.name and np.isfinite(new.weights).all()
    assert np.array_equal(weft.Flow.open(flow.path).sample(2).weights, new.weights)


def test_collections_in_memory(zoo):
    """No file is needed: the same flow from memory and from a file."""
    memory = weft.Zoo(zoo.arch, zoo.weights.copy())
    a = weft.fit(memory, updates=10, **SMALL).sample(2).weights
    b = weft.fit(zoo, updates=10, **SMALL).sample(2).weights
    assert np.array_equal(a, b)


def test_bad_calls(zoo, flow, tmp_path):
    with pytest.raises(weft.UsageError, match="gmn"):
        weft.fit(zoo, generator="gnm")
    for wrong, near in ({"updats": 10}, "updates"), ({"nodes": 8}, "node"):
        with pytest.raises(weft.UsageError, match=f'did you mean "{near}"'):
            weft.fit(zoo, **wrong)
    with pytest.raises(weft.UsageError, match=r'node"; .* weft.settings\("model", "mlp"\) list'):
        weft.fit(zoo, generator="mlp", node=8)
    with pytest.raises(weft.UsageError, match="no generator of the name mpl has settings"):
        weft.settings("model", "mpl")
    with pytest.raises(weft.UsageError, match="solver"):
        flow.sample(1, solver="rk5")
    with pytest.raises(weft.UsageError, match="at least one"):
        flow.sample(0)
    with pytest.raises(weft.UsageError, match="fitted first"):
        weft.generator("gmn", zoo)
    with pytest.raises(weft.UsageError, match="perturbation"):
        weft.generator("perturbaton", zoo)
    with pytest.raises(weft.UsageError, match="no collection"):
        weft.fit([])
    for call in (
        lambda: weft.fit([zoo[0]]),
        lambda: weft.plan(zoo[0]),
        lambda: weft.align(zoo[0]),
        lambda: weft.matched_cosine(zoo, zoo[0]),
        lambda: weft.evaluate(zoo, zoo[0]),
        lambda: weft.score(zoo[0], "spirals"),
        lambda: weft.compare(["random"], zoo[0]),
    ):
        with pytest.raises(weft.UsageError, match="not a dict.*from_models"):
            call()
    with pytest.raises(weft.UsageError, match="not a NoneType"):
        weft.fit(None)
    with pytest.raises(weft.UsageError, match=r"not a Flow: its sample\(n\)"):
        weft.fit(flow)
    with pytest.raises(weft.UsageError, match='cond is .x.; give 0 numbers, or "none"'):
        flow.sample(1, cond="x")
    with pytest.raises(weft.UsageError, match="conds has no row for b"):
        weft.fit({"a": zoo, "b": zoo}, updates=5, conds={"a": 1})
    with pytest.raises(weft.UsageError, match="conds has NaN"):
        weft.fit({"a": zoo, "b": zoo}, updates=5, conds=[np.nan, 1])
    with pytest.raises(weft.UsageError, match="architecture has the type NoneType"):
        weft.train_zoo(None, "spirals", 2)
    for n in (1.5, "a", None):
        with pytest.raises(TypeError, match="as an integer"):
            flow.sample(n)
    with pytest.raises(TypeError, match="as an integer"):
        weft.align(zoo, 0.5)
    with pytest.raises(weft.DiskError, match="flow.safetensors: cannot be written: No such file"):
        flow.save(tmp_path / "none" / "flow.safetensors")
    with pytest.raises(ValueError, match="wide"):
        flow.sample(1, width="wide")
    with pytest.raises(weft.InputError, match="none.safetensors"):
        weft.Flow.open(tmp_path / "none.safetensors")
    with pytest.raises(weft.ShapeError, match="51 parameters"):
        flow.velocity(np.zeros((1, 50)), 0.5)


def test_values_that_are_not_finite_are_refused(zoo):
    broken = zoo.weights.copy()
    broken[3, 7] = np.nan
    with pytest.raises(weft.WeftError, match=r"network 3 .*: zoo\[np.isfinite\(zoo.weights\)"):
        weft.fit(weft.Zoo(zoo.arch, broken), updates=5, **SMALL)


@pytest.mark.parametrize("value", [np.nan, float("inf"), np.float32("nan"), -(2**70)])
def test_settings_that_json_cannot_hold_are_named(value, zoo, flow):
    with pytest.raises(weft.UsageError, match="sample.guidance is .*; allowed is a number"):
        flow.sample(1, guidance=value)
    with pytest.raises(weft.UsageError, match="train.lr is .*; allowed is a number"):
        weft.fit(zoo, updates=5, lr=value)
    with pytest.raises(weft.UsageError, match="sample.seed is .*; allowed is a whole number"):
        flow.sample(1, seed=value)


def test_a_control_knows_the_activation_of_its_collection(zoo):
    drawn = weft.generator("random", zoo).sample(2, arch="2-9-3")
    assert drawn.arch.text == "2-9-3" and drawn.arch.activation == zoo.arch.activation


def test_train_zoo(data, tmp_path):
    path = tmp_path / "zoo.safetensors"
    zoo = weft.train_zoo("2-6-3", data, 5, epochs=2, path=path)
    assert zoo.path == str(path) and len(weft.Zoo.open(path)) == 5
    x, y = data.x_train, data.y_train
    assert len(weft.train_zoo("2-6-3", (x, y), 2, epochs=1, activation="tanh")) == 2
    with pytest.raises(weft.ShapeError):
        weft.train_zoo("3-6-3", data, 2, epochs=1)
    with pytest.raises(weft.UsageError, match="epochs"):
        weft.train_zoo("2-6-3", data, 2, epoch=1)


def test_a_planned_fit(zoo, data, capsys):
    planned = weft.plan(zoo, minutes=0.02)
    assert planned["seconds"] > 0 and planned["train"]["updates"] > 0
    with weft.Context(progress=False), warnings.catch_warnings():
        warnings.simplefilter("ignore", weft.WeftWarning)  # the time is too short for a good flow
        flow = weft.fit(zoo, data=data, minutes=0.02, seed=3)
    said = capsys.readouterr().out
    assert said.startswith("fitting ") and "about" in said
    assert flow.sampling["solver"] == planned["sample"]["solver"]
    assert flow.about["train"]["seed"] == 3
    for wrong in (-1, "5", float("nan")):
        with pytest.raises(weft.UsageError, match="minutes"):
            weft.plan(zoo, minutes=wrong)
    with pytest.raises(weft.UsageError, match="for plans"):
        weft.fit(zoo, updates=10, minutes=1)


def test_a_planned_fit_goes_on_with_its_plan(zoo, tmp_path, capsys):
    path = tmp_path / "flow.safetensors"
    seen = []

    def enough(line):
        seen.append(line)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", weft.WeftWarning)
        with pytest.raises(weft.Interrupted):
            weft.fit(zoo, minutes=0.02, path=path, on_log=enough)
        stopped = weft.Flow.open(path).about
        assert 0 < stopped["updates"] < stopped["train"]["updates"]
        capsys.readouterr()
        flow = weft.fit(zoo, minutes=0.02, path=path)
        of = stopped["train"]["updates"]
        said = capsys.readouterr().out
        assert f"{path}: goes on from update {stopped['updates']} of {of}" in said
        assert flow.about["train"]["updates"] == of and flow.sampling["solver"] == "euler"
        weft.fit(zoo, minutes=0.02, path=path)
        assert f"{path}: has its {of} updates" in capsys.readouterr().out


def test_data_on_which_the_networks_only_guess(zoo):
    x = np.random.default_rng(0).standard_normal((100, 2))
    with pytest.warns(weft.WeftWarning, match="largest class") as caught:
        weft.fit(zoo, data=(x, np.zeros(100, int)), updates=5, **SMALL)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("threaded", [False, True])
def test_warnings_point_at_the_line_that_made_the_call(zoo, threaded):
    def call():
        weft.fit(zoo[:5], updates=2, **SMALL)

    with pytest.warns(weft.WeftWarning, match="5 networks to fit") as caught:
        if threaded:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        else:
            call()
    assert [warning.filename for warning in caught] == [__file__]
