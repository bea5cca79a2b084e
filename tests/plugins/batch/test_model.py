"""Batches match a pure model in random sequences of operations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chancy import Chancy, PushError, State
from chancy.clock import SystemClock
from chancy.plugins.batch import Batch, Batches, BatchReference, BatchState
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.outcomes import BatchJobOutcome, BatchOutcomes, BatchRef
from chancy.plugins.batch.pushing import Addition, BatchContext, transaction
from chancy.plugins.batch.sweep import BatchSweep
from tests.plugins.batch.jobs import act, said
from tests.support.presence import present

OUTCOMES = st.sampled_from([State.SUCCEEDED, State.SUCCEEDED, State.FAILED, State.CANCELLED])
#: The operations: jobs end, reported by their settlement or not; more are added, from outside or by
#: a job; the batch is closed, cancelled, swept; a failed job is replayed.
EVENTS = st.one_of(
    st.tuples(st.just("end"), st.integers(1, 8), st.lists(OUTCOMES, min_size=8, max_size=8)),
    st.tuples(st.just("untold"), st.integers(1, 3), st.lists(OUTCOMES, min_size=3, max_size=3)),
    st.tuples(st.sampled_from(["add", "add inside"]), st.integers(1, 6)),
    st.tuples(st.sampled_from(["close", "cancel", "sweep", "twice"])),
    st.tuples(st.just("replay"), st.integers(0, 5), OUTCOMES),
)


@dataclass
class Model:
    """The expected batch: its jobs with their states, 0 for jobs that have not ended."""

    open: bool
    stopped: bool = False
    state: int = 1
    jobs: dict[UUID, int] = field(default_factory=dict[UUID, int])
    #: Jobs whose outcome is not reported.
    untold: dict[UUID, int] = field(default_factory=dict[UUID, int])
    pushed: list[str] = field(default_factory=list[str])

    def end(self, job: UUID, state: int) -> None:
        if self.jobs[job] == 0:
            self.jobs[job] = state
            if state == 5 and "failure" not in self.pushed:
                self.pushed.append("failure")

    def look(self) -> None:
        """What follows."""
        found = list(self.jobs.values())
        if self.open or 0 in found or self.state not in (1, 5):
            return
        if 5 not in found and 6 not in found and (found or not self.stopped):
            self.state = 4
            self.pushed.append("success")
        elif self.state == 1:
            self.state = 6 if 5 not in found or (self.stopped and 6 in found) else 5
        if "finish" not in self.pushed:
            self.pushed.append("finish")

    def living(self) -> list[UUID]:
        return sorted(job for job, s in self.jobs.items() if s == 0 and job not in self.untold)


FINISH = """
with gone as (delete from chancy.jobs where id = any (%s) returning *)
insert into chancy.finished_jobs
  (id, pos, state, queue, priority, func, attempt, max_attempts, crashes, pushed_at)
select g.id, g.pos, s.state, g.queue, g.priority, g.func, 1, 1, 0, g.pushed_at
from gone g join unnest(%s::uuid[], %s::smallint[]) as s (id, state) on s.id = g.id
"""


class Life:
    """A batch in the database, and the model of it."""

    def __init__(
        self,
        chancy: Chancy,
        batches: Batches,
        reference: BatchReference,
        connection: psycopg.Connection,
        *,
        may_grow: bool,
    ) -> None:
        self.chancy = chancy
        self.batches = batches
        self.reference = reference
        self.connection = connection
        self.calls = BatchCalls(chancy.broker)
        self.sweep = BatchSweep(chancy.broker, SystemClock(), BatchOutcomes(), keep_days=None)
        self.model = Model(open=may_grow)
        self.told: list[BatchJobOutcome] = []
        #: Failed jobs, and replays of them that have failed, each with the job that it began with.
        self.letters: list[tuple[UUID, UUID]] = []

    def took(self) -> None:
        """Add the pushed jobs to the model."""
        sql = "select job_id from chancy.batches_jobs where batch_id = %s and state <> 7"
        for (job,) in self.connection.execute(sql, [self.reference.id]):
            self.model.jobs.setdefault(job, 0)

    async def end(self, outcomes: list[State], *, told: bool) -> None:
        ends = dict(zip(self.model.living(), map(int, outcomes), strict=False))
        self.connection.execute(FINISH, [list(ends), list(ends), list(ends.values())])
        if told:
            place = BatchRef(self.reference.id, None)
            self.told = [BatchJobOutcome(place, job, state) for job, state in ends.items()]
            await self.calls.report(self.told)
            self.ended(ends)
        else:
            self.model.untold.update(ends)

    def ended(self, ends: dict[UUID, int]) -> None:
        for job, state in ends.items():
            self.model.end(job, state)
            if state == State.FAILED:
                self.letters.append((job, job))
        self.model.look()

    async def add(self, count: int) -> None:
        jobs = [act.job(n) for n in range(count)]
        try:
            await self.reference.add(jobs)
        except PushError:
            assert not self.model.open
        else:
            assert self.model.open
        self.took()

    async def add_inside(self, count: int) -> None:
        living = self.model.living()
        if not living:
            return
        lease, job = uuid4(), living[0]
        change = "update chancy.jobs set state = %s, lease = %s where id = %s"
        self.connection.execute(change, [1, lease, job])
        here = BatchContext(batch=self.reference.id, job=job, lease=lease)
        jobs = [act.job(n) for n in range(count)]
        addition = Addition(self.reference.id, here, jobs)
        try:
            async with transaction(self.chancy, None, validate=True) as tx:
                assert await addition.add(tx) == count
        except PushError:
            assert self.model.stopped
        else:
            assert not self.model.stopped
        self.connection.execute(change, [0, None, job])
        self.took()

    async def replay(self, which: int, outcome: State) -> None:
        if not self.letters:
            return
        letter, root = self.letters[which % len(self.letters)]
        job = uuid4()
        await self.calls.report(
            [BatchJobOutcome(BatchRef(self.reference.id, letter), job, int(outcome))]
        )
        if outcome is State.SUCCEEDED:
            self.model.jobs[root] = 4
            self.model.look()
        elif self.model.jobs[root] == 5:
            self.letters.append((job, root))

    async def close(self) -> None:
        assert await self.reference.close() is (self.model.state == 1)
        self.model.open = False
        self.model.look()

    async def cancel(self) -> None:
        runs = self.model.state == 1
        living = self.model.living() if runs else []
        assert await self.reference.cancel() is runs
        if runs:
            self.model.open, self.model.stopped = False, True
            self.ended(dict.fromkeys(living, 6))

    async def swept(self) -> None:
        assert await self.sweep.turn() == len(self.model.untold)
        untold, self.model.untold = self.model.untold, {}
        self.ended(untold)

    async def check(self) -> None:
        found = present(await self.reference.get())
        states = list(self.model.jobs.values())
        progress = found.progress
        counts = (progress.pending, progress.succeeded, progress.failed, progress.cancelled)
        assert counts == tuple(map(states.count, (0, 4, 5, 6)))
        assert (found.state, found.open) == (self.model.state, self.model.open)
        callbacks = [one for one in await self.reference.callbacks() if one.pushed_at]
        assert sorted(one.on.label for one in callbacks) == sorted(self.model.pushed)
        sql = "select count(*) from chancy.jobs where meta -> 'batch' ->> 'of' = %s"
        assert self.connection.execute(sql, [str(self.reference.id)]).fetchall() == [
            (len(self.model.pushed),)
        ]


async def happen(life: Life, event: tuple[object, ...]) -> None:
    match event:
        case ("end" | "untold" as how, int(count), list(outcomes)):
            await life.end(outcomes[:count], told=how == "end")
        case ("add", int(count)):
            await life.add(count)
        case ("add inside", int(count)):
            await life.add_inside(count)
        case ("close",):
            await life.close()
        case ("cancel",):
            await life.cancel()
        case ("sweep",):
            await life.swept()
        case ("twice",):
            await life.calls.report(life.told)
        case ("replay", int(which), State() as outcome):
            await life.replay(which, outcome)
        case _:
            raise AssertionError(event)


async def live(dsn: str, size: int, may_grow: bool, events: list[tuple[object, ...]]) -> None:
    batches, to = Batches(), said.job("on")
    batch = Batch(name="b", on_success=to, on_failure=to, on_finish=to, open=may_grow)
    async with Chancy(dsn, plugins=[batches]) as chancy:
        with psycopg.connect(dsn, autocommit=True) as connection:
            reference = await batches.push(chancy, batch, [act.job(n) for n in range(size)])
            life = Life(chancy, batches, reference, connection, may_grow=may_grow)
            life.took()
            life.model.look()
            for event in (*events, ("close",), ("sweep",), ("end", 8, [State.SUCCEEDED] * 1_000)):
                await happen(life, event)
                await life.check()
            while life.model.living():
                await life.end([State.SUCCEEDED] * 50, told=True)
            await life.check()
            assert BatchState(life.model.state).final
            assert await reference.wait(5) == life.model.state
            connection.execute("truncate chancy.jobs")


@pytest.mark.parametrize("sharded", [pytest.param(False, marks=pytest.mark.chaos), True])
def test_batches_match_the_model(
    batches_dsn: str, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    if sharded:
        monkeypatch.setattr("chancy.plugins.batch.description.JOBS_A_SHARD", 2)

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 12), st.booleans(), st.lists(EVENTS, max_size=12))
    def run(size: int, may_grow: bool, events: list[tuple[object, ...]]) -> None:
        asyncio.run(live(batches_dsn, size, may_grow, events))

    run()
