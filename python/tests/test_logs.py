"""Logs: read, followed, written on to TensorBoard and W&B."""

from __future__ import annotations

import json
import threading
import time

import pytest
import weft
from weft import logs

LINES = [{"update": 10 * k, "loss": 1 / k, "note": "text", "ok": True} for k in range(1, 6)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "flow.safetensors.log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_read(log):
    assert list(logs.read_log(log)) == LINES
    with open(log, "a") as file:
        file.write('{"update": 60')  # being written
    assert list(logs.read_log(log)) == LINES


def test_follow_a_running_job(tmp_path):
    path, done = tmp_path / "log.jsonl", threading.Event()

    def write():
        time.sleep(0.1)
        with open(path, "w") as file:
            for line in LINES:
                text = json.dumps(line) + "\n"
                file.write(text[:7])
                file.flush()
                time.sleep(0.02)
                file.write(text[7:])
                file.flush()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert list(logs.follow(path, interval=0.01, stop=done.is_set)) == LINES
    writer.join()


def test_a_writer_of_a_running_job(log):
    class Kept(logs.Writer):
        def __init__(self):
            self.lines = []

        def __call__(self, line):
            self.lines.append(line)

    with Kept() as writer:
        assert writer.copy(log, live=True, interval=0.01, stop=lambda: True) == len(LINES)
    assert writer.lines == LINES


def test_faults(tmp_path, log):
    with pytest.raises(weft.InputError, match="no such log"):
        list(logs.read_log(tmp_path / "none"))
    with open(log, "a") as file:
        file.write("text\n")
    with pytest.raises(weft.InputError, match="line 6"):
        list(logs.read_log(log))


def test_tensorboard(tmp_path, log):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with logs.TensorBoard(tmp_path / "tb") as writer:
        assert writer.copy(log) == 5
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    loss = events.Scalars("weft/loss")
    assert [e.step for e in loss] == [10, 20, 30, 40, 50]
    assert abs(loss[-1].value - 0.2) < 1e-6
    assert events.Tags()["scalars"] == ["weft/loss"]


def test_tensorboard_of_a_fit(tmp_path, zoo):
    pytest.importorskip("tensorboard")
    from conftest import SMALL
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with logs.TensorBoard(tmp_path / "tb") as writer:
        weft.fit(zoo, updates=20, log_every=5, on_log=writer, **SMALL)
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Scalars("weft/loss")[-1].step == 20


def test_wandb_offline(tmp_path, log, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with logs.WandB(project="weft", mode="offline", dir=tmp_path) as writer:
        assert writer.copy(log) == 5
        assert writer.run.step == 50
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
