#!/usr/bin/env python3
"""The Python package on a GPU beside the CPU: a line for each check, in less than a minute.

    WEFT_LIBRARY=.../libweft.so PYTHONPATH=python python3 bench/python_gpu.py

Needs numpy, a library that was built with CUDA, and a GPU; checks of PyTorch are left out where
torch is missing or has no CUDA. A library that brings along what other machines may lack:

    make build/wheel/libweft.so CURL= MPI= NCCL= LDFLAGS='-Wl,-rpath,\\$$ORIGIN'
    cp -L $(ldd build/wheel/libweft.so | awk '/jansson|xxhash|libz/ {print $3}') build/wheel"""

import contextlib
import io
import itertools
import os
import sys
import tempfile
import threading
import time
import traceback
import warnings

import numpy as np

import weft

# Small ones of every kind that is fitted.
TOKENS = {"width": 16, "blocks": 1, "heads": 2, "latent": 8}
KINDS = {
    "gmn": {"node": 16, "edge": 16, "time": 16, "blocks": 2},
    "mlp": {"width": 16, "blocks": 1, "time": 8},
    "dit": {"width": 16, "blocks": 1, "heads": 2},
    "sane-kde": TOKENS,
    "sane-gauss": TOKENS,
    "pdiff": {"vae_updates": 5, "latent": 8, "channels": 4, "time": 8},
}
SMALL = {"node": 32, "edge": 32, "time": 32, "blocks": 2, "batch": 16}
EXACT = {"solver": "rk4", "steps": 10, "precision": "fp32"}
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def on(device, **options):
    return weft.Context(device=device, progress=False, **options)


def off(a, b):
    """The largest difference, in parts of the largest value."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
    assert np.isfinite(a).all() and np.isfinite(b).all(), "values that are not finite"
    return float(abs(a - b).max() / max(1e-30, float(abs(b).max())))


def near(value, most, what):
    assert value <= most, f"{what}: {value:.3g} is above {most:g}"
    return f"{what} {value:.2g} (at most {most:g})"


def torch_with_cuda():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


class Shared:
    """What the checks look at: made once, on the CPU."""

    def __init__(self, folder):
        self.folder = folder
        self.data = weft.Data.open("moons")
        with on("cpu"):
            self.zoo = weft.train_zoo("2-6-2", self.data, 60, epochs=15)
            self.flow = weft.fit(self.zoo, updates=60, path=folder + "/cpu.safetensors", **SMALL)

    def net(self):
        import torch

        return torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))


@check
def the_build_and_the_gpu(s):
    about = weft.build_info()
    with on("cuda"):
        weft.generator("random").sample(2, arch=s.zoo.arch)
    return ", ".join(f"{k} {v}" for k, v in about.items() if "cuda" in (k + v).lower())


@check
def training_a_collection(s):
    with on("cuda"):
        zoo = weft.train_zoo("2-6-2", s.data, 60, epochs=15)
    here, there = s.zoo.scores().mean(), zoo.scores().mean()
    return near(abs(float(here - there)), 0.03, f"mean accuracy {there:.3f}, off the CPU's by")


@check
def losses_of_a_fit(s):
    lines = {}
    for device in ("cpu", "cuda"):
        lines[device] = []
        with on(device):
            weft.fit(
                s.zoo, updates=15, log_every=1, precision="fp32", eps=1e-4,
                on_log=lines[device].append, **SMALL,
            )  # fmt: skip
    cpu, cuda = ([line["loss"] for line in lines[d] if "loss" in line] for d in ("cpu", "cuda"))
    assert len(cpu) >= 10, f"{len(cpu)} lines"
    return near(off(cuda, cpu), 1e-3, f"{len(cpu)} updates, relative difference")


@check
def a_fit_learns(s):
    lines = []
    with on("cuda"), contextlib.redirect_stdout(io.StringIO()) as printed:
        flow = weft.fit(s.zoo, minutes=0.1, on_log=lines.append)
        new = flow.sample(40, seed=1)
        accuracy = weft.score(new, s.data).mean()
        guess = weft.score(weft.generator("random", s.zoo).sample(40), s.data).mean()
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0], f"losses {losses[0]:.3f} to {losses[-1]:.3f}"
    assert accuracy > guess + 0.1, f"accuracy {accuracy:.3f}, at random {guess:.3f}"
    return (
        f"{printed.getvalue().strip()}; loss {losses[0]:.3f} to {losses[-1]:.3f}, accuracy "
        f"{accuracy:.3f}, of the collection {s.zoo.scores().mean():.3f}, at random {guess:.3f}"
    )


@check
def sampling(s):
    said = []
    for options in (EXACT, {"rtol": 1e-4, "atol": 1e-4}, {**EXACT, "width": 2}):
        drawn = []
        for device in ("cuda", "cpu"):
            with on(device):
                drawn.append(s.flow.sample(20, seed=2, **options).weights)
        said.append(off(*drawn))
    return near(max(said), 2e-3, "rk4, dopri5, twice the width: difference")


@check
def refinement(s):
    drawn = []
    for device in ("cuda", "cpu"):
        with on(device):
            drawn.append(s.flow.sample(8, seed=2, refine=(0.75, 2, 5), **EXACT).weights)
    return near(off(*drawn), 5e-3, "difference")


@check
def sampling_in_bf16(s):
    with on("cuda"):
        fast = s.flow.sample(20, seed=2, solver="rk4", steps=10, precision="bf16").weights
    with on("cpu"):
        plain = s.flow.sample(20, seed=2, **EXACT).weights
    return near(off(fast, plain), 0.1, "difference")


@check
def tasks_and_guidance(s):
    drawn = []
    with on("cuda"):
        parts = {"a": s.zoo[:30], "b": s.zoo[30:]}
        flow = weft.fit(parts, updates=20, cond_drop=0.2, **SMALL)
    for device in ("cuda", "cpu"):
        with on(device):
            drawn.append(flow.sample(8, task="b", guidance=1.5, seed=3, **EXACT).weights)
    return near(off(*drawn), 2e-3, "difference")


@check
def velocity(s):
    found = []
    for device in ("cuda", "cpu"):
        with on(device):
            found.append(s.flow.velocity(s.zoo[:10], 0.5))
    return near(off(*found), 1e-3, "difference")


@check
def evaluation(s):
    new = s.flow.sample(30, seed=4)
    rows, where = [], ""
    for device in ("cuda", "cpu"):
        with on(device) as context:
            table = weft.evaluate(new, s.zoo, s.data)
            rows.append(table["generated"])
            where = where or context.devices
    most, name = max(
        (abs(rows[0][k] - v), k)
        for k, v in rows[1].items()
        if isinstance(v, float) and np.isfinite(v) and "second" not in k
    )
    return near(most, 5e-3, f"{len(rows[1])} columns ({where}); {name} differs by")


@check
def scores(s):
    found = []
    for device in ("cuda", "cpu"):
        with on(device):
            found.append(weft.score(s.zoo, s.data))
    return near(float(abs(found[0] - found[1]).max()), 0.01, "difference")


@check
def matching(s):
    found = []
    for device in ("cuda", "cpu"):
        with on(device):
            found.append(weft.matched_cosine(s.zoo)[0])
    return near(off(*found), 1e-4, "difference")


@check
def every_generator(s):
    names, aligned = [], weft.align(s.zoo)
    with on("cuda"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in weft.generators():
            if kind.fitted:
                small = KINDS.get(kind.name, {})
                made = weft.fit(aligned, generator=kind.name, updates=5, batch=8, **small)
            else:
                made = weft.generator(kind.name, aligned)
            weights = made.sample(3).weights
            assert np.isfinite(weights).all(), kind.name
            names.append(kind.name)
    return f"{len(names)}: {' '.join(names)}"


@check
def stopping_keeps_the_checkpoint(s):
    path = s.folder + "/stopped.safetensors"
    seen = itertools.count()

    def enough(line):
        if next(seen) == 5:
            raise KeyboardInterrupt

    settings = {"log_every": 10, "on_log": enough, **SMALL}
    with on("cuda"):
        try:
            weft.fit(s.zoo, updates=10**6, path=path, **settings)
        except weft.Interrupted as error:
            sentence = str(error)
        else:
            raise AssertionError("it was not stopped")
        done = weft.Flow.open(path).about["updates"]
        del settings["on_log"]
        more = weft.fit(s.zoo, updates=done + 5, schedule_updates=10**6, path=path, **settings)
    assert 0 < done and more.about["updates"] == done + 5
    return f"after {done} updates: {sentence.splitlines()[0][:60]}"


@check
def two_threads(s):
    with on("cuda"):
        expected = s.flow.sample(20, seed=7, **EXACT).weights
    found, faults = [], []

    def work():
        try:
            with on("cuda"):
                own = weft.Flow.open(s.flow.path)
                for _ in range(5):
                    found.append(own.sample(20, seed=7, **EXACT).weights)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    assert len(found) == 10 and all(np.array_equal(w, expected) for w in found), "other bits"
    return "a context each, the same bits"


@check
def wrong_settings(s):
    wrong = [
        (lambda: s.flow.sample(1, solver="dopri5", precision="bf16"), "precision"),
        (lambda: s.flow.sample(1, arch=weft.Arch("3-4-2", activation="relu")), "inputs"),
    ]
    with on("cuda"):
        for call, word in wrong:
            try:
                call()
            except weft.WeftError as error:
                assert word in str(error), error
            else:
                raise AssertionError(f"{word}: not refused")
    try:
        with on("cuda", gpu=99):
            s.flow.sample(1, **EXACT)
    except weft.WeftError as error:
        return f"GPU 99: {error}"
    raise AssertionError("GPU 99 was not refused")


@check
def memory_is_given_back(s):
    torch = torch_with_cuda()
    if torch is None:
        return None
    used = []
    for _ in range(12):
        with on("cuda"):
            weft.Flow.open(s.flow.path).sample(20, **EXACT)
            weft.fit(s.zoo, updates=2, **SMALL)
            weft.evaluate(s.zoo[:5], s.zoo, s.data)
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
    grown = (used[-1] - used[3]) / 2**20
    return near(grown, 8, f"{used[-1] / 2**20:.0f} MiB of GPU memory; MiB more after 8 rounds")


@check
def modules_on_the_gpu(s):
    torch = torch_with_cuda()
    if torch is None:
        return None
    x = np.random.default_rng(0).standard_normal((50, 2)).astype(np.float32)
    ours, on_gpu = s.zoo.forward(x), torch.from_numpy(x).cuda()
    nets = s.zoo.modules(s.net, device="cuda")
    assert all(p.is_cuda for net in nets for p in net.parameters())
    with torch.no_grad():
        theirs = torch.stack([net(on_gpu) for net in nets]).cpu().numpy()
    together = s.zoo.ensemble(s.net, device="cuda")(on_gpu)
    assert together.is_cuda
    back = weft.Zoo.from_models(nets)
    assert np.array_equal(back.weights, s.zoo.weights), "weights changed on the way"
    if hasattr(torch, "func"):
        params, buffers = torch.func.stack_module_state(nets)
        again = weft.Zoo.from_models((params, buffers), module=s.net)
        assert np.array_equal(again.weights, s.zoo.weights), "stacked weights changed"
        params, _ = again.stacked(device="cuda")
        assert all(tensor.is_cuda for tensor in params.values())
    worst = max(off(theirs, ours), off(together.cpu().numpy(), ours))
    return near(worst, 1e-4, "modules, ensemble, stacks there and back; outputs differ by")


@check
def a_recipe(s):
    with on("cuda"), contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = weft.run(
            "demo",
            s.folder + "/run",
            set={"zoo.count": 40, "zoo.epochs": 3, "train.updates": 20, "sample.count": 10},
        )
    return f"{run.flow!r}, {len(run.networks)} networks, page of {len(run.report.html)} characters"


def main():
    begun, failed = time.monotonic(), 0
    torch = torch_with_cuda()
    print(f"weft {weft.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}, "
          f"torch {torch.__version__ if torch else 'not used'}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        shared = Shared(folder)
        for function in CHECKS:
            start = time.monotonic()
            try:
                said = function(shared)
                mark = "--" if said is None else "ok"
            except (Exception, KeyboardInterrupt) as error:
                mark, said, failed = "NO", f"{type(error).__name__}: {error}", failed + 1
                if os.environ.get("V"):
                    traceback.print_exc()
            name = function.__name__.replace("_", " ")
            took = time.monotonic() - start
            print(f"{mark}  {name}: {said or 'no torch with CUDA'} [{took:.1f} s]", flush=True)
    print(f"{len(CHECKS)} checks, {failed} failed, {time.monotonic() - begun:.0f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
