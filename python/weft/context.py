"""Where calls run: threads, device, progress, and how Ctrl-C reaches them.

Each Python thread has a context of its own, so that threads may work side by side. Another one for
a while:

>>> import weft
>>> with weft.Context(threads=1, progress=False) as context:
...     context.threads
1
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import warnings
from typing import Any, Callable, Iterator

from ._lib import ON_LOG, ON_PROGRESS, ON_WARNING, from_text, lib, owned_text
from .errors import UsageError, error_of
from .progress import Display, Event, display


class WeftWarning(UserWarning):
    """What the library wants to be known, though the work went on."""


def warn(sentence: str) -> None:
    """A WeftWarning at the line outside this package that made the call."""
    package = os.path.dirname(__file__)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, WeftWarning, stacklevel=level)


class _Reports:
    """What the library reports, on the thread that called it. It goes to `sink` while a call is at
    work. No part of Context, which its callbacks would keep alive."""

    def __init__(self) -> None:
        self.sink: Callable[[str, Any], None] | None = None

    def progress(self, _: int, report: Any) -> None:
        if self.sink is not None:
            self.sink("progress", Event.of(report.contents))

    def warning(self, _: int, sentence: bytes) -> None:
        if self.sink is not None:
            self.sink("warning", from_text(sentence))

    def log(self, _: int, path: bytes, line: bytes) -> None:
        if self.sink is not None:
            self.sink("log", from_text(line))

    def line(self, _: int, line: bytes) -> None:
        if self.sink is not None:
            self.sink("line", from_text(line))


class Context:
    """Threads, device and callbacks of the calls that are made with it; a `with` block makes it
    current.

    threads   0: as many as there are cores
    device    "auto": a GPU where build and machine have one; "cpu"; "cuda"
    gpu       which GPU, counted from 0
    wait      an output that another process makes: wait for it, else LockedError
    progress  True: a bar in terminals and notebooks; False: none; or a function of an Event
    on_log    a function of each line of a training log, as a dict
    """

    def __init__(
        self,
        *,
        threads: int = 0,
        device: str = "auto",
        gpu: int = 0,
        wait: bool = False,
        progress: bool | Callable[[Event], None] = True,
        on_log: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._options = {"threads": threads, "device": device, "gpu": gpu, "wait": wait}
        self._progress = progress
        self._on_log = on_log
        self._reports = reports = _Reports()
        self._callbacks = (
            ON_PROGRESS(reports.progress),
            ON_WARNING(reports.warning),
            ON_LOG(reports.log),
            ON_WARNING(reports.line),
        )
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._reports.sink = None
        self._own = ctypes.c_void_p()
        status = lib.wf_ctx_create(None, ctypes.byref(self._own))
        if status:
            raise error_of(status, "no memory for a context")
        lib.wf_ctx_on_progress(self._own, self._callbacks[0], None)
        lib.wf_ctx_on_warning(self._own, self._callbacks[1], None)
        lib.wf_ctx_on_log(self._own, self._callbacks[2], None)
        self._check(lib.wf_ctx_configure(self._own, json.dumps(self._options).encode()))

    def _reopen_after_fork(self) -> None:
        """A forked process has none of the context's threads, and leaves it as it is."""
        if self._process != os.getpid():
            self._open()

    @property
    def _handle(self) -> ctypes.c_void_p:
        self._reopen_after_fork()
        return self._own

    def __del__(self) -> None:
        if getattr(self, "_own", None) and self._process == os.getpid():
            lib.wf_ctx_free(self._own)
            self._own = ctypes.c_void_p()

    def __enter__(self) -> Context:
        _stack().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stack().remove(self)

    @property
    def threads(self) -> int:
        """Threads that work, the caller's own counted."""
        return int(lib.wf_ctx_threads(self._handle))

    @property
    def devices(self) -> str:
        """Where parts of the work had a choice and ran: "matching cuda, errors cpu"."""
        return from_text(lib.wf_ctx_devices(self._handle))

    @property
    def _on_line(self) -> Any:
        """The callback for lines about stages of a run, printed where progress is shown."""
        return self._callbacks[3]

    @contextlib.contextmanager
    def _logging(self, on_log: Callable[[dict[str, Any]], None] | None) -> Iterator[None]:
        """Lines of logs go to `on_log`, for a while; None changes nothing."""
        before = self._on_log
        self._on_log = on_log or before
        try:
            yield
        finally:
            self._on_log = before

    # --- calls ---

    def _check(self, status: int) -> None:
        """Raise the exception of a status other than 0."""
        if status:
            raise error_of(status, from_text(lib.wf_last_error(self._handle)))

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        """A short call: function(context, *arguments)."""
        with self._working():
            self._check(function(self._handle, *arguments))

    def _run(self, function: Callable[..., int], *arguments: Any) -> None:
        """A long call. In the main thread the work runs in a thread of its own, while this one
        shows progress and waits for Ctrl-C; in other threads it runs where it is."""
        with self._working(), display(self._progress) as show:
            if threading.current_thread() is threading.main_thread():
                self._run_beside(function, arguments, show)
            else:
                self._run_here(function, arguments, show)

    def _run_beside(
        self, function: Callable[..., int], arguments: tuple[Any, ...], show: Display
    ) -> None:
        events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        outcome: list[int | BaseException] = []
        given_up = False

        def work() -> None:
            if given_up:
                return
            try:
                outcome.append(function(self._own, *arguments))
            except BaseException as error:  # an argument of a type that the call does not take
                outcome.append(error)
            events.put(("end", None))

        failure: BaseException | None = None
        worker = threading.Thread(target=work, name="weft", daemon=True)
        with _ctrl_c_calls(lambda: events.put(("ctrl-c", None))):
            self._reports.sink = lambda kind, value: events.put((kind, value))
            try:
                worker.start()
                while not (outcome and events.empty()):
                    try:
                        kind, value = events.get()
                        if kind == "ctrl-c":
                            raise KeyboardInterrupt
                        if kind != "end" and failure is None:
                            self._deliver(kind, value, show)
                    except BaseException as error:  # also of a callback: stop the work first
                        if failure is None and isinstance(error, KeyboardInterrupt):
                            print("stopping after this step; what is done is kept", file=sys.stderr)
                        failure = failure or error
                        lib.wf_interrupt(self._own)
                worker.join()
            except BaseException as error:  # Ctrl-C under a handler that raises wherever it comes
                given_up = True
                self._stop(worker)
                failure = failure or error
                if not outcome:
                    raise
            finally:
                self._reports.sink = None
                lib.wf_interrupt_clear(self._own)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        self._finish(outcome[0], failure)

    def _stop(self, worker: threading.Thread) -> None:
        """Waits for the end of the work, whatever keys are pressed: only then may the context be
        used again."""
        while worker.is_alive():
            lib.wf_interrupt(self._own)
            with contextlib.suppress(KeyboardInterrupt):
                worker.join()

    def _run_here(
        self, function: Callable[..., int], arguments: tuple[Any, ...], show: Display
    ) -> None:
        failures: list[BaseException] = []

        def deliver(kind: str, value: Any) -> None:
            if failures:
                return
            try:
                self._deliver(kind, value, show)
            except BaseException as error:
                failures.append(error)
                lib.wf_interrupt(self._handle)

        self._reports.sink = deliver
        try:
            status = function(self._handle, *arguments)
        finally:
            self._reports.sink = None
            lib.wf_interrupt_clear(self._handle)
        self._finish(status, failures[0] if failures else None)

    def _deliver(self, kind: str, value: Any, show: Display) -> None:
        if kind == "progress":
            show(value)
        elif kind == "warning":
            warn(value)
        elif kind == "line":
            if self._progress is True:
                print(value)
        elif self._on_log is not None:
            self._on_log(json.loads(value))

    def _finish(self, status: int, failure: BaseException | None) -> None:
        if failure is None:
            self._check(status)
            return
        if isinstance(failure, KeyboardInterrupt) and status:
            raise error_of(9, from_text(lib.wf_last_error(self._handle))) from None
        raise failure

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self._reopen_after_fork()
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                "this context is at work in another thread; give each thread its own: with "
                "weft.Context(): ..."
            )
        try:
            yield
        finally:
            self._busy.release()


@contextlib.contextmanager
def _ctrl_c_calls(pressed: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `pressed`, where Python's own handler would raise KeyboardInterrupt between any
    two instructions, those that wait for the end of the work too. Handlers of others stay."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: pressed())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_local = threading.local()


def _stack() -> list[Context]:
    if not hasattr(_local, "stack"):
        _local.stack = []
    return _local.stack  # type: ignore[no-any-return]


def current() -> Context:
    """The context of this thread: that of the innermost `with`, else one made for the thread."""
    stack = _stack()
    if stack:
        return stack[-1]
    if not hasattr(_local, "own"):
        _local.own = Context()
    return _local.own  # type: ignore[no-any-return]


def answer(function: Callable[..., int], *arguments: Any, long: bool = False) -> Any:
    """The JSON that a function hands over by its last argument."""
    out = ctypes.c_void_p()
    context = current()
    call = context._run if long else context._call
    call(function, *arguments, ctypes.byref(out))
    return json.loads(owned_text(out))


def build_info() -> dict[str, str]:
    """What the library was built with: compiler, cuda, downloads ...

    >>> import weft
    >>> "cuda" in weft.build_info()
    True
    """
    lines = from_text(lib.wf_build_info()).splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


__all__ = ["Context", "WeftWarning", "answer", "build_info", "current", "warn"]
