"""The executor processes of a worker: kept running by kind, and lent to the queues of that kind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from chancy.attempt.failure import Failure
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import ProcessAttempt
from chancy.executors.process.child_handle import RECYCLED, STOPPED, ChildOwner, ChildProcess
from chancy.executors.process.logs import LogRelay
from chancy.executors.process.protocol import Frame
from chancy.executors.process.settings import ChildKind

logger = logging.getLogger("chancy.executors.process")

#: First and longest pause in seconds before another start, if an executor process dies early.
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
#: Seconds that an executor process may take to be ready, including its initializer.
BOOT_S = 60.0
#: Seconds that idle executor processes have to exit when the last queue of their kind stops.
STOP_GRACE_S = 2.0
#: Seconds that killed executor processes have to exit. They cannot while they wait for a disk or a
#: file server that does not respond.
KILLED_S = 5.0
#: Seconds without a job after which an executor process may be stopped for one of another kind.
IDLE_S = 5.0
#: Seconds for which an executor of weight 1 keeps an executor process that others wait for.
TURN_S = 0.05


def turn_is_over(weight: int, answered: int, lent_s: float) -> bool:
    """Whether an executor gives its executor process to one that waits, between two jobs: after
    ``weight`` turns, of `TURN_S` or of one job that takes longer."""
    return answered >= weight and lent_s > weight * TURN_S


class ChildUser(ChildOwner, Protocol):
    """An executor that borrows executor processes. Its methods do not raise."""

    @property
    def concurrency(self) -> int:
        """Maximum number of executor processes to borrow at a time."""
        ...

    @property
    def weight(self) -> int:
        """Its share; see `ProcessOptions`."""
        ...

    @property
    def borrowed(self) -> int:
        """Number of executor processes that it has borrowed."""
        ...

    @property
    def waits(self) -> bool:
        """Whether it still waits for an executor process that it has asked for."""
        ...

    def lent(self, child: ChildProcess) -> None:
        """It has got an executor process that it waited for."""

    def give_back_idle(self) -> None:
        """Give back the executor processes that hold no calls."""

    def gone(self, child: ChildProcess) -> None:
        """An executor process that it had borrowed has exited."""

    def group_changed(self) -> None:
        """The set of executor processes that accept calls has changed."""


class _Seat:
    """A place for one executor process, which is replaced when it exits."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.failing = False
        #: Set when there is no more executor process for this place.
        self.ended = asyncio.Event()
        #: Set when the first executor process is ready or has failed.
        self.tried = asyncio.Event()


class ChildGroup:
    """Keeps executor processes of one kind running, replaces those that exit or retire, and lends
    each to one executor at a time.

    An executor that waits gets the next one that is released; of several, the one with the fewest
    for its weight does.
    """

    def __init__(self, kind: ChildKind, pool: ChildPool) -> None:
        self._kind = kind
        self._pool = pool
        # As it is now: a job may change it, or the current directory.
        self._sys_path = [entry or os.getcwd() for entry in sys.path]
        self._users: list[ChildUser] = []
        self._waiting: dict[ChildUser, None] = {}
        self._seats: dict[int, _Seat] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._living: set[ChildProcess] = set()
        #: Executor processes that accept calls, and those of them that are not lent.
        self._ready: list[ChildProcess] = []
        self._idle: list[ChildProcess] = []
        self._why: str | None = None
        self._log_relay = LogRelay()

    @property
    def size(self) -> int:
        """Number of executor processes that run or are about to."""
        return len(self._seats)

    @property
    def greatest(self) -> int:
        """The greatest concurrency of its queues."""
        return max((user.concurrency for user in self._users), default=0)

    def contended(self, user: ChildUser) -> bool:
        """Whether another executor waits for an executor process, or there are too many."""
        return self.excessive or any(other is not user and other.waits for other in self._waiting)

    @property
    def ready(self) -> bool:
        """Whether an executor process accepts calls."""
        return bool(self._ready)

    @property
    def broken(self) -> str | None:
        """Why no executor process accepts calls; None if one does or is about to."""
        seats = self._seats.values()
        return self._why if seats and all(seat.failing for seat in seats) else None

    @property
    def evictable(self) -> int:
        """Number of executor processes that may be stopped for some of another kind: not the last
        one if an initializer prepares it, which may take long."""
        kept = int(self._kind.options.initializer is not None)
        return min(len(self._unused), len(self._seats) - kept)

    def count_slots(self, most: int) -> int:
        """Number of calls that up to ``most`` further executor processes may hold, including those
        that are about to be ready."""
        accepting = [child for child in self._idle if child.depth]
        slots = sum(child.depth for child in accepting[:most])
        most -= len(accepting)
        if most > 0:
            further = 0 if self.broken else min(self._pool.room_for(self), self._missing)
            slots += min(most, self._starting + further)
        return slots

    # Users

    async def attach(self, user: ChildUser) -> None:
        """Add an executor; returns once there are executor processes for it, each of which is ready
        or has failed once."""
        self._users.append(user)
        if not self._seats:
            if not self._pool.free:
                self._pool.evict(self, at_once=True)
            self._add_seat()
        while self._missing and self._pool.free:
            self._add_seat()
        for seat in list(self._seats.values()):
            await seat.tried.wait()

    async def detach(self, user: ChildUser) -> None:
        """Remove an executor, which has given everything back. After the last one, the executor
        processes are stopped: they exit when idle, and are killed after a grace period. Those that
        do not exit even then are left."""
        if user not in self._users:
            return
        self._users.remove(user)
        self._waiting.pop(user, None)
        if not self._users:
            self._pool.remove(self._kind)
        self._pool.shrink()
        if self._users:
            return
        for seat in self._seats.values():
            seat.ended.set()
        for child in list(self._living):
            child.close(STOP_GRACE_S)
        ending: list[asyncio.Future[Any]] = [*self._tasks]
        ending += [child.exited for child in self._living]
        limit_s = STOP_GRACE_S + KILLED_S
        if ending and (await asyncio.wait(ending, timeout=limit_s))[1]:
            left = ", ".join(str(child) for child in self._living if not child.exited.done())
            logger.error("children_left after_s=%g: %s", limit_s, left)

    def borrow(self, user: ChildUser, wanted: int) -> ChildProcess | None:
        """An idle executor process; without one, ``user`` gets the next.

        :param wanted: number of executor processes that it has jobs for.
        """
        if not self._idle and not self._waiting:
            for other in self._users:
                if other is not user:
                    other.give_back_idle()
        while self._idle:
            child = self._idle.pop()
            if child.depth:
                child.lend(user)
                return child
        self._waiting[user] = None
        while self._starting < wanted and self._missing and self._pool.may_grow(self):
            self._add_seat()
        return None

    def give_back(self, child: ChildProcess) -> None:
        """Take an executor process back that holds no calls."""
        child.lend(self)
        if not child.depth:
            return
        if self.excessive:
            self._stop(child)
            return
        self._waiting = {user: None for user in self._waiting if user.waits}
        if self._waiting:
            user = min(self._waiting, key=lambda each: each.borrowed / each.weight)
            del self._waiting[user]
            child.lend(user)
            user.lent(child)
        else:
            self._idle.append(child)

    def evict(self, *, at_once: bool) -> bool:
        """Stop an idle executor process. Returns whether there was one to stop.

        :param at_once: stop one that was used a short time ago, but not the last one.
        """
        stoppable = (
            self._idle[: len(self._seats) - 1] if at_once else self._unused[: self.evictable]
        )
        if stoppable:
            self._stop(stoppable[0])
        return bool(stoppable)

    # Executor processes

    @property
    def _missing(self) -> int:
        """Number of executor processes to start, as far as the pool permits."""
        wanted = sum(user.concurrency for user in self._users)
        return max(0, min(wanted, self._pool.most) - len(self._seats))

    @property
    def _starting(self) -> int:
        """Number of executor processes that are about to be ready."""
        occupied = {child.number for child in self._ready if child.depth}
        seats = self._seats.values()
        return sum(not seat.failing and seat.number not in occupied for seat in seats)

    @property
    def _unused(self) -> list[ChildProcess]:
        """Idle executor processes that were not used for a while."""
        since = asyncio.get_running_loop().time() - IDLE_S
        return [child for child in self._idle if child.used_at <= since]

    @property
    def excessive(self) -> bool:
        """Whether one of several executor processes has to end, since there are too many of all
        kinds together."""
        return len(self._seats) > 1 and self._pool.exceeded

    def _stop(self, child: ChildProcess) -> None:
        """Stop an executor process that holds no calls, and give up its place."""
        if child in self._idle:
            self._idle.remove(child)
        seat = self._seats.pop(child.number, None)
        if seat is not None:
            seat.ended.set()
        child.close(STOP_GRACE_S, RECYCLED)
        self._notify()

    def _add_seat(self) -> None:
        seat = _Seat(next(self._pool.numbers))
        self._seats[seat.number] = seat
        name = f"chancy-child-{seat.number}"
        task = asyncio.create_task(self._keep_running(seat), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_running(self, seat: _Seat) -> None:
        """Keep an executor process in this place running."""
        delay_s = FIRST_DELAY_S
        predecessor: ChildProcess | None = None
        while not seat.ended.is_set():
            child = await self._start_one(seat)
            seat.tried.set()
            if seat.ended.is_set():
                if isinstance(child, ChildProcess):
                    child.close(STOP_GRACE_S, RECYCLED)
                    await child.exited
                    self._living.discard(child)
                return
            why: str | None = None
            if isinstance(child, ChildProcess):
                self._add(child, seat, predecessor)
                predecessor = child
                await child.successor_needed
                if not child.never_used:
                    delay_s = FIRST_DELAY_S
                elif child.exited.done():
                    why = f"{child.exited.result()} before it ran anything"
            else:
                why = child
                logger.error(
                    "child %d %s before it was ready: the next try is in %g s",
                    seat.number,
                    why,
                    delay_s,
                )
            if why is not None and not seat.ended.is_set():
                # Without a number: the reason is logged whenever it changes.
                self._why = f"an executor process {why}"
                seat.failing = all(child.number != seat.number for child in self._ready)
                self._notify()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(seat.ended.wait(), delay_s)
                delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _start_one(self, seat: _Seat) -> ChildProcess | str:
        """Start an executor process. Returns it once it is ready, or why it is not."""
        try:
            # Without free descriptors it cannot even be created.
            child = ChildProcess(seat.number, self, self._kind.options)
            child.start(self._kind, self._sys_path)
        except Exception as error:
            return f"could not be started: {error}"
        self._living.add(child)
        _, waiting = await asyncio.wait([child.ready], timeout=BOOT_S)
        if waiting:
            child.kill(f"was killed because its start took longer than {BOOT_S:g} s")
        why = await child.ready
        if why is None:
            return child
        if isinstance(why, Failure):
            why = self._failed(child, why)
            # A thread of the initializer may keep it.
            child.close(STOP_GRACE_S)
        await child.exited
        self._living.discard(child)
        return why

    def _failed(self, child: ChildProcess, failure: Failure) -> str:
        """Log the failure of an initializer. Returns it in short."""
        kind = self._kind
        logger.error(
            "child_initializer_failed %s initializer=%s error=%s: %s\n%s",
            child,
            kind.environment.application if kind.environment else kind.options.initializer,
            failure.types[0],
            failure.message,
            failure.trace,
        )
        return f"failed in its initializer: {failure.types[0]}: {failure.message}"

    def _add(self, child: ChildProcess, seat: _Seat, predecessor: ChildProcess | None) -> None:
        seat.failing = False
        if predecessor is not None:
            child.used_at = predecessor.used_at
        self._ready.append(child)
        child.exited.add_done_callback(lambda exited: self._remove(child, exited.result()))
        self.give_back(child)
        if predecessor is not None:
            predecessor.retire()
        self._notify()

    def _remove(self, child: ChildProcess, how: str) -> None:
        self._ready.remove(child)
        self._living.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        for user in self._users:
            if child.owner is user:
                user.gone(child)
        if child.number in self._seats and self._users:
            planned = how in (STOPPED, RECYCLED)
            level = logging.INFO if planned else logging.WARNING
            logger.log(level, "child %d %s: it is replaced", child.number, how)
            self._notify()

    def _notify(self) -> None:
        for user in self._users:
            user.group_changed()

    # Callbacks of executor processes that are not lent. They hold no calls.

    def changed(self, child: ChildProcess) -> None: ...
    def withdrawn(self, attempts: Sequence[ProcessAttempt]) -> None: ...
    def check_at(self, at: float) -> None: ...
    def store_requested(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None: ...

    def reported(self, attempt: ProcessAttempt | None, frame: Frame) -> None:
        kind, _, level, body = frame
        if kind == frames.LOG:
            self._log_relay.relay(None, int(level), body)


class ChildPool:
    """Bounds the number of executor processes of all kinds together.

    A kind that has jobs gets those that other kinds have not used for a while: they are stopped,
    and it starts its own. A kind without any starts one when it has a job, even above the bound, so
    that no kind waits for another one to end its jobs. As long as the bound is exceeded, kinds with
    several give some up between two jobs.

    :param most: maximum number of executor processes; None: ``cores``, or the greatest concurrency
        of a queue if that is more.
    """

    def __init__(self, most: int | None, cores: int = 1) -> None:
        self._most = most
        self._cores = cores
        self._groups: dict[ChildKind, ChildGroup] = {}
        #: Numbers of the executor processes, which identify them in messages.
        self.numbers: Iterator[int] = itertools.count(1)

    @property
    def most(self) -> int:
        """Maximum number of executor processes."""
        if self._most is not None:
            return self._most
        return max([self._cores, *(group.greatest for group in self._groups.values())])

    def group(self, kind: ChildKind) -> ChildGroup:
        """The executor processes of a kind."""
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = ChildGroup(kind, self)
        return group

    def remove(self, kind: ChildKind) -> None:
        """Forget the group of a kind without queues."""
        del self._groups[kind]

    @property
    def _size(self) -> int:
        return sum(group.size for group in self._groups.values())

    @property
    def free(self) -> int:
        """Number of executor processes that may be started."""
        return max(0, self.most - self._size)

    @property
    def exceeded(self) -> bool:
        """Whether there are more executor processes than the bound."""
        return self._size > self.most

    def shrink(self) -> None:
        """Stop idle executor processes above the bound, which a queue that has gone may have
        lowered."""
        groups = self._groups.values()
        while self.exceeded and any(group.evict(at_once=True) for group in groups):
            pass

    def room_for(self, group: ChildGroup) -> int:
        """Number of executor processes that a group may start, if others are stopped for them."""
        evictable = sum(each.evictable for each in self._groups.values() if each is not group)
        return max(self.most - self._size + evictable, int(not group.size))

    def may_grow(self, group: ChildGroup) -> bool:
        """Whether a group may start one more executor process now. Idle ones of other kinds are
        stopped for it."""
        while not self.free and self.evict(group, at_once=False):
            pass
        if not self.free and not group.size:
            self.evict(group, at_once=True)
            return True
        return self.free > 0

    def evict(self, group: ChildGroup, *, at_once: bool) -> bool:
        """Stop an idle executor process of another kind; see `ChildGroup.evict`."""
        others = [each for each in self._groups.values() if each is not group]
        return any(other.evict(at_once=at_once) for other in others)
