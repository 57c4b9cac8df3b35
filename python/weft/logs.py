"""Training logs (log.jsonl): read, followed while a job runs, and written on to TensorBoard and
W&B.

    for line in weft.logs.follow("runs/mine/flow.safetensors.log.jsonl"):
        print(line["update"], line["loss"])
    weft.fit(zoo, on_log=weft.logs.TensorBoard("runs/tb"))
    weft.logs.WandB(project="weft").copy("runs/mine/flow.safetensors.log.jsonl")
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Iterator, Mapping

from .errors import InputError, UnsupportedError

Line = dict[str, Any]


def _parse(path: str, number: int, line: str) -> Line:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path}, line {number}: no JSON object; this is not a log of weft")
    return found


def read_log(path: str | os.PathLike[str]) -> Iterator[Line]:
    """The lines of a log, as dicts. A last line that is not finished yet is left out."""
    name = os.fspath(path)
    try:
        file = open(name, encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{name}: there is no such log") from None
    with file:
        for number, line in enumerate(file, 1):
            if line.endswith("\n") and line.strip():
                yield _parse(name, number, line)


def follow(
    path: str | os.PathLike[str],
    *,
    interval: float = 0.5,
    stop: Callable[[], bool] | None = None,
) -> Iterator[Line]:
    """The lines of a log as they come, from its beginning; also of a job of another process.

    stop  asked when nothing new is there; without it the iteration goes on for ever
    """
    name = os.fspath(path)
    number, rest, at = 0, "", 0
    while True:
        ending = stop is not None and stop()
        try:
            with open(name, encoding="utf-8") as file:
                if os.path.getsize(name) < at:  # begun again
                    number, rest, at = 0, "", 0
                file.seek(at)
                rest += file.read()
                at = file.tell()
        except FileNotFoundError:
            pass  # the job has not begun to write it
        *lines, rest = rest.split("\n")
        for line in lines:
            number += 1
            if line.strip():
                yield _parse(name, number, line)
        if ending:
            return
        time.sleep(interval)


def numbers(line: Mapping[str, Any]) -> tuple[int | None, dict[str, float]]:
    """The update of a line, and its other numbers."""
    values = {
        key: float(value)
        for key, value in line.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "update"
    }
    update = line.get("update")
    return (int(update) if isinstance(update, (int, float)) else None), values


class Writer:
    """A function of log lines: give it as `on_log`, or copy a log that is there."""

    def __call__(self, line: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def copy(self, path: str | os.PathLike[str], *, live: bool = False, **options: Any) -> int:
        """Write on the lines of a log; live: follow a running job. The number of lines."""
        count = 0
        for line in follow(path, **options) if live else read_log(path):
            self(line)
            count += 1
        return count

    def close(self) -> None:
        pass

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoard(Writer):
    """Writes scalars for TensorBoard."""

    def __init__(self, folder: str | os.PathLike[str], *, prefix: str = "weft/") -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise UnsupportedError("this needs TensorBoard: pip install tensorboard") from None
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(os.fspath(folder))
        self._prefix = prefix
        self._lines = 0

    def __call__(self, line: Mapping[str, Any]) -> None:
        update, values = numbers(line)
        step = self._lines if update is None else update
        self._lines += 1
        entries = [
            self._summary.Value(tag=self._prefix + k, simple_value=v) for k, v in values.items()
        ]
        if entries:
            summary = self._summary(value=entries)
            self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()


class WandB(Writer):
    """Writes to a run of Weights & Biases; keywords are those of wandb.init (mode="offline" needs
    no account)."""

    def __init__(self, **init: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise UnsupportedError("this needs Weights & Biases: pip install wandb") from None
        self.run = wandb.init(**init)

    def __call__(self, line: Mapping[str, Any]) -> None:
        update, values = numbers(line)
        if values:
            self.run.log(values, step=update)

    def close(self) -> None:
        self.run.finish()
