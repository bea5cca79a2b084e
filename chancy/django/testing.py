"""Runs jobs in tests: in the test's thread, on its connection, in its transaction.

class OrderTest(TestCase):
    def test_an_order_sends_a_mail(self):
        self.client.post("/orders", {"item": "tea"})
        [done] = run_jobs()
        self.assertEqual(len(mail.outbox), 1)
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from time import perf_counter
from typing import Any, Self

from asgiref.sync import async_to_sync
from django.db import connections
from django.db.transaction import Atomic
from psycopg.pq import TransactionStatus

from chancy.app.app import Chancy
from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Raised
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.values import WorkerRecord
from chancy.context.context import CURRENT, JobContext, Progress
from chancy.context.host import AttemptInfo, CompletionRef
from chancy.django.connection_broker import ConnectionBroker
from chancy.django.current import app, calls
from chancy.django.models import FiledLetter, FinishedJob, UnfinishedJob
from chancy.errors import JobError, LeaseLost
from chancy.executors.batches import split
from chancy.executors.invocation import Callee, awaited, called_here, callee, raised, returned
from chancy.job.batching import Batching
from chancy.job.definition import QueuedJob
from chancy.postgres.settle.plugin_writes import PluginTransaction
from chancy.postgres.within import run_blocking
from chancy.results.reference import result_of
from chancy.serialization.annotations import BATCHING
from chancy.states import State

#: The default limit of attempts: jobs that push each other for ever must not hang a test.
MAX_ATTEMPTS = 10_000
_COMPLETION = "chancy.postgres.settle.completion.PostgresCompletion"


def run_jobs(
    *, scheduled: bool = False, raises: bool = True, attempts: int = MAX_ATTEMPTS
) -> Sequence[QueuedJob]:
    """Run the due jobs and the jobs that they push, until none is due.

    They run in this thread, one after the other, on Django's connection: in a ``TestCase`` they see
    the rows that the test has written, and are rolled back with them. Coroutine functions run in
    ``async_to_sync``. Retries, checkpoints, unique keys and dead letters work as in a worker. Time
    limits and the hooks `around` and `serve` of plugins do not apply. Jobs of paused queues wait.

    :param scheduled: also run scheduled jobs, retries among them, without waiting for their time.
    :param raises: raise `JobFailed` if a job has failed for good.
    :param attempts: the most attempts to run.
    :returns: the jobs that finished, in the order of their ends.
    :raises JobError: there are more attempts than that.
    """
    finished: list[QueuedJob] = []
    with _TestRunner(app(), calls().broker) as runner:
        while claim := runner.claim(scheduled=scheduled):
            if not attempts:
                raise JobError("too many attempts: the jobs push each other without end")
            attempts -= 1
            done = runner.run(claim)
            if done is not None:
                finished.append(done)
                if raises and done.state is State.FAILED:
                    result_of(done)
    return finished


def delete_jobs() -> None:
    """Delete all jobs and dead letters, for `tearDown` of a ``TransactionTestCase``.

    Django flushes the tables of its own models only, so jobs that were committed would be those of
    the next test.
    """
    alias = calls().broker.alias
    for model in (UnfinishedJob, FinishedJob, FiledLetter):
        model.objects.using(alias).all().delete()


class _TestRunner:
    """Claims, runs and settles jobs on Django's connection."""

    def __init__(self, chancy: Chancy, broker: ConnectionBroker) -> None:
        self._chancy = chancy
        self._payloads = chancy.hooks.payloads
        self._broker = broker
        self._worker_id = uuid.uuid4()

    def __enter__(self) -> Self:
        record = WorkerRecord(
            id=self._worker_id, host="test", pid=0, tags=frozenset({"*"}), queues=(), version=""
        )
        run_blocking(self._broker.register(record))
        return self

    def __exit__(self, *_: object) -> None:
        run_blocking(self._broker.unregister(self._worker_id))

    def claim(self, *, scheduled: bool) -> Claim | None:
        """The next job; None if none is due."""
        return run_blocking(self._claim(scheduled=scheduled))

    async def _claim(self, *, scheduled: bool) -> Claim | None:
        broker = self._broker
        if scheduled:
            later = UnfinishedJob.objects.using(broker.alias).filter(state=State.SCHEDULED)
            await broker.run_now(list(later.values_list("id", flat=True)[:1_000]))
        await broker.promote(MAX_ATTEMPTS)
        for queue in sorted(await broker.counts()):
            for claim in await broker.claim(
                queue, worker_id=self._worker_id, limit=1, thorough=True, knows=lambda _: True
            ):
                return claim
        return None

    def run(self, claim: Claim) -> QueuedJob | None:
        """Run a job, and settle it; returns it if it is finished."""
        with self._savepoints():
            outcome = self._outcome(claim)
        if isinstance(outcome, Raised) and isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error  # Ctrl-C ends the test, not the job
        if self._payloads is not None:
            outcome = self._payloads.outcome(claim, outcome)
        settlement = self._chancy.hooks.judge(claim, outcome)
        with Atomic(self._broker.alias, savepoint=True, durable=False):
            run_blocking(self._settle(settlement))
        found = run_blocking(self._broker.get([claim.id])).get(claim.id)
        if found is None or not found.state.final:
            return None
        return found if self._payloads is None else self._payloads.job(found)

    @contextmanager
    def _savepoints(self) -> Generator[None]:
        """Undo a job whose error would break a transaction of the test, of any database."""
        with ExitStack() as stack:
            for connection in connections.all(initialized_only=True):
                if connection.in_atomic_block:
                    stack.enter_context(self._savepoint(connection))
            yield

    @contextmanager
    def _savepoint(self, connection: Any) -> Generator[None]:
        savepoint = connection.savepoint()
        yield
        status = None
        if connection.vendor == "postgresql":
            status = connection.connection.info.transaction_status
        if connection.needs_rollback or status is TransactionStatus.INERROR:
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
        else:
            connection.savepoint_commit(savepoint)

    async def _settle(self, settlement: Settlement) -> None:
        if await self._broker.settle([settlement]):
            return  # it has completed itself, or was cancelled
        session: Any = self._broker
        tx = PluginTransaction(session, self._broker.schema)
        for hook in self._chancy.hooks.inside(self._broker):
            if settlement.state in hook.states and (batch := hook.wanted([settlement])):
                await hook.write(tx, batch)

    def _outcome(self, claim: Claim) -> Outcome:
        began = perf_counter()
        try:
            if self._payloads is not None:
                claim = self._payloads.claim(claim)
            called = callee(claim.func, self._chancy.registry.find)
            arguments = called.signature.decode(claim.arguments)
            batching: Batching | None = getattr(called.function, BATCHING, None)
            items = None if batching is None else [len(arguments[batching.parameter])]
        except BaseException as error:
            return raised(error, began)
        outcome = self._called(called, arguments, claim, began)
        if items is not None:
            [outcome] = split(outcome, claim.func, items, self._chancy.max_payload)
        return outcome

    def _called(
        self, called: Callee, arguments: dict[str, Any], claim: Claim, began: float
    ) -> Outcome:
        context = copy_context()
        context.run(CURRENT.set, JobContext(claim, _TestHost(self._chancy, self._broker)))
        limit = self._chancy.max_payload
        value = called_here(called, arguments, context, limit)
        if not isinstance(value, Awaitable):
            return value
        try:
            result = context.run(async_to_sync(awaited), value)
        except BaseException as error:
            return raised(error, began)
        return returned(called, result, limit, began)


class _TestHost:
    """Stores checkpoints and progress of a running job; see `chancy.context.host.AttemptHost`."""

    def __init__(self, chancy: Chancy, broker: ConnectionBroker) -> None:
        self.max_payload = chancy.max_payload
        self._payloads = chancy.hooks.payloads
        self.completion = CompletionRef(_COMPLETION, broker.schema)
        self._broker = broker

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        note = {"fraction": progress.fraction, "text": progress.text, "attempt": attempt.attempt}
        self.keep(attempt, json.dumps({"progress": note}))

    def keep(self, attempt: AttemptInfo, meta: str) -> _Written:
        if self._payloads is not None:
            meta = self._payloads.meta(attempt.func, meta)
        note = Note(attempt.id, attempt.lease, meta)
        stale = run_blocking(self._broker.update_meta([note]))
        return _Written(LeaseLost(f"job {attempt.id} has ended") if stale else None)

    def completing(self, attempt: AttemptInfo) -> None:
        """Ignored: nothing else writes to the job."""


class _Written:
    """A write that has happened; see `chancy.context.host.PendingWrite`."""

    def __init__(self, error: LeaseLost | None) -> None:
        self._error = error

    def wait(self, check: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error

    def __await__(self) -> Generator[Any, Any, None]:
        self.wait(lambda: None)
        yield from ()
