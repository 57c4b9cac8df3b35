"""Exceptions: a class for each status of the library, with the library's own sentence.

>>> import weft
>>> try:
...     weft.Arch("64-16-cat", activation="relu")
... except weft.UsageError as error:
...     error.status
2
"""

from __future__ import annotations

import re


class WeftError(Exception):
    """What the library says went wrong, where, and how to mend it. `status` is its code."""

    status = 1


class UsageError(WeftError, ValueError):
    """The call or an option is wrong."""

    status = 2


class InputError(WeftError, ValueError):
    """A file or a model is missing, damaged or not what was expected."""

    status = 3


class OutOfMemoryError(WeftError, MemoryError):
    """There is not enough memory."""

    status = 4


class DiskError(WeftError, OSError):
    """A file could not be written."""

    status = 5


class ShapeError(WeftError, ValueError):
    """Shapes do not fit."""

    status = 6


class DivergedError(WeftError, ArithmeticError):
    """A value is no longer finite."""

    status = 7


class SolverError(WeftError, ArithmeticError):
    """The solver could not reach the end."""

    status = 8


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the work was stopped after its step, and its checkpoint kept.

    No WeftError, so that `except Exception` lets it pass, as it does KeyboardInterrupt."""

    status = 9


class UnsupportedError(WeftError, NotImplementedError):
    """Not supported by this build or for this network."""

    status = 10


class LockedError(WeftError):
    """Another process is making the output."""

    status = 11


class RankError(WeftError):
    """Another process of the same run failed or was lost."""

    status = 12


class LibraryError(WeftError, ImportError):
    """libweft.so is missing, or of another version than this package."""


_BY_STATUS: dict[int, type[BaseException]] = {
    **{cls.status: cls for cls in WeftError.__subclasses__()},
    WeftError.status: WeftError,  # which LibraryError has, too
    Interrupted.status: Interrupted,
}


_KEYWORDS = {"out": "folder=", "wait": "weft.Context(wait=True)"}


def _keyword(option: re.Match[str]) -> str:
    return _KEYWORDS.get(option[1], option[1].replace("-", "_") + "=")


# What does here what a command does that the library advises.
_COMMANDS = (
    (r"weft zoo filter .*?--finite(?: -o \S+)?", "zoo[np.isfinite(zoo.weights).all(axis=1)]"),
    (r"weft align makes", "weft.align(zoo) makes"),
    (r"weft sample (\S+) -o \S+", r'weft.Flow.open("\1").sample(n)'),
    (r"weft fit (\S+) -o \S+", r'weft.fit(weft.Zoo.open("\1"))'),
    (r"weft zoo import (\S+) .*safetensors", r'weft.Zoo.from_models("\1", module=Net)'),
    (r"; weft help recipes lists them", '; "demo" is always there'),
    (r"(\S+) needs its collection$", r"\1 needs its collection: give zoo="),
    (r"a manifest gives them", 'weft.fit({"name": zoo}) gives them'),
)


def _in_python(message: str) -> str:
    """With what is written here for commands, and keywords for the program's options: --keep-norm
    is keep_norm=. Other commands stay whole."""
    for command, code in _COMMANDS:
        message = re.sub(command, code, message)
    if re.search(r"\bweft [a-z]", message):
        return message
    return re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", _keyword, message)


def error_of(status: int, message: str) -> BaseException:
    """The exception of a status other than 0."""
    cls = _BY_STATUS.get(status, WeftError)
    error = cls(_in_python(message))
    if cls is WeftError:
        error.status = status  # type: ignore[attr-defined]
    return error
