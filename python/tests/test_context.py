"""Progress, interruption, callbacks, threads."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import numpy as np
import pytest
import weft
from conftest import SMALL
from weft._lib import lib


def test_progress_goes_to_a_function(zoo):
    events = []
    with weft.Context(progress=events.append):
        weft.fit(zoo, updates=30, **SMALL)
    assert events and events[-1].last
    assert {e.stage for e in events} and all(e.total >= e.done for e in events if e.total)


def test_a_fault_of_a_callback_stops_the_work_and_is_raised(zoo):
    def on_log(line):
        raise RuntimeError("enough")

    start = time.monotonic()
    with pytest.raises(RuntimeError, match="enough"):
        weft.fit(zoo, updates=10**6, log_every=1, on_log=on_log, **SMALL)
    assert time.monotonic() - start < 30
    weft.fit(zoo, updates=5, **SMALL)  # the context works again


def test_an_argument_of_a_wrong_type_is_raised_where_the_call_was_made():
    """And not in the thread that works, whose faults nobody sees."""
    with pytest.raises(ctypes.ArgumentError), weft.Context(progress=False) as context:
        context.run(lib.wf_zoo_load, None, "0", 0, None)


@pytest.fixture
def ctrl_c():
    """Python's own handling of SIGINT, which a process in the background is born without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_stops_and_keeps_the_checkpoint(zoo, tmp_path, ctrl_c):
    path = tmp_path / "flow.safetensors"
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        weft.fit(zoo, updates=10**6, path=path, **SMALL)
    timer.join()
    assert isinstance(caught.value, weft.Interrupted) and not isinstance(caught.value, Exception)
    stopped = weft.Flow.open(path).about["updates"]
    assert 0 < stopped < 10**6
    more = weft.fit(zoo, updates=stopped + 5, path=path, schedule_updates=10**6, **SMALL)
    assert more.about["updates"] == stopped + 5


def test_threads_with_a_context_each(zoo, flow):
    expected = flow.sample(4, seed=3, solver="euler", steps=10).weights
    found, faults = {}, []

    def work(index):
        try:
            own = weft.Flow.open(flow.path)
            with weft.Context(threads=1, progress=False):
                found[index] = own.sample(4, seed=3, solver="euler", steps=10).weights
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    for weights in found.values():
        assert np.array_equal(weights, expected)


def test_one_generator_in_several_threads(flow):
    expected = flow.sample(2, seed=1, solver="euler", steps=5).weights
    found = []

    def work():
        found.append(flow.sample(2, seed=1, solver="euler", steps=5).weights)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(np.array_equal(weights, expected) for weights in found)


def test_a_context_is_for_one_thread_at_a_time(zoo):
    context = weft.Context(progress=False)
    entered, leave, faults = threading.Event(), threading.Event(), []

    def on_log(line):
        entered.set()
        leave.wait(20)

    def work():
        with context:
            weft.fit(zoo, updates=20, log_every=1, on_log=on_log, **SMALL)

    worker = threading.Thread(target=work)
    worker.start()
    assert entered.wait(20)
    with context, pytest.raises(weft.UsageError, match="another thread"):
        weft.Arch("2-3", activation="relu")
    leave.set()
    worker.join()
    assert not faults


def test_the_interpreter_goes_on_meanwhile(zoo):
    """The interpreter's lock is released during calls."""
    counted = 0
    done = threading.Event()

    def work():
        weft.fit(zoo, updates=200, **SMALL)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.is_set():
        counted += 1
        time.sleep(0.001)
    worker.join()
    assert counted > 20


@pytest.mark.parametrize(
    "options, text", [({"threads": -1}, "threads"), ({"device": "tpu"}, "device")]
)
def test_bad_options(options, text):
    with pytest.raises(weft.UsageError, match=text):
        weft.Context(**options)


def in_terminal(code: str, keys: bytes = b"", after: bytes = b"") -> str:
    """What a new interpreter shows in a terminal; `keys` are typed once it has shown `after`."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        os.execv(sys.executable, [sys.executable, "-c", code])
    shown = b""
    try:
        while select.select([terminal], [], [], 60)[0] and (part := os.read(terminal, 65536)):
            shown += part
            if keys and after in shown:
                os.write(terminal, keys)
                keys = b""
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return shown.decode(errors="replace")


FIT = """
import signal, sys, weft
signal.signal(signal.SIGINT, signal.default_int_handler)
if {without}:
    sys.modules["tqdm.auto"] = None
zoo = weft.generator("random").sample(40, arch=weft.Arch("2-8-3", activation="relu"))
try:
    weft.fit(zoo, updates=10**6, node=16, edge=16, time=16, blocks=2, batch=8)
except weft.Interrupted as error:
    print(error)
"""


@pytest.mark.parametrize("without", [False, True], ids=["tqdm", "plain"])
def test_a_bar_and_ctrl_c_in_a_terminal(without):
    if not without:
        pytest.importorskip("tqdm")
    shown = in_terminal(FIT.format(without=without), keys=b"\x03", after=b"loss")
    assert "training the flow" in shown and "updates" in shown and "loss" in shown
    assert ("about" if without else "|") in shown
    assert "stopping after this step" in shown and "the checkpoint is saved" in shown


def test_everything_is_freed():
    """Thousands of objects do not pile up."""
    code = """
import resource, weft, numpy as np
arch = weft.Arch("64-64-64", activation="relu")
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = np.zeros((500, arch.params), np.float32)
for _ in range(20): weft.Zoo(arch, weights.copy())._c
before = peak()
for _ in range(200): weft.Zoo(arch, weights.copy())._c
print(peak() - before)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    grown = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert int(grown.stdout) < 50_000  # KiB; one copy is 16,000
