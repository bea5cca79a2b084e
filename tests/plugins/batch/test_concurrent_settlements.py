"""Concurrent settlements of one batch: exactly one of them ends it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.batch.outcomes import SQL
from tests.plugins.batch.jobs import act, said
from tests.support.sql import ask

SETTLERS = 16

SETTLE = SQL.statement("settle", "chancy")
#: Whether this transaction has ended the batch, or pushed its callbacks.
ENDED = """
select
  exists (select from chancy.batches where state <> 1 and xmin = pg_current_xact_id()::xid),
  (select count(*) from chancy.jobs where func like '%said' and xmin = pg_current_xact_id()::xid)
"""


#: Records which row of a batch is updated: a shard, or the batch itself.
COUNT = """
create table public.updates (shard int);
create function public.counted() returns trigger language plpgsql as $$
begin
  insert into public.updates values ((to_jsonb(new) ->> 'shard')::int);
  return null;
end $$;
create trigger counted after update on chancy.batches_shards
  for each row execute function public.counted();
create trigger counted after update on chancy.batches
  for each row execute function public.counted();
"""


class Seen(NamedTuple):
    """The results of the transactions of a settler."""

    ended: int
    pushed: int
    deadlocks: int


def settle(dsn: str, batch: UUID, parts: list[list[tuple[UUID, int]]], pause_s: float) -> Seen:
    """Settle parts of a batch, each in a transaction of its own."""
    ended = pushed = deadlocks = 0
    chance = random.Random(parts[0][0][0].int)
    with psycopg.connect(dsn) as connection:
        cursor = psycopg.RawCursor(connection)
        for part in parts:
            jobs, states = [job for job, _ in part], [state for _, state in part]
            while True:
                try:
                    cursor.execute("delete from chancy.jobs where id = any ($1)", [jobs])
                    given = ([batch] * len(jobs), jobs, states, None)
                    cursor.execute(SETTLE.encode(), given)
                    cursor.execute("select pg_sleep($1)", [chance.uniform(0, pause_s)])
                    row = cursor.execute(ENDED.encode()).fetchone()
                    connection.commit()
                    assert row is not None
                    ended += row[0]
                    pushed += row[1]
                    break
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()
                    deadlocks += 1
    return Seen(ended, pushed, deadlocks)


def dealt(
    jobs: list[UUID], states: list[int], chance: random.Random
) -> list[list[tuple[UUID, int]]]:
    """Parts of 1 to 40 jobs, in any order, as workers settle them."""
    pairs = list(zip(jobs, states, strict=True))
    chance.shuffle(pairs)
    parts: list[list[tuple[UUID, int]]] = []
    while pairs:
        take = min(len(pairs), chance.randint(1, 40))
        parts.append(sorted(pairs[:take], key=lambda pair: pair[0].int))
        del pairs[:take]
    return parts


@pytest.mark.parametrize(("size", "shards", "bad"), [(400, 16, 0.1), (400, 16, 0.0), (300, 1, 0.3)])
async def test_exactly_one_settlement_sees_the_end(
    batches_dsn: str, monkeypatch: pytest.MonkeyPatch, size: int, shards: int, bad: float
) -> None:
    monkeypatch.setattr("chancy.plugins.batch.description.JOBS_A_SHARD", size // shards)
    chance = random.Random(size * shards + bad)
    batches, to = Batches(), said.job("on")
    batch = Batch(name="b", on_success=to, on_failure=to, on_finish=to)
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, batch, [act.job(n) for n in range(size)])
        assert ask(batches_dsn, "select count(*) from chancy.batches_shards") == [(shards,)]
        jobs = [row[0] for row in ask(batches_dsn, "select id from chancy.jobs order by id")]
        states = [5 if chance.random() < bad else 4 for _ in jobs]
        parts = dealt(jobs, states, chance)
        with ThreadPoolExecutor(SETTLERS) as pool:
            running = [
                pool.submit(settle, batches_dsn, reference.id, parts[at::SETTLERS], 0.002)
                for at in range(SETTLERS)
            ]
            seen = [one.result() for one in running]
        found = await reference.get()
    assert sum(one.ended for one in seen) == 1
    assert sum(one.pushed for one in seen) == 2
    assert sum(one.deadlocks for one in seen) == 0
    assert found is not None
    assert found.state is (BatchState.FAILED if bad else BatchState.SUCCEEDED)
    progress = found.progress
    assert (progress.succeeded, progress.failed) == (states.count(4), states.count(5))
    assert progress.pending == progress.cancelled == 0
    assert ask(batches_dsn, "select count(*) from chancy.jobs") == [(2,)]


@pytest.mark.chaos
async def test_no_row_of_a_large_batch_is_hot(batches_dsn: str) -> None:
    """Each settlement writes one shard, usually that of its connection."""
    chance, size = random.Random(1), 20_000
    async with Chancy(batches_dsn, plugins=[Batches()]) as chancy:
        jobs = [act.job(n) for n in range(size)]
        reference = await Batches().push(chancy, Batch(name="b"), jobs)
        ask(batches_dsn, COUNT)
        rows = ask(batches_dsn, "select id from chancy.jobs order by id")
        parts = dealt([row[0] for row in rows], [4] * size, chance)
        with ThreadPoolExecutor(SETTLERS) as pool:
            running = [
                pool.submit(settle, batches_dsn, reference.id, parts[at::SETTLERS], 0.0)
                for at in range(SETTLERS)
            ]
            assert sum(one.result().ended for one in running) == 1
    found = ask(batches_dsn, "select shard, count(*) from public.updates group by shard")
    updates: dict[int | None, int] = dict(found)
    # The batch itself, when it ends.
    assert updates.pop(None) == 1
    assert len(updates) == 16
    assert sum(updates.values()) <= 2 * len(parts)
    assert max(updates.values()) <= len(parts) // 4
