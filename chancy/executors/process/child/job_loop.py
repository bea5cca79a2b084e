"""The main loop of an executor process: runs one job at a time and replies with its outcome.

The main thread runs the jobs, since signals and some libraries need it. It also receives the calls:
passing them on from another thread takes longer than a short job. A signal handler receives frames
about the running job. A second thread only waits for the connection to close, which means that the
worker is gone.
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

from chancy.attempt.outcome import Raised, Snoozed
from chancy.executors.invocation import Callee
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import MAX_CALL, ChildCall
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.dispatcher import Dispatcher
from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.child.progress import ProgressBuffer
from chancy.executors.process.child.requests import Requests
from chancy.executors.process.logs import ChildLogHandler, log_levels
from chancy.executors.process.protocol import Frame, packed
from chancy.executors.process.settings import ChildKind

#: Seconds that exit handlers have after the worker has closed the connection of an idle process.
EXIT_GRACE_S = 1.0


class JobLoop:
    """The main loop of an executor process.

    :param connection: the socket for frames.
    :param calls: the socket of the channel of calls.
    """

    def __init__(self, connection: socket.socket, calls: socket.socket, kind: ChildKind) -> None:
        self._calls = calls
        self._kind = kind
        self._busy = True
        self._number = 0
        self._interrupter = Interrupter()
        self._connection = ChildConnection(connection, self._interrupter, self._on_frame)
        os.register_at_fork(after_in_child=calls.close)
        self._progress = ProgressBuffer(self._connection)
        self._log_handler = ChildLogHandler(self._send_record)
        self._requests = Requests(
            self._connection, self._progress, kind.max_payload, kind.completion
        )
        self._fetching: ChildCall | None = None
        self._dispatcher = Dispatcher(
            kind.max_payload,
            self._interrupter,
            self._requests,
            kind.wrapper,
            plain_errors=kind.plain_errors,
        )

    def serve(self) -> None:
        """Run calls until the worker closes the channel."""
        if self.prepare():
            while message := self._receive():
                self._answer(ChildCall(message))

    def prepare(self) -> bool:
        """Get ready and report it; False if the initializer failed."""
        threading.Thread(target=self._watch, name="chancy-connection", daemon=True).start()
        root = logging.getLogger()
        level, job_level = self._kind.levels or log_levels()
        root.setLevel(level)
        logging.getLogger("chancy.job").setLevel(job_level)
        root.addHandler(self._log_handler)
        signal.signal(signal.SIGURG, self._on_signal)
        if not self._initialized():
            return False
        self._busy = False
        self._connection.send(packed(frames.READY))
        return True

    def _receive(self) -> bytes:
        try:
            return self._calls.recv(MAX_CALL)
        except OSError:
            os._exit(1)  # a job has closed it

    def _initialized(self) -> bool:
        outcome = self._dispatcher.prepare(self._kind.options.initializer, self._kind.around)
        self._log_handler.end()
        if isinstance(outcome, Raised):
            body = json.dumps(outcome.failure.as_json()).encode()
            self._connection.send(packed(frames.UNREADY, body=body))
            return False
        return True

    def _answer(self, call: ChildCall) -> None:
        self._busy = True
        self._number = call.number
        if not call.whole:
            self._fetch(call)
        self._progress.begin(call)
        reply = self._dispatcher.answer(call, self._load(call))
        if self._connection.forked:
            # The job forked, and the copy returned from the function, too.
            os._exit(0)
        self._progress.end()
        self._log_handler.end()
        self._busy = False
        self._connection.send(reply)

    def _load(self, call: ChildCall) -> Callee | Raised | Snoozed:
        """The function of a call, which is imported before its time limit starts."""
        loaded: Callee | Raised | Snoozed | None = self._dispatcher.loaded(call.func)
        if loaded is None:
            self._connection.send(packed(frames.IMPORTING, call.number))
            loaded = self._dispatcher.load(call.func)
            self._connection.send(packed(frames.IMPORTED, call.number))
        return loaded

    def _fetch(self, call: ChildCall) -> None:
        self._fetching = call
        self._connection.send(packed(frames.FETCH, call.number))
        self._connection.receive_until(lambda: call.whole)

    def _on_signal(self, signum: int, frame: object) -> None:
        self._connection.receive()

    def _on_frame(self, frame: Frame) -> None:
        kind, number, request, body = frame
        if kind == frames.STORED:
            self._requests.answered(request, body)
        elif kind == frames.STOP:
            if request:
                self._interrupter.stop_at_limit(number)
            else:
                self._stop(number, body.decode(errors="replace"))
        elif kind == frames.BODY and self._fetching is not None:
            self._fetching.complete(body)

    def _stop(self, number: int, why: str) -> None:
        self._interrupter.stop(number, why)

    def _send_record(self, level: int, body: bytes) -> bool:
        number = self._number if self._busy else 0
        return self._connection.send(packed(frames.LOG, number, level, body))

    def _watch(self) -> None:
        self._connection.wait_for_end()
        if not self._busy:
            with contextlib.suppress(OSError):
                self._calls.shutdown(socket.SHUT_RD)
            time.sleep(EXIT_GRACE_S)
        os._exit(1)
