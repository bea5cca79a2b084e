"""The statements that raise priorities, at a million pending jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.reprioritize import Aging, Reprioritize
from tests.plans import functions
from tests.plans.verdict import check_plan

BATCH = 100
#: In three queues of three priorities each; one in ten waits for an hour, the others for seconds.
FILL = """
insert into chancy.jobs (id, pos, state, queue, priority, func, arguments, pushed_at)
select gen_random_uuid(), nextval('chancy.positions'), 0, 'q' || n %% 3, n / 3 %% 3 - 1, 'a.b',
  '{}', now() - case when n / 9 %% 10 = 0 then interval '1 h' else interval '1 s' end
from generate_series(1, %s) as n
"""
VALUES = {
    "p_queue": ("text", "'q1'"),
    "p_priority": ("smallint", "0"),
    "p_funcs": ("text[]", "'{%}'"),
    "p_periods_s": ("float8[]", "'{60}'"),
    "p_gains": ("int[]", "'{1}'"),
    "p_tops": ("int[]", "'{50}'"),
    "p_limit": ("int", str(BATCH)),
    "v_now": ("float8", "extract(epoch from now())::float8"),
}


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    rules = [Aging(every=timedelta(minutes=1))]
    Chancy(dsn, plugins=[Reprioritize(rules=rules)]).sync_migrate()
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def check(connection: psycopg.Connection[Any], label: str) -> dict[str, int]:
    pages = {}
    (step,) = functions.statements(connection, "chancy.reprioritize_step")
    for place in (0, 300_000):
        values = VALUES | {"p_after": ("bigint", str(place))}
        plan = functions.explain(connection, "chancy.reprioritize_step", step, values)
        check_plan(plan, f"step behind {place} with {label}", batch=BATCH)
        pages[f"behind {place}"] = functions.buffers(plan)
    (lanes,) = functions.statements(connection, "chancy.reprioritize_lanes")
    limit = {"p_limit": ("int", "1000")}
    plan = functions.explain(connection, "chancy.reprioritize_lanes", lanes, limit)
    check_plan(plan, f"lanes with {label}", batch=BATCH)
    pages["lanes"] = functions.buffers(plan)
    return pages


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_steps_of_raising_at_every_size(connection: psycopg.Connection[Any]) -> None:
    check(connection, "nothing")
    connection.execute(FILL.encode(), (400_000,))
    few = check(connection, "400,000 pending jobs, not analysed")
    connection.execute(FILL.encode(), (600_000,))
    connection.execute("vacuum (analyze, index_cleanup on) chancy.jobs")
    many = check(connection, "1,000,000 pending jobs")
    for statement, pages in many.items():
        assert pages <= few[statement] * 1.5 + 20, f"{statement}: {pages} pages of a million"
