"""The statements of the pruner, at a million finished jobs over five days."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.plans import functions
from tests.plans.verdict import check_plan
from tests.plugins.pruner.finished import add_day

BATCH = 100
DAYS = 5
#: A tenth of them are of another queue, one in a hundred failed, one in a thousand is rare.
FILL = """
insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt, max_attempts,
  crashes, lease, pushed_at, finished_at)
select gen_random_uuid(), n, case when n %% 100 = 0 then 5 else 4 end,
  case when n %% 10 = 0 then 'mail' else 'default' end, 0,
  case when n %% 1000 = 7 then 'shop.rare' else 'shop.sell' end, 1, 3, 0, gen_random_uuid(), now(),
  now() - interval '2 minutes' - n * %s::interval
from generate_series(1, %s) as n
"""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as made:
        for day in (_today() - timedelta(days=n) for n in range(1, DAYS + 1)):
            add_day(made, day)
        yield made


def _today() -> date:
    return datetime.now(UTC).date()


def check(connection: psycopg.Connection[Any], label: str) -> dict[str, int]:
    """Explain every kind of step, at several places; returns the pages that each looked at."""
    pages = {}
    for where, ago in (("front", 0.0), ("middle", DAYS / 2)):
        for rule, (state, func, keep) in {
            "by age": ("null", "null", 0),
            "by state": ("5", "null", 0),
            "by function": ("null", "'shop.rare'", 0),
            "by pattern": ("4", "'%rare'", 0),
            "by count": ("null", "null", 40),
        }.items():
            values = {
                "p_queue": ("text", "'default'"),
                "p_from": ("timestamptz", "'1970-01-01'"),
                "p_until": ("timestamptz", f"now() - interval '{ago} days'"),
                "p_before": ("timestamptz", "now() - interval '1 minute'"),
                "p_state": ("smallint", state),
                "p_func": ("text", func),
                "p_keep": ("bigint", str(keep)),
                "p_limit": ("int", str(BATCH)),
                "p_remove": ("boolean", "true"),
            }
            name = f"{rule}, {where}"
            pages[name] = _explain(connection, "pruner_step", values, f"{name} with {label}")
    limit = {"p_limit": ("int", "1000")}
    pages["queues"] = _explain(connection, "pruner_queues", limit, f"queues with {label}")
    return pages


def _explain(
    connection: psycopg.Connection[Any], function: str, values: Any, where: str
) -> int:  # fmt: skip
    (statement,) = functions.statements(connection, f"chancy.{function}")
    plan = functions.explain(connection, f"chancy.{function}", statement, values)
    check_plan(plan, where, batch=BATCH)
    return functions.buffers(plan)


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_steps_of_the_pruner_at_every_size(connection: psycopg.Connection[Any]) -> None:
    check(connection, "nothing")
    connection.execute(FILL.encode(), (timedelta(days=DAYS) / 100_000, 100_000))
    few = check(connection, "100,000 finished jobs, not analysed")
    connection.execute(FILL.encode(), (timedelta(days=DAYS) / 900_000, 900_000))
    check(connection, "1,000,000 finished jobs, not analysed")
    connection.execute("vacuum (analyze) chancy.finished_jobs")
    many = check(connection, "1,000,000 finished jobs")
    for statement, pages in many.items():
        assert pages <= few[statement] * 1.5 + 40, f"{statement}: {pages} pages of a million"
    # Dropping days reads no row of them.
    began = time.monotonic()
    for _ in range(DAYS - 1):
        assert connection.execute("select * from chancy.drop_days(1)").fetchone() is not None
    assert connection.execute("select * from chancy.drop_days(1)").fetchone() is None
    assert time.monotonic() - began < 2.0
