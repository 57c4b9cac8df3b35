"""Flows as models and collections as data sets of the Hugging Face hub.

A folder holds the file, a card (README.md) with table, pictures and settings, and config.json.
Folders need no account and no network; `push_to_hub` uploads one."""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Mapping

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


# What a card takes of a report: headings of its sections, keys of its plots, the plots.
PARTS = re.compile(
    r"<h2>(?P<title>.*?)</h2>"
    r"|<span>(?P<key><svg class=\"key\".*?</svg>)(?P<means>.*?)</span>"
    r"|(?P<plot><svg [^>]*role=\"img\" aria-label=\"(?P<shows>.*?)\".*?</svg>)",
    re.S,
)


def _picture(svg: str, style: str, name: str, folder: Path) -> str:
    """Writes a picture of the page as a file of its own; its name in the card."""
    size = ' width="12" height="12"' if 'class="key"' in svg else ""
    head, rest = svg.split(">", 1)
    (folder / "pictures").mkdir(exist_ok=True)
    path = f"pictures/{name}.svg"
    write_text(folder / path, f'{head} xmlns="http://www.w3.org/2000/svg"{size}>{style}{rest}')
    return path


def _plots(evaluation: Evaluation, folder: Path) -> list[str]:
    """The plots of the report as paragraphs of a card, with headings and keys; their pictures are
    written as files."""
    page = evaluation.html()
    style = "".join(re.findall(r"<style>.*?</style>", page, re.S)[:1])
    paragraphs: list[str] = []
    keys: list[str] = []
    title, plots, marks = "", 0, 0
    for part in PARTS.finditer(page):
        if part["title"]:
            title, keys = html.unescape(part["title"]), []
        elif part["key"]:
            marks += 1
            mark = _picture(part["key"], style, f"key-{marks}", folder)
            keys.append(f"![]({mark}) {html.unescape(part['means'])}")
        else:
            paragraphs += [f"### {title}"] if title else []
            paragraphs += [" · ".join(keys)] if keys else []
            title, keys = "", []
            plots += 1
            plot = _picture(part["plot"], style, str(plots), folder)
            paragraphs.append(f"![{html.unescape(part['shows'])}]({plot})")
    return paragraphs


def _recipe_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
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
    plots: list[str],
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
        parts += plots
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
        _recipe_text({name: values or {} for name, values in parts.items()}),
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


class OnHub:
    """What can be written as a folder of the Hugging Face hub, and uploaded."""

    _kind: ClassVar[str]  # of the hub's repositories: "model" or "dataset"

    def save(self, path: str | os.PathLike[str]) -> str:
        raise NotImplementedError

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        title: str | None = None,
        description: str = "",
        evaluation: Evaluation | None = None,
        license: str = "other",
    ) -> str:
        """Write it as a folder of the Hugging Face hub: its file, config.json, a card (README.md).

        title        of the card; None: the folder's name
        description  in place of the sentence that says what it is
        evaluation   what weft.evaluate gave: its table and plots go into the card
        license      as the hub names it: "mit", "apache-2.0" ...
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.save(target / FILES[self._kind])
        contents = _CONTENTS[self._kind](self)
        write_text(target / "config.json", json.dumps(contents.config, indent=1) + "\n")
        if self._kind == "model":
            write_text(target / "recipe.conf", contents.recipe)
        if evaluation is not None:
            write_text(target / "report.html", evaluation.html())
        name = title if title and REPOSITORY.fullmatch(title) else target.name
        card = _card(
            self._kind,
            title or target.name,
            description or contents.about,
            contents.use.replace("{name}", name),
            evaluation,
            _plots(evaluation, target) if evaluation is not None else [],
            contents.recipe,
            license,
        )
        write_text(target / "README.md", card)
        return os.fspath(folder)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        token: str | None = None,
        commit_message: str | None = None,
        title: str | None = None,
        description: str = "",
        evaluation: Evaluation | None = None,
        license: str = "other",
    ) -> str:
        """Upload it as "owner/name", as save_pretrained writes it; its path on the hub.

        token  None: the one that huggingface_hub has stored
        """
        if not REPOSITORY.fullmatch(repo_id):
            raise UsageError(f"{repo_id} is no name of a repository: owner/name")
        api = _hub().HfApi(token=token)
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            self.save_pretrained(
                folder,
                title=title or repo_id,
                description=description,
                evaluation=evaluation,
                license=license,
            )
            api.create_repo(repo_id, repo_type=self._kind, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id,
                repo_type=self._kind,
                folder_path=folder,
                commit_message=commit_message or f"weft: {self._kind}",
            )
        return f"{'datasets/' if self._kind == 'dataset' else ''}{repo_id}"


def downloaded(source: str | os.PathLike[str], kind: str, options: Mapping[str, Any]) -> Path:
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
