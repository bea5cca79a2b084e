"""The pages that people's calls look at, in small ones and in one of 50,000 steps."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg

from chancy import Chancy, Job
from chancy.plugins.workflow import Workflow
from chancy.plugins.workflow.description import MAX_STEPS
from chancy.plugins.workflow.outcomes import SQL
from chancy.plugins.workflow.preparation import Preparation
from tests.plans.flows import looked_at, pages
from tests.support.presence import present

Connection = psycopg.Connection[Any]
BATCH = 100
#: Pages for each step that something becomes of.
PAGES = 60
#: Chains: the sixth step of the first runs and has a job; that of the second has none.
RUNS, STANDS = "select md5('w7')::uuid", "select md5('w8')::uuid"
FAILS = "select md5('w' || n * 2)::uuid from generate_series(1, 100) as n"
FAILING = f"update chancy.workflows set state = 3 where id in ({FAILS})"
SIGNAL = "update chancy.workflows_steps set func = null where name = 's9' and workflow_id = "
JOINING = """
update chancy.workflows_steps set froms = '{"values": {"prefix": "m", "path": []}}'
where workflow_id = md5('fan')::uuid and name = 'in'
"""
LAST = "update chancy.workflows_joins set missing = 1 where workflow_id = md5('fan')::uuid"


def _id(connection: Connection, wanted: str) -> UUID:
    row = present(connection.execute(wanted.encode()).fetchone())
    found: UUID = row[0]
    return found


def _extension(flow: UUID, job: UUID, lease: UUID, count: int) -> list[object]:
    """The parameters of adding so many steps behind the sixth."""
    more = Workflow("more")
    for number in range(count):
        more.add(Job(func="a.b"), f"more {number}", after="s5")
    known, chancy = frozenset({"s5", "s9"}), Chancy("postgresql://")
    prepared = Preparation(chancy, more, validate=False, known=known).prepare()
    columns, outer = prepared.columns, prepared.outer
    ties = [one for one, _ in outer], [other for _, other in outer], list(columns.names)
    given = [flow, "s5", 1, job, lease, MAX_STEPS, ["s9"], *ties]
    return [*given, *columns.parameters()]


def of_one(connection: Connection) -> dict[str, int]:
    """Of a chain of ten steps; within the bounds of their number."""
    runs, stands = _id(connection, RUNS), _id(connection, STANDS)
    lease = _id(connection, "select md5('lease')::uuid")
    job = _id(connection, f"select md5('{runs}' || 5)::uuid")
    wanted = (
        "select array(select job_id from chancy.workflows_steps where name in ('s4', 's5') limit"
    )
    settled = present(connection.execute(f"{wanted} {BATCH})".encode()).fetchone())
    signal = SQL.statement("signal", "chancy")
    found = {
        "show": pages(connection, "show", runs, -1, 5_000),
        "progress": pages(connection, "progress", runs),
        "results": pages(connection, "results", runs, -1),
        "cancel": pages(connection, "cancel", runs, "cancelled", None, None),
        "retry": pages(connection, "retry", stands, "s3"),
        "a signal": looked_at(
            connection, signal, runs, "s9", "1", first=[f"{SIGNAL} md5('w7')::uuid"]
        ),
        "waiting": pages(connection, "status", [runs]),
        "ten steps more": pages(connection, "extend", *_extension(runs, job, lease, 10)),
    }
    for what, count in found.items():
        assert count <= PAGES * 10, f"{what} of ten steps looked at {count} pages"
    jobs = pages(connection, "settled", settled[0])
    assert jobs <= 10 * BATCH, f"what became of a hundred jobs looked at {jobs} pages"
    turn = SQL.statement("turn", "chancy")
    fails = present(connection.execute(f"select array({FAILS})".encode()).fetchone())
    failing = looked_at(connection, turn, fails[0], first=[FAILING])
    assert failing <= PAGES * 10 * BATCH, f"a hundred that fail looked at {failing} pages"
    return found | {"what became of jobs": jobs, "workflows that fail": failing}


def check_of_many(connection: Connection) -> None:
    """Of a chain of 5,000, and of one that is as large as one may be, half of which has ended."""
    width, length = MAX_STEPS, 5_000
    fan, long = (_id(connection, f"select md5('{one}')::uuid") for one in ("fan", "long"))
    last = connection.execute(
        b"select name, job_id from chancy.workflows_steps where workflow_id = md5('fan')::uuid"
        b" and state = 0 and name <> 'in' limit 1"
    ).fetchone()
    assert last is not None
    end = [[fan], [last[0]], [1], [last[1]], [4], None, None, [0.1], False, None, None]
    advance = SQL.statement("advance", "chancy")
    value = "select chancy.workflows_value($1::uuid, $2::jsonb)"
    some = json.dumps({"steps": [f"m{n}" for n in range(1, BATCH + 1)], "path": []})
    reaches = "select chancy.workflows_reaches($1::uuid, array['s0'], array['none'])"
    found = {
        "show": (pages(connection, "show", fan, -1, 5_000), width),
        "progress": (pages(connection, "progress", fan), width),
        "results": (pages(connection, "results", fan, -1), width),
        "cancel": (pages(connection, "cancel", fan, "cancelled", None, None), 4 * width),
        "retry of a step": (pages(connection, "retry", fan, "m7"), 4 * width),
        "waiting": (pages(connection, "status", [fan]), 10),
        "a hundred results": (looked_at(connection, value, fan, some), 10 * BATCH),
        "a list of all results": (
            looked_at(connection, advance, *end, first=[JOINING, LAST]),
            width,
        ),
        # 16 to 31 pages a step were seen, depending on what was vacuumed before.
        "retry of all of a chain": (pages(connection, "retry", long, "s0"), 40 * length),
        # Four pages a step, and those of the versions that the retry has left.
        "what is behind": (looked_at(connection, reaches, long), 10 * length),
    }
    for what, (count, most) in found.items():
        assert count <= most, f"{what} looked at {count} pages"
