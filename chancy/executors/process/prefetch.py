"""Prefetch of calls by an executor process, and their withdrawal if it does not receive them.

A channel preserves message boundaries, and the worker holds a second descriptor of the executor
process's end. So the worker can withdraw a call that the executor process has not received: the
kernel gives each message to exactly one of the two, whatever the executor process is doing. The
calls that it has received and not answered are those that it runs, and only they can be lost if it
dies.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
from collections.abc import Iterator

from chancy.attempt.outcome import Outcome
from chancy.executors.process.call import HEAD_SIZE, ProcessAttempt, number_of

#: Seconds that an executor process may be busy with one call, or leave one unread, before the other
#: calls are withdrawn.
LATE_S = 0.05
#: Calls are prefetched for this many seconds of work at the current pace; at least one, unless it
#: would have to be withdrawn. Without one, an executor process idles between two calls while the
#: worker reads a response and sends the next call.
_AHEAD_S = 0.01
#: Maximum number of calls that an executor process holds. Two of them on two cores run 60,000
#: no-ops a second with 32, 75,000 with 64, and no more with 128.
MAX_DEPTH = 64
#: Calls to measure before the depth is computed.
_FIRST = 4


class Pace:
    """Measures the duration of calls: longer calls count at once, shorter ones gradually.

    ``depth``: number of calls to hold, including the running one. It is 2 while calls take more
    than 5 ms, and 1 while they take 50 ms or more, and before enough calls were measured.
    """

    __slots__ = ("_seen", "_typical_s", "depth")

    def __init__(self) -> None:
        self._seen = 0
        self._typical_s = 0.0
        self.depth = 1

    def record(self, elapsed_s: float) -> None:
        typical_s = self._typical_s
        if elapsed_s > typical_s:
            self._typical_s = elapsed_s
        else:
            self._typical_s = typical_s + (elapsed_s - typical_s) / 8
        if self._seen < _FIRST:
            self._seen += 1

    def update(self) -> None:
        """Compute the depth; once for a batch of recorded calls."""
        if self._seen < _FIRST:
            return
        depth = int(_AHEAD_S / self._typical_s) if self._typical_s > 0 else MAX_DEPTH
        least = 2 if self._typical_s < LATE_S else 1
        self.depth = min(MAX_DEPTH, max(least, depth))


class Channel:
    """The worker's side of the channel that carries calls to one executor process."""

    def __init__(self) -> None:
        # Without SOCK_SEQPACKET (macOS) datagrams serve the same purpose, except that the executor
        # process then detects the end of the channel by its connection.
        kind = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)
        try:
            self._near, self._far = socket.socketpair(socket.AF_UNIX, kind)
        except OSError as error:
            if error.errno not in (errno.EPROTONOSUPPORT, errno.EPROTOTYPE, errno.EOPNOTSUPP):
                raise
            self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._near.setblocking(False)

    @property
    def far(self) -> int:
        """The descriptor for the executor process."""
        return self._far.fileno()

    def send(self, message: bytes) -> bool:
        """Send a call; False if there is no room.

        :raises OSError: the executor process has broken the channel.
        """
        try:
            self._near.send(message)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:  # macOS: no room
                return False
            raise
        return True

    def withdraw(self) -> Iterator[int]:
        """Withdraw the unreceived calls; yields their numbers in order."""
        with contextlib.suppress(OSError):  # empty, or closed
            # A flag, since the socket's own mode is shared with the executor process.
            while head := self._far.recv(HEAD_SIZE, socket.MSG_DONTWAIT):
                yield number_of(head)

    def close(self) -> None:
        """Close the channel. The executor process still receives the calls sent before."""
        self._near.close()
        self._far.close()


class Prefetch:
    """The calls that one executor process holds: sent to it, and not answered yet. It runs them one
    by one, in order.

    :param most: maximum number of calls in its lifetime; None: no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = math.inf if most is None else most
        self._pace = Pace()
        self._channel = Channel()
        #: Attempts by number, in order.
        self.attempts: dict[int, ProcessAttempt] = {}
        #: Number of calls sent in all, without withdrawn ones.
        self.given = 0
        #: Times in a row that the executor process did not receive a call in time.
        self.missed = 0
        self._unread = False
        self._full = False
        self._late = False

    @property
    def far(self) -> int:
        """The descriptor for the executor process."""
        return self._channel.far

    @property
    def depth(self) -> int:
        """Maximum number of calls to hold."""
        return 1 if self._late else self._pace.depth

    @property
    def room(self) -> int:
        """Number of calls that may be sent now."""
        if self._full or self._late:
            return 0
        room = self.depth - len(self.attempts)
        return room if room < self._most - self.given else int(self._most - self.given)

    @property
    def exhausted(self) -> bool:
        """Whether it has received the maximum number of calls."""
        return self.given >= self._most

    def give(self, attempt: ProcessAttempt, now: float) -> bool:
        """Send a call; False if there is no room in the channel.

        :raises OSError: the executor process has broken the channel.
        """
        if not self._channel.send(attempt.message):
            self._full = True
            return False
        if not self.attempts:
            attempt.started_at = now
        self.attempts[attempt.number] = attempt
        self.given += 1
        self._unread = True
        return True

    def answer(self, number: int, outcome: Outcome) -> None:
        """Finish a call that was answered.

        :raises KeyError: the call was not sent, or was withdrawn.
        """
        self.attempts.pop(number).finish(outcome)
        self._pace.record(outcome.elapsed_s)

    def advance(self, now: float) -> None:
        """Record, after answers, that the next call has started."""
        self._pace.update()
        self._full = self._late = False
        self.missed = 0
        if (running := self.running) is not None:
            running.started_at = now

    @property
    def running(self) -> ProcessAttempt | None:
        """The attempt that runs, as far as the worker can tell."""
        return next(iter(self.attempts.values()), None)

    def late_at(self) -> float:
        """Time at which unreceived calls are withdrawn; infinity if there are none."""
        running = self.running
        if not self._unread or running is None:
            return math.inf
        return running.started_at + LATE_S

    def withdraw_late(self) -> list[ProcessAttempt]:
        """Withdraw the unreceived calls of an executor process that is late."""
        withdrawn = self.withdraw()
        self._late = bool(self.attempts)
        self.missed += bool(withdrawn) and not self.attempts
        return withdrawn

    def withdraw(self) -> list[ProcessAttempt]:
        """Withdraw the unreceived calls, in order."""
        self._unread = False
        self._full = False
        withdrawn = [self.attempts.pop(number) for number in self._channel.withdraw()]
        self.given -= len(withdrawn)
        return withdrawn

    def dissolve(self) -> tuple[ProcessAttempt | None, list[ProcessAttempt]]:
        """Close the channel of an executor process that has exited. Returns the attempt that ran in
        it, and those that it had not started."""
        unread = self.withdraw()
        running, left = self.running, list(self.attempts.values())
        self.attempts.clear()
        self.close()
        return running, left[1:] + unread

    def close(self) -> None:
        self._channel.close()
