#!/usr/bin/env python3
"""Milliseconds of an update of each rival, weft's beside PyTorch's of the same model, in one run on
one machine.

PyTorch's models are those of tests/oracle, which weft's agree with to rounding, with its fused
attention. Its update is a draw from networks in the device's memory, forward, backward and AdamW
(fused, and in bf16 autocast, on a GPU); it has neither clipping, nor dropout, nor an average of
weights, which weft's has where the recipe says so. weft's is taken from the log of weft train
without its first lines. Networks are random ones: no data set is needed.

    torch_rivals.py [--device cuda] [--seconds 2] [--threads 1] [--modes MODE,...] [RECIPE ...]
    recipes/rivals/RECIPE.conf

Without a recipe: the digits-* on the CPU, karhunen-* and mnist-* on a GPU. Columns, and modes:
eager, torch.compile (compile), torch.compile with CUDA graphs (graphs: mode reduce-overhead, on a
GPU); last, how many times as long the best of them takes as weft. Most of the time goes to
compiling: --modes graphs is a third of it. WEFT names the program."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/oracle"))
import test_fields  # noqa: E402
import test_phases  # noqa: E402

WEFT = os.environ.get("WEFT", str(ROOT / os.environ.get("BUILD", "build") / "weft"))
COUNT = 512  # networks to draw from
METHODS = {"cpu": ["digits"], "cuda": ["karhunen", "mnist"]}


def weft(*args):
    return subprocess.run(
        [WEFT, *map(str, args), "-q"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def read_safetensors(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        head, body = json.loads(file.read(size)), file.read()
    head.pop("__metadata__", None)
    part = lambda entry: np.frombuffer(
        body, np.float32, offset=entry["data_offsets"][0], count=int(np.prod(entry["shape"]))
    )
    return {
        name: part(entry).reshape(entry["shape"])
        for name, entry in head.items()
        if entry["dtype"] == "F32"
    }


def networks(arch, folder, device):
    """Random networks and the same aligned, made once for an architecture."""
    plain, aligned = folder / f"{arch}.safetensors", folder / f"{arch}-aligned.safetensors"
    if not aligned.exists():
        weft("sample", "random", "--arch", arch, "-n", COUNT, "-o", plain)
        weft("align", plain, "-o", aligned, "--sweeps", 1, "--device", device)
    return plain, aligned


def train(recipe, zoo, out, updates, options):
    """Milliseconds of an update by phase; what was fitted lies in `out`."""
    for old in out.parent.glob(out.name + "*"):
        old.unlink()
    some = {
        "train.updates": updates,
        "train.log_every": max(1, updates // 8),
        "train.validations": 0,
    }
    text = recipe.read_text()
    if "vae_updates" in text:
        some["model.vae_updates"] = updates
    if "noise_table" in text:
        some["train.noise_table"] = COUNT
    words = [word for key, value in some.items() for word in ("--set", f"{key}={value}")]
    weft(
        "train", recipe, "--zoo", zoo, "-o", out, "--device", options.device, "--threads",
        options.threads, *words,
    )
    lines = [
        json.loads(line) for line in pathlib.Path(str(out) + ".log.jsonl").read_text().splitlines()
    ]
    phases = {}
    for line in lines:
        if "loss" in line:
            phases.setdefault(line.get("phase", ""), []).append((line["update"], line["seconds"]))
    return {
        phase: 1000 * (at[-1][1] - at[0][1]) / (at[-1][0] - at[0][0])
        for phase, at in phases.items()
    }


def ours(recipe, zoo, out, options):
    guess = max(train(recipe, zoo, out, 40, options).values())
    return train(
        recipe, zoo, out, int(np.clip(1000 * options.seconds / max(guess, 1e-3), 40, 100000)),
        options,
    )


# --- PyTorch's updates: the loss of a batch, with parameters p and settings c ---------------------
def flow_loss(field, p, c, rows, batch):
    if field is test_fields.dwf:
        order = test_fields.weights_first([int(word) for word in c["arch"].split("-")])
        test_fields.weights_first = lambda _: order

    def loss():
        x = rows[torch.randint(len(rows), (batch,))]
        noise, t = torch.randn_like(x), torch.rand(batch)
        at = (1 - t[:, None]) * noise + t[:, None] * x
        return ((field(p, at, t, c) - (x - noise)) ** 2).mean()

    return loss


def vae_loss(p, c, rows, batch):
    rows, statistics = functional.pad(rows, (0, -rows.shape[1] % 64)), {}

    def loss():
        x = rows[torch.randint(len(rows), (batch,))]
        noise = 0.1 * torch.randn(batch, c["latent"])
        return test_phases.vae(
            test_phases.Net(p, statistics, True), (x + 0.001 * torch.randn_like(x), x, noise), c
        )[0]

    return loss


def ddpm_loss(p, c, rows, batch):
    steps, latents, statistics = c["diffusion_steps"], torch.randn(COUNT, c["latent"]), {}
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)

    def loss():
        step, noise = torch.randint(steps, (batch,)), torch.randn(batch, c["latent"])
        share = kept[step][:, None]
        x = share.sqrt() * latents[torch.randint(COUNT, (batch,))] + (1 - share).sqrt() * noise
        return test_phases.ddpm(
            test_phases.Net(p, statistics, True), (x, step[:, None] / steps, noise), c
        )[0]

    return loss


def sane_loss(p, c, rows, batch):
    tokens = test_phases.tokens_of([int(word) for word in c["arch"].split("-")], c["token"])
    test_phases.tokens_of = lambda *_: tokens
    # costs what relabelled copies cost
    orders = torch.stack([torch.randperm(rows.shape[1]) for _ in range(200)])

    def loss():
        x = rows[torch.randint(len(rows), (batch,))]
        views = torch.cat([x, x.gather(1, orders[torch.randint(200, (batch,))])])
        views = views * (1 + 0.1 * torch.randn_like(views))
        contrast, rebuilt = test_phases.autoencoder(test_phases.Net(p, {}, True), (views,), c)
        return 0.05 * contrast + 0.95 * rebuilt

    return loss


LOSSES = {"vae": vae_loss, "ddpm": ddpm_loss, "autoencoder": sane_loss}


def parameters(tensors, prefix):
    shaped = lambda x: torch.tensor(x.reshape(len(x), -1) if x.ndim < 2 else x)
    return {
        name[len(prefix) :]: torch.nn.Parameter(shaped(x))
        for name, x in tensors.items()
        if name.startswith(prefix)
    }


def milliseconds(loss, p, lr, options):
    gpu = options.device == "cuda"
    optimizer = torch.optim.AdamW(p.values(), lr=lr, **({"fused": True} if gpu else {}))

    def update():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=gpu):
            value = loss()
        value.backward()
        optimizer.step()

    def timed(updates):
        begin = time.perf_counter()
        for _ in range(updates):
            update()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    timed(3)  # it compiles
    updates = int(np.clip(options.seconds / max(timed(3) / 3, 1e-6), 3, 100000))
    return 1000 * timed(updates) / updates


def modes_of(options):
    compiles = ("compile", "graphs") if options.device == "cuda" else ("compile",)
    modes = ("eager", *(compiles if hasattr(torch, "compile") else ()))
    return [mode for mode in modes if mode in options.modes.split(",")]


def compare(name, folder, options):
    recipe = ROOT / "recipes/rivals" / f"{name}.conf"
    info = json.loads(weft("model", "info", recipe, "--json"))
    arch, method = info["arch"], info["generator"]
    c = {**info["model"], "arch": arch}
    section, batch, lr = "", 0, 0.0
    for line in recipe.read_text().splitlines():
        words = line.split("#")[0].replace("=", " ").split()
        section = line.strip() if line.startswith("[") else section
        if section == "[train]" and words[:1] == ["batch"]:
            batch = int(words[1])
        if section == "[train]" and words[:1] == ["lr"]:
            lr = float(words[1])
    plain, aligned = networks(arch, folder, options.device)
    out = folder / f"{name}.out"
    own = ours(recipe, aligned if "aligned" in name or "sane" in name else plain, out, options)
    tensors = read_safetensors(out)
    rows = torch.randn(COUNT, info["network_parameters"])
    for phase, mine in own.items():
        field = getattr(test_fields, method.split("-")[0], None)
        cells = {}
        for mode in modes_of(options):
            p = parameters(tensors, f"{phase}.weights." if phase else "weights.")
            assert p, f"{name}: no weights of {phase or 'the field'}"
            loss = (
                LOSSES[phase](p, c, rows, batch) if phase else flow_loss(field, p, c, rows, batch)
            )
            if mode != "eager":
                loss = torch.compile(loss, mode="reduce-overhead" if mode == "graphs" else None)
            try:
                cells[mode] = milliseconds(loss, p, lr, options)
            except Exception as error:  # a mode that does not take the model is no reason to end
                print(
                    f"{name}, {mode}: {type(error).__name__}: {str(error).splitlines()[:1]}",
                    file=sys.stderr,
                )
        label = f"{name} {phase}".strip()
        print(
            f"{label:30} {info['parameters']:>12,} {batch:6} {mine:9.3f}   "
            + " ".join(
                f"{cells[mode]:9.3f}" if mode in cells else f"{'-':>9}"
                for mode in modes_of(options)
            )
            + (f"   x {min(cells.values()) / mine:.2f}" if cells else ""),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", default="eager,compile,graphs")
    parser.add_argument("recipes", nargs="*")
    options = parser.parse_args()
    if not modes_of(options):
        parser.error(f"--modes {options.modes}: this torch has none of them")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.device == "cuda":
        torch.set_default_device("cuda")
    if hasattr(functional, "scaled_dot_product_attention"):
        test_fields.attention = functional.scaled_dot_product_attention
    recipes = options.recipes or sorted(
        path.stem
        for path in (ROOT / "recipes/rivals").glob("*.conf")
        if path.stem.split("-")[0] in METHODS[options.device]
        and "gmn" not in path.stem
        and "gauss" not in path.stem
        and "aligned" not in path.stem
    )
    print(
        f"{'update of':30} {'parameters':>12} {'batch':>6} {'weft ms':>9}   "
        f"{' '.join(f'{mode:>9}' for mode in modes_of(options))}   PyTorch {torch.__version__}, "
        f"{options.device}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in recipes:
            compare(name, pathlib.Path(folder), options)


if __name__ == "__main__":
    main()
