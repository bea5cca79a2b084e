"""A fleet is not replaced at once: workers of this release go on with the tables of the next one,
and the tables can be taken back with the rows that are in them."""

from __future__ import annotations

from chancy import Chancy, Job, Limit, ProcessOptions, Queue, State
from chancy.attempt.settlement import Note
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import HEAD, Component
from chancy.testing.conformance.bench import Bench, settlement
from chancy.testing.structure import structure
from tests.migrations.next_release import NEXT
from tests.support.sql import ask

LIMITS = (Limit.time(5), Limit.memory(2**28))


async def test_a_worker_continues_while_the_tables_become_those_of_the_next_release(
    dsn: str, next_release: Component
) -> None:
    job = Job(func="shop.work", limits=LIMITS, queue="big")
    async with Chancy(dsn) as chancy:
        bench = Bench(chancy.broker)
        await bench.prepare(Queue(name="big", limits=LIMITS, options=ProcessOptions(max_jobs=5)))

        async def rounds() -> list[State]:
            """Every statement of a worker, from the push to the end."""
            references = [await chancy.push(job, validate=False) for _ in range(3)]
            done, retried, cancelled = await bench.claim(3, queue="big")
            await chancy.broker.update_meta([Note(done.id, done.lease, '{"said": 1}')])
            await bench.settle(
                settlement(done, State.SUCCEEDED),
                settlement(retried, State.SCHEDULED)._replace(delay_s=60.0),
                settlement(cancelled, State.CANCELLED),
            )
            await chancy.broker.announce(bench.worker_id, ["big"], {"big": "no"})
            await chancy.broker.promote(10)
            await chancy.cancel(retried.id)
            found = [await reference.get() for reference in references]
            return [one.state for one in found if one is not None]

        # Often enough for the driver to have prepared every statement.
        before = [await rounds() for _ in range(6)]
        schema.upgrade(dsn)
        assert schema.revisions(dsn)["core"] == NEXT
        after = [await rounds() for _ in range(6)]
        assert before == after == [[State.SUCCEEDED, State.CANCELLED, State.CANCELLED]] * 6
        assert Queue(name="big", limits=LIMITS, options=ProcessOptions(max_jobs=5)) in (
            await chancy.get_queues()
        )


async def test_the_tables_can_be_taken_back_with_the_rows_in_them(
    dsn: str, next_release: Component
) -> None:
    before = structure(dsn)
    async with Chancy(dsn) as chancy:
        bench = Bench(chancy.broker)
        await bench.prepare()
        schema.upgrade(dsn)
        after = structure(dsn)
        assert after != before
        job = Job(func="shop.work", limits=LIMITS)
        ended, running, waiting = [(await chancy.push(job, validate=False)).id for _ in range(3)]
        claims = await bench.claim(limit=2)
        await bench.settle(settlement(claims[0], State.SUCCEEDED))
        schema.downgrade(dsn, component="core", revision=HEAD)
        assert structure(dsn) == before
        [claimed] = await bench.claim()
        assert claimed.id == waiting
        rows = {row.id: row.state for row in (await chancy.get_jobs([ended, running])).values()}
        assert rows == {ended: State.SUCCEEDED, running: State.RUNNING}
    schema.upgrade(dsn)
    assert structure(dsn) == after
    shards = ask(dsn, "select id, shard from chancy.jobs")
    assert sorted(shards) == sorted([(running, None), (waiting, None)])
