"""Flows as models and collections as data sets of the Hugging Face hub.

A folder holds the file, a card (README.md) with table, pictures and settings, and config.json.
Folders need no account and no network; `push_to_hub` uploads one."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping

from ._files import write_text
from .errors import InputError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from ._evaluate import Evaluation
    from ._generator import Flow
    from .zoo import Zoo

FLOW, ZOO, LOG = "flow.safetensors", "zoo.safetensors", "flow.safetensors.log.jsonl"


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UnsupportedError(
            "the hub needs huggingface_hub: pip install huggingface_hub; folders need nothing"
        ) from None
    return huggingface_hub


def _pictures(evaluation: Evaluation | None, folder: Path) -> list[str]:
    """The plots of the report as files of their own."""
    if evaluation is None:
        return []
    page = evaluation.html()
    style = "".join(re.findall(r"<style>.*?</style>", page, re.S)[:1])
    names = []
    for number, svg in enumerate(re.findall(r"<svg\b.*?</svg>", page, re.S)):
        head, rest = svg.split(">", 1)
        if "xmlns" not in head:
            head += ' xmlns="http://www.w3.org/2000/svg"'
        names.append(f"pictures/{number + 1}.svg")
        (folder / "pictures").mkdir(exist_ok=True)
        write_text(folder / names[-1], f"{head}>{style}{rest}")
    return names


def recipe_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings as a recipe writes them."""
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        for key, value in values.items():
            if value is not None:
                shown = ("no", "yes")[value] if isinstance(value, bool) else value
                lines.append(f"{key} = {shown}")
        lines.append("")
    return "\n".join(lines)


def _card(
    kind: str,
    title: str,
    about: str,
    use: str,
    evaluation: Evaluation | None,
    pictures: list[str],
    recipe: str,
    license_name: str,
) -> str:
    tags = ["weft", "weight-space", "model-zoo"]
    front = [
        "---",
        f"license: {license_name}",
        *(["library_name: weft"] if kind == "model" else []),
    ]
    front += ["tags:", *(f"- {tag}" for tag in tags), "---"]
    parts = ["\n".join(front), f"# {title}", about, "```python\n" + use + "\n```"]
    if evaluation is not None:
        parts += ["## Evaluation", evaluation.to_markdown()]
        parts += [evaluation.notes] if evaluation.notes else []
        parts += [f"![plot {n + 1}]({name})" for n, name in enumerate(pictures)]
    if recipe:
        parts += ["## Recipe", "```ini\n" + recipe.strip() + "\n```"]
    return "\n\n".join(parts) + "\n"


def save_flow(
    flow: Flow,
    folder: str | os.PathLike[str],
    *,
    title: str | None = None,
    description: str = "",
    evaluation: Evaluation | None = None,
    license: str = "other",
) -> str:
    """Write a flow as a model's folder; `evaluation` gives the card its table and pictures."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    flow.save(target / FLOW)
    about = flow.about
    parts = {"model": about.get("model"), "train": about.get("train"), "sample": flow.sampling}
    recipe = recipe_text({name: values or {} for name, values in parts.items()})
    write_text(
        target / "config.json",
        json.dumps({"weft": "flow", **about}, indent=1) + "\n",
    )
    write_text(target / "recipe.conf", recipe)
    pictures = _pictures(evaluation, target)
    if evaluation is not None:
        write_text(target / "report.html", evaluation.html())
    archs = ", ".join(dict.fromkeys(source["arch"] for source in about["sources"]))
    lead = description or (
        f"A generator of neural networks ({flow.name}) that weft fitted to trained networks of "
        f"{archs}: {about.get('params', 0)} parameters, {about.get('updates', 0)} updates."
    )
    load = f'flow = weft.Flow.from_pretrained("{title or target.name}")'
    use = f"import weft\n\n{load}\nnew = flow.sample(50)"
    card = _card("model", title or target.name, lead, use, evaluation, pictures, recipe, license)
    write_text(target / "README.md", card)
    return os.fspath(folder)


def save_zoo(
    zoo: Zoo,
    folder: str | os.PathLike[str],
    *,
    title: str | None = None,
    description: str = "",
    evaluation: Evaluation | None = None,
    license: str = "other",
) -> str:
    """Write a collection as a data set's folder."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    zoo.save(target / ZOO)
    info = {"weft": "collection", "networks": len(zoo), "arch": zoo.arch.description}
    write_text(target / "config.json", json.dumps(info, indent=1) + "\n")
    pictures = _pictures(evaluation, target)
    lead = description or (
        f"{len(zoo)} trained networks {zoo.arch.text} ({zoo.arch.activation}, {zoo.arch.params} "
        f"parameters each), as stacked tensors named as in their state_dict."
    )
    scores = zoo.scores()
    if scores is not None:
        lead += f" Test score {float(scores.mean()):.3f} on average."
    use = f'import weft\n\nzoo = weft.Zoo.from_pretrained("{title or target.name}")'
    recipe = zoo.meta.get("weft.recipe", "")
    card = _card("dataset", title or target.name, lead, use, evaluation, pictures, recipe, license)
    write_text(target / "README.md", card)
    return os.fspath(folder)


def _folder(
    source: str | os.PathLike[str], kind: str, wanted: str, options: Mapping[str, Any]
) -> Path:
    """The folder itself, or the hub's repository as a folder."""
    folder = Path(source)
    if not folder.exists():
        name = os.fspath(source)
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
            raise InputError(
                f"{name}: there is no such folder, and this is no name of a repository (owner/name)"
            )
        folder = Path(_hub().snapshot_download(name, repo_type=kind, **options))
    if not (folder / wanted).exists():
        raise InputError(f"{folder}: there is no {wanted}; save_pretrained writes such folders")
    return folder


def load_flow(source: str | os.PathLike[str], *, zoo: Zoo | None = None, **options: Any) -> Flow:
    """A flow from a folder, or downloaded; options are those of
    huggingface_hub.snapshot_download."""
    from ._generator import Flow

    return Flow(_folder(source, "model", FLOW, options) / FLOW, zoo)


def load_zoo(source: str | os.PathLike[str], **options: Any) -> Zoo:
    """A collection from a folder, or downloaded."""
    from .zoo import Zoo

    return Zoo.open(_folder(source, "dataset", ZOO, options) / ZOO)


def push(
    item: Flow | Zoo,
    repo_id: str,
    kind: str,
    *,
    private: bool = False,
    token: str | None = None,
    commit_message: str | None = None,
    **card: Any,
) -> str:
    """Upload as a repository of the hub; its address. The token is huggingface_hub's own where
    none is given."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo_id):
        raise UsageError(f"{repo_id} is no name of a repository: owner/name")
    api = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        item.save_pretrained(folder, title=card.pop("title", repo_id), **card)
        api.create_repo(repo_id, repo_type=kind, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            repo_type=kind,
            folder_path=folder,
            commit_message=commit_message or f"weft: {kind}",
        )
    return f"{'datasets/' if kind == 'dataset' else ''}{repo_id}"
