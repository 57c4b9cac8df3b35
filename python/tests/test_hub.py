"""Folders as the hub has them; uploads and downloads with a stand-in for the hub."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree

import numpy as np
import pytest
import weft
from weft import _hub


@pytest.fixture(scope="module")
def table(zoo, flow, data):
    return weft.evaluate(flow.sample(10), zoo, data, subsets=5)


def test_a_flow_in_a_folder(flow, table, tmp_path):
    folder = flow.save_pretrained(tmp_path / "spirals-flow", evaluation=table)
    again = weft.Flow.from_pretrained(folder)
    assert np.array_equal(again.sample(2).weights, flow.sample(2).weights)
    card = (tmp_path / "spirals-flow" / "README.md").read_text()
    assert 'weft.Flow.from_pretrained("spirals-flow")' in card
    assert card.startswith("---\nlicense:") and "library_name: weft" in card
    assert "| generated | 10 |" in card and "updates = 100" in card
    pictures = list((tmp_path / "spirals-flow" / "pictures").glob("*.svg"))
    assert pictures and all(f"pictures/{p.name}" in card for p in pictures)
    for picture in pictures:
        assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("svg")
    plots = re.findall(r"^!\[(.+)\]\((.+)\)$", card, re.M)  # the others are keys, within a line
    assert ("Score against WCS", "pictures/2.svg") in plots and len(plots) >= 4
    assert re.search(r"### Every network as a point\n\n.*\) reference · .*\) generated", card)
    assert "updates = 100" in (tmp_path / "spirals-flow" / "recipe.conf").read_text()
    config = json.loads((tmp_path / "spirals-flow" / "config.json").read_text())
    assert config["weft"] == "flow" and config["updates"] == 100
    assert "<html" in (tmp_path / "spirals-flow" / "report.html").read_text()


def test_a_collection_in_a_folder(zoo, tmp_path):
    folder = zoo.save_pretrained(tmp_path / "spirals", title="me/spirals", description="Spirals.")
    again = weft.Zoo.from_pretrained(folder)
    assert np.array_equal(again.weights, zoo.weights) and np.array_equal(
        again.scores(), zoo.scores()
    )
    card = (tmp_path / "spirals" / "README.md").read_text()
    assert 'from_pretrained("me/spirals")' in card
    assert "# me/spirals" in card and "Spirals." in card and "library_name" not in card


class Hub:
    """What is used of huggingface_hub, over a folder."""

    def __init__(self, root):
        self.root = root

    def HfApi(self, token=None):
        return self

    def create_repo(self, repo_id, repo_type, private, exist_ok):
        (self.root / repo_type / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, repo_id, repo_type, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_type / repo_id, dirs_exist_ok=True)

    def snapshot_download(self, repo_id, repo_type):
        return str(self.root / repo_type / repo_id)


def test_there_and_back(flow, zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(_hub, "_hub", lambda: Hub(tmp_path))
    assert flow.push_to_hub("me/flow") == "me/flow"
    assert zoo.push_to_hub("me/zoo") == "datasets/me/zoo"
    assert "# me/flow" in (tmp_path / "model/me/flow/README.md").read_text()
    assert np.array_equal(
        weft.Flow.from_pretrained("me/flow").sample(1).weights, flow.sample(1).weights
    )
    assert len(weft.Zoo.from_pretrained("me/zoo")) == len(zoo)


def test_huggingface_hub_has_what_is_used():
    """The stand-in above takes the arguments that the real one takes."""
    import inspect

    library = pytest.importorskip("huggingface_hub")
    for name in ("create_repo", "upload_folder"):
        wanted = set(inspect.signature(getattr(Hub, name)).parameters) - {"self"}
        assert wanted <= set(inspect.signature(getattr(library.HfApi, name)).parameters)
    assert "repo_type" in inspect.signature(library.snapshot_download).parameters


def test_faults(tmp_path, flow):
    with pytest.raises(weft.InputError, match="no flow.safetensors"):
        weft.Flow.from_pretrained(tmp_path)
    with pytest.raises(weft.InputError, match="no name of a repository"):
        weft.Flow.from_pretrained("no/such/folder")
    with pytest.raises(weft.UsageError, match="owner/name"):
        flow.push_to_hub("a b")
