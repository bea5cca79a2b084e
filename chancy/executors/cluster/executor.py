"""The executor of queues whose jobs run on a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, NamedTuple, Protocol, assert_never
from uuid import uuid4

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Lost, Outcome, Released
from chancy.clock import is_being_cancelled
from chancy.context.host import Progress
from chancy.executors.cluster.messages import (
    CheckpointStored,
    CompletionBegun,
    HostedCall,
    HostMessage,
    HostReady,
    ProgressReported,
    RecordLogged,
    StartRun,
    StillWanted,
    StopRun,
    StoreRequested,
    WorkerMessage,
)
from chancy.executors.imports import load, refused
from chancy.executors.process.answer import encode_error
from chancy.executors.process.logs import LogRelay, log_levels
from chancy.executors.setup import ExecutorSetup
from chancy.queue.executor_options import ClusterOptions, ProcessOptions

logger = logging.getLogger("chancy.executors.cluster")

#: Arguments with more characters are passed by reference.
MAX_INLINE = 64 * 1024
#: Seconds between two checks of the cluster, and between two messages to a running job. At least
#: four fit into ``contact_timeout_s``.
_LOOK_S = 1.0
#: Seconds that a connection may take; and the longest pause between two attempts to connect.
_CONNECT_S = 10.0
_PAUSE_S = 15.0
#: Seconds that a host may take to report the end of a job that it was to stop, beyond the grace.
_STOP_S = 3.0
#: Seconds beyond ``contact_timeout_s`` until a job that its worker cannot reach has ended.
_MARGIN_S = 1.0
#: Seconds that a job waits for room in the cluster before it is released to any worker.
_PATIENCE_S = 60.0


class ClusterLost(Exception):
    """The connection to the cluster is lost, and with it all of its runs."""


class RunLost(Exception):
    """The process or the machine that ran an attempt is lost."""


class Room(NamedTuple):
    """The room in a cluster.

    :param jobs: jobs of this queue that can run at once, including the running ones.
    :param lacks: why it could run none even if it were idle; None if it could.
    """

    jobs: int
    lacks: str | None = None


class Cluster(Protocol):
    """A connection to a cluster. All methods may raise any exception."""

    async def connect(self, received: Callable[[bytes], None]) -> None:
        """Connect. ``received`` gets the messages of hosts, in this loop."""

    async def close(self) -> None:
        """Close the connection, whatever its state."""

    async def put(self, arguments: str) -> object:
        """Store arguments in the cluster. Returns a reference, which frees them when collected."""

    async def submit(self, call: HostedCall, arguments: object) -> Outcome:
        """Run `chancy.executors.cluster.hosting.host` in the cluster, once.

        If it is cancelled, the task is withdrawn; a host that has started is not stopped.

        :param arguments: what `put` returned, or None if they are part of the call.
        :raises ClusterLost:
        :raises RunLost:
        """
        ...

    async def send(self, run: str, place: str, message: WorkerMessage) -> None:
        """Send a message to the host of a run, at its place."""

    async def room(self, started: int) -> Room:
        """Look at the cluster.

        :param started: jobs of this queue that run there now.
        """
        ...


class ClusterAttempt:
    """An attempt that waits in the cluster or runs there.

    ``place``: where its host is; None until it has started.
    ``ends_at``: when it ends as interrupted although its host has not answered, by the loop's
    clock.
    """

    __slots__ = ("began", "claim", "ends_at", "future", "interruption", "place", "run", "task")

    def __init__(self, claim: Claim, future: asyncio.Future[Outcome], now: float) -> None:
        self.run = f"{claim.id}-{uuid4().hex[:8]}"
        self.claim = claim
        self.future = future
        self.began = now
        self.place: str | None = None
        self.interruption: Outcome | None = None
        self.ends_at: float | None = None
        self.task: asyncio.Task[None] | None = None

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome; the first one counts."""
        if not self.future.done():
            self.future.set_result(outcome)


class ClusterExecutor:
    """Submits jobs to a cluster, whose tasks host them, each in a process of its own.

    A lost host is a crash of its job. If the scheduler is lost, no job is at fault: those that have
    not started are released at once, and the others when their hosts have stopped them.

    :param connect_s: seconds that a connection may take.
    """

    def __init__(
        self, setup: ExecutorSetup, cluster: Cluster, *, connect_s: float = _CONNECT_S
    ) -> None:
        assert isinstance(setup.options, ClusterOptions)
        self._setup = setup
        self._options = setup.options
        self._cluster = cluster
        self._connect_s = connect_s
        self._log_relay = LogRelay()
        self._known: set[str] = set()
        self._broken: str | None = "it has not connected to the cluster yet"
        self._room = 0
        # By identity of the claim, and by run.
        self._attempts: dict[int, ClusterAttempt] = {}
        self._runs: dict[str, ClusterAttempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Runs to which a message is under way.
        self._reminding: set[str] = set()
        #: Clear while it is connected.
        self._lost = asyncio.Event()
        self._lost.set()
        #: The next pause before it connects again; short once a job has run.
        self._pause_s = _LOOK_S
        self._look_s = min(_LOOK_S, self._options.contact_timeout_s / 4)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def slots(self) -> int:
        if self._broken is not None:
            return 0
        return min(self._setup.concurrency, self._room + self._options.ahead)

    @property
    def broken(self) -> str | None:
        return self._broken

    async def start(self) -> None:
        """Connect; returns once that has succeeded or failed."""
        tried = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(tried), name="chancy cluster")
        await tried.wait()

    async def stop(self) -> None:
        tasks = [*self._tasks, *([self._keeper] if self._keeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close()

    async def run(self, claim: Claim) -> Outcome:
        loop = asyncio.get_running_loop()
        try:
            if claim.func not in self._known:
                await load(claim.func, self._setup.find)
                self._known.add(claim.func)
        except BaseException as error:
            return refused(error, perf_counter())
        if self._lost.is_set():
            return Released(self._broken or "the cluster is lost")
        attempt = ClusterAttempt(claim, loop.create_future(), loop.time())
        self._attempts[id(claim)] = self._runs[attempt.run] = attempt
        attempt.task = self._spawn(self._submit(attempt))
        try:
            return await attempt.future
        except asyncio.CancelledError:
            self._interrupt(attempt, Released("its consumer was stopped"))
            raise
        finally:
            attempt.task.cancel()
            del self._attempts[id(claim)], self._runs[attempt.run]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        attempt = self._attempts.get(id(claim))
        if attempt is None or attempt.future.done():
            return False
        self._interrupt(attempt, outcome)
        return True

    def _interrupt(self, attempt: ClusterAttempt, outcome: Outcome) -> None:
        if attempt.place is None:
            attempt.finish(outcome)
            return
        attempt.interruption = attempt.interruption or outcome
        if self._lost.is_set():
            return  # its host stops it, because no messages arrive
        wait_s = _STOP_S + (0 if isinstance(outcome, Released) else self._options.grace_s)
        ends_at = asyncio.get_running_loop().time() + wait_s
        attempt.ends_at = ends_at if attempt.ends_at is None else min(ends_at, attempt.ends_at)
        self._send(attempt, StopRun(attempt.run, outcome))

    async def _submit(self, attempt: ClusterAttempt) -> None:
        claim, reference = attempt.claim, None
        loop = asyncio.get_running_loop()
        outcome: Outcome
        try:
            if claim.arguments is not None and len(claim.arguments) > MAX_INLINE:
                reference = await self._cluster.put(claim.arguments)
                claim = claim._replace(arguments=None)
            outcome = await self._cluster.submit(self._call(attempt.run, claim), reference)
            self._pause_s = _LOOK_S
        except ClusterLost as error:
            self._lose(str(error))
            return
        except RunLost as error:
            outcome = Released(str(error))
            if attempt.place is not None:
                lost = Lost(f"{error}, on {attempt.place}", loop.time() - attempt.began)
                outcome = attempt.interruption or lost
        except Exception as error:
            # Of the library, or of the import of chancy in the cluster: no job's fault.
            logger.exception("cluster_refused job=%s func=%s", claim.id, claim.func)
            self._lose(f"the cluster cannot run jobs: {type(error).__name__}: {error}")
            return
        attempt.finish(outcome)

    def _call(self, run: str, claim: Claim) -> HostedCall:
        options = self._options
        return HostedCall(
            run=run,
            claim=claim,
            limits=self._setup.limits,
            contact_timeout_s=options.contact_timeout_s,
            kind=self._setup.child_kind(ProcessOptions(grace_s=options.grace_s), log_levels()),
        )

    # The connection

    async def _keep(self, tried: asyncio.Event) -> None:
        """Stay connected, and check the cluster at intervals."""
        while True:
            try:
                await self._close()
                async with asyncio.timeout(self._connect_s):
                    await self._cluster.connect(self._received)
                self._lost.clear()
                while not self._lost.is_set():
                    await self._look()
                    tried.set()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._lost.wait(), self._look_s)
            except TimeoutError:
                self._lose("the cluster cannot be reached: it has not answered in time")
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                self._lose(f"the cluster cannot be reached: {type(error).__name__}: {error}")
            tried.set()
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _PAUSE_S)

    async def _close(self) -> None:
        self._lost.set()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._cluster.close()
        except Exception as error:
            logger.info("cluster_close_failed error=%s: %s", type(error).__name__, error)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for attempt in list(self._runs.values()):
            if attempt.place is not None and attempt.run not in self._reminding:
                self._reminding.add(attempt.run)
                self._send(attempt, StillWanted(attempt.run))
            elif attempt.place is None and loop.time() > attempt.began + _PATIENCE_S:
                attempt.finish(Released("the cluster has had no room for it"))
            if attempt.ends_at is not None and loop.time() >= attempt.ends_at:
                attempt.finish(attempt.interruption or Released("it was stopped"))
        started = sum(attempt.place is not None for attempt in self._runs.values())
        async with asyncio.timeout(self._options.contact_timeout_s):
            room = await self._cluster.room(started)
        if not self._lost.is_set():
            self._room = room.jobs
            self._broken = None if self._options.scales else room.lacks

    def _lose(self, why: str) -> None:
        """Note that the cluster is lost: it runs nothing until it is connected again."""
        self._broken = why
        if self._lost.is_set():
            return
        self._lost.set()
        logger.warning("cluster_lost jobs=%d why=%s", len(self._runs), why)
        loop = asyncio.get_running_loop()
        for attempt in list(self._runs.values()):
            outcome = attempt.interruption or Released(why)
            if attempt.place is None:
                attempt.finish(outcome)
            else:
                loop.call_later(
                    self._options.contact_timeout_s + _MARGIN_S, attempt.finish, outcome
                )

    # Messages

    def _send(self, attempt: ClusterAttempt, message: WorkerMessage) -> None:
        assert attempt.place is not None
        self._spawn(self._sent(attempt.run, attempt.place, message))

    async def _sent(self, run: str, place: str, message: WorkerMessage) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._cluster.send(run, place, message)
        except Exception:  # noqa: S110  a host that is lost ends by itself, and so does the run
            pass
        finally:
            if isinstance(message, StillWanted):
                self._reminding.discard(run)

    def _received(self, data: bytes) -> None:
        """Handle a message of a host. Never raises."""
        try:
            message: HostMessage = pickle.loads(data)
            attempt = self._runs.get(message.run)
            if attempt is None or attempt.future.done():
                if isinstance(message, HostReady):
                    stop = StopRun(message.run, Released("it is no longer wanted"))
                    self._spawn(self._sent(message.run, message.place, stop))
            else:
                self._handle(attempt, message)
        except Exception:
            logger.exception("report_failed")

    def _handle(self, attempt: ClusterAttempt, message: HostMessage) -> None:
        claim, callbacks = attempt.claim, self._setup.callbacks
        match message:
            case HostReady(_, place):
                self._start(attempt, place)
            case ProgressReported(_, fraction, text):
                callbacks.report(claim, Progress(fraction, text))
            case StoreRequested(_, number, meta):
                self._spawn(self._store(attempt, number, meta))
            case CompletionBegun():
                callbacks.completing(claim)
            case RecordLogged(_, level, body):
                self._log_relay.relay(claim, level, body)
            case _:
                assert_never(message)

    def _start(self, attempt: ClusterAttempt, place: str) -> None:
        """Let a host start its job, unless the job has run elsewhere before."""
        if attempt.place is None:
            attempt.place = place
            attempt.began = asyncio.get_running_loop().time()
            self._send(attempt, StartRun(attempt.run))
            return
        # The cluster has taken the first machine out of service, and runs the task again.
        left = Released(f"the cluster runs it again on {place}, after {attempt.place}")
        self._interrupt(attempt, left)
        attempt.place = place
        self._interrupt(attempt, left)

    async def _store(self, attempt: ClusterAttempt, number: int, meta: str) -> None:
        error: BaseException | None = None
        try:
            await self._setup.callbacks.store(attempt.claim, meta)
        except Exception as raised_error:
            error = raised_error
        self._send(attempt, CheckpointStored(attempt.run, number, encode_error(error)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="chancy cluster run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
