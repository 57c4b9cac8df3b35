"""The library is found, checked and loaded late; each fault says what to do."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import weft
from weft import _lib
from weft.errors import error_of


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
    assert f"{library} has binary interface {found}, this package needs {_lib.ABI}: " in said
    assert "Install the package again" in said


def test_version_and_build():
    assert weft.__version__.count(".") == 2
    assert weft.build_info()


def test_every_name_is_there():
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError):
        weft.nothing  # noqa: B018


def test_every_prototype_is_in_the_library():
    for name in _lib._PROTOTYPES:
        assert isinstance(getattr(_lib.lib, name), ctypes._CFuncPtr)


HEADERS = Path(__file__).parents[2] / "include" / "weft"
in_the_repository = pytest.mark.skipif(not HEADERS.exists(), reason="not in the repository")


@in_the_repository
def test_the_abi_is_that_of_the_header():
    number = re.search(r"^#define WF_ABI (\d+)$", (HEADERS / "base.h").read_text(), re.M)
    assert number and int(number[1]) == _lib.ABI == _lib.lib.wf_abi_version()


@in_the_repository
def test_every_status_has_a_class_of_its_own():
    rows = re.findall(r"^X\((\w+), (\d+),", (HEADERS / "errors.def").read_text(), re.M)
    statuses = {int(value) for name, value in rows if name != "OK"}
    raised = {status: type(error_of(status, "the sentence")) for status in statuses}
    assert len(statuses) > 10 and len(set(raised.values())) == len(statuses)
    for status, cls in raised.items():
        assert cls.status == status and getattr(weft, cls.__name__) is cls
        assert str(error_of(status, "the sentence")) == "the sentence"


def test_options_of_the_program_are_keywords():
    said = {
        "keep it with --keep-norm": "keep it with keep_norm=",
        "wait for it with --wait, or": "wait for it with weft.Context(wait=True), or",
        "Give another --out, or --redo": "Give another folder=, or redo=",
        "weft zoo split zoo.safetensors --first 9": "weft zoo split zoo.safetensors --first 9",
        "leave them out: weft zoo filter collection in memory --finite -o GOOD.safetensors": (
            "leave them out: zoo[np.isfinite(zoo.weights).all(axis=1)]"
        ),
        "draw some: weft sample a.safetensors -o new.safetensors": (
            'draw some: weft.Flow.open("a.safetensors").sample(n)'
        ),
        "no recipe of that name; weft help recipes lists them": (
            'no recipe of that name; "demo" is always there'
        ),
        "perturbation needs its collection": "perturbation needs its collection: give zoo=",
        "weft align makes an aligned collection": "weft.align(zoo) makes an aligned collection",
        "a -- b, x--y": "a -- b, x--y",
    }
    for sentence, here in said.items():
        assert str(error_of(2, sentence)) == here


def letters_of(declared: str) -> str:
    """The letters of _lib.py that may stand for a C type."""
    words = declared.replace("*", " * ").split()
    if "*" in words or "[" in declared:
        return "ps"
    kinds = {"void": "v", "size_t": "z", "int64_t": "q", "uint64_t": "Q", "double": "d"}
    kinds.update({"bool": "b", "float": "?"})
    return next((kinds[word] for word in words if word in kinds), "i")  # int, a status, an enum


@in_the_repository
def test_every_prototype_is_that_of_the_header():
    source = "".join(path.read_text() for path in HEADERS.glob("*.h"))
    source = re.sub(r"/\*.*?\*/", " ", source, flags=re.S)
    declarations = re.findall(r"WF_API ([^;()]*?\*?)\b(wf_\w+)\((.*?)\);", source, re.S)
    declared = {name: (result, arguments) for result, name, arguments in declarations}
    for name, prototype in _lib._PROTOTYPES.items():
        result, arguments = declared[name]
        arguments = re.sub(r"\(\*\w*\)\([^)]*\)", "*", arguments)  # callbacks
        types = [result] + ([] if arguments == "void" else arguments.split(","))
        assert len(types) == len(prototype), name
        for letter, c_type in zip(prototype, types):
            assert letter in letters_of(c_type), f"{name}: {letter} for {c_type.strip()}"


@pytest.mark.skipif(not HEADERS.exists() or shutil.which("gcc") is None, reason="needs a compiler")
def test_reports_of_progress_have_the_layout_of_the_header(tmp_path):
    names = [name for name, _ in _lib.Progress._fields_]
    offsets = ", ".join(f"offsetof(wf_progress, {name})" for name in names)
    (tmp_path / "layout.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <weft/base.h>\n"
        f"int main(void) {{ size_t at[] = {{{offsets}}};\n"
        f'for (int i = 0; i < {len(names)}; i++) printf("%zu ", at[i]); }}\n'
    )
    program = tmp_path / "layout"
    include = f"-I{HEADERS.parent}"
    subprocess.run(["gcc", include, "-o", program, tmp_path / "layout.c"], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert [int(at) for at in printed.split()] == [getattr(_lib.Progress, n).offset for n in names]
