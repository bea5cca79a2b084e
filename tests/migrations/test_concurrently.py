"""Revisions that run outside of a transaction: indexes that are built beside those who write."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from chancy.errors import ConfigurationError
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema import revisions as history
from chancy.postgres.schema.component import CORE, Component
from chancy.testing.structure import structure
from tests.migrations.slow import BUILD, written
from tests.support.sql import ask, count
from tests.support.waiting import eventually

LONG = pytest.mark.chaos

ROWS = 20_000
Write = Callable[..., Component]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return partial(written, tmp_path)


def indexes(dsn: str) -> list[tuple[str, bool]]:
    return ask(
        dsn,
        "select c.relname, x.indisvalid from pg_index x join pg_class c on c.oid = x.indexrelid "
        "where c.relname = 'slow_rows_kind'",
    )


def at_first(dsn: str, one: Component) -> None:
    """The tables before the index is built, with rows."""
    schema.upgrade(dsn, components=[one], component="core")
    schema.upgrade(dsn, components=[one], component="slow", revision="0001")
    ask(dsn, f"insert into chancy.slow_rows select i, i % 7 from generate_series(1, {ROWS}) as i")


def test_the_way_is_cut_where_a_revision_runs_concurrently(write: Write) -> None:
    one = write()

    def way(*given: Any) -> list[tuple[str, bool]]:
        return [(leg.to, leg.concurrently) for leg in history.runs_between(one, *given)]

    assert way("upgrade", None, "head") == [("0001", False), ("0002", True), ("0003", False)]
    assert way("upgrade", "0002", "head") == [("0003", False)]
    assert way("upgrade", "0003", "head") == way("upgrade", "0003", "0001") == []
    assert way("downgrade", "0003", "base") == [("0002", False), ("0001", True), ("base", False)]
    assert way("downgrade", "0003", "0002") == [("0002", False)]
    assert way("downgrade", "0001", "0002") == []
    core = history.runs_between(CORE, "upgrade", None, "head")
    assert [leg.to for leg in core] == [schema.HEAD], "one transaction, as long as it can be"


def up_down_up(dsn: str, one: Component) -> None:
    at_first(dsn, one)
    schema.upgrade(dsn, components=[one])
    assert indexes(dsn) == [("slow_rows_kind", True)]
    first = structure(dsn)
    schema.downgrade(dsn, components=[one], component="slow", revision="0001")
    assert indexes(dsn) == []
    assert schema.revisions(dsn)["slow"] == "0001"
    schema.upgrade(dsn, components=[one])
    assert structure(dsn) == first
    schema.downgrade(dsn, components=[one])
    assert schema.revisions(dsn) == {}


def test_where_snapshots_outlive_statements_it_does_not_wait_for_itself(
    empty_dsn: str, write: Write
) -> None:
    name = empty_dsn.rpartition("/")[2]
    for setting in (
        "default_transaction_isolation = 'serializable'",
        "idle_in_transaction_session_timeout = '100ms'",
    ):
        ask(empty_dsn, f'alter database "{name}" set {setting}')
    up_down_up(empty_dsn, write())


@contextmanager
def writers(dsn: str, waits: list[float]) -> Generator[None]:
    """Two sessions that write to the table without a pause, and how long each write took."""
    done = threading.Event()

    def work(base: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for i in range(base, base + 10_000_000):
                if done.is_set():
                    return
                began = time.monotonic()
                connection.execute("insert into chancy.slow_rows values (%s, 1)", (i,))
                connection.execute("update chancy.slow_rows set kind = 9 where id = %s", (i - 1,))
                waits.append(time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(n * 10_000_000,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


@pytest.mark.chaos
async def test_writers_continue_while_an_index_is_built(core_dsn: str, write: Write) -> None:
    """A reader holds an old snapshot, for which the build waits: the writers do not."""
    one = write()
    at_first(core_dsn, one)
    waits: list[float] = []
    with psycopg.connect(core_dsn) as reader, writers(core_dsn, waits):
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from chancy.slow_rows")
        upgrade = begin(core_dsn)
        await eventually(lambda: indexes(core_dsn) == [("slow_rows_kind", False)], timeout=30)
        written = len(waits)
        await eventually(lambda: len(waits) > written + 200, timeout=30)
        assert schema.revisions(core_dsn)["slow"] == "0001"
        reader.rollback()
        assert upgrade.wait(60) == 0
    assert indexes(core_dsn) == [("slow_rows_kind", True)]
    # Of the lock that the build ends under; while it waited they wrote.
    assert max(waits) < 10.0
    with psycopg.connect(core_dsn, autocommit=True) as session:
        session.execute("set enable_seqscan = off")
        indexed, others = "chancy.slow_rows where kind = 1", "chancy.slow_rows where kind + 0 = 1"
        assert count(session, indexed) == count(session, others)


def begin(dsn: str) -> subprocess.Popen[bytes]:
    program = (
        "from chancy.postgres.schema import migrate as schema; from tests.migrations.slow import "
        f"component; schema.upgrade({dsn!r}, components=[component()])"
    )
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)


@pytest.mark.chaos
async def test_many_processes_build_it_once(core_dsn: str, write: Write) -> None:
    """Those that wait hold no snapshot, for which the one that builds would wait for ever."""
    one = write()
    at_first(core_dsn, one)
    with psycopg.connect(core_dsn) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from chancy.slow_rows")
        processes = [begin(core_dsn) for _ in range(3)]
        await eventually(lambda: indexes(core_dsn) == [("slow_rows_kind", False)], timeout=60)
        waiting = (
            "select count(*) from pg_stat_activity where application_name = 'chancy migrations'"
            " and datname = current_database()"
        )
        # One has two sessions: that of the lock, and that which builds.
        await eventually(lambda: ask(core_dsn, waiting) == [(4,)], timeout=60)
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert indexes(core_dsn) == [("slow_rows_kind", True)]
    assert schema.revisions(core_dsn)["slow"] == "0003"


@pytest.mark.parametrize("backend", ["cancelled", pytest.param("orphaned", marks=LONG)])
async def test_an_interrupted_build_is_done_again(
    backend: str, core_dsn: str, write: Write
) -> None:
    """Cancelled: it left an invalid index. Orphaned: the server builds on for one that is gone."""
    one = write()
    at_first(core_dsn, one)
    with psycopg.connect(core_dsn) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from chancy.slow_rows")
        process = begin(core_dsn)
        await eventually(lambda: indexes(core_dsn) == [("slow_rows_kind", False)], timeout=60)
        if backend == "cancelled":
            ask(
                core_dsn, "select pg_cancel_backend(pid) from pg_stat_activity"
                " where datname = current_database() and"
                " (query like 'create index concurrently%' or query like '--%create index%')"
            )  # fmt: skip
            assert process.wait(100) == 1
            assert indexes(core_dsn) == [("slow_rows_kind", False)]
        else:
            process.send_signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL
            again = begin(core_dsn)
            # It found the index INVALID and its table held, and asks again.
            asks = (
                "select 1 from pg_stat_activity where application_name = 'chancy migrations'"
                " and datname = current_database() and query like '%indisvalid%'"
            )
            await eventually(lambda: ask(core_dsn, asks) == [(1,)], timeout=60)
            reader.rollback()
            assert again.wait(60) == 0
    assert schema.revisions(core_dsn)["slow"] == ("0001" if backend == "cancelled" else "0003")
    schema.upgrade(core_dsn, components=[one])
    assert indexes(core_dsn) == [("slow_rows_kind", True)]
    assert schema.revisions(core_dsn)["slow"] == "0003"


def test_a_build_that_fails_leaves_what_was_before_and_can_be_tried_again(
    core_dsn: str, write: Write
) -> None:
    one = write(BUILD.replace("index", "unique index", 1))
    at_first(core_dsn, one)
    with pytest.raises(ConfigurationError, match=r"component 'slow'.*could not create unique"):
        schema.upgrade(core_dsn, components=[one])
    assert schema.revisions(core_dsn)["slow"] == "0001"
    assert indexes(core_dsn) == [("slow_rows_kind", False)]
    ask(core_dsn, "delete from chancy.slow_rows where id > 7")
    schema.upgrade(core_dsn, components=[one])
    assert indexes(core_dsn) == [("slow_rows_kind", True)]


@pytest.mark.parametrize(
    "statement",
    [
        "create index slow_rows_kind on {schema}.slow_rows (kind)",
        "create index concurrently slow_rows_kind on {schema}.slow_rows (kind)",
        "create index concurrently if not exists on {schema}.slow_rows (kind)",
        'CREATE INDEX concurrently if not exists "Odd" on {schema}.slow_rows (kind)',
    ],
)
def test_statements_that_are_unsafe_to_repeat_are_refused(statement: str, write: Write) -> None:
    with pytest.raises(ConfigurationError, match="if not exists NAME on"):
        schema.sql(components=[write(statement)])


def test_a_statement_that_is_unsafe_to_repeat_is_not_run(core_dsn: str, write: Write) -> None:
    one = write("create index slow_rows_kind on {schema}.slow_rows (kind)")
    at_first(core_dsn, one)
    with pytest.raises(ConfigurationError, match="if not exists NAME on"):
        schema.upgrade(core_dsn, components=[one])
    assert indexes(core_dsn) == []


def test_the_offline_statements_step_out_of_the_transaction(core_dsn: str, write: Write) -> None:
    one = write()
    schema.upgrade(core_dsn)
    text = schema.sql(components=[one], component="slow")
    opened = [re.search(word, text) for word in ("COMMIT;", "create index concurrently", "BEGIN;")]
    assert all(opened)
    assert text.count("BEGIN;") == text.count("COMMIT;") == 2
    with psycopg.connect(core_dsn, autocommit=True) as connection:
        for statement in text.split(";"):
            if re.sub(r"--.*", "", statement).strip():
                connection.execute(statement.encode())
    assert indexes(core_dsn) == [("slow_rows_kind", True)]
    assert schema.revisions(core_dsn)["slow"] == "0003"
    by_hand = structure(core_dsn)
    schema.downgrade(core_dsn, components=[one], component="slow")
    schema.upgrade(core_dsn, components=[one])
    assert structure(core_dsn) == by_hand
