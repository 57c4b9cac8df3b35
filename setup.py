"""What pyproject.toml cannot say: the library is made by make, and the wheel is tied to the system
but to no version of Python.

CUDA is compiled in where nvcc is, with its runtime: the wheel needs no library of CUDA, and no GPU.

WEFT_MAKE       more arguments for make: "NVCC=" leaves CUDA out, "CURL=" downloads
WEFT_LIBRARY    a libweft.so that is there already, in place of one that is made"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def make_library(name: str) -> Path:
    """build/NAME, or the library that is there already."""
    given = os.environ.get("WEFT_LIBRARY")
    if given:
        return Path(given)
    command = [
        "make",
        "-s",
        f"-j{os.cpu_count() or 1}",
        "MPI=",  # ranks are the program's; a wheel must ask for no library of MPI
        "NCCL=",  # with which ranks share their sums on GPUs
        *shlex.split(os.environ.get("WEFT_MAKE", "")),
    ]
    # BUILD as make has it by itself: lists of headers are by the path of the object.
    subprocess.run([*command, "BUILD=build", f"build/{name}"], cwd=ROOT, check=True)
    return ROOT / "build" / name


class BuildWithLibrary(build_py):
    """build_py, with libweft.so beside the modules."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            make_library("libweft.so")  # which the package finds in the checkout
            return
        library = make_library("wheel/libweft.so")
        target = Path(self.build_lib) / "weft" / "libweft.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, target)
        strip = shutil.which("strip")
        if strip:
            subprocess.run([strip, "--strip-debug", str(target)], check=True)


class PlatformWheel(bdist_wheel):
    """py3-none-PLATFORM: a library, and no extension module of one Python."""

    def get_tag(self) -> "tuple[str, str, str]":
        return ("py3", "none", super().get_tag()[2])


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


version = re.search(r'#define WF_VERSION "(.*)"', (ROOT / "include/weft/base.h").read_text())
assert version is not None
(ROOT / "build" / "python").mkdir(parents=True, exist_ok=True)
setup(
    version=version.group(1),
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
    distclass=BinaryDistribution,
    options={"build": {"build_base": "build/python"}, "egg_info": {"egg_base": "build/python"}},
)
