"""PyTorch both ways: traced, verified, refused where weft has no description."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import weft  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class MLP(nn.Module):
    def __init__(self, hidden=8, activation=F.relu):
        super().__init__()
        self.out = nn.Linear(hidden, 3)  # defined before what runs first
        self.first = nn.Linear(4, hidden)
        self.activation = activation

    def forward(self, x):
        return self.out(self.activation(self.first(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding="same")
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        h = F.relu(self.bn(self.stem(x)))
        h = F.silu(self.conv(h) + h)
        h = F.avg_pool2d(h, 2).mean((2, 3))
        return self.fc(self.drop(h))


def sequential():
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.BatchNorm1d(8),
        nn.Linear(8, 3),
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=2, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def trained(module):
    """With statistics and gains that are not those of a new module."""
    for buffer in module.buffers():
        if buffer.dtype == torch.float32:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module.eval()


CASES = [(MLP, (4,)), (sequential, (4,)), (ResNet, (3, 8, 8)), (cnn, (1, 15, 15))]


@pytest.mark.parametrize("keep_norm", [True, False])
@pytest.mark.parametrize("make, shape", CASES)
def test_modules_in_and_out(make, shape, keep_norm):
    models = [trained(make()) for _ in range(3)]
    if make is sequential and not keep_norm:  # a batch norm behind an activation
        with pytest.raises(weft.ShapeError, match="keep_norm"):
            weft.Zoo.from_models(models, input_shape=shape)
        return
    zoo = weft.Zoo.from_models(models, input_shape=shape, keep_norm=keep_norm)
    norms = {"batch"} & {m.get("norm", {}).get("kind") for m in zoo.arch.description["layers"]}
    assert keep_norm or not norms
    close = 1e-6 if keep_norm else 1e-5
    x = torch.randn(6, *shape)
    back = zoo.modules(make)
    together = zoo.ensemble(make)(x)
    for index, model in enumerate(models):
        expected = model(x).detach()
        assert np.allclose(zoo.forward(x.numpy(), index), expected, atol=1e-4)
        assert torch.allclose(back[index].eval()(x), expected, atol=close)
        assert torch.allclose(together[index], expected, atol=1e-5)
        fresh = make().eval()
        fresh.load_state_dict(zoo.state_dict(index))  # as it is
        assert torch.allclose(fresh(x), expected, atol=close)


def test_however_a_list_is_made():
    models = [MLP() for _ in range(3)]
    expected = weft.Zoo.from_models(models).weights
    for given in (tuple(models), (m for m in models), nn.ModuleList(models)):
        assert np.array_equal(weft.Zoo.from_models(given).weights, expected)


def test_names_and_order_are_kept():
    models = [MLP() for _ in range(2)]
    zoo = weft.Zoo.from_models(models)
    assert zoo.names == list(models[0].state_dict()) == list(zoo.state_dict(0))


def test_stacked_in_and_out_without_copies():
    models = [trained(sequential()) for _ in range(4)]
    try:
        from torch.func import stack_module_state
    except ImportError:
        params = {
            n: torch.stack([m.state_dict()[n] for m in models])
            for n, _ in models[0].named_parameters()
        }
        buffers = {
            n: torch.stack([m.state_dict()[n] for m in models])
            for n, _ in models[0].named_buffers()
        }
    else:
        params, buffers = stack_module_state(models)
    zoo = weft.Zoo.from_models((params, buffers), module=sequential, keep_norm=True)
    assert zoo["0.weight"].__array_interface__["data"][0] == params["0.weight"].data_ptr()
    assert len(zoo) == 4 and zoo._owned is None or zoo._c
    again, more = zoo.stacked()
    assert set(again) == set(params) and set(more) == set(buffers)
    for name, value in again.items():
        assert value.data_ptr() == params[name].data_ptr() and torch.equal(
            value, params[name].detach()
        )
    flat = weft.Zoo(zoo.arch, zoo.weights.copy())
    assert flat.stacked()[0]["0.weight"].data_ptr() == flat.weights.ctypes.data


def test_stacked_tensors_whose_layers_are_looked_for_are_not_copied():
    stacked = {
        name: torch.stack([m.state_dict()[name] for m in [MLP(), MLP(), MLP()]])
        for name in MLP().state_dict()
    }
    zoo = weft.Zoo.from_models(stacked, activation="relu", layers=["first", "out"])
    assert zoo.names == list(stacked) and len(zoo) == 3
    for name, tensor in stacked.items():
        assert zoo[name].__array_interface__["data"][0] == tensor.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types_are_converted(dtype):
    models = [MLP().to(dtype) for _ in range(2)]
    zoo = weft.Zoo.from_models(models)
    assert zoo["first.weight"].dtype == np.float32
    assert models[0].first.weight.dtype == dtype  # the module is as it was


def test_state_dicts(tmp_path):
    models = [MLP() for _ in range(3)]
    states = [m.state_dict() for m in models]
    traced = weft.Zoo.from_models(models)
    for zoo in (
        weft.Zoo.from_models(states, module=MLP),
        weft.Zoo.from_models(states, activation="relu", layers=["first", "out"]),
        weft.Zoo.from_models(states, arch=traced.arch),
        weft.Zoo.from_models(states, arch="4-8-3", activation="relu", layers=["first", "out"]),
    ):
        assert zoo.arch == traced.arch and np.array_equal(zoo.weights, traced.weights)
        assert zoo.names == traced.names


@pytest.mark.parametrize("how", ["folder", "glob", "paths", "one file"])
def test_files(tmp_path, how):
    models = [MLP() for _ in range(11)]
    for index, model in enumerate(models):
        torch.save(model.state_dict(), tmp_path / f"net{index}.pt")
    (tmp_path / "notes.txt").write_text("x")
    source = {
        "folder": tmp_path,
        "glob": str(tmp_path / "net*.pt"),
        "paths": [tmp_path / f"net{i}.pt" for i in range(11)],
        "one file": str(tmp_path / "net0.pt"),
    }[how]
    zoo = weft.Zoo.from_models(source, module=MLP)
    expected = weft.Zoo.from_models(models if how != "one file" else models[:1])
    assert np.array_equal(zoo.weights, expected.weights) and zoo.path is None
    assert json.loads(zoo.meta["weft.sources"]) == [f"net{i}.pt" for i in range(len(zoo))]


def test_folders_below_a_folder(tmp_path):
    models = [MLP() for _ in range(2)]
    for index, model in enumerate(models):
        (tmp_path / f"run{index}").mkdir()
        torch.save(model.state_dict(), tmp_path / f"run{index}" / "last.pt")
    with pytest.raises(weft.InputError, match="2 files in folders below it.*give recursive="):
        weft.Zoo.from_models(tmp_path, module=MLP)
    zoo = weft.Zoo.from_models(tmp_path, module=MLP, recursive=True)
    assert np.array_equal(zoo.weights, weft.Zoo.from_models(models).weights)


def test_layers_in_order_for_a_module_with_other_names():
    class Named(MLP):
        def __init__(self):
            super().__init__()
            self.a, self.b = self.first, self.out
            del self.first, self.out

        def forward(self, x):
            return self.b(self.activation(self.a(x)))

    states = [MLP().state_dict() for _ in range(2)]
    zoo = weft.Zoo.from_models(states, module=Named, layers=["first", "out"])
    assert np.array_equal(zoo.weights, weft.Zoo.from_models(states, module=MLP).weights)


def test_sources_stay_where_batch_norms_are_folded(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()

    torch.save(make().state_dict(), tmp_path / "net.pt")
    zoo = weft.Zoo.from_models(tmp_path, module=make)
    assert json.loads(zoo.meta["weft.sources"]) == ["net.pt"]


def test_wrapped_modules():
    models = [nn.DataParallel(MLP()) for _ in range(2)]
    zoo = weft.Zoo.from_models(models)
    assert "first.weight" in zoo.names
    states = [m.state_dict() for m in models]  # module.first.weight
    assert np.array_equal(weft.Zoo.from_models(states, module=MLP).weights, zoo.weights)


def test_modules_of_other_names_are_matched_by_their_trace(zoo):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.b, self.a = nn.Linear(8, 3), nn.Linear(2, 8)

        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    x = torch.randn(4, 2)
    module = zoo.modules(Named)[5]
    assert np.allclose(module(x).detach(), zoo.forward(x.numpy(), 5), atol=1e-5)
    with pytest.raises(weft.ShapeError, match="give a class or function"):
        zoo.modules(lambda: nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 3)))
    with pytest.raises(weft.ShapeError, match="tanh"):
        zoo.modules(lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)))


def test_a_template_on_the_meta_device():
    """It has a forward to trace, and nothing to load into."""
    models = [trained(sequential()) for _ in range(2)]
    template = sequential().to("meta")
    zoo = weft.Zoo.from_models([m.state_dict() for m in models], module=template, keep_norm=True)
    x = torch.randn(5, 4)
    made, together = zoo.modules(template), zoo.ensemble(template)(x)
    for index, model in enumerate(models):
        assert torch.equal(made[index].eval()(x), model(x))
        assert torch.allclose(together[index], model(x), atol=1e-5)
    assert all(p.is_meta for p in template.parameters())


# --- refused ---


def test_modules_on_the_meta_device():
    module = MLP().to("meta")
    for models in ([MLP(), module], [module.state_dict()], module.state_dict()):
        with pytest.raises(weft.InputError, match="out.weight is on the meta device.*to_empty"):
            weft.Zoo.from_models(models, module=MLP)


def test_tensors_without_plain_numbers():
    with pytest.raises(weft.InputError, match="sparse_coo"):
        weft.Data.of_arrays(torch.eye(4).to_sparse(), [0, 1, 2, 3])
    with pytest.raises(weft.InputError, match="on meta"):
        weft.Data.of_arrays(torch.zeros(4, 4, device="meta"), [0, 1, 2, 3])
    state = {**MLP().state_dict(), "out.bias": torch.zeros(3, dtype=torch.complex64)}
    with pytest.raises(weft.InputError, match="complex64"):
        weft.Zoo.from_models([state], module=MLP)


class Scaled(MLP):
    def forward(self, x):
        return super().forward(x) * 2


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(torch.relu(self.a(x)))))


class Branching(MLP):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Unused(MLP):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return F.linear(x, self.w)


class Tied(Twice):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class LogSoftmax(MLP):
    def forward(self, x):
        return F.log_softmax(super().forward(x), dim=1)


class Joined(Twice):
    def forward(self, x):
        return self.b(torch.cat([self.a(x), x], 1)[:, :4])


class Named(MLP):
    def forward(self, x):
        return {"logits": super().forward(x)}


class Pair(MLP):
    def forward(self, x, y):
        return super().forward(x) + y


class Constant(MLP):
    def forward(self, x):
        return super().forward(x + torch.ones(4))


class Hooked(MLP):
    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda module, inputs, output: 2 * output)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), "1: nn.Softmax.*works with logits"),
        (LogSoftmax, "log_softmax, .*works with logits: leave it out"),
        (
            lambda: nn.Sequential(
                nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2)
            ),
            "0.weight_g, 0.weight_v; .*remove_weight_norm",
        ),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), "logits"),
        (lambda: nn.Sequential(nn.LSTM(4, 4)), "nn.LSTM"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 2)),
            "tanh form",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(), nn.Linear(4, 2)),
            "1: nn.LeakyReLU",
        ),
        (lambda: nn.Linear(4, 3), "single layer"),
        (Scaled, "mul"),
        (Twice, "a: a layer that is used twice"),
        (Tied, "b: a layer that is used twice, or that shares weights"),
        (Hooked, "differ by .* hooks"),
        (Branching, "cannot be traced"),
        (Joined, r"forward \(cat\): the operation cat"),
        (Named, "forward: an output that is not one tensor, but a dict"),
        (Pair, r"forward \(y\): a second input"),
        (Constant, "constant.*: a parameter that belongs to no layer"),
        (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), r"input_shape=\(inputs,\)"),
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), "0.weight has no shape yet"),
        (Unused, "spare.bias, spare.weight"),
        (Own, "w: a parameter that belongs to no layer"),
        (cnn, r"input_shape=\(1, height, width\)"),
    ],
)
def test_modules_without_a_description(make, text):
    with pytest.raises(weft.WeftError, match=text):
        weft.Zoo.from_models([make()])


class Keywords(Twice):
    """Inputs of layers by name, arguments with defaults, functions that change no value."""

    def forward(self, x, double=False, mask=None):
        hidden = torch.relu(input=self.a(input=x.float()))
        hidden = torch.add(hidden, other=x).clone()
        return self.b(2 * hidden if double else hidden)


def test_calls_by_keyword_and_arguments_with_defaults():
    zoo = weft.Zoo.from_models([Keywords(), Keywords()])
    assert zoo.names == ["a.weight", "a.bias", "b.weight", "b.bias"]
    module = zoo.modules(Keywords)[1]
    x = torch.randn(5, 4)
    assert np.allclose(module(x).detach(), zoo.forward(x, 1), atol=1e-5)


def test_a_vector_that_is_normalised_first():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))
    zoo = weft.Zoo.from_models([model], input_shape=(4,))
    assert zoo.arch.inputs == 4


@pytest.mark.parametrize(
    "convolution, text",
    [
        ({"groups": 2}, "groups"),
        ({"dilation": 2}, "dilation"),
        ({"padding_mode": "circular", "padding": 1}, "padding_mode"),
    ],
)
def test_convolutions_without_a_description(convolution, text):
    model = nn.Sequential(nn.Conv2d(2, 4, 3, **convolution), nn.Flatten(), nn.Linear(144, 2))
    with pytest.raises(weft.InputError, match=text):
        weft.Zoo.from_models([model], input_shape=(2, 8, 8))


def test_mixed_architectures():
    with pytest.raises(
        weft.ShapeError, match="out.weight is .* in model 1 .* weft.fit takes a list"
    ):
        weft.Zoo.from_models([MLP(8), MLP(9)])
    with pytest.raises(weft.ShapeError, match="do not have the same tensors"):
        weft.Zoo.from_models([MLP(8), sequential()])


def test_mixed_activations():
    """Their tensors are alike: the trace of each module tells."""
    with pytest.raises(
        weft.ShapeError, match=r"model 1 is 4-8-3 \(tanh\), not 4-8-3 \(relu\). A Zoo holds one"
    ):
        weft.Zoo.from_models([MLP(), MLP(activation=torch.tanh)])


def test_files_of_another_module(tmp_path):
    torch.save(MLP().state_dict(), tmp_path / "net.pt")
    for other in (sequential, lambda: MLP(9)):
        with pytest.raises(weft.InputError, match="net.pt: .*give another module="):
            weft.Zoo.from_models(tmp_path, module=other)
    with pytest.raises(weft.InputError, match="give another arch="):
        weft.Zoo.from_models(tmp_path, arch="4-9-3", activation="relu", layers=["first", "out"])


def test_mixed_files(tmp_path):
    torch.save(MLP(8).state_dict(), tmp_path / "a.pt")
    torch.save(MLP(9).state_dict(), tmp_path / "b.pt")
    with pytest.raises(weft.ShapeError, match="4-8-3.*4-9-3"):
        weft.Zoo.from_models(tmp_path, activation="relu", layers=["first", "out"])


def test_a_mismatch_is_refused():
    """The description says relu, the module computes tanh."""
    models = [MLP(activation=torch.tanh) for _ in range(2)]
    with pytest.raises(weft.InputError, match="differ by"):
        weft.Zoo.from_models(models, arch="4-8-3", activation="relu", layers=["first", "out"])
    zoo = weft.Zoo.from_models(models)
    assert zoo.arch.activation == "tanh"
    with pytest.raises(weft.UsageError, match="activation is relu, but the module has tanh"):
        weft.Zoo.from_models(models, activation="relu")
    assert weft.Zoo.from_models(models, activation="tanh").arch == zoo.arch


def test_values_that_are_not_finite():
    models = [MLP() for _ in range(4)]
    for value in (float("nan"), float("inf")):
        models[2].first.bias.data[3] = value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(weft.InputError, match=r"1 of 4 .* model 2 \(first.bias\)"):
                weft.Zoo.from_models(models)
            assert len(weft.Zoo.from_models(models, skip_non_finite=True)) == 3
            with pytest.raises(weft.InputError, match="all 1 models .* none is left"):
                weft.Zoo.from_models(models[2], skip_non_finite=True)


@pytest.mark.parametrize(
    "models, error, text",
    [
        ([], weft.InputError, "no models"),
        (3, weft.InputError, "models has the type int; give nn.Modules"),
        ([3], weft.InputError, "model 0 has the type int"),
        ([MLP], weft.InputError, "model 0 has the type type"),
        ([{"a.weight": "x"}], weft.InputError, "a.weight has the type str, .* state_dict alone"),
        ({"a": MLP()}, weft.InputError, r"a has the type MLP, .* list\(models.values\(\)\)"),
        ({"net": MLP().state_dict()}, weft.InputError, r'state_dict itself, model\["net"\]'),
        ([np.zeros((3, 59))], weft.InputError, r"type ndarray; .* weft.Zoo\(arch, w\)"),
        ([MLP().state_dict()], weft.UsageError, "activation"),
    ],
)
def test_other_faults(models, error, text):
    with pytest.raises(error, match=text):
        weft.Zoo.from_models(models)


@pytest.mark.parametrize(
    "module, text",
    [
        (5, "module has the type int"),
        (nn.Linear, r"Linear\(\) gave TypeError: .*lambda: Linear\(...\)"),
        (lambda: 5, "type int, no nn.Module"),
    ],
)
def test_templates_that_make_no_module(module, text, zoo):
    with pytest.raises(weft.UsageError, match=text):
        weft.Zoo.from_models([MLP().state_dict()], module=module)
    with pytest.raises(weft.UsageError, match=text):
        zoo.modules(module)


def test_stacked_tensors_of_no_networks():
    stacked = {name: value[None][:0] for name, value in MLP().state_dict().items()}
    with pytest.raises(weft.InputError, match="no models were given"):
        weft.Zoo.from_models(stacked, module=MLP)


def test_files_that_are_not_there(tmp_path):
    for source in (tmp_path / "none.pt", str(tmp_path / "*.pt"), [tmp_path / "none.pt"]):
        with pytest.raises(weft.InputError, match="none.pt|no file|nothing"):
            weft.Zoo.from_models(source, activation="relu")


def test_wrong_shapes():
    state = MLP().state_dict()
    state["first.weight"] = torch.zeros(8, 5)
    with pytest.raises(weft.ShapeError, match="first.weight"):
        weft.Zoo.from_models([state], module=MLP)
