"""What a type checker sees of the package where it is used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import weft

pytest.importorskip("mypy")
if not (Path(weft.__file__).parents[2] / "pyproject.toml").exists():
    pytest.skip("not in the repository", allow_module_level=True)

USED = """
import weft
def lines(zoo: weft.Zoo) -> list[str]:
    flow = weft.fit({"a": zoo, "b": zoo[:3]}, data=([[0.0]], [0]), updates=5)
    table = weft.evaluate(flow.sample(5, task="a"), zoo, "spirals")
    flow.save_pretrained("folder", evaluation=table, license="mit")
    cosine, which = weft.matched_cosine(zoo)
    return [weft.__version__, str(table), f"{cosine.mean()} {which}", *zoo[0], zoo.names[0]]
"""
WRONG = """
import weft
weft.fitt
weft.Zoo.open("a").sav("b")
weft.Flow.open("a").push_to_hub("me/a", privat=True)
weft.score("a", "spirals")
"""


def test_users_have_types(tmp_path):
    (tmp_path / "used.py").write_text(USED)
    (tmp_path / "wrong.py").write_text(WRONG)
    root = Path(weft.__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--config-file", str(root / "pyproject.toml"), "-m", "used", "-m", "wrong"]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([str(root / "python"), str(tmp_path)])}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    faults = re.findall(r"(\w+).py:(\d+): error", done.stdout)
    assert faults == [("wrong", str(line)) for line in (3, 4, 5, 6)], done.stdout + done.stderr
