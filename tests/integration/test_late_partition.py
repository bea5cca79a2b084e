"""Jobs that finish while the partition of their day is missing, or is being attached."""

from __future__ import annotations

from datetime import UTC, datetime

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


async def test_a_settlement_that_is_refused_once_keeps_its_outcome(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(dsn, REFUSE_ONCE)
    async with Chancy(dsn, queues=[ASYNC]) as chancy, Worker(chancy):
        finished = await (await chancy.push(jobs.note.job("kept"))).wait(30)
    assert (finished.state, finished.result) == (State.SUCCEEDED, "kept")
    assert "settlement_refused" not in caplog.text
