"""Rules of the pruner: what goes, what stays, and where a walk goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Queue, State
from chancy.broker.optional import SqlStore
from chancy.errors import StatementFailed
from chancy.plugins.pruner import Prune
from chancy.plugins.pruner.rule import FinalState
from chancy.plugins.pruner.sweep import PrunerSweep
from tests.plugins.pruner.finished import HOUR, ages, fill, left
from tests.support import jobs


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[SqlStore]:
    async with Chancy(dsn) as chancy:
        assert isinstance(chancy.broker, SqlStore)
        yield chancy.broker


async def no_pause(seconds: float) -> None:
    assert seconds > 0
    await asyncio.sleep(0)


async def turn(store: SqlStore, *rules: Prune, step: int = 7) -> int:
    sweep = PrunerSweep(store, rules, step=step)
    assert await sweep.turn(no_pause, lambda: True)
    return sum(sweep.removed.values())


SOLD, BOUGHT, SENT = (
    ("mail", "shop.jobs.sell", 4),
    ("mail", "shop.jobs.buy", 5),
    ("mail.x", "shop_jobs.sell", 6),
)


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        (Prune(state=State.SUCCEEDED, older_than=HOUR), {SOLD}),
        (Prune(state="failed", older_than=HOUR), {BOUGHT}),
        (Prune(queue="mail", older_than=HOUR), {SOLD, BOUGHT}),
        (Prune(queue="m*l.x", older_than=HOUR), {SENT}),
        (Prune(func="shop.jobs.*", state="failed", older_than=HOUR), {BOUGHT}),
        (Prune(func="shop_jobs.????", older_than=HOUR), {SENT}),
        (Prune(func="shop", older_than=HOUR), set()),
        (Prune(queue="other", older_than=HOUR), set()),
        (Prune(queue="mail", older_than=timedelta(days=1)), set()),
        (Prune(older_than=timedelta()), {SOLD, BOUGHT, SENT}),
    ],
    ids=lambda value: str(value) if isinstance(value, Prune) else str(len(value)),
)
async def test_a_rule_removes_only_matching_jobs(
    rule: Prune, gone: set[Any], store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 20, queue="mail", first=2 * HOUR)
    fill(connection, 20, queue="mail", func="shop.jobs.buy", state=State.FAILED, first=2 * HOUR)
    fill(connection, 20, queue="mail.x", func="shop_jobs.sell", state=State.CANCELLED, first=HOUR)
    before = left(connection)
    assert await turn(store, rule) == 20 * len(gone)
    assert left(connection) == {key: n for key, n in before.items() if key not in gone}


async def test_a_locked_job_holds_up_its_queue_alone(
    dsn: str, store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 20, queue="a", first=HOUR)
    fill(connection, 20, queue="b", first=HOUR)
    sweep = PrunerSweep(store, [Prune(older_than=HOUR), Prune(queue="a", keep_last=5)], step=7)
    with psycopg.connect(dsn) as holder:
        holder.execute("select from chancy.finished_jobs where queue = 'a' and pos = 9 for update")
        for _ in range(2):
            with pytest.raises(StatementFailed, match="lock timeout"):
                await sweep.turn(no_pause, lambda: True)
        # The second rule has left the last five to the first one.
        assert left(connection) == {("a", "shop.jobs.sell", 4): 5}
    assert await sweep.turn(no_pause, lambda: True)
    assert left(connection) == {}


async def test_a_step_that_takes_too_long_holds_up_its_queue_alone(
    store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 20, queue="a", first=HOUR)
    fill(connection, 20, queue="b", first=HOUR)
    connection.execute(
        "create function chancy.too_slow() returns trigger language plpgsql as $$ begin"
        " raise 'canceling statement due to statement timeout' using errcode = 'query_canceled';"
        " end $$"
    )
    connection.execute(
        "create trigger too_slow before delete on chancy.finished_jobs for each row"
        " when (old.queue = 'a') execute function chancy.too_slow()"
    )
    sweep = PrunerSweep(store, [Prune(older_than=HOUR)], step=7)
    for _ in range(2):
        with pytest.raises(StatementFailed, match="statement timeout"):
            await sweep.turn(no_pause, lambda: True)
    assert left(connection) == {("a", "shop.jobs.sell", 4): 20}


async def test_the_age_counts_from_the_end(
    store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 50, first=timedelta(minutes=-0.5) + HOUR - timedelta(minutes=20))
    assert await turn(store, Prune(older_than=HOUR)) == 30
    assert ages(connection) == [*range(1, 21)]


async def test_the_last_ones_stay_of_each_queue_and_of_those_that_are_meant(
    store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 50, queue="a")
    fill(connection, 50, queue="a", state=State.FAILED)
    fill(connection, 10, queue="b")
    assert await turn(store, Prune(state="succeeded", keep_last=15)) == 35
    assert left(connection) == {
        ("a", "shop.jobs.sell", 4): 15,
        ("a", "shop.jobs.sell", 5): 50,
        ("b", "shop.jobs.sell", 4): 10,
    }
    connection.execute("delete from chancy.finished_jobs where state = 5 or queue = 'b'")
    assert ages(connection) == [*range(1, 16)]
    # Both conditions must hold, and the young ones count among the last.
    assert await turn(store, Prune(keep_last=3, older_than=timedelta(minutes=10.5))) == 15 - 5
    assert ages(connection) == [*range(1, 6)]
    assert await turn(store, Prune(state="succeeded", keep_last=0)) == 5


@pytest.mark.parametrize(
    ("state", "minutes"), [("succeeded", 1), ("cancelled", 1), ("failed", 10), (None, 10)]
)
async def test_jobs_that_finished_this_minute_stay_and_where_some_failed_ten(
    state: FinalState | None,
    minutes: int,
    store: SqlStore,
    connection: psycopg.Connection[Any],
) -> None:
    """What has failed is looked for by the sweep of dead letters."""
    given = State.SUCCEEDED if state is None else State.parse(state)
    fill(connection, 15, state=given, first=timedelta(minutes=-0.5))
    rules = Prune(state=state, keep_last=0), Prune(state=state, older_than=timedelta())
    assert await turn(store, *rules) == 15 - minutes
    assert ages(connection) == [*range(1, minutes + 1)]


async def test_unfinished_jobs_are_never_touched(
    dsn: str, store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    """One that is retried has ended many attempts, and is not finished."""
    async with Chancy(dsn, queues=[Queue(name="async", executor="async")]) as chancy:
        references = [
            await chancy.push(jobs.note.job(value=1)),
            await chancy.push(jobs.note.job.with_delay(3600)(value=2)),
            await chancy.push(jobs.note.job(value=3)),
        ]
    connection.execute(
        "update chancy.jobs set pushed_at = now() - interval '1 year', attempt = 2, "
        "run_at = now() - interval '1 year', errors = '[{}]'"
    )
    connection.execute(
        "update chancy.jobs set state = 1, lease = id, worker_id = id where id = %s",
        (references[2].id,),
    )
    assert await turn(store, Prune(keep_last=0), Prune(older_than=timedelta())) == 0
    assert connection.execute("select count(*) from chancy.jobs").fetchone() == (3,)


class Recording:
    """A store that writes down the steps: in which queue, and at how many jobs each looked."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.schema = store.schema
        self.steps: list[tuple[object, int]] = []

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        rows = await self.store.fetch(sql, *params)
        if "pruner_step" in sql:
            self.steps.append((params[0], rows[0][0]))
        return rows


async def test_a_walk_continues_where_it_stopped_and_looks_at_nothing_twice(
    store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 60, queue="a", state=State.FAILED)
    fill(connection, 60, queue="b")
    recording = Recording(store)
    sweep = PrunerSweep(recording, [Prune(state="succeeded", older_than=HOUR / 2)], step=7)
    turns = 1
    while not await sweep.turn(no_pause, iter([True, True, False]).__next__):
        turns += 1
    assert turns > 4
    # Those that ended 30 to 65 minutes ago; the others are looked at as well, once.
    assert sweep.removed == {0: 36}
    looked_in = [queue for queue, seen in recording.steps for _ in range(seen)]
    assert looked_in == ["a"] * 36 + ["b"] * 36
    # Another turn looks at what has become old enough since, and at nothing else.
    recording.steps.clear()
    fill(connection, 1, queue="b", first=timedelta(minutes=29))
    assert await sweep.turn(no_pause, lambda: True)
    assert recording.steps == [("a", 0), ("b", 1)]
    assert sweep.removed == {0: 37}


async def test_two_concurrent_pruners_both_finish(
    store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 500)
    fill(connection, 500, queue="other")
    rules = [Prune(queue="default", keep_last=100), Prune(queue="other", older_than=HOUR)]
    sweeps = [PrunerSweep(store, rules, step=20) for _ in range(4)]
    assert all(await asyncio.gather(*(s.turn(no_pause, lambda: True) for s in sweeps)))
    assert sum(sum(s.removed.values()) for s in sweeps) == 400 + 446
    assert sum(left(connection).values()) == 100 + 54


async def test_many_that_finished_at_once_are_not_stepped_over(
    store: SqlStore, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 50)
    connection.execute("update chancy.finished_jobs set finished_at = now() - interval '15 min'")
    connection.execute("update chancy.finished_jobs set state = 5 where pos % 2 = 0")
    assert await turn(store, Prune(state="failed", older_than=timedelta())) == 25
    assert await turn(store, Prune(keep_last=5)) == 20
