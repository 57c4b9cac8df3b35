"""Files that appear whole or not at all."""

from __future__ import annotations

import pytest
import weft
from weft._files import replacing, write_text


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "first")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise RuntimeError
    assert path.read_text() == "first"
    assert [found.name for found in tmp_path.iterdir()] == ["page.html"]


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(weft.DiskError, match="none/page.html: cannot be written: No such file"):
        write_text(tmp_path / "none" / "page.html", "text")
    with pytest.raises(weft.DiskError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "text")
    assert not list(tmp_path.iterdir()) and not list(tmp_path.parent.glob("*.tmp"))
