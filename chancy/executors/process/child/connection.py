"""The executor process's end of the connection to the worker."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable

from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.protocol import Frame, FrameReader

#: Milliseconds between two checks for a reply, since a signal handler may have read it.
_POLL_MS = 20


class ChildConnection:
    """Sends frames one after the other, from any thread; receives those of the worker.

    A copy of the process that a job has made by forking has no connection: its frames are dropped.

    :param interrupter: defers the interruption of a job in the middle of a frame.
    :param on_frame: called with each frame of the worker. In the main thread.
    """

    def __init__(
        self, end: socket.socket, interrupter: Interrupter, on_frame: Callable[[Frame], None]
    ) -> None:
        self._socket = end
        self._interrupter = interrupter
        self._on_frame = on_frame
        self._lock = threading.Lock()
        self._sender = 0
        self._reader = FrameReader()
        self._receiving = False
        self._again = False
        #: Whether this process is a forked copy.
        self.forked = False
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def sending(self) -> bool:
        """Whether this thread is in the middle of a frame, which the caller has interrupted."""
        return self._sender == threading.get_ident()

    def send(self, frame: bytes) -> bool:
        """Send a frame. False if that is not possible: in a forked copy, or in a signal handler or
        destructor that has interrupted a frame of the same thread."""
        if self.forked or self.sending:
            return False
        self._interrupter.hold()
        try:
            with self._lock:
                self._sender = threading.get_ident()
                try:
                    self._socket.sendall(frame)
                finally:
                    self._sender = 0
        except OSError:
            # Closed by the job, or because the worker is gone: there is nothing left to do.
            os._exit(1)
        finally:
            self._interrupter.release()
        return True

    def receive(self) -> None:
        """Handle all frames that have arrived. In the main thread, also in a signal handler."""
        self._again = True
        if self._receiving or self.forked:
            return  # a signal has interrupted this method, which will read once more
        # An interruption waits until all frames are handled, or some would be lost.
        self._interrupter.hold()
        self._receiving = True
        try:
            while self._again:
                self._again = False
                self._read()
        finally:
            self._receiving = False
            self._interrupter.release()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self._socket.recv(65536, socket.MSG_DONTWAIT):
                for frame in self._reader.frames(data):
                    self._on_frame(frame)

    def receive_until(self, done: Callable[[], bool], poll_ms: int | None = _POLL_MS) -> None:
        """Handle frames until ``done`` returns True. In the main thread.

        :param poll_ms: None: no signal handler reads frames.
        :raises Interrupted: the job is stopped in the meantime.
        """
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while not done():
            if any(event & select.POLLHUP for _, event in poll.poll(poll_ms)):
                os._exit(1)
            self.receive()

    def wait_for_end(self) -> None:
        """Wait until the worker has closed its end."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)  # a hang-up is always reported
        poll.poll()

    def _after_fork(self) -> None:
        self.forked = True
        self._socket.close()
