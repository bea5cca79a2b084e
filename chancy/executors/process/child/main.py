"""The start of a child process: signals, the parent's death, and its main loop."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from typing import NoReturn

from chancy.executors.process.child.job_loop import JobLoop
from chancy.executors.process.terms import ChildSettings

_PR_SET_PDEATHSIG = 1
#: Added to the child's score, so that the kernel ends it before the worker when memory runs out.
_OOM_SCORE = 300


def main(line_fd: int, parent: int, terms_text: str) -> NoReturn:
    """Run a child to its end. The process was started with SIGINT and SIGTERM blocked."""
    signals = signal.SIGINT, signal.SIGTERM
    for signum in signals:
        signal.signal(signum, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    os.register_at_fork(after_in_child=_restore_signals)
    terms = ChildSettings(**json.loads(terms_text))
    line, calls = socket.socket(fileno=line_fd), socket.socket(fileno=terms.calls)
    line.set_inheritable(False)
    calls.set_inheritable(False)
    _die_with(parent)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if terms.jobs > 1:
        from chancy.executors.process.child.event_loop import ConcurrentJobLoop

        ConcurrentJobLoop(line, calls, terms).serve()
    else:
        JobLoop(line, calls, terms).serve()
    sys.exit(0)


def _ignore(signum: int, frame: object) -> None:
    """SIGINT and SIGTERM go to whole process groups; it is the parent that ends the children.

    A function, not SIG_IGN, so that programs which a job starts begin with the default.
    """


def _restore_signals() -> None:
    """In a copy that a job has made by forking: it is the job's, and ends when it is told to."""
    if signal.getsignal(signal.SIGINT) is _ignore:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _ignore:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with(parent: int) -> None:
    """Have the kernel end this process when the parent ends, even if a job holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as score:
            score.write(str(max(_OOM_SCORE, int(score.read()))))
    if os.getppid() != parent:
        os._exit(1)
