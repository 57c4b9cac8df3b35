"""Progress, interruption, callbacks, threads."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import weakref

import numpy as np
import pytest
import weft
from conftest import SMALL
from weft._lib import lib
from weft.context import current


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
        context._run(lib.wf_zoo_load, None, "0", 0, None)


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


def run(code: str) -> str:
    """What a new interpreter prints, which has a minute for it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RANDOM = """
import os, queue, signal, sys, threading, time, weft
signal.signal(signal.SIGINT, signal.default_int_handler)
zoo = weft.generator("random").sample(40, arch=weft.Arch("2-8-3", activation="relu"))
"""


def test_ctrl_c_again_and_again():
    """A key that is held down: each call ends, and the context works again."""
    code = """
ended = 0
def press():
    while ended < 40:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.003)
def fit():
    weft.fit(zoo, updates=10**6, node=16, edge=16, time=16, blocks=2, batch=8)
keys = threading.Thread(target=press, daemon=True)
while ended < 40:
    try:
        keys.is_alive() or keys.start()
        fit()
    except KeyboardInterrupt:
        ended += 1
while keys.is_alive():
    try:
        keys.join()
    except KeyboardInterrupt:
        pass
print(len(weft.matched_cosine(zoo)[0]))
"""
    assert run(RANDOM + code) == "40\n"


def test_ctrl_c_as_the_work_ends():
    """It may come after an event is taken and before it is looked at."""
    code = """
class Taken(queue.SimpleQueue):
    def get(self):
        event = super().get()
        if event[0] == "end":
            raise KeyboardInterrupt
        return event
queue.SimpleQueue = Taken
try:
    weft.matched_cosine(zoo)
except KeyboardInterrupt:
    print("ended")
"""
    assert run(RANDOM + code) == "ended\n"


def test_ctrl_c_while_the_work_is_being_stopped(zoo, tmp_path, monkeypatch):
    """The impatient are told what those who press once are told."""
    interrupt, pressed = lib.wf_interrupt, []

    def again(context):
        interrupt(context)
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt

    def enough(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(lib, "wf_interrupt", again)
    path = tmp_path / "flow.safetensors"
    with pytest.raises(weft.Interrupted, match="the checkpoint is saved"):
        weft.fit(zoo, updates=10**6, log_every=1, path=path, on_log=enough, **SMALL)
    assert pressed and weft.Flow.open(path).about["updates"] > 0


def test_an_interrupted_fit_without_a_path_stays(zoo):
    def enough(line):
        raise KeyboardInterrupt

    with pytest.raises(weft.Interrupted, match="the same call with path=") as caught:
        weft.fit(zoo, updates=50, log_every=5, on_log=enough, **SMALL)
    path = str(caught.value).split("'")[1]
    try:
        stopped = weft.Flow.open(path).about["updates"]
        assert stopped < 50
        assert weft.fit(zoo, updates=50, path=path, log_every=5, **SMALL).about["updates"] == 50
    finally:
        shutil.rmtree(os.path.dirname(path))


def test_an_interrupted_training_without_a_path_stays(data):
    def enough(event):
        if event.done > 2:
            raise KeyboardInterrupt

    with pytest.raises(weft.Interrupted, match="the same call with path=") as caught:
        with weft.Context(progress=enough):
            weft.train_zoo("2-8-3", data, 10**5, epochs=20)
    path = str(caught.value).split("'")[1]
    assert os.listdir(os.path.dirname(path)) == ["zoo.safetensors.parts"]
    shutil.rmtree(os.path.dirname(path))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_processes():
    """A process has none of the threads of the one that it was forked from."""
    code = """
expected = weft.matched_cosine(zoo)[0].sum()
started, leave = threading.Event(), threading.Event()
def busy(line):
    started.set()
    leave.wait(30)
def work():
    with context:
        weft.fit(zoo, updates=3, log_every=1, on_log=busy, node=8, edge=8, time=8, blocks=1,
                 batch=4)
context = weft.Context(progress=False)
worker = threading.Thread(target=work)
worker.start()
started.wait()
child = os.fork()
if child == 0:
    with context:  # at work in the other process
        same = weft.matched_cosine(zoo)[0].sum() == expected
    sys.exit(0 if same and weft.matched_cosine(zoo)[0].sum() == expected else 1)
print(os.waitpid(child, 0)[1])
leave.set()
worker.join()
"""
    assert run(RANDOM + code) == "0\n"


def test_contexts_end_with_their_threads():
    """With their threads in the library, and no later."""
    made = []

    def work():
        made.append(weakref.ref(current()))
        assert made[-1]()._handle

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(made) == 3 and not any(context() for context in made)


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
