"""Why a job stands where it stands."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chancy.app.diagnosis import Why, diagnose
from chancy.attempt.failure import Failure
from chancy.broker.values import QueuePosition, WorkerRecord
from chancy.job.definition import QueuedJob
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.memory import MemoryBroker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def bench(clock: ManualClock) -> Bench:
    made = Bench(MemoryBroker(clock=clock))
    await made.broker.declare(Queue(name="default", executor="async"))
    return made


def worker(*queues: str, **more: object) -> WorkerRecord:
    known = WorkerRecord(
        id=uuid.uuid4(), host="here", pid=7, tags=frozenset({"*"}), queues=queues, version="1"
    )
    return replace(known, **more)  # type: ignore[arg-type]


async def said(bench: Bench, id: uuid.UUID) -> tuple[list[Why], str]:
    found = await diagnose(bench.broker, id)
    return [reason.why for reason in found], " / ".join(reason.text for reason in found)


async def test_a_job_that_is_not_there(bench: Bench) -> None:
    why, text = await said(bench, uuid.uuid4())
    assert why == [Why.NOT_THERE]
    assert "its push has not committed" in text


async def test_a_queue_that_is_not_declared(bench: Bench) -> None:
    [id] = await bench.push(prepared(queue="nowhere"))
    why, text = await said(bench, id)
    assert why == [Why.NOT_DECLARED]
    assert "the queue 'nowhere' is not declared" in text


async def test_no_worker_runs(bench: Bench) -> None:
    [id] = await bench.push(prepared())
    assert (await said(bench, id))[0] == [Why.NO_WORKERS]


async def test_a_paused_queue(bench: Bench) -> None:
    await bench.broker.register(worker("default"))
    [id] = await bench.push(prepared())
    until = datetime(2030, 1, 2, tzinfo=UTC)
    await bench.broker.pause("default", resume_at=until)
    why, text = await said(bench, id)
    assert why == [Why.PAUSED]
    assert "until 2030-01-02 00:00:00Z" in text


async def test_tags_that_no_worker_has(bench: Bench) -> None:
    await bench.broker.declare(
        Queue(name="default", tags=frozenset({"has=gpu", r"os=.*"})), upsert=True
    )
    await bench.broker.register(worker(tags=frozenset({"*", "os=linux"})))
    [id] = await bench.push(prepared())
    why, text = await said(bench, id)
    assert why == [Why.NOT_SERVED]
    assert "none of its tags matches 'has=gpu'" in text
    assert "os=" not in text


async def test_a_queue_that_is_broken_where_it_should_run(bench: Bench) -> None:
    await bench.broker.register(worker(broken={"default": "no module named shop"}))
    [id] = await bench.push(prepared())
    why, text = await said(bench, id)
    assert why == [Why.BROKEN]
    assert "cannot serve 'default': no module named shop" in text


async def test_many_workers_are_not_all_named(bench: Bench) -> None:
    for _ in range(8):
        await bench.broker.register(worker("other"))
    [id] = await bench.push(prepared())
    why, text = await said(bench, id)
    assert why == [Why.NOT_SERVED] * 6
    assert "3 workers more do not serve it" in text


async def test_others_go_before_it(bench: Bench) -> None:
    await bench.broker.register(worker("default"))
    await bench.push(*(prepared() for _ in range(1_200)))
    [id] = await bench.push(prepared())
    why, text = await said(bench, id)
    assert why == [Why.BEHIND]
    assert "1,200 pending jobs of the queue 'default' are ahead" in text


async def test_its_workers_are_busy(bench: Bench) -> None:
    await bench.prepare()
    await bench.broker.register(worker("default"))
    await bench.running(prepared(), prepared())
    [id] = await bench.push(prepared())
    why, text = await said(bench, id)
    assert why == [Why.BUSY, Why.SOON]
    assert "running 2 of its jobs" in text


async def test_up_to_five_slot_holders_are_named(bench: Bench, clock: ManualClock) -> None:
    await bench.broker.declare(Queue(name="default", executor="async", concurrency=7), upsert=True)
    here = worker("default")
    await bench.broker.register(here)
    bench.worker_id = here.id
    first, *_ = await bench.running(prepared(func="shop.jobs.first"))
    clock.advance(30)
    await bench.running(*(prepared() for _ in range(6)))
    [id] = await bench.push(prepared())
    why, text = await said(bench, id)
    assert why == [Why.BUSY, Why.SOON]
    assert "served by 1 worker, up to 7 each, running 7 of its jobs" in text
    who = f"worker {here.id} (here, process 7)"
    assert f": the longest 5 are shop.jobs.first {first.id} for 30 s in {who}; " in text
    assert text.count(who) == 5


async def test_a_plugin_reports_what_holds_it(bench: Bench) -> None:
    async def explain(job: QueuedJob) -> Sequence[str]:
        return [f"the limit per-user has 2 slots; {job.func} waits"]

    job = QueuedJob(
        id=uuid.uuid4(), func="shop.jobs.work", arguments={}, queue="default", priority=0,
        state=State.HELD, attempt=0, max_attempts=3, crashes=0, run_at=None, worker_id=None,
        meta={}, errors=(), result=None, pushed_at=datetime(2030, 1, 1, tzinfo=UTC),
        claimed_at=None, finished_at=None, stop_asked_at=None, limits=(),
    )  # fmt: skip

    class Holding(MemoryBroker):
        async def get(self, ids: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, QueuedJob]:
            return {job.id: job}

        async def position(self, id: uuid.UUID) -> QueuePosition:
            return QueuePosition(0, 0, 0.0, 0.0, 0.0)

    broker = Holding()
    await broker.declare(Queue(name="default", executor="async"))
    await broker.register(worker("default"))
    for broker_says, found in (
        (await diagnose(broker, job.id, explain), "per-user has 2 slots; shop.jobs.work waits"),
        (await diagnose(broker, job.id), "a plugin holds the job until a slot is free"),
    ):
        [reason] = broker_says
        assert reason.why is Why.HELD
        assert found in reason.text
    await broker.pause("default")
    assert [reason.why for reason in await diagnose(broker, job.id)] == [Why.PAUSED, Why.HELD]


async def test_nothing_keeps_it(bench: Bench, clock: ManualClock) -> None:
    await bench.broker.register(worker("default"))
    [id] = await bench.push(prepared())
    assert (await said(bench, id))[0] == [Why.SOON]
    clock.advance(60)
    why, text = await said(bench, id)
    assert why == [Why.STUCK]
    assert "has waited for 60 s" in text


async def test_it_is_scheduled(bench: Bench, clock: ManualClock) -> None:
    [id] = await bench.push(prepared(delay_s=90.0))
    why, text = await said(bench, id)
    assert why == [Why.SCHEDULED]
    assert "in 90 s" in text
    clock.advance(90)
    assert (await said(bench, id))[0] == [Why.NO_WORKERS]
    await bench.broker.register(worker("default"))
    assert (await said(bench, id))[0] == [Why.SOON]
    clock.advance(60)
    assert (await said(bench, id))[0] == [Why.OVERDUE]


async def test_it_waits_for_a_retry(bench: Bench) -> None:
    await bench.prepare()
    [claim] = await bench.running()
    failure = Failure.named("shop.Busy", "come back\nlater")
    await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=30.0, failure=failure))
    why, text = await said(bench, claim.id)
    assert why == [Why.RETRY, Why.RETRY]
    assert "attempt 1 of 3 failed; the next one starts in 30 s" in text
    assert text.endswith("last failure: shop.Busy: come back")


async def test_it_runs(bench: Bench, clock: ManualClock) -> None:
    await bench.prepare()
    [claim] = await bench.running()
    clock.advance(5)
    why, text = await said(bench, claim.id)
    assert why == [Why.RUNNING]
    assert "the job has been running for 5 s in worker" in text
    await bench.broker.cancel([claim.id])
    clock.advance(20)
    why, text = await said(bench, claim.id)
    assert why == [Why.HEARTBEATS_MISSED, Why.RUNNING, Why.ASKED_TO_STOP]
    await bench.broker.unregister(bench.worker_id)
    assert (await said(bench, claim.id))[0] == [Why.WORKER_GONE]


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_it_is_finished(bench: Bench, state: State) -> None:
    await bench.prepare()
    [claim] = await bench.running()
    await bench.settle(settlement(claim, state))
    why, text = await said(bench, claim.id)
    assert set(why) == {Why.FINISHED}
    assert state.label in text


async def test_an_old_failure_is_not_the_reason_of_a_cancellation(bench: Bench) -> None:
    await bench.prepare()
    [claim] = await bench.running()
    failure = Failure.named("shop.Busy", "come back")
    await bench.settle(settlement(claim, State.SCHEDULED)._replace(delay_s=30.0, failure=failure))
    await bench.broker.cancel([claim.id])
    _, text = await said(bench, claim.id)
    assert "reason: it was cancelled on request" in text
    assert "last failure: shop.Busy: come back" in text


async def test_a_cancellation_that_has_a_reason_shows_it(bench: Bench) -> None:
    await bench.prepare()
    [claim] = await bench.running()
    failure = Failure.named("chancy.Cancelled", "no such customer")
    await bench.settle(settlement(claim, State.CANCELLED)._replace(failure=failure))
    _, text = await said(bench, claim.id)
    assert text.endswith("reason: chancy.Cancelled: no such customer")


async def test_a_job_that_was_cancelled_before_it_started_was_in_no_attempt(bench: Bench) -> None:
    await bench.prepare()
    [id] = await bench.push(prepared())
    await bench.broker.cancel([id])
    _, text = await said(bench, id)
    assert "before its first attempt" in text
    assert "attempt 0" not in text


async def test_jobs_lost_with_the_process_and_unknown_jobs(bench: Bench) -> None:
    await bench.prepare()
    [claim] = await bench.running()
    lost = settlement(claim, State.PENDING)._replace(
        crashed=True, refund=True, meta='{"unknown_function": 2}'
    )
    await bench.settle(lost)
    await bench.broker.register(worker("default"))
    why, text = await said(bench, claim.id)
    assert why[:2] == [Why.CRASHED, Why.HANDED_ON]
    assert "died 1 times" in text


async def test_it_is_due_far_ahead(bench: Bench) -> None:
    far = timedelta(days=300_000).total_seconds()
    [id] = await bench.push(prepared(delay_s=far))
    assert (await said(bench, id))[0] == [Why.SCHEDULED]
