"""What repairs and bounds dead letters, and what that costs."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, ConfigurationError, StatementFailed, Worker
from chancy.plugins.dead_letter import DeadLetters, LetterFilter, sweep
from chancy.plugins.dead_letter.store import BATCH, SQL, WINDOW_S, Letters
from chancy.plugins.dead_letter.sweep import DeadLetterSweep
from chancy.testing.clock import ManualClock
from tests.plans import functions
from tests.plugins.dead_letter.letters import DEAD, failed, filed, letters
from tests.plugins.recovery.test_recovery import Given
from tests.support.sql import ask
from tests.support.waiting import eventually


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn) as made:
        yield made


def sweeper(
    chancy: Chancy,
    clock: ManualClock | None = None,
    *,
    keep_days: int | None = None,
    max_letters: int = 10_000,
) -> DeadLetterSweep:
    letters = Letters(chancy.broker)
    return DeadLetterSweep(
        letters, clock or ManualClock(), keep_days=keep_days, max_letters=max_letters
    )


async def test_it_files_what_is_missing_and_not_more(
    dsn: str, chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "CHECKED", 7)
    there = letters(dsn, 30, ago="3 hours")
    missing = failed(dsn, 30, ago="2 hours") + failed(dsn, 3, ago="2 days")
    old = failed(dsn, 2, ago="4 days")
    ask(dsn, "update chancy.finished_jobs set state = 4 where id = %s", [missing.pop()])
    one = sweeper(chancy)
    assert await one.repair() == 32
    assert filed(dsn) == set(there + missing)
    assert await one.repair() == 0
    assert not set(old) & filed(dsn)


async def test_it_resumes_and_checks_again_every_hour(dsn: str, chancy: Chancy) -> None:
    clock = ManualClock()
    one = sweeper(chancy, clock)
    (first,) = failed(dsn, ago="30 minutes")
    assert await one.repair() == 1
    # Committed late, behind the place where it was; and one within the overlap.
    (late,) = failed(dsn, ago="50 minutes")
    (soon,) = failed(dsn, ago="33 minutes")
    assert await one.repair() == 1
    assert filed(dsn) == {first, soon}
    clock.advance(3601)
    assert await one.repair() == 1
    assert filed(dsn) == {first, soon, late}


async def test_large_jobs_are_filed_a_few_at_a_time(
    dsn: str, chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    file = Letters.file

    async def counted(letters: Letters, ids: list[UUID]) -> list[str]:
        counts.append(len(ids))
        return await file(letters, ids)

    monkeypatch.setattr(Letters, "file", counted)
    ids = failed(dsn, 20, arguments=json.dumps({"value": secrets.token_hex(390_000)}))
    assert await sweeper(chancy).repair() == 20
    assert filed(dsn) == {*ids}
    assert counts == [10, 10]


async def test_one_that_is_refused_holds_up_no_other(
    dsn: str, chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    ids = failed(dsn, 5)
    ask(dsn, "alter table chancy.dead_letters add check (priority < 9)")
    ask(dsn, "update chancy.finished_jobs set priority = 9 where id = %s", [ids[2]])
    assert await sweeper(chancy).repair() == 4
    assert filed(dsn) == {*ids} - {ids[2]}
    (said,) = [r.getMessage() for r in caplog.records if "dead_letter_refused" in r.message]
    assert str(ids[2]) in said


async def test_a_missing_table_raises_the_error(dsn: str, chancy: Chancy) -> None:
    ask(dsn, "alter table chancy.dead_letters rename to away")
    with pytest.raises(StatementFailed):
        await sweeper(chancy).turn()


async def test_old_rows_are_removed(dsn: str, chancy: Chancy) -> None:
    new, old = letters(dsn, 2), letters(dsn, 3, ago="2 days 1 hour")
    assert await sweeper(chancy).retain() == 0
    assert filed(dsn) == {*new, *old}
    one = sweeper(chancy, keep_days=2)
    assert await one.retain() == 3
    # Their jobs are in the history, within the window of the sweep.
    assert await one.repair() == 0
    assert filed(dsn) == {*new}


async def test_of_too_many_the_oldest_go_and_do_not_come_back(
    dsn: str, chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = letters(dsn, BATCH + 20, ago="2 hours"), letters(dsn, 10, ago="1 hour")
    one = sweeper(chancy, max_letters=15)
    assert await one.retain() == BATCH + 15
    assert await one.repair() == 0
    assert filed(dsn) == {*new, *old[-5:]}
    assert f"dead_letters_dropped count={BATCH + 15} max_letters=15" in caplog.text


async def test_a_locked_letter_keeps_no_others_from_being_purged(
    dsn: str, chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "BATCH", 2)
    ids = letters(dsn, 5, ago="2 days")
    with psycopg.connect(dsn) as holder:
        holder.execute("select from chancy.dead_letters where id = any (%s) for update", [ids[:2]])
        async with asyncio.timeout(10):
            assert await sweeper(chancy, keep_days=1).retain() == 3
            assert await DEAD.purge_all(chancy, LetterFilter()) == 0
        assert filed(dsn) == set(ids[:2])
    assert await sweeper(chancy, keep_days=1).retain() == 2


async def test_a_locked_letter_of_a_job_that_failed_again_keeps_no_others_from_being_filed(
    dsn: str, chancy: Chancy
) -> None:
    again, kept = letters(dsn, 2, ago="1 hour")
    (other,) = failed(dsn)
    columns = (
        "id, pos, state, queue, priority, func, attempt, max_attempts, crashes, errors, pushed_at"
    )
    ask(
        dsn,
        f"insert into chancy.finished_jobs ({columns}, finished_at)"
        f" select {columns}, clock_timestamp() from chancy.finished_jobs where id = %s",
        [again],
    )
    one = sweeper(chancy)
    with psycopg.connect(dsn) as holder:
        holder.execute("select from chancy.dead_letters for update")
        async with asyncio.timeout(10):
            assert await one.repair() == 1
        assert filed(dsn) == {again, kept, other}
    assert await one.repair() == 1
    died = "select id from chancy.dead_letters where died_at > now() - interval '30 minutes'"
    assert {id for (id,) in ask(dsn, died)} == {again, other}


async def test_purged_dead_letters_are_remembered_while_they_could_return(
    dsn: str, chancy: Chancy
) -> None:
    recent = letters(dsn, 2, ago="2 days")
    await DEAD.purge_all(chancy, LetterFilter())
    count = "select count(*) from chancy.dead_letters_purged"
    assert ask(dsn, count) == [(2,)]
    ask(
        dsn,
        "update chancy.dead_letters_purged set died_at = died_at - interval '2 days' where id = %s",
        [recent[0]],
    )
    await sweeper(chancy).retain()
    assert ask(dsn, count) == [(1,)]


async def test_a_turn_looks_at_the_bounds_every_five_minutes(dsn: str, chancy: Chancy) -> None:
    clock = ManualClock()
    one = sweeper(chancy, clock, max_letters=1)
    await one.turn()
    letters(dsn, 3)
    await one.turn()
    assert len(filed(dsn)) == 3
    clock.advance(301)
    await one.turn()
    assert len(filed(dsn)) == 1


@pytest.mark.parametrize("leads", [True, False])
async def test_the_leader_sweeps_at_once_and_another_one_rarely(dsn: str, leads: bool) -> None:
    clock, election = ManualClock(), Given()
    plugins = [election, DeadLetters(sweep_s=10)]
    async with (
        Chancy(dsn, plugins=plugins, clock=clock) as chancy,
        Worker(chancy, queues=[], heartbeat_s=0.1),
    ):
        first = failed(dsn)
        assert filed(dsn) == set()
        if leads:
            election.made.lead()
            await eventually(lambda: filed(dsn) == {*first})
        else:

            def later() -> bool:
                clock.advance(60)
                return filed(dsn) == {*first}

            await eventually(later)


async def test_two_sweeps_at_once_file_each_once(dsn: str, chancy: Chancy) -> None:
    ids = failed(dsn, 2_000)
    counts = await asyncio.gather(*(sweeper(chancy).repair() for _ in range(3)))
    assert sum(counts) == 2_000
    assert filed(dsn) == {*ids}


@pytest.mark.parametrize(
    "settings",
    [
        {"keep_days": 0},
        {"keep_days": 1e9},
        {"max_letters": 0},
        {"sweep_s": 0},
        {"sweep_s": float("nan")},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        DeadLetters(**settings)


# What it costs


def explained(
    connection: psycopg.Connection[Any], name: str, *parameters: object
) -> tuple[set[str], set[str], int]:
    """What a statement reads, which of it as a whole, and the pages that it looked at."""
    cursor = psycopg.RawCursor(connection)
    text = SQL.statement(name, "chancy")
    with connection.transaction(force_rollback=True):
        cursor.execute("set local plan_cache_mode = force_generic_plan")
        cursor.execute(f"explain (analyze, buffers, format json) {text}".encode(), parameters)
        row = cursor.fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    nodes = list(functions.nodes(plan))
    return (
        {node["Relation Name"] for node in nodes if "Relation Name" in node},
        {node.get("Relation Name", "") for node in nodes if node["Node Type"] == "Seq Scan"},
        int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]),
    )


#: Tables that are empty here, or small on purpose.
SMALL = {"workers", "dead_letters_purged"}

MANY = """
insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt, max_attempts,
  crashes, errors, pushed_at, finished_at)
select gen_random_uuid(), n, case when n %% 5 = 0 then 5 else 4 end, 'async', 0, 'a.b', 1, 3, 0,
  '[{"types": ["shop.Oops"], "message": "no"}]', now(), now() - n * interval '0.5 s'
from generate_series(1, %s) as n
"""
LETTERS = """
insert into chancy.dead_letters (id, queue, priority, func, max_attempts, attempt, crashes,
  pushed_at, died_at, reason, error, replayed_at)
select gen_random_uuid(), 'q' || n %% 1000, 0, 'a.f' || n %% 777, 3, 3, 0, now(),
  now() - n * interval '1 s', 'failed', 'a.E' || n %% 555, case when n %% 3 = 0 then now() end
from generate_series(1, %s) as n
"""


@pytest.mark.chaos
@pytest.mark.timeout(180)
def test_its_queries_use_indexes_at_every_size(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # A day that the server does not know yet: not analysed.
        connection.execute(MANY.encode(), (200_000,))
        ids = [
            row[0]
            for row in connection.execute(
                "select id from chancy.finished_jobs where state = 5 limit 500"
            ).fetchall()
        ]
        _, whole, pages = explained(connection, "file", ids, WINDOW_S)
        assert whole <= SMALL
        assert pages < 500 * 60
        connection.execute(LETTERS.encode(), (200_000,))
        for analysed in (False, True):
            if analysed:
                connection.execute("vacuum analyze chancy.dead_letters")
                connection.execute("vacuum analyze chancy.finished_jobs")
            _, whole, pages = explained(connection, "missing", None, None, WINDOW_S, 500)
            assert whole <= SMALL
            assert pages < 500 * 20
        # These are planned anew for each call, for what is known of the table by then.
        none = [None] * 9
        queue, func, error = list[object](none), list[object](none), list[object](none)
        queue[1], func[2], error[3] = "q7", "a.f7", "a.E7"
        *_, pages = explained(connection, "page", ids, *none[1:], None, None, 500, None)
        assert pages < 3_000
        for wanted in (none, queue, func, error, [*none[:6], False, *none[7:]]):
            *_, pages = explained(connection, "page", *wanted, None, None, 500, None)
            assert pages < 3_000, wanted[1:]
            *_, pages = explained(connection, "find", *wanted, None, None, 50, False)
            assert pages < 3_000, wanted[1:]
        # What waits is found beside any number of others.
        connection.execute("update chancy.dead_letters set replayed_at = now()")
        connection.execute("vacuum analyze chancy.dead_letters")
        *_, pages = explained(connection, "find", *wanted, None, None, 50, False)
        assert pages < 500


def test_the_hook_looks_at_today_alone(dsn: str) -> None:
    # Shortly after midnight an hour reaches into a day for which the migration made no partition.
    ((since_midnight,),) = ask(
        dsn, "select extract(epoch from now() - date_trunc('day', now(), 'UTC'))::float8"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        read, _, _ = explained(connection, "file", [UUID(int=1)], min(3600.0, since_midnight))
    days = ask(
        dsn,
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'chancy.finished_jobs'::regclass",
    )
    looked_at = {name for (name,) in days} & read
    assert len(days) >= 9
    assert 1 <= len(looked_at) <= 2, looked_at  # two around midnight
    assert "finished_jobs_default" not in looked_at
