"""Every kind of value that crosses, in both directions."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest

from chancy.errors import StatementFailed
from chancy.postgres.drivers.base import Connection

LATE = datetime(9999, 12, 31, 23, 59, 58, tzinfo=UTC)
ID = UUID("0195a3c0-0000-7000-8000-000000000001")
HOSTILE = ["", "null", "NULL", "{}", 'a"b', "a\\b", "a,b", " a ", "é😀", "{a,b}", "\n", "'"]


VALUES: list[tuple[str, object]] = [
    ("smallint", -32768),
    ("int", 2**31 - 1),
    ("bigint", -(2**63)),
    ("bigint", 1),
    ("text", 'a"b\\c, {} é😀\n'),
    ("text", ""),
    ("uuid", ID),
    ("float8", 0.1),
    ("float8", math.inf),
    ("boolean", True),
    ("timestamptz", datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)),
    ("timestamptz", datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    ("timestamptz", LATE),
    ("smallint[]", [1, None, -3]),
    ("int[]", [1, 2**31 - 1]),
    ("bigint[]", [1, 2**63 - 1, None]),
    ("text[]", [*HOSTILE, None]),
    ("uuid[]", [ID, None, uuid4()]),
    ("float8[]", [0.1, None, -math.inf, 1e300]),
    ("boolean[]", [True, None, False]),
    ("timestamptz[]", [LATE, None, datetime(1, 1, 2, tzinfo=UTC)]),
]


async def test_a_parameter_comes_back(session: Connection) -> None:
    await session.fetch("set time zone 'Pacific/Kiritimati'")
    for kind, value in VALUES:
        for given in (value, None):
            # More than twice: the first runs are parsed each time, the later ones are prepared.
            for _ in range(3):
                rows = await session.fetch(f"select $1::{kind}", given)
                assert list(rows[0]) == [given], kind


async def test_a_parameter_that_is_null_at_first_comes_back(session: Connection) -> None:
    for kind, value in dict(VALUES).items():
        for given in (None, value, None):
            rows = await session.fetch(f"select $1::{kind}", given)
            assert list(rows[0]) == [given], kind


async def test_lists_without_values_come_back(session: Connection) -> None:
    for kind in ("smallint", "bigint", "text", "uuid", "boolean", "timestamptz"):
        for given in ([], [None], [None, None]):
            rows = await session.fetch(f"select $1::{kind}[], cardinality($1::{kind}[])", given)
            assert list(rows[0]) == [given, len(given)], kind


async def test_a_type_comes_from_the_statement(session: Connection) -> None:
    await session.fetch("create table things (small smallint, json jsonb, amount numeric)")
    await session.fetch("insert into things values ($1, $2, $3::int)", 7, '{"a": 1}', 5)
    await session.fetch("create function half(smallint) returns int return $1 / 2")
    rows = await session.fetch(
        "select small, json::text, half($1) from things where small = $2", 9, 7
    )
    assert list(rows[0]) == [7, '{"a": 1}', 4]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [1, 100_000, 2**40, None]),
        ("bigint[]", [[1], [100_000], [2**40], [], [None]]),
        ("uuid[]", [[ID], [], [None]]),
    ],
)
async def test_a_statement_has_one_prepared_form(
    session: Connection, kind: str, values: list[object]
) -> None:
    for value in values * 3:
        await session.fetch(f"select $1::{kind}", value)
    prepared = await session.fetch(
        "select from pg_prepared_statements where starts_with(statement, 'select $1::')"
    )
    assert len(prepared) == 1


async def test_infinite_times_are_clamped(session: Connection) -> None:
    rows = await session.fetch("select 'infinity'::timestamptz, '-infinity'::timestamptz")
    late, early = rows[0]
    assert late.year == 9999
    assert early.year == 1


async def test_statements_without_rows_have_none(session: Connection) -> None:
    assert list(await session.fetch("create table things (id int)")) == []
    assert list(await session.fetch("insert into things values (1)")) == []
    assert list(await session.fetch("select id from things where id = 2")) == []


_ZERO = 'invalid byte sequence for encoding "UTF8": 0x00'
_SURROGATE = r"""invalid characters for encoding "UTF8": '\\ud800'"""


@pytest.mark.parametrize(
    ("kind", "values", "sqlstate", "text"),
    [
        ("text", ["a\0b"], "22021", _ZERO),
        ("text[]", [["a\0b"]], "22021", _ZERO),
        ("text", ["a\ud800b"], "22021", _SURROGATE),
        ("text[]", [["a\ud800b"]], "22021", _SURROGATE),
        ("int", [], "22000", "argument|parameters"),
    ],
)
async def test_parameters_are_refused_alike(
    session: Connection, kind: str, values: list[object], sqlstate: str, text: str
) -> None:
    with pytest.raises(StatementFailed, match=text) as failure:
        await session.fetch(f"select $1::{kind}", *values)
    assert failure.value.sqlstate == sqlstate
    assert not failure.value.retryable
    assert not session.closed
