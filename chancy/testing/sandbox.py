"""An application without its database: tests inspect pushed jobs, and run them on demand.

async with Sandbox(chancy) as sandbox:
    await place_order(7)                      # your code, which pushes jobs
    sandbox.assert_pushed(send, to="ann@example.com")
    await sandbox.drain()                     # runs due jobs, in this process
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Self, TypeVar
from uuid import UUID

from pydantic_core import to_jsonable_python

from chancy.app.app import Chancy
from chancy.app.wiring import Substitute
from chancy.attempt.claim import Claim
from chancy.broker.values import WorkerRecord
from chancy.errors import JobError, WaitTimeout
from chancy.job.definition import BIND, DECORATED, QueuedJob, path_of
from chancy.postgres.within import run_blocking
from chancy.queue.queue import Queue
from chancy.results.reference import result_of
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.inprocess import InProcessRunner
from chancy.testing.memory import MemoryBroker
from chancy.testing.substitute import SandboxBroker, SandboxSyncBroker, SandboxWaiter
from chancy.testing.threads import run

T = TypeVar("T")

#: The jobs that the drain of this context has finished; None outside of drains.
_WITHIN: ContextVar[list[QueuedJob] | None] = ContextVar("chancy_sandbox_drain", default=None)

#: The default limit of attempts of one drain: jobs that push each other forever must not hang it.
MAX_ATTEMPTS = 10_000


class Sandbox:
    """Replaces an application's database in a test, for async and sync calls alike.

    Jobs run only in `drain`, or when the test waits for a result: in this process, one after the
    other, by the executor of their queue; see `chancy.testing.inprocess`. Hooks of plugins judge
    and wrap them, but services of plugins do not run, and there are no tables: calls that need
    tables raise `ConfigurationError`. Time stands still until ``clock.advance``.

    :param chancy: the application that the code under test uses.
    :param inline: run each job as soon as it is pushed.
    """

    def __init__(self, chancy: Chancy, *, inline: bool = False) -> None:
        self.chancy = chancy
        self.clock = ManualClock()
        self.inline = inline
        self.broker = SandboxBroker(self.clock, self._after_push)
        self._runner = InProcessRunner(chancy, self.broker, self.clock)
        self._worker_id = uuid.uuid4()
        self._draining: asyncio.Future[None] | None = None
        self._stack = ExitStack()

    # Start and stop

    def __enter__(self) -> Self:
        self._stack.enter_context(
            self.chancy.replaced(
                Substitute(
                    broker=self.broker,
                    clock=self.clock,
                    finishes=SandboxWaiter(self._finish),
                    sync=SandboxSyncBroker(self.broker, self._finish),
                    transaction=self.broker.transaction,
                )
            )
        )
        record = WorkerRecord(
            id=self._worker_id, host="sandbox", pid=0, tags=frozenset({"*"}), queues=(), version=""
        )
        run_blocking(self.broker.register(record))
        for queue in self.chancy.queues:
            run_blocking(self.broker.declare(queue))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    # Pushed jobs

    @property
    def pushed(self) -> Sequence[QueuedJob]:
        """All pushed jobs in their current state, in push order, including finished ones."""
        rows = self.broker.store.finished | self.broker.store.live
        return [rows[id].as_job() for id in self.broker.order if id in rows]

    def find(self, func: Callable[..., Any] | str, /, **arguments: Any) -> Sequence[QueuedJob]:
        """The jobs of a function (decorated or not), of a task of Django or of a path that have at
        least these arguments."""
        path = _path(func)
        wanted = to_jsonable_python(arguments, fallback=repr)
        return [job for job in self.pushed if job.func == path and _within(wanted, _named(job))]

    def assert_pushed(
        self, func: Callable[..., Any] | str, /, *, times: int | None = None, **arguments: Any
    ) -> QueuedJob:
        """Fail unless such a job was pushed, `times` times if given. Returns the last one."""
        found = self.find(func, **arguments)
        if not found or times not in (None, len(found)):
            path = _path(func)
            wanted = "at least once" if times is None else f"{times} times"
            raise AssertionError(
                f"{_shown(path, arguments)} should have been pushed {wanted}, and was pushed "
                f"{len(found)} times. Pushed jobs: {self._listed()}"
            )
        return found[-1]

    def assert_not_pushed(self, func: Callable[..., Any] | str, /, **arguments: Any) -> None:
        """Fail if such a job was pushed."""
        found = self.find(func, **arguments)
        if found:
            job = found[0]
            raise AssertionError(
                f"{_shown(job.func, job.arguments or {})} was pushed, and should not have been"
            )

    def _listed(self) -> str:
        calls = [_shown(job.func, job.arguments or {}) for job in self.pushed[:20]]
        rest = len(self.pushed) - len(calls)
        return (", ".join(calls) or "nothing") + (f" and {rest} more" if rest else "")

    # Running

    async def drain(
        self, *, ahead: timedelta | float = 0.0, raises: bool = True, attempts: int = MAX_ATTEMPTS
    ) -> Sequence[QueuedJob]:
        """Run due jobs, and the jobs they push, until none is due. Jobs of paused queues wait.

        :param ahead: also run jobs, including retries, that become due within this time (seconds or
            a timedelta); the clock advances by it.
        :param raises: raise `JobFailed` for the first job that failed for good.
        :param attempts: the maximum number of attempts; if there are more, `JobError` is raised.
        :returns: the jobs that finished, in that order.
        """
        seconds = ahead.total_seconds() if isinstance(ahead, timedelta) else ahead
        # Drains run one after the other, unless a job of a drain starts one.
        outer = _WITHIN.get()
        while self._draining is not None and outer is None:
            await asyncio.wait([self._draining])
        before, self._draining = self._draining, asyncio.get_running_loop().create_future()
        finished: list[QueuedJob] = []
        within = _WITHIN.set(finished)
        try:
            await self._drain(self.clock.monotonic() + seconds, attempts, finished)
        finally:
            _WITHIN.reset(within)
            if outer is not None:
                outer += finished
            self._draining.set_result(None)
            self._draining = before
        if raises:
            for job in finished:
                if job.state is State.FAILED:
                    result_of(job)
        return finished

    def sync_drain(
        self, *, ahead: timedelta | float = 0.0, raises: bool = True, attempts: int = MAX_ATTEMPTS
    ) -> Sequence[QueuedJob]:
        """`drain` for tests without an event loop.

        :raises JobError: an event loop is running in this thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run(self.drain(ahead=ahead, raises=raises, attempts=attempts))
        raise JobError("sync_drain() was called in an event loop: use `await sandbox.drain()`")

    async def _drain(self, until: float, attempts: int, finished: list[QueuedJob]) -> None:
        while True:
            claims = await self._claims()
            if not claims and not await self._move_on(until):
                return
            for claim in claims:
                if attempts <= 0:
                    raise JobError(
                        "drain() reached its limit of attempts: jobs push each other or retry at "
                        "once without end; pass attempts= if there are really so many"
                    )
                attempts -= 1
                finished += await self._run(claim)

    async def _claims(self) -> Sequence[Claim]:
        await self.broker.promote(MAX_ATTEMPTS)
        for queue in sorted(await self.broker.counts()):
            claims = await self.broker.claim(queue, worker_id=self._worker_id, limit=1)
            if claims:
                return claims
        return []

    async def _run(self, claim: Claim) -> Sequence[QueuedJob]:
        queue = self.broker.store.queues.get(claim.queue) or Queue(name=claim.queue)
        await self._runner.run(claim, queue)
        found = (await self.broker.get([claim.id])).get(claim.id)
        return [found] if found is not None and found.state.final else []

    async def _move_on(self, until: float) -> bool:
        """Advance the clock to the next scheduled job, if it is due before a time."""
        due_s = (await self.broker.promote(0)).next_due_s
        if due_s is None or self.clock.monotonic() + due_s > until:
            self.clock.advance(max(0.0, until - self.clock.monotonic()))
            return False
        self.clock.advance(due_s)
        return True

    # Faults

    def fail_next(self, call: str, *errors: Exception) -> None:
        """Make the next calls of a method of the broker (``push``, ``get``, ``cancel`` …) raise
        these errors, one each, without any effect."""
        if not callable(getattr(MemoryBroker, call, None)):
            raise JobError(f"a broker has no call {call!r}")
        self.broker.faults.setdefault(call, []).extend(errors)

    # For the substitutes

    async def _after_push(self) -> None:
        if self.inline and _WITHIN.get() is None:
            await self.drain()

    async def _finish(self, id: UUID) -> QueuedJob:
        """Run due jobs, and return a job that has then finished."""
        await self.drain(raises=False)
        found = (await self.broker.get([id])).get(id)
        if found is None or not found.state.final:
            state = "not there" if found is None else found.state.label
            raise WaitTimeout(
                f"job {id} is {state}: all due jobs have run in this sandbox; pass "
                "drain(ahead=…) to run scheduled ones"
            )
        return found


def _path(func: Callable[..., Any] | str) -> str:
    if isinstance(func, str):
        return func
    of_task: str | None = getattr(func, "module_path", None)
    return of_task or path_of(func)


def _named(job: QueuedJob) -> Mapping[str, Any]:
    """The arguments of a job by name, also those of a task of Django, which have names only when
    they are bound to its function."""
    stored = job.arguments or {}
    bind = getattr(DECORATED.get(job.func), BIND, None)
    return stored if bind is None else {**stored, **to_jsonable_python(bind(**stored))}


def _within(wanted: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    return all(name in arguments and arguments[name] == value for name, value in wanted.items())


def _shown(path: str, arguments: Mapping[str, Any]) -> str:
    return f"{path}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
