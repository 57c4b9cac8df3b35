"""Flows as models and collections as data sets of the Hugging Face hub.

A folder holds the file, a card (README.md) with table, pictures and settings, and config.json.
Folders need no account and no network; `push_to_hub` uploads one."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping

from ._files import write_text
from .errors import InputError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from ._evaluate import Evaluation
    from ._generator import Flow
    from .zoo import Zoo

# What a model and a data set of the hub are here.
FILES = {"model": "flow.safetensors", "dataset": "zoo.safetensors"}
REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


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
    parts = ["\n".join(front), f"# {title}", about, "```python\nimport weft\n\n" + use + "\n```"]
    if evaluation is not None:
        parts += ["## Evaluation", evaluation.to_markdown()]
        parts += [evaluation.notes] if evaluation.notes else []
        parts += [f"![plot {n + 1}]({name})" for n, name in enumerate(pictures)]
    if recipe:
        parts += ["## Recipe", "```ini\n" + recipe.strip() + "\n```"]
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Contents:
    """What a card says of an item."""

    about: str
    config: dict[str, Any]
    recipe: str
    use: str  # code, with {name} for the folder or repository


def _of_flow(flow: Flow) -> _Contents:
    about = flow.about
    parts = {"model": about.get("model"), "train": about.get("train"), "sample": flow.sampling}
    archs = ", ".join(dict.fromkeys(source["arch"] for source in about["sources"]))
    return _Contents(
        f"A generator of neural networks ({flow.name}) that weft fitted to trained networks of "
        f"{archs}: {about.get('params', 0)} parameters, {about.get('updates', 0)} updates.",
        {"weft": "flow", **about},
        recipe_text({name: values or {} for name, values in parts.items()}),
        'flow = weft.Flow.from_pretrained("{name}")\nnew = flow.sample(50)',
    )


def _of_zoo(zoo: Zoo) -> _Contents:
    scores = zoo.scores()
    return _Contents(
        f"{len(zoo)} trained networks {zoo.arch.text} ({zoo.arch.activation}, {zoo.arch.params} "
        f"parameters each), as stacked tensors named as in their state_dict."
        + ("" if scores is None else f" Test score {float(scores.mean()):.3f} on average."),
        {"weft": "collection", "networks": len(zoo), "arch": zoo.arch.description},
        zoo.meta.get("weft.recipe", ""),
        'zoo = weft.Zoo.from_pretrained("{name}")',
    )


_CONTENTS: dict[str, Callable[[Any], _Contents]] = {"model": _of_flow, "dataset": _of_zoo}


def save(
    item: Flow | Zoo,
    kind: str,
    folder: str | os.PathLike[str],
    *,
    title: str | None = None,
    description: str = "",
    evaluation: Evaluation | None = None,
    license: str = "other",
) -> str:
    """Write a flow as the folder of a "model", a collection as that of a "dataset"; `evaluation`
    gives the card its table and pictures."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    item.save(target / FILES[kind])
    contents = _CONTENTS[kind](item)
    write_text(target / "config.json", json.dumps(contents.config, indent=1) + "\n")
    if kind == "model":
        write_text(target / "recipe.conf", contents.recipe)
    if evaluation is not None:
        write_text(target / "report.html", evaluation.html())
    name = title if title and REPOSITORY.fullmatch(title) else target.name
    card = _card(
        kind,
        title or target.name,
        description or contents.about,
        contents.use.replace("{name}", name),
        evaluation,
        _pictures(evaluation, target),
        contents.recipe,
        license,
    )
    write_text(target / "README.md", card)
    return os.fspath(folder)


def _found(source: str | os.PathLike[str], kind: str, options: Mapping[str, Any]) -> Path:
    """The file in a folder, or in the hub's repository, which is downloaded."""
    folder = Path(source)
    if not folder.exists():
        name = os.fspath(source)
        if not REPOSITORY.fullmatch(name):
            raise InputError(
                f"{name}: there is no such folder, and this is no name of a repository (owner/name)"
            )
        folder = Path(_hub().snapshot_download(name, repo_type=kind, **options))
    if not (folder / FILES[kind]).exists():
        raise InputError(
            f"{folder}: there is no {FILES[kind]}; save_pretrained writes such folders"
        )
    return folder / FILES[kind]


def load_flow(source: str | os.PathLike[str], *, zoo: Zoo | None = None, **options: Any) -> Flow:
    """A flow from a folder, or downloaded; options are those of
    huggingface_hub.snapshot_download."""
    from ._generator import Flow

    return Flow(_found(source, "model", options), zoo)


def load_zoo(source: str | os.PathLike[str], **options: Any) -> Zoo:
    """A collection from a folder, or downloaded."""
    from .zoo import Zoo

    return Zoo.open(_found(source, "dataset", options))


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
    if not REPOSITORY.fullmatch(repo_id):
        raise UsageError(f"{repo_id} is no name of a repository: owner/name")
    api = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        save(item, kind, folder, title=card.pop("title", repo_id), **card)
        api.create_repo(repo_id, repo_type=kind, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            repo_type=kind,
            folder_path=folder,
            commit_message=commit_message or f"weft: {kind}",
        )
    return f"{'datasets/' if kind == 'dataset' else ''}{repo_id}"
