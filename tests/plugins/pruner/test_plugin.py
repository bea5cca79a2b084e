"""The pruner beside a worker, in settings and on the command line."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from chancy import Chancy, State, Worker
from chancy.broker.optional import SqlStore
from chancy.clock import SystemClock
from chancy.errors import ConfigurationError, StatementFailed
from chancy.plugin.discovery import made
from chancy.plugin.leader import Unelected
from chancy.plugins import pruner as pruning
from chancy.plugins.leadership import ImmediateLeadership
from chancy.plugins.pruner import Prune, Pruner, vacuum_after_failovers
from tests.plugins.pruner.finished import HOUR, add_day, fill, left
from tests.support import jobs
from tests.support.command import inside
from tests.support.roles import roles
from tests.support.waiting import eventually


async def test_the_rules_run_on_the_leader_beside_the_drop_of_days(
    dsn: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fill(connection, 40)
    add_day(connection, datetime.now(UTC).date() - timedelta(days=9))
    fill(connection, 9, first=timedelta(days=9))
    connection.execute(
        "insert into chancy.awaited (id, asked_at) values (gen_random_uuid(), now()),"
        " (gen_random_uuid(), now() - interval '2 days')"
    )
    # The rules get what is left of it: nothing of 0.1 s on a busy machine.
    pruner = Pruner(every_s=1.0, rules=[Prune(keep_last=10)])
    async with (
        Chancy(dsn, plugins=[ImmediateLeadership(), pruner]) as chancy,
        Worker(chancy, queues=[]),
    ):
        await eventually(lambda: sum(left(connection).values()) == 10)
        fill(connection, 5, first=timedelta(minutes=2))
        await eventually(lambda: sum(left(connection).values()) == 10)
    assert connection.execute("select count(*) from chancy.awaited").fetchone() == (1,)
    assert "pruned_jobs" in caplog.text
    assert "rule=keep_last=10" in caplog.text
    assert "worker_loop_failed" not in caplog.text


async def test_a_partition_that_another_session_holds_puts_the_rules_off(
    dsn: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fill(connection, 40)
    # The rules get what is left of it after a wait of 100 ms for the lock of the partitions.
    pruner = Pruner(every_s=0.5, rules=[Prune(keep_last=10)])
    with psycopg.connect(dsn) as holder:
        holder.execute("lock table chancy.finished_jobs in exclusive mode")
        async with (
            Chancy(dsn, plugins=[ImmediateLeadership(), pruner]) as chancy,
            Worker(chancy, queues=[]),
        ):
            await eventually(lambda: "prune_postponed step=rules" in caplog.text)
            holder.rollback()
            await eventually(lambda: sum(left(connection).values()) == 10)
    assert "worker_loop_failed" not in caplog.text


async def test_each_day_is_committed_by_itself(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    days = [datetime.now(UTC).date() + timedelta(days=ahead) for ahead in range(8)]
    for day in days:
        connection.execute(f"drop table chancy.finished_jobs_{day:%Y%m%d}".encode())
    pruner = Pruner()
    async with Chancy(dsn, plugins=[pruner]) as chancy:
        await pruner.prune(chancy.broker)  # type: ignore[arg-type]
    made = connection.execute(
        "select count(*), count(distinct xmin::text) from pg_class"
        " where relname ~ '^finished_jobs_[0-9]{8}$' and relkind = 'r'"
    ).fetchone()
    assert made == (8, 8)


async def test_a_day_that_cannot_be_made_keeps_no_others_from_being_made(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    names = [f"finished_jobs_{datetime.now(UTC) + timedelta(days=n):%Y%m%d}" for n in range(8)]
    for name in names:
        connection.execute(f"drop table chancy.{name}".encode())
    fill(connection, 1, first=-timedelta(minutes=1))  # of today, in the default partition
    connection.execute(
        "create function pg_temp.refuse() returns trigger language plpgsql as"
        " $$ begin raise 'it takes long' using errcode = 'query_canceled'; end $$"
    )
    connection.execute(
        "create trigger refuse before delete on chancy.finished_jobs_default"
        " for each row execute function pg_temp.refuse()"
    )
    partitions = (
        "select relname from pg_class where relname ~ '^finished_jobs_[0-9]{8}$'"
        " and relkind = 'r' order by 1"
    )
    pruner = Pruner()
    async with Chancy(dsn, plugins=[pruner]) as chancy:
        store: Any = chancy.broker
        await pruner.prune(store)
        assert [name for (name,) in connection.execute(partitions)] == names[1:]
        connection.execute("drop trigger refuse on chancy.finished_jobs_default")
        await pruner.prune(store)
    assert [name for (name,) in connection.execute(partitions)] == names


async def test_after_a_day_of_many_rows_the_next_days_are_split_into_hours(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)

    def name(ahead: int) -> str:
        return f"finished_jobs_{today + timedelta(days=ahead):%Y%m%d}"

    def partitions() -> list[str]:
        found = connection.execute(
            "select inhrelid::regclass::text from pg_inherits"
            " where inhparent = 'chancy.finished_jobs'::regclass"
        )
        return sorted(row[0].removeprefix("chancy.") for row in found)

    # A table of yesterday that the statistics call large.
    add_day(connection, today.date() - timedelta(days=1))
    statistics = "update pg_class set reltuples = %s where oid = %s::regclass"
    connection.execute(statistics, (20_000_000, f"chancy.{name(-1)}"))
    assert connection.execute("select chancy.make_days(7)").fetchone() == (0,)
    connection.execute(statistics, (20_000_002, f"chancy.{name(-1)}"))
    # A job has finished on the day after tomorrow, by a clock that was ahead: its table stays.
    fill(connection, 1, first=now - today - timedelta(days=2, hours=12))
    assert connection.execute("select chancy.make_days(7)").fetchone() == (24,)
    assert connection.execute("select chancy.make_days(7)").fetchone() == (0,)
    hours = [f"{name(1)}{hour:02}" for hour in range(24)]
    days = [name(ahead) for ahead in (-1, 0, 2, 3, 4, 5, 6, 7)]
    assert partitions() == sorted([*hours, *days, "finished_jobs_default"])
    # Each row goes to its hour, and hours are dropped as days are.
    fill(connection, 1, first=now - today - timedelta(days=1, hours=7, minutes=30))
    seventh = f"select count(*) from chancy.{hours[7]}".encode()
    assert connection.execute(seventh).fetchone() == (1,)
    connection.execute(f"drop table chancy.{name(-1)}".encode())
    old = [f"finished_jobs_20010101{hour:02}" for hour in range(24)]
    for hour, name_of_old in zip(hours, old, strict=True):
        connection.execute(f"alter table chancy.{hour} rename to {name_of_old}".encode())
    # One in each transaction: a drop blocks all settlements until its transaction ends.
    assert connection.execute("select chancy.drop_days(1)").fetchall() == [(old[0],)]
    pruner = Pruner(keep_days=1)
    async with Chancy(dsn, plugins=[pruner]) as chancy:
        assert await pruner.prune(chancy.broker) == old[1:]  # type: ignore[arg-type]


async def test_a_partition_that_another_session_reads_keeps_no_others_from_being_dropped(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    today = datetime.now(UTC).date()
    names = [add_day(connection, today - timedelta(days=ago)) for ago in (12, 11, 10)]
    pruner = Pruner()
    async with Chancy(dsn, plugins=[pruner]) as chancy:
        store: Any = chancy.broker
        with psycopg.connect(dsn) as holder:
            holder.execute(f"lock table chancy.{names[0]} in access share mode".encode())
            assert await pruner.prune(store) == names[1:]
            with pytest.raises(StatementFailed, match=f"another session uses {names[0]}"):
                await pruner.prune(store, strict=True)
        assert await pruner.prune(store) == names[:1]


async def test_old_rows_of_the_default_partition_are_deleted_in_batches(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 10_003, first=timedelta(days=9), queue="old")
    fill(connection, 5, first=timedelta(days=3), queue="young")
    assert connection.execute("select chancy.drop_days(7)").fetchall() == [
        ("finished_jobs_default",)
    ]
    assert {queue: count for (queue, _, _), count in left(connection).items()} == {
        "old": 3,
        "young": 5,
    }
    fill(connection, 10_003, first=timedelta(days=9), queue="old")
    pruner = Pruner()
    async with Chancy(dsn, plugins=[pruner]) as chancy:
        assert await pruner.prune(chancy.broker) == ["finished_jobs_default"]  # type: ignore[arg-type]
    assert {queue: count for (queue, _, _), count in left(connection).items()} == {"young": 5}


@contextmanager
def guest(dsn: str, connection: psycopg.Connection[Any]) -> Generator[tuple[str, str]]:
    """A role with all rights on the tables, which it does not own: its name, and its DSN."""
    role = f"guest_{secrets.token_hex(4)}"
    with roles(dsn, [role]):
        connection.execute(f"grant usage on schema chancy to {role}".encode())
        for what in ("tables", "sequences"):
            connection.execute(f"grant all on all {what} in schema chancy to {role}".encode())
        yield role, make_conninfo(dsn, options=f"-c role={role}")


async def test_a_missing_partition_of_today_is_logged_until_it_is_there(
    dsn: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """By a worker whose role does not own the tables, too."""
    today = f"finished_jobs_{datetime.now(UTC).date():%Y%m%d}"
    connection.execute(f"drop table chancy.{today}".encode())
    with guest(dsn, connection) as (_, as_guest):
        async with (
            Chancy(as_guest, plugins=[ImmediateLeadership(), Pruner(every_s=0.05)]) as chancy,
            Worker(chancy, queues=[]),
        ):
            await eventually(lambda: caplog.text.count(f"partition_missing name={today}") > 1)
        assert caplog.text.count("prune_not_allowed") == 1
        assert "worker_loop_failed" not in caplog.text
        connection.execute("select chancy.make_days(0)")
        caplog.clear()
        async with Chancy(as_guest) as chancy:
            await Pruner().check_today(chancy.broker)  # type: ignore[arg-type]
        assert caplog.text == ""


async def test_a_role_without_the_delete_privilege_is_logged_once(
    dsn: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    fill(connection, 3)
    pruner = Pruner(every_s=0.01, rules=[Prune(keep_last=0)])
    with guest(dsn, connection) as (role, as_guest):
        connection.execute(f"revoke delete on chancy.finished_jobs from {role}".encode())
        async with (
            Chancy(as_guest, plugins=[ImmediateLeadership(), pruner]) as chancy,
            Worker(chancy, queues=[]),
        ):
            await eventually(lambda: "prune_rules_not_allowed" in caplog.text)
    assert caplog.text.count("prune_rules_not_allowed") == 1
    assert "worker_loop_failed" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "pass older_than or keep_last"),
        ({"state": "running", "keep_last": 1}, "must be a state of finished jobs"),
        ({"state": 1, "keep_last": 1}, "must be a state of finished jobs"),
        ({"state": "gone", "keep_last": 1}, "must be a state of finished jobs"),
        ({"queue": "a b", "keep_last": 1}, "queue='a b' is not a valid"),
        ({"func": "[ab]", "keep_last": 1}, r"func='\[ab\]' is not a valid"),
        ({"older_than": 3600}, "must be a timedelta"),
        ({"older_than": -HOUR}, "must be a timedelta"),
        ({"keep_last": -1}, "keep_last=-1"),
        ({"keep_last": True}, "keep_last=True"),
    ],
)
def test_rules_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Prune(**settings)


def test_a_pruner_takes_rules_and_nothing_else() -> None:
    for rules in (["keep_last=1"], [{"keep_last": 1}], [Prune(keep_last=1)] * 101):
        with pytest.raises(ConfigurationError):
            Pruner(rules=rules)  # type: ignore[arg-type]


def test_rules_come_from_tables_of_settings() -> None:
    plugin = made(
        Pruner,
        {
            "rules": [
                {"state": "succeeded", "older_than": "PT6H"},
                {"queue": "mail", "keep_last": 10_000},
                {"func": "shop.*", "older_than": 90},
            ]
        },
    )
    assert isinstance(plugin, Pruner)
    assert plugin.rules == (
        Prune(state=State.SUCCEEDED, older_than=timedelta(hours=6)),
        Prune(queue="mail", keep_last=10_000),
        Prune(func="shop.*", older_than=timedelta(seconds=90)),
    )


@pytest.mark.parametrize(
    "rule",
    [{"keep_last": 1, "queu": "mail"}, {"state": "pending", "keep_last": 1}, {"state": "failed"}],
)
def test_a_wrong_rule_in_settings_is_named(rule: dict[str, Any]) -> None:
    """A misspelled condition must not make a rule that means every job."""
    with pytest.raises(ConfigurationError, match=r"^x.toml: the plugin 'chancy.pruner'"):
        made(Pruner, {"rules": [rule]}, source="x.toml")


def test_the_command_reports_what_would_go_and_prunes(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, 40)
    day = datetime.now(UTC).date() - timedelta(days=3)
    old = add_day(connection, day)
    noon = datetime.combine(day, time(12), UTC)
    fill(connection, 9, first=datetime.now(UTC) - noon)
    app = "tests.plugins.pruner.pruning_app:chancy"
    said = inside("prune", "--dry-run", "--json", app=app, dsn=dsn).json
    expected = {
        "partitions": [old],
        "rules": [{"rule": "keep_last=15", "jobs": 25}],
    }
    assert said == expected | {"dry_run": True}
    assert sum(left(connection).values()) == 49
    assert inside("prune", "--json", app=app, dsn=dsn).json == expected | {"dry_run": False}
    assert sum(left(connection).values()) == 15
    text = inside("prune", app=app, dsn=dsn).out
    assert "rule keep_last=15  0" in text


async def test_the_live_table_is_vacuumed_once_statistics_are_lost(
    dsn: str,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a failover."""
    caplog.set_level("INFO")
    monkeypatch.setattr(pruning, "VACUUM_LOOK_S", 0.1)
    connection.execute("alter table chancy.jobs set (autovacuum_enabled = off)")
    vacuumed = (
        "select last_vacuum is not null from pg_stat_user_tables where relname = 'jobs'"
        " and schemaname = 'chancy'"
    )
    async with (
        Chancy(dsn, plugins=[ImmediateLeadership(), Pruner()]) as chancy,
        Worker(chancy, queues=[]),
    ):
        await chancy.push(jobs.note.job(1))
        await eventually(lambda: connection.execute(vacuumed).fetchone() == (True,))
        await eventually(lambda: "live_table_vacuumed" in caplog.text)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_vacuum_without_effect_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """Whether it fails, as after a time limit, or is not allowed."""
    caplog.set_level("INFO")
    monkeypatch.setattr(pruning, "VACUUM_LOOK_S", 0.01)
    asked: list[str] = []
    lost = iter([True, True, True, True, False] if not fails else [True, True, True, False])

    class Store:
        schema = "chancy"

        async def fetch(self, sql: str, *params: object) -> list[list[bool]]:
            if "vacuum (" in sql:
                asked.append("vacuum")
                if fails:
                    raise StatementFailed("it took too long")
                return []
            asked.append("look")
            return [[found]] if (found := next(lost)) else []  # a shard may have no tables

    with pytest.raises(RuntimeError, match="StopIteration"):
        await vacuum_after_failovers(cast("SqlStore", Store()), SystemClock(), Unelected())
    looks = ["look"] * 5
    assert asked == (["look", "vacuum", *looks[:4]] if fails else ["look", "vacuum", *looks])
    assert "live_table_vacuumed" not in caplog.text
