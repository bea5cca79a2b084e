"""Start of an executor process: signals, the death of the worker, and the main loop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from importlib import import_module
from typing import NoReturn

from chancy.executors.process.child.job_loop import JobLoop
from chancy.executors.process.settings import ChildKind

_PR_SET_PDEATHSIG = 1
#: Added to the OOM score, so that the kernel kills this process before the worker.
_OOM_SCORE = 300


def main(connection_fd: int, calls_fd: int, parent: int, kind_json: str) -> NoReturn:
    """Run an executor process. It was started with SIGINT and SIGTERM blocked."""
    signals = signal.SIGINT, signal.SIGTERM
    for signum in signals:
        signal.signal(signum, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    os.register_at_fork(after_in_child=_restore_signals)
    kind = ChildKind.from_json(kind_json)
    connection = socket.socket(fileno=connection_fd)
    calls = socket.socket(fileno=calls_fd)
    connection.set_inheritable(False)
    calls.set_inheritable(False)
    _die_with(parent)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if kind.environment is not None:
        module, _, name = kind.environment.job_loop.rpartition(".")
        getattr(import_module(module), name)(connection, calls, kind).serve()
    else:
        JobLoop(connection, calls, kind).serve()
    sys.exit(0)


def _ignore(signum: int, frame: object) -> None:
    """Ignore SIGINT and SIGTERM, which go to whole process groups: the worker stops its processes.

    A function, not SIG_IGN, so that programs started by a job start with the default handlers.
    """


def _restore_signals() -> None:
    """Restore the default handlers in a copy that a job has forked."""
    if signal.getsignal(signal.SIGINT) is _ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the worker dies, even if a job holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as score:
            score.write(str(max(_OOM_SCORE, int(score.read()))))
    if os.getppid() != parent:
        os._exit(1)
