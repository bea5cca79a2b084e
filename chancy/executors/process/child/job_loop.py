"""A child of the process executor: runs one job at a time and says how it ended.

The main thread runs the jobs, since signals and some libraries ask for that one, and takes the
calls itself: handing them over from another thread takes longer than a short job. What the parent
says of a job that runs is heard by a signal handler. A second thread only waits for the line to
close, which means that the parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import threading
import time

from chancy.attempt.outcome import Raised
from chancy.context.context import Progress
from chancy.context.host import CompletionRef
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import MAX_CALL, ChildCall
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.dispatcher import Dispatcher
from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.child.progress import ProgressBuffer
from chancy.executors.process.child.requests import Requests
from chancy.executors.process.logs import ChildLogHandler
from chancy.executors.process.protocol import Frame, packed
from chancy.executors.process.terms import ChildSettings

#: Seconds that an idle child has for its exit handlers once the parent has closed the line.
EXIT_GRACE_S = 1.0


class JobLoop:
    """The main loop of a child.

    :param line: the socket to the parent.
    :param calls: the socket that the calls come by.
    """

    def __init__(self, line: socket.socket, calls: socket.socket, terms: ChildSettings) -> None:
        self._calls = calls
        self._terms = terms
        self._busy = True
        self._number = 0
        self._guard = Interrupter()
        self._line = ChildConnection(line, self._guard, self._heed)
        os.register_at_fork(after_in_child=calls.close)
        self._says = ProgressBuffer(self._report)
        self._recorder = ChildLogHandler(self._record)
        place = None if terms.completion is None else CompletionRef(*terms.completion)
        self._requests = Requests(self._line, self._says, terms.max_payload, place)
        self._fetching: ChildCall | None = None
        self._desk = Dispatcher(terms.max_payload, self._guard, self._requests)

    def serve(self) -> None:
        """Answer calls until the parent closes the line."""
        if self.prepare():
            while message := self._receive():
                self._answer(ChildCall(message))

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

    def _answer(self, call: ChildCall) -> None:
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

    def _fetch(self, call: ChildCall) -> None:
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

    def _report(self, call: ChildCall, progress: Progress) -> None:
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
