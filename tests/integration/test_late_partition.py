"""Jobs that finish while the partition of their day is missing, or is being attached."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker
from tests.support import jobs
from tests.support.sql import ask
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")
BLOCKED = """
select count(*) > 0 from pg_stat_activity
where datname = current_database() and application_name = 'chancy'
  and wait_event_type = 'Lock'
"""
#: Refuses the first row of the history. Sequences are not rolled back.
REFUSE_ONCE = """
create sequence refusals;
create function refuse_once() returns trigger language plpgsql as $$
begin
  if nextval('public.refusals') = 1 then
    raise exception 'not now';
  end if;
  return new;
end
$$;
create trigger refuse_once before insert on chancy.finished_jobs
for each row execute function refuse_once();
"""

FINISH = """
insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt, max_attempts,
  crashes, pushed_at)
values (gen_random_uuid(), 1, 4, 'q', 0, 'a.b', 1, 1, 0, now())
"""
#: A delete waits while another session has the advisory lock 7.
HELD_DELETE = """
create function hold() returns trigger language plpgsql set lock_timeout = 0 as $$
begin
  perform pg_advisory_xact_lock_shared(7);
  return old;
end
$$;
create trigger hold before delete on chancy.finished_jobs_default
for each row execute function hold();
"""
HELD = """
select count(*) > 0 from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.locktype = 'advisory' and l.objid = 7 and not l.granted
"""
REFUSED_DELETE = """
create function refuse() returns trigger language plpgsql as $$
begin
  raise 'it came meanwhile' using errcode = 'check_violation';
end
$$;
create trigger refuse before delete on chancy.finished_jobs_default
for each row execute function refuse();
"""


def today() -> str:
    return f"chancy.finished_jobs_{datetime.now(UTC):%Y%m%d}"


async def test_results_are_kept_while_the_partition_of_today_is_attached(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(dsn) as maker, psycopg.connect(dsn, autocommit=True) as observer:
        observer.execute(f"drop table {today()}".encode())
        maker.execute("select chancy.make_days(0)")
        async with Chancy(dsn, queues=[ASYNC]) as chancy, Worker(chancy):
            reference = await chancy.push(jobs.note.job("kept"))
            await eventually(lambda: observer.execute(BLOCKED).fetchone() == (True,))
            maker.commit()
            assert await reference.result(30) == "kept"
        count = f"select count(*) from {today()}".encode()
        assert observer.execute(count).fetchone() == (1,)
    assert "settlement_refused" not in caplog.text


async def test_jobs_that_finish_while_a_partition_gets_its_rows_do_not_keep_it_from_being_made(
    dsn: str,
) -> None:
    ask(dsn, f"drop table {today()}")
    ask(dsn, FINISH)
    ask(dsn, HELD_DELETE)
    with psycopg.connect(dsn, autocommit=True) as observer:
        observer.execute("select pg_advisory_lock(7)")
        making = asyncio.create_task(asyncio.to_thread(ask, dsn, "select chancy.make_days(7)"))
        await eventually(lambda: observer.execute(HELD).fetchone() == (True,))
        observer.execute(FINISH)
        observer.execute("select pg_advisory_unlock(7)")
        assert await making == [(1,)]
    assert ask(dsn, f"select count(*) from {today()}") == [(2,)]


def test_a_day_that_cannot_be_made_is_left_out(dsn: str) -> None:
    later = f"chancy.finished_jobs_{datetime.now(UTC) + timedelta(days=3):%Y%m%d}"
    ask(dsn, f"drop table {today()}, {later}")
    ask(dsn, FINISH)
    ask(dsn, REFUSED_DELETE)
    with psycopg.connect(dsn, autocommit=True) as session:
        notices: list[str | None] = []
        session.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        assert session.execute("select chancy.make_days(7)").fetchone() == (1,)
        name = f"{datetime.now(UTC):%Y-%m-%d}"
        assert notices == [f"days without a partition: {name}: it came meanwhile"]
        with pytest.raises(psycopg.errors.CheckViolation, match=f"{name}: it came meanwhile"):
            session.execute("select chancy.make_days(7)")
        session.execute("drop trigger refuse on chancy.finished_jobs_default")
        assert session.execute("select chancy.make_days(7)").fetchone() == (1,)


async def test_a_settlement_that_is_refused_once_keeps_its_outcome(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(dsn, REFUSE_ONCE)
    async with Chancy(dsn, queues=[ASYNC]) as chancy, Worker(chancy):
        finished = await (await chancy.push(jobs.note.job("kept"))).wait(30)
    assert (finished.state, finished.result) == (State.SUCCEEDED, "kept")
    assert "settlement_refused" not in caplog.text
