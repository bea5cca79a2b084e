"""The child's end of the line to its parent."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable

from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.protocol import Frame, FrameReader

#: Milliseconds after which it is looked again, since a signal handler may have taken the answer.
_LOOK_MS = 20


class ChildConnection:
    """Says frames, whole and one after the other, from any thread; hears those of the parent.

    A copy of the process that a job has made by forking has no line: what it says is dropped.

    :param guard: puts off what would interrupt the job in the middle of a frame.
    :param heed: takes what the parent says. In the main thread.
    """

    def __init__(
        self, end: socket.socket, guard: Interrupter, heed: Callable[[Frame], None]
    ) -> None:
        self._socket = end
        self._guard = guard
        self._heed = heed
        self._lock = threading.Lock()
        self._speaker = 0
        self._feed = FrameReader()
        self._hearing = False
        self._again = False
        #: Whether this process is a copy.
        self.cut = False
        os.register_at_fork(after_in_child=self._cut)

    def say(self, frame: bytes) -> bool:
        """Say something; False if it cannot be said: in a copy, or by a signal handler or
        destructor which has broken in upon a frame of the same thread."""
        thread = threading.get_ident()
        if self.cut or self._speaker == thread:
            return False
        self._guard.hold()
        try:
            with self._lock:
                self._speaker = thread
                try:
                    self._socket.sendall(frame)
                finally:
                    self._speaker = 0
        except OSError:
            # Closed by the job or by the parent's end; without a line there is nothing to do.
            os._exit(1)
        finally:
            self._guard.let_go()
        return True

    def hear(self) -> None:
        """Take what the parent has said by now. In the main thread, also in a signal handler."""
        self._again = True
        if self._hearing or self.cut:
            return  # a signal has broken in upon this very call, which looks once more
        # What stops the job waits until all is taken, or frames would be lost.
        self._guard.hold()
        self._hearing = True
        try:
            while self._again:
                self._again = False
                self._read()
        finally:
            self._hearing = False
            self._guard.let_go()

    def _read(self) -> None:
        while True:
            try:
                data = self._socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                return
            for frame in self._feed.frames(data):
                self._heed(frame)

    def hear_until(self, done: Callable[[], bool]) -> None:
        """Take what the parent says until then. In the main thread.

        :raises Interrupted: the job is stopped meanwhile.
        """
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while not done():
            if any(event & select.POLLHUP for _, event in poll.poll(_LOOK_MS)):
                os._exit(1)
            self.hear()

    def wait_for_end(self) -> None:
        """Return when the parent has closed its end."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)  # a hang-up is reported without being asked for
        poll.poll()

    def _cut(self) -> None:
        self.cut = True
        self._socket.close()
