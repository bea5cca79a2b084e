"""A child of the process executor: runs one job at a time and says how it ended.

The main thread runs the jobs, since signals and some libraries ask for that one, and takes the
calls itself: handing them over from another thread takes longer than a short job. What the parent
says of a job that runs is heard by a signal handler. A second thread only waits for the line to
close, which means that the parent is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from chancy.attempt.outcome import Raised
from chancy.context.context import Progress
from chancy.context.host import CompletionPlace
from chancy.executors import frames
from chancy.executors.calls import MAX_CALL, Call
from chancy.executors.child_line import ChildLine
from chancy.executors.desk import Desk
from chancy.executors.echo import Recorder
from chancy.executors.frames import Frame, packed
from chancy.executors.guard import Guard
from chancy.executors.requests import Requests
from chancy.executors.says import Says
from chancy.executors.terms import Terms

_PR_SET_PDEATHSIG = 1
#: Seconds that an idle child has for its exit handlers once the parent has closed the line.
EXIT_GRACE_S = 1.0
#: Where the system looks for memory first when it has none left: here rather than in the worker.
_OOM_SCORE = 300


class Child:
    """The main loop of a child.

    :param line: the socket to the parent.
    :param calls: the socket that the calls come by.
    """

    def __init__(self, line: socket.socket, calls: socket.socket, terms: Terms) -> None:
        self._calls = calls
        self._terms = terms
        self._busy = True
        self._number = 0
        self._guard = Guard()
        self._line = ChildLine(line, self._guard, self._heed)
        os.register_at_fork(after_in_child=calls.close)
        self._says = Says(self._report)
        self._recorder = Recorder(self._record)
        place = None if terms.completion is None else CompletionPlace(*terms.completion)
        self._requests = Requests(self._line, self._says, terms.max_payload, place)
        self._fetching: Call | None = None
        self._desk = Desk(terms.max_payload, self._guard, self._requests)

    def serve(self) -> None:
        """Answer calls until the parent closes the line."""
        if self.prepare():
            while message := self._receive():
                self._answer(Call(message))

    def prepare(self) -> bool:
        """Make everything ready and say so; False if the initializer failed."""
        threading.Thread(target=self._watch, name="chancy-line", daemon=True).start()
        root = logging.getLogger()
        root.setLevel(self._terms.log_level)
        root.addHandler(self._recorder)
        signal.signal(signal.SIGURG, self._listen)
        if not self._initialized():
            return False
        self._busy = False
        self._line.say(packed(frames.READY))
        return True

    def _receive(self) -> bytes:
        try:
            return self._calls.recv(MAX_CALL)
        except OSError:
            os._exit(1)  # a job has closed it

    def _initialized(self) -> bool:
        if self._terms.initializer is None:
            return True
        outcome = self._desk.call_path(self._terms.initializer)
        self._recorder.end()
        if isinstance(outcome, Raised):
            body = json.dumps(outcome.failure.as_json()).encode()
            self._line.say(packed(frames.UNREADY, body=body))
            return False
        return True

    def _answer(self, call: Call) -> None:
        self._busy = True
        self._number = call.number
        if not call.whole:
            self._fetch(call)
        answer = self._desk.answer(call)
        if self._line.cut:
            # The job forked and let the copy return from the function, too.
            os._exit(0)
        self._says.end(call)
        self._recorder.end()
        self._busy = False
        self._line.say(answer)

    def _fetch(self, call: Call) -> None:
        self._fetching = call
        self._line.say(packed(frames.WANT, call.number))
        self._line.hear_until(lambda: call.whole)

    def _listen(self, signum: int, frame: object) -> None:
        self._line.hear()

    def _heed(self, frame: Frame) -> None:
        kind, number, request, body = frame
        if kind == frames.KEPT:
            self._requests.answered(request, body)
        elif kind == frames.STOP:
            self._stop(number, body.decode(errors="replace"))
        elif kind == frames.BODY and self._fetching is not None:
            self._fetching.complete(body)

    def _stop(self, number: int, why: str) -> None:
        self._guard.stop(number, why)

    def _call_number(self) -> int:
        """The number of the call that runs; 0 for none."""
        return self._number if self._busy else 0

    def _report(self, call: Call, progress: Progress) -> None:
        text = progress.text.encode()
        self._line.say(packed(frames.PROGRESS, call.number, progress.fraction, text))

    def _record(self, level: int, body: bytes) -> bool:
        return self._line.say(packed(frames.LOG, self._call_number(), level, body))

    def _watch(self) -> None:
        self._line.wait_for_end()
        if not self._busy:
            with contextlib.suppress(OSError):
                self._calls.shutdown(socket.SHUT_RD)
            time.sleep(EXIT_GRACE_S)
        os._exit(1)


def _ignore(signum: int, frame: object) -> None:
    """SIGINT and SIGTERM go to whole process groups; it is the parent that ends the children.

    A function, not SIG_IGN, so that programs which a job starts begin with the default.
    """


def _heed() -> None:
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


def main(line_fd: int, parent: int, terms_text: str) -> NoReturn:
    """Run a child to its end. The process was started with SIGINT and SIGTERM blocked."""
    signals = signal.SIGINT, signal.SIGTERM
    for signum in signals:
        signal.signal(signum, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    os.register_at_fork(after_in_child=_heed)
    terms = Terms(**json.loads(terms_text))
    line, calls = socket.socket(fileno=line_fd), socket.socket(fileno=terms.calls)
    line.set_inheritable(False)
    calls.set_inheritable(False)
    _die_with(parent)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if terms.jobs > 1:
        from chancy.executors.child_loop import ChildLoop  # asyncio, which others do without

        ChildLoop(line, calls, terms).serve()
    else:
        Child(line, calls, terms).serve()
    sys.exit(0)
