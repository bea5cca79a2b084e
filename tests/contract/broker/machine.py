"""Random histories of a broker beside those of the model."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from hypothesis import strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.values import JobFilter
from chancy.job.ids import new_id
from chancy.queue.queue import Queue
from chancy.states import TRANSITIONS, State
from chancy.testing.conformance.bench import prepared, record
from tests.contract.broker.model import BEGAN, DAY, FOREVER_S, NEVER, Decision, Model

QUEUES = ("default", "other", "brief")
WORKERS = (0, 1)
Found = TypeVar("Found")

queue_names = strategies.sampled_from(QUEUES)
worker_names = strategies.sampled_from(WORKERS)
priorities = strategies.sampled_from((0, 0, 0, -7, 5))
limits = strategies.integers(1, 4)
#: Days from now until a job is due; None: at once, by saying nothing.
delays = strategies.sampled_from((None, -1, 1, 3, NEVER))
new_jobs = strategies.tuples(queue_names, priorities, delays)
picks = strategies.integers(0, 20)
decisions = strategies.builds(
    Decision,
    # What goes back makes the longer stories.
    state=strategies.sampled_from(
        [*sorted(TRANSITIONS[State.RUNNING]), *[State.SCHEDULED] * 4, *[State.PENDING] * 2]
    ),
    due=strategies.sampled_from((-9, -1, 1, 3, NEVER)),
    refund=strategies.booleans(),
    crashed=strategies.booleans(),
    failed=strategies.booleans(),
)


def chosen(among: Sequence[Found], pick: int) -> Found:
    """One of these, the last for 0."""
    return among[-1 - pick % len(among)]


class BrokerMachine(RuleBasedStateMachine):
    """Drives a broker and the model through one history.

    Rules take what they act on by number from what there is, so that most of them do something.
    """

    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(brief=frozenset({"brief"}))
        self.worker_ids = {worker: uuid.uuid4() for worker in WORKERS}
        self.dues = 0
        self.pushed: list[UUID] = []
        self.claims: list[Claim] = []
        self.settled: list[Settlement] = []
        self.broker = self.opened()

    def opened(self) -> Broker:
        """An open broker without jobs and workers."""
        raise NotImplementedError

    def ask(self, call: Coroutine[Any, Any, Found]) -> Found:
        return self.runner.run(call)

    def moment(self, due: int) -> datetime:
        """A moment of the model, for the store."""
        if due == NEVER:
            return datetime(9999, 1, 1, tzinfo=UTC)
        return BEGAN + timedelta(microseconds=due)

    def due(self, days: int) -> int:
        """So many days from now. No two are the same, so that their order is known."""
        self.dues += 1
        return NEVER if days == NEVER else self.model.now + days * DAY + self.dues

    @initialize()
    def prepare(self) -> None:
        for name in QUEUES:
            self.ask(self.broker.declare(Queue(name=name, keep_finished=name != "brief")))
        for worker in WORKERS:
            self.revive(worker)
        self.push([(queue, 0, None) for queue in QUEUES * 2])

    @rule(jobs=strategies.lists(new_jobs, min_size=1, max_size=4))
    def push(self, jobs: list[tuple[str, int, int | None]]) -> None:
        self.push_all([(new_id(), *job) for job in jobs])

    @precondition(lambda self: self.pushed)
    @rule(pick=picks, job=new_jobs)
    def push_again(self, pick: int, job: tuple[str, int, int | None]) -> None:
        job_id = chosen(self.pushed, pick)
        if job_id not in self.model.finished:
            self.push_all([(new_id(), *job), (job_id, *job)])

    def push_all(self, jobs: list[tuple[UUID, str, int, int | None]]) -> None:
        stored = []
        for job_id, queue, priority, delay in jobs:
            due = self.model.now if delay is None else self.due(delay)
            run_at = None if delay is None else self.moment(due)
            stored.append(prepared(job_id=job_id, queue=queue, priority=priority, run_at=run_at))
            self.model.push(job_id, queue, priority, due)
            self.pushed.append(job_id)
        self.ask(self.broker.push(stored))

    def claimable(self) -> list[tuple[int, str]]:
        sides = [(worker, queue) for worker in WORKERS for queue in QUEUES]
        return [side for side in sides if self.model.claimable(*side)]

    @precondition(lambda self: self.claimable())
    @rule(pick=picks, limit=limits)
    def claim(self, pick: int, limit: int) -> None:
        self.claim_thoroughly(*chosen(self.claimable(), pick), limit)

    @rule(worker=worker_names, queue=queue_names, limit=limits)
    def claim_thoroughly(self, worker: int, queue: str, limit: int) -> None:
        expected = self.model.claimable(worker, queue)[:limit]
        claims = self.claim_as(worker, queue, limit, thorough=True)
        assert [claim.id for claim in claims] == expected

    @precondition(lambda self: self.claimable())
    @rule(pick=picks)
    def claim_from_where_it_was(self, pick: int) -> None:
        """A claim that may overlook jobs, but takes none it may not take, and takes in order."""
        worker, queue = chosen(self.claimable(), pick)
        allowed = self.model.claimable(worker, queue)
        before = len(self.claims)
        taken = [c.id for c in self.claim_as(worker, queue, len(allowed), thorough=False)]
        assert taken == [job_id for job_id in allowed if job_id in taken]
        # How much it overlooks is a matter of time. The rest is taken too, so that the history
        # does not depend on it.
        self.claim_thoroughly(worker, queue, len(allowed))
        self.claims[before:] = sorted(self.claims[before:], key=lambda c: allowed.index(c.id))

    def claim_as(self, worker: int, queue: str, limit: int, *, thorough: bool) -> Sequence[Claim]:
        worker_id = self.worker_ids[worker]
        claims = self.ask(
            self.broker.claim(queue, worker_id=worker_id, limit=limit, thorough=thorough)
        )
        assert len({claim.lease for claim in claims}) <= 1
        for claim in claims:
            self.model.claim(claim.id, claim.lease, worker)
            job = self.model.live[claim.id]
            assert (claim.attempt, claim.crashes) == (job.attempt, job.crashes)
            assert claim.worker_id == worker_id
        self.claims += claims
        return claims

    def running(self) -> list[Claim]:
        return [
            claim
            for claim in self.claims
            if claim.id in self.model.live and self.model.live[claim.id].state is State.RUNNING
        ]

    @precondition(lambda self: self.running())
    @rule(batch=strategies.lists(strategies.tuples(picks, decisions), min_size=1, max_size=4))
    def settle(self, batch: list[tuple[int, Decision]]) -> None:
        """What runs now, and earlier attempts of the same jobs."""
        self.settle_all([(chosen(self.running(), pick), decision) for pick, decision in batch])

    @precondition(lambda self: self.claims)
    @rule(pick=picks, decision=decisions)
    def settle_late(self, pick: int, decision: Decision) -> None:
        """Any attempt of this history."""
        self.settle_all([(chosen(self.claims, pick), decision)])

    def settle_all(self, batch: Sequence[tuple[Claim, Decision]]) -> None:
        # One decision for each attempt: what two of them in one batch mean is not promised.
        batch = list(
            {(claim.id, claim.lease): (claim, decision) for claim, decision in batch}.values()
        )
        settlements: list[Settlement] = []
        stale: set[UUID] = set()
        good: set[UUID] = set()
        for claim, asked in batch:
            decision = replace(asked, due=self.due(asked.due))
            settlements.append(
                Settlement(
                    claim.id,
                    claim.lease,
                    decision.state,
                    run_at=self.moment(decision.due) if decision.state is State.SCHEDULED else None,
                    failure=Failure.named("shop.Oops", "oops") if decision.failed else None,
                    refund=decision.refund,
                    crashed=decision.crashed,
                )
            )
            accepted = self.model.settle(claim.id, claim.lease, decision)
            (good if accepted else stale).add(claim.id)
        found = self.ask(self.broker.settle(settlements))
        # An id of which one attempt is stale and another good may be reported either way.
        assert found - good == stale - good
        self.settled += settlements

    @precondition(lambda self: self.settled)
    @rule(pick=picks)
    def settle_again(self, pick: int) -> None:
        settlement = chosen(self.settled, pick)
        good = self.model.knows(settlement.id, settlement.lease)
        stale = self.ask(self.broker.settle([settlement]))
        assert (settlement.id not in stale) is good

    @precondition(lambda self: self.pushed)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        job_id = chosen(self.pushed, pick)
        expected = self.model.cancel(job_id)
        assert self.ask(self.broker.cancel([job_id])) == {job_id: expected}

    @precondition(lambda self: self.model.due_in_order())
    @rule(limit=limits)
    def promote(self, limit: int) -> None:
        expected = self.model.promote(limit)
        promotion = self.ask(self.broker.promote(limit))
        assert promotion.promoted == expected
        waiting = any(job.state is State.SCHEDULED for job in self.model.live.values())
        assert (promotion.next_due_s is not None) is waiting

    @rule(queue=queue_names, act=strategies.sampled_from(("pause", "resume", "declare")))
    def steer(self, queue: str, act: str) -> None:
        match act:
            case "pause":
                assert self.ask(self.broker.pause(queue))
                self.model.paused.add(queue)
            case "resume":
                assert self.ask(self.broker.resume(queue))
                self.model.paused.discard(queue)
            case _:
                declared = Queue(name=queue, keep_finished=queue != "brief", concurrency=3)
                stands = self.ask(self.broker.declare(declared, upsert=True))
                assert stands.paused is (queue in self.model.paused)

    @precondition(lambda self: self.model.workers)
    @rule(pick=picks, everybody=strategies.booleans())
    def bury(self, pick: int, everybody: bool) -> None:
        if everybody:
            self.model.workers.clear()
            self.check_orphans(heartbeat_age_s=-1.0)
        else:
            worker = chosen(sorted(self.model.workers), pick)
            self.ask(self.broker.unregister(self.worker_ids[worker]))
            self.model.workers.discard(worker)

    @precondition(lambda self: len(self.model.workers) < len(WORKERS))
    @rule(worker=worker_names)
    def revive(self, worker: int) -> None:
        self.ask(self.broker.register(record(self.worker_ids[worker])))
        self.model.workers.add(worker)

    @precondition(lambda self: self.model.orphans())
    @rule()
    def rescue(self) -> None:
        lost = Decision(State.PENDING, refund=True, crashed=True, failed=True)
        self.settle_all([(claim, lost) for claim in self.check_orphans(heartbeat_age_s=FOREVER_S)])

    def check_orphans(self, *, heartbeat_age_s: float) -> Sequence[Claim]:
        orphans = self.ask(self.broker.orphans(heartbeat_age_s=heartbeat_age_s, limit=1_000))
        assert {claim.id for claim in orphans} == self.model.orphans()
        return orphans

    @invariant()
    def tells_the_same_story(self) -> None:
        expected = self.model.jobs()
        found = self.ask(self.broker.get(list(expected)))
        assert {
            job_id: (job.state, job.attempt, job.crashes, len(job.errors), job.queue, job.priority)
            for job_id, job in found.items()
        } == {
            job_id: (job.state, job.attempt, job.crashes, job.errors, job.queue, job.priority)
            for job_id, job in expected.items()
        }
        for job_id, job in found.items():
            assert (job.stop_asked_at is not None) >= expected[job_id].stop
            assert (job.finished_at is not None) is job.state.final
        counts = self.ask(self.broker.counts())
        # Brokers differ in whether they count held jobs of plugins.
        assert {
            queue: tuple(numbers)[:3] for queue, numbers in counts.items() if any(numbers[:3])
        } == self.model.counts()

    def teardown(self) -> None:
        listed = self.ask(self.broker.find(JobFilter(limit=1_000)))
        assert [job.id for job in listed] == sorted(self.model.jobs(), reverse=True)
