"""How calls get from the process executor into a child, and back if the child does not take them.

A channel keeps messages apart, and the parent holds a second descriptor of the child's end. So it
can take a call out again which the child has not received: the kernel decides who gets a message,
whatever the child is doing. What a child has received and not answered is what it runs, and
nothing else is to blame if it dies.
"""

from __future__ import annotations

import contextlib
import errno
import math
import socket
from collections.abc import Iterator

from chancy.attempt.outcome import Outcome
from chancy.executors.process.attempt import ProcessAttempt
from chancy.executors.process.call import HEAD_SIZE, number_of
from chancy.executors.process.pace import Pace

#: Seconds that a child may be busy with one call, or leave one unread, before it loses the others.
LATE_S = 0.05


class Channel:
    """The parent's side of the way that calls take to one child."""

    def __init__(self) -> None:
        # Without SOCK_SEQPACKET (macOS) datagrams do the same, but for the end of the channel,
        # which the child then learns from its line.
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
        """The descriptor that the child is to have."""
        return self._far.fileno()

    def send(self, message: bytes) -> bool:
        """Put a call in; False if there is no room. Raises OSError if the child broke it."""
        try:
            self._near.send(message)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:  # how macOS says it
                return False
            raise
        return True

    def take_back(self) -> Iterator[int]:
        """Take out what the child has not received: the numbers of the calls, in order."""
        with contextlib.suppress(OSError):  # empty, or closed
            # Not by the socket's own mode, which is the child's, too.
            while head := self._far.recv(HEAD_SIZE, socket.MSG_DONTWAIT):
                yield number_of(head)

    def close(self) -> None:
        """The child finds what it has not received yet, and then the end."""
        self._near.close()
        self._far.close()


class Prefetch:
    """What one child has been given and has not answered.

    :param jobs: coroutine jobs that the child runs at a time; 1: it runs calls one by one, in
        order.
    :param most: calls that it may be given in its life.
    """

    def __init__(self, jobs: int, most: int | None) -> None:
        self._jobs = jobs
        self._most = math.inf if most is None else most
        self._pace = Pace()
        self._channel = Channel()
        #: By number, in order.
        self.attempts: dict[int, ProcessAttempt] = {}
        #: Calls given in all, without those taken back.
        self.given = 0
        #: Times in a row that the child did not even receive a call in time.
        self.missed = 0
        self._given_at = 0.0
        self._unread = False
        self._full = False
        self._late = False

    @property
    def far(self) -> int:
        """The descriptor that the child is to have."""
        return self._channel.far

    @property
    def depth(self) -> int:
        """How many calls it may hold."""
        if self._jobs > 1:
            return self._jobs
        return 1 if self._late else self._pace.depth

    @property
    def room(self) -> int:
        """How many more calls it may be given now."""
        if self._full or self._late:
            return 0
        room = self.depth - len(self.attempts)
        return room if room < self._most - self.given else int(self._most - self.given)

    @property
    def exhausted(self) -> bool:
        """Whether it has had all the calls that it may be given."""
        return self.given >= self._most

    def give(self, attempt: ProcessAttempt, now: float) -> bool:
        """Hand a call over; False if there is no room in the channel.

        :raises OSError: the child has broken the channel.
        """
        if not self._channel.send(attempt.message):
            self._full = True
            return False
        if self._jobs > 1 or not self.attempts:
            attempt.began = now
        self.attempts[attempt.number] = attempt
        self.given += 1
        self._given_at = now
        self._unread = True
        return True

    def answer(self, number: int, outcome: Outcome) -> None:
        """One call has been answered. Raises KeyError if it was not given, or was taken back."""
        self.attempts.pop(number).end(outcome)
        self._pace.saw(outcome.elapsed_s)

    def go_on(self, now: float) -> None:
        """After answers: the next call has begun."""
        self._pace.set()
        self._full = self._late = False
        self.missed = 0
        if self._jobs == 1 and self.attempts:
            next(iter(self.attempts.values())).began = now

    def begun(self) -> list[ProcessAttempt]:
        """What runs, as far as is known here."""
        if self._jobs > 1:
            return list(self.attempts.values())
        return [*self.attempts.values()][:1]

    def late_at(self) -> float:
        """When it is to lose what it has not received; infinity if there is nothing."""
        if not self._unread or not self.attempts:
            return math.inf
        if self._jobs > 1:
            return self._given_at + LATE_S
        return next(iter(self.attempts.values())).began + LATE_S

    def fall_behind(self) -> list[ProcessAttempt]:
        """Take back what a late child has not received."""
        back = self.take_back()
        self._late = bool(self.attempts) and self._jobs == 1
        self.missed += bool(back) and not self.attempts
        return back

    def take_back(self) -> list[ProcessAttempt]:
        """Take out what the child has not received, in order."""
        self._unread = False
        self._full = False
        back = [self.attempts.pop(number) for number in self._channel.take_back()]
        self.given -= len(back)
        return back

    def part(self) -> tuple[list[ProcessAttempt], list[ProcessAttempt]]:
        """The child is gone: what ran in it, and what it had not begun."""
        unread = self.take_back()
        left = list(self.attempts.values())
        self.attempts.clear()
        self.close()
        if self._jobs > 1:
            return left, unread
        return left[:1], left[1:] + unread

    def close(self) -> None:
        """The child finds the end of the channel."""
        self._channel.close()
