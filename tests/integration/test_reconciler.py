"""A store that has forgotten how jobs ended, while their worker lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker, job
from chancy.plugins.recovery import Recovery
from chancy.postgres.broker import PostgresBroker
from tests.support.presence import present
from tests.support.replicated import HERE, ReplicatedPostgres, ask_server
from tests.support.sql import ask
from tests.support.waiting import eventually

QUEUES = [Queue(name="async", executor="async", concurrency=4)]
begun: list[str] = []
gates: dict[str, asyncio.Event] = {}


@job(queue="async")
async def pass_gate(name: str) -> None:
    begun.append(name)
    await gates[name].wait()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.worker.reconciler.EVERY_S", 0.1)
    # Also where a look takes long, on a busy machine.
    monkeypatch.setattr("chancy.worker.reconciler._SHARE", 1.0)
    begun.clear()
    gates.clear()
    gates.update(ended=asyncio.Event(), running=asyncio.Event())


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=QUEUES, plugins=[Recovery()]) as made:
        yield made


async def test_a_job_whose_end_was_forgotten_runs_again(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(chancy):
        ended = await chancy.push(pass_gate.job(name="ended"))
        running = await chancy.push(pass_gate.job(name="running"))
        await eventually(lambda: sorted(begun) == ["ended", "running"])
        ask(dsn, "create table before as select * from chancy.jobs")
        gates["ended"].set()
        await ended.wait(30)
        gates["ended"].clear()
        with psycopg.connect(dsn) as session:
            session.execute("delete from chancy.finished_jobs")
            session.execute(
                "insert into chancy.jobs select * from before where id = %s", [ended.id]
            )
        await eventually(lambda: begun.count("ended") == 2)
        again = present(await ended.get())
        assert (again.attempt, again.crashes, again.errors) == (1, 0, ()), "it costs nothing"
        gates["ended"].set()
        await ended.wait(30)
        gates["running"].set()
        await running.wait(30)
    assert begun.count("running") == 1
    assert "lost_claims_released jobs=1" in caplog.text


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The worker of each look."""
    found: list[UUID] = []
    look = PostgresBroker.running

    async def noted(
        broker: PostgresBroker, worker_id: UUID, *, besides: Collection[UUID]
    ) -> Mapping[UUID, UUID]:
        found.append(worker_id)
        return await look(broker, worker_id, besides=besides)

    monkeypatch.setattr(PostgresBroker, "running", noted)
    return found


async def test_finished_jobs_are_not_changed(
    chancy: Chancy, looks: list[UUID], caplog: pytest.LogCaptureFixture
) -> None:
    """Where its queue is served no more, and where the worker ends."""
    async with Worker(chancy, shutdown_timeout_s=30.0) as worker:
        running = [await chancy.push(pass_gate.job(name=name)) for name in gates]
        await eventually(lambda: sorted(begun) == ["ended", "running"])
        await chancy.delete_queue("async")
        await eventually(lambda: "async" not in worker.queues)
        await eventually(partial(_more, looks, len(looks) + 4))
        gates["ended"].set()
        await running[0].wait(30)
        stopping = asyncio.create_task(worker.stop())
        await eventually(partial(_more, looks, len(looks) + 4))
        assert not stopping.done()
        gates["running"].set()
        await stopping
    done = [await one.wait(30) for one in running]
    assert [one.attempt for one in done] == [1, 1]
    assert len(begun) == 2
    assert "lost_claims_released" not in caplog.text


def _more(looks: list[UUID], count: int) -> bool:
    return len(looks) >= count


@pytest.mark.chaos
async def test_a_failover_that_loses_an_end(replicated: ReplicatedPostgres) -> None:
    primary, standby = replicated.primary, replicated.add("standby")
    way, replica = primary.way, standby.server
    made = Chancy(way.dsn(primary.server.dsn()), queues=QUEUES, plugins=[Recovery()])
    async with made as chancy, Worker(chancy):
        ended = await chancy.push(pass_gate.job(name="ended"))
        running = await chancy.push(pass_gate.job(name="running"))
        await eventually(lambda: sorted(begun) == ["ended", "running"])
        claimed = "select count(*) from chancy.jobs where state = 1"
        await eventually(lambda: ask_server(replica, claimed) == 2)
        assert standby.feed is not None
        standby.feed.black_hole()
        gates["ended"].set()
        assert (await ended.wait(30)).state is State.SUCCEEDED
        gates["ended"].clear()
        primary.server.stop("immediate")
        await asyncio.to_thread(replicated.promote, standby)
        way.target = (HERE, replica.port)
        way.cut()
        await eventually(lambda: begun.count("ended") == 2, timeout=60)
        for gate in gates.values():
            gate.set()
        assert (await ended.wait(60)).state is State.SUCCEEDED
        assert (await running.wait(60)).attempt == 1
    assert sorted(begun) == ["ended", "ended", "running"]
    assert ask_server(replica, "select count(*) from chancy.jobs") == 0
