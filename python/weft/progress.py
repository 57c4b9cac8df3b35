"""Progress of long calls: a bar by tqdm where it is installed, a plain line otherwise.

Bars are shown in terminals and notebooks, not in files and pipes, and only for work that takes
longer than half a second."""

from __future__ import annotations

import contextlib
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from ._lib import from_text

Display = Callable[["Event"], None]
SHOWN_AFTER = 0.5  # seconds


@dataclass(frozen=True)
class Event:
    """A report of a long call; `total` is 0 where it is not known."""

    stage: str
    unit: str
    detail: str
    done: float
    total: float
    seconds: float
    last: bool

    @classmethod
    def of(cls, report: Any) -> Event:
        return cls(
            from_text(report.stage),
            from_text(report.unit),
            from_text(report.detail),
            report.done,
            report.total,
            report.seconds,
            bool(report.last),
        )

    @property
    def seconds_left(self) -> float | None:
        """An estimate; None where there is none."""
        if self.done <= 0 or self.total <= 0:
            return None
        return self.seconds * (self.total - self.done) / self.done

    def __str__(self) -> str:
        part = f"{self.done:.0f}/{self.total:.0f}" if self.total > 0 else f"{self.done:.0f}"
        left = self.seconds_left
        rest = "" if left is None else f", about {left:.0f} s left"
        return f"{self.stage}: {part} {self.unit}{rest}" + (
            f", {self.detail}" if self.detail else ""
        )


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"


class _Bars:
    """A bar of tqdm for each stage."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._stage = ""

    def __call__(self, event: Event) -> None:
        if self._bar is None or event.stage != self._stage:
            if event.seconds < SHOWN_AFTER:
                return
            self.close()
            self._stage = event.stage
            total = int(event.total) or None
            unit = " " + event.unit
            self._bar = self._tqdm(total=total, desc=event.stage, unit=unit, leave=False)
            self._bar.start_t -= event.seconds
        self._bar.n = int(event.done)
        self._bar.set_postfix_str(event.detail, refresh=False)
        self._bar.refresh()
        if event.last:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Line:
    """One line of the terminal, written again and again."""

    def __init__(self) -> None:
        self._width = 0

    def __call__(self, event: Event) -> None:
        if event.last:
            self.close()
        elif event.seconds >= SHOWN_AFTER:
            line = str(event)
            sys.stderr.write("\r" + line.ljust(self._width))
            sys.stderr.flush()
            self._width = len(line)

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


@contextlib.contextmanager
def display(progress: bool | Display) -> Iterator[Display]:
    """What shows the events of one call."""
    if callable(progress):
        yield progress
        return
    if not progress or not (sys.stderr.isatty() or _in_notebook()):
        yield lambda event: None
        return
    bar: _Bars | _Line
    try:
        with warnings.catch_warnings():  # a notebook without widgets has plain bars
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        bar = _Line()
    else:
        bar = _Bars(tqdm)
    try:
        yield bar
    finally:
        bar.close()
