"""The statements of the outbox of events, behind a long row of what is there and what was."""

from __future__ import annotations

from importlib import resources
from typing import Any

import psycopg
import pytest

from chancy.postgres.statements import load
from tests.plans import functions
from tests.support.waiting import eventually_sync

ROWS = 30_000
FILL = """
insert into chancy.redis_events (prefix, id, stream, partition, about, events, width, data)
select %s, gen_random_uuid(), 'orders', n %% 8, '{}', 1, 2, '\\x00'
from generate_series(1, %s) as n
"""
TAKEN = 250
OWN = " from chancy.redis_events where prefix = 't:' "


@pytest.fixture
def connection(dsn: str) -> Any:
    # What the driver prepared by itself would be lost with all others in ``explained``.
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as made:
        made.execute("alter table chancy.redis_events set (autovacuum_enabled = off)")
        # Behind the rows of another application.
        for prefix in ("other:", "t:"):
            made.execute(FILL, [prefix, ROWS])
        made.execute("analyze chancy.redis_events")
        yield made


def explained(connection: psycopg.Connection[Any], without: str) -> Any:
    text = load(
        resources.files("chancy.plugins.redis.streams.producing") / "sql", "events_take", "chancy"
    )
    connection.execute("deallocate all")
    connection.execute(f"prepare p(text, uuid, float8, int, bigint, text[]) as {text}".encode())
    connection.execute("set plan_cache_mode = force_generic_plan")
    row = connection.execute(
        "explain (analyze, buffers, format json) execute p("
        f"'t:', '00000000-0000-0000-0000-000000000001', 10, {TAKEN}, 1000000, {without})".encode()
    ).fetchone()
    assert row is not None
    return row[0][0]["Plan"]


def test_it_reads_what_it_takes(connection: psycopg.Connection[Any]) -> None:
    nobody = "'{}'"
    plan = explained(connection, nobody)
    assert plan["Actual Rows"] == TAKEN
    assert functions.buffers(plan) < 8 * TAKEN
    kinds = {node["Node Type"] for node in functions.nodes(plan)}
    assert not kinds & {"Seq Scan", "Hash Join", "Merge Join"}, kinds
    # Behind rows that were deleted and are not vacuumed yet: the first look marks them, once no
    # transaction is left, of whichever database, that began before they were deleted.
    connection.execute("delete" + OWN + "and pos <= %s", [2 * ROWS - 1_000])
    explained(connection, nobody)
    eventually_sync(lambda: functions.buffers(explained(connection, nobody)) < 8 * TAKEN)
    # One partition stands still: its rows are passed over.
    plan = explained(connection, "'{orders/3}'")
    assert plan["Actual Rows"] == TAKEN // 7 * 7
    connection.execute("delete" + OWN)
    explained(connection, nobody)
    eventually_sync(lambda: functions.buffers(explained(connection, nobody)) < TAKEN)


def test_the_backlog_of_a_partition_that_stands_still_is_not_read(connection: Any) -> None:
    connection.execute(
        "update chancy.redis_events set partition = 3 where prefix = 't:' and pos <= %s",
        [2 * ROWS - 800],
    )
    connection.execute("vacuum analyze chancy.redis_events")
    plan = explained(connection, "'{orders/3}'")
    # Each of the seven others has its share.
    assert plan["Actual Rows"] == TAKEN // 7 * 7
    assert functions.buffers(plan) < 8 * TAKEN
    kinds = {node["Node Type"] for node in functions.nodes(plan)}
    assert not kinds & {"Seq Scan", "Hash Join", "Merge Join"}, kinds
