"""Statements of tests, past the broker."""

from __future__ import annotations

import select
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

from tests.support import leftovers

#: A DSN, or an open session: a new one costs the server some milliseconds.
Where = str | psycopg.Connection[Any]
Parameters = Sequence[object] | Mapping[str, object]
#: The application name of sessions that outlast the test that opened them.
LASTING = "test recycling"
#: Idle sessions of `ask`, by DSN. A new session takes some 6 ms of CPU time for its statement.
_idle: dict[str, list[psycopg.Connection[Any]]] = {}


def keep_sessions(dsn: str) -> None:
    """Let `ask` use its sessions of a database again, until `close_sessions`."""
    _idle.setdefault(dsn, [])


def close_sessions(dsn: str | None = None) -> None:
    """Close the idle sessions of a database or of all, and keep none of it from now on."""
    for name in [*_idle] if dsn is None else [dsn]:
        for session in _idle.pop(name, []):
            session.close()


@contextmanager
def _session(dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A session, which is kept if it is as good as a new one afterwards."""
    if dsn not in _idle:
        with psycopg.connect(dsn, autocommit=True) as only:
            yield only
        return
    session = _taken(_idle[dsn])
    if session is None:
        # Plans of a new session: those of prepared statements could be generic ones.
        session = psycopg.connect(
            dsn, autocommit=True, prepare_threshold=None, application_name=LASTING
        )
        leftovers.lasting.add(session.info.backend_pid)
    kept = False
    try:
        yield session
        kept = session.info.transaction_status == TransactionStatus.IDLE
    finally:
        # One for each database: there are hundreds of these, and few more sessions.
        if kept and _idle.get(dsn) == []:
            _idle[dsn].append(session)
        else:
            session.close()


def _taken(idle: list[psycopg.Connection[Any]]) -> psycopg.Connection[Any] | None:
    """An idle session that the server has not ended, if there is one; safe in threads."""
    while True:
        try:
            session = idle.pop()
        except IndexError:
            return None
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN)
        if not poll.poll(0):
            return session
        session.close()


def ask(where: Where, sql: str, params: Parameters = ()) -> list[tuple[Any, ...]]:
    """Run one statement; without a session, in one that no other statement uses meanwhile.

    A setting, a lock or a temporary table for longer than a statement needs a session of the test.
    It may be older than a setting of the database: `close_sessions` makes the next one new.
    """
    if isinstance(where, str):
        with _session(where) as session:
            return ask(session, sql, params)
    cursor = where.execute(sql.encode(), params or None)
    # A row may have no columns, as of `select from`.
    result = cursor.pgresult
    returned = result is not None and result.status == ExecStatus.TUPLES_OK
    return cursor.fetchall() if returned else []


def count(where: Where, rows: str = "chancy.jobs", params: Parameters = ()) -> int:
    """How many rows there are of a table, or of what follows `from`."""
    ((found,),) = ask(where, f"select count(*) from {rows}", params)
    return int(found)
