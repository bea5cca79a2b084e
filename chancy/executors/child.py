"""A child of the process executor: runs one job at a time and says how it ended.

The main thread runs the jobs, since signals and some libraries ask for that one, and reads the
calls itself: handing them over from a reading thread takes longer than a short job. A second
thread only waits for the line to close, which means that the parent is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, NoReturn

from chancy.attempt import Outcome, Raised, Returned
from chancy.executors.frames import CALL, RAISED, READY, RETURNED, RETURNED_NONE, Feed, Frame
from chancy.executors.invocation import Callee, Stage, callee, raised
from chancy.job import DECORATED
from chancy.registry import Registry

_PR_SET_PDEATHSIG = 1
#: Seconds that an idle child has for its exit handlers once the parent has closed the line.
EXIT_GRACE_S = 1.0


class Child:
    """The main loop of a child.

    :param line: the socket to the parent.
    :param max_payload: bytes that an encoded result may have.
    """

    def __init__(self, line: socket.socket, max_payload: int) -> None:
        self._line = line
        self._pid = os.getpid()
        self._busy = False
        self._callees: dict[str, Callee] = {}
        # The parent has checked against its own list that the row may name the function.
        self._registry = Registry(allow=("*",))
        self._stage = Stage(max_payload)

    def serve(self) -> None:
        """Answer calls until the parent closes the line."""
        threading.Thread(target=self._watch, name="chancy-line", daemon=True).start()
        feed = Feed()
        self._say(Frame(READY))
        while data := self._line.recv(65536):
            for frame in feed.frames(data):
                self._answer(frame)

    def _answer(self, call: Frame) -> None:
        assert call.kind == CALL
        self._busy = True
        answer = _answer_of(self._run(call.head.decode(), call.body.decode()))
        if os.getpid() != self._pid:
            # The job forked and let the copy return from the function, too.
            os._exit(0)
        self._busy = False
        self._say(answer)

    def _say(self, frame: Frame) -> None:
        try:
            self._line.sendall(frame.packed())
        except OSError:
            # Closed by the job or by the parent's end; without a line there is nothing to do.
            os._exit(1)

    def _run(self, path: str, arguments: str) -> Outcome:
        try:
            called = self._callees.get(path)
            if called is None:
                called = self._callees[path] = callee(path, self._find)
        except BaseException as error:
            return raised(error, time.perf_counter())
        return self._stage.run(called, arguments, copy_context())

    def _find(self, path: str) -> Callable[..., Any]:
        # Importing the module registers what is decorated in it, which the registry prefers.
        module_name = path.rpartition(".")[0]
        if path not in DECORATED and module_name and module_name not in sys.modules:
            with contextlib.suppress(Exception):  # reported by the registry, which tries again
                importlib.import_module(module_name)
        return self._registry.find(path)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._line.fileno(), 0)  # a hang-up is reported without being asked for
        poll.poll()
        if not self._busy:
            time.sleep(EXIT_GRACE_S)
        os._exit(1)


def _answer_of(outcome: Outcome) -> Frame:
    match outcome:
        case Returned(None, elapsed_s):
            return Frame(RETURNED_NONE, elapsed_s)
        case Returned(result, elapsed_s):
            return Frame(RETURNED, elapsed_s, (result or "").encode())
        case Raised(failure, elapsed_s):
            return Frame(RAISED, elapsed_s, json.dumps(failure.as_json()).encode())
        case _:
            raise TypeError(f"a call cannot end as {outcome!r}")


def _ignore(signum: int, frame: object) -> None:
    """SIGINT and SIGTERM go to whole process groups; it is the parent that ends the children.

    A function, not SIG_IGN, so that programs which a job starts begin with the default.
    """


def _die_with(parent: int) -> None:
    """Have the kernel end this process when the parent ends, even if a job holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main(fd: int, parent: int, max_payload: int) -> NoReturn:
    """Run a child to its end. The process was started with SIGINT and SIGTERM blocked."""
    signals = signal.SIGINT, signal.SIGTERM
    for signum in signals:
        signal.signal(signum, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    line = socket.socket(fileno=fd)
    line.set_inheritable(False)
    _die_with(parent)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    Child(line, max_payload).serve()
    sys.exit(0)
