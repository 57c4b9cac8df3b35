"""The library is found, checked and loaded late; each fault says what to do."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

import pytest
import weft


def run(code: str, **environment: str) -> str:
    """What a new interpreter prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


ATTEMPT = """
import weft
try:
    weft.Arch("2-3", activation="relu")
except weft.LibraryError as error:
    assert isinstance(error, ImportError)
    print(error)
"""


def test_import_is_quick_and_loads_nothing_else():
    code = "import sys, time; t = time.process_time(); import weft; t = time.process_time() - t"
    code += "; print(t, 'numpy' in sys.modules)"
    said = [run(code).split() for _ in range(3)]
    assert {numpy for _, numpy in said} == {"False"}
    assert min(float(seconds) for seconds, _ in said) < 0.1


def test_a_missing_library_says_where_it_was_looked_for(tmp_path):
    said = run(ATTEMPT, WEFT_LIBRARY=str(tmp_path / "none.so"))
    assert "none.so" in said and "pip install" in said


def test_a_file_that_is_no_library(tmp_path):
    broken = tmp_path / "libweft.so"
    broken.write_text("text")
    assert "cannot be loaded" in run(ATTEMPT, WEFT_LIBRARY=str(broken))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a compiler")
@pytest.mark.parametrize(
    "source, found", [("int wf_abi_version(void) { return 99; }", "99"), ("int other;", "0")]
)
def test_another_abi_is_refused(tmp_path, source, found):
    (tmp_path / "other.c").write_text(source)
    library = tmp_path / "libother.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    said = run(ATTEMPT, WEFT_LIBRARY=str(library))
    assert f"binary interface {found}," in said and "Install the package again" in said


def test_version_and_build():
    assert weft.__version__.count(".") == 2
    assert weft.build_info()


def test_every_name_is_there():
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError):
        weft.nothing  # noqa: B018


def test_every_prototype_is_in_the_library():
    from weft import _lib

    for name in _lib._PROTOTYPES:
        assert isinstance(getattr(_lib.lib, name), ctypes._CFuncPtr)
