"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from .errors import DiskError, WeftError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """The name of a temporary file beside `path`, which takes its place at the end of the `with`;
    after an exception it is removed."""
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        if isinstance(error, OSError) and not isinstance(error, WeftError):
            raise DiskError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
