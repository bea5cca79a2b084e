"""Least privilege: owner, worker, producer and viewer as roles of the database, on real work."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chancy import Chancy, JobFilter, StatementFailed
from chancy.errors import ConfigurationError
from chancy.plugins.cron import Cron
from chancy.postgres import grants, schema
from chancy.postgres.component import Component, Kind, Migrations
from tests.integration.command import alone, command, inside, started
from tests.plugins.ledger import Ledger
from tests.waiting import eventually_sync

SHOP = """\
import os
import time
from chancy import Chancy, Queue, job
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.retry import Constant, Retry


@job(max_attempts=3)
def flaky(path: str) -> str:
    with open(path, "a") as file:
        file.write("tried\\n")
    if len(open(path).readlines()) < 2:
        raise ValueError("not yet")
    return "at last"


@job(max_attempts=1)
def fail() -> None:
    raise ValueError("never")


@job(max_attempts=2)
def hang(path: str) -> None:
    first = not os.path.exists(path)
    open(path, "a").write(f"{os.getpid()}\\n")
    if first:
        time.sleep(60)


@job
def tick() -> None:
    pass


chancy = Chancy(
    queues=[Queue(name="default", executor="thread", concurrency=8, poll_interval_s=0.2)],
    plugins=[Retry(Constant(0.05)), Cron(Entry("each", "* * * * * *", tick.job()), poll_s=0.1)],
)
"""
COMPONENTS = Chancy("postgresql://nowhere", plugins=[Ledger(), Cron()]).hooks.components


class Cast:
    """Roles of a database, one of each kind, with names that no other test has."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        run = secrets.token_hex(4)
        self.names = {kind: f"{kind.value}_{run}" for kind in Kind}

    def of(self, kind: Kind) -> str:
        """The DSN of a role."""
        return make_conninfo(self.dsn, options=f"-c role={self.names[kind]}")

    def grant(self, components: Sequence[Component] = COMPONENTS) -> None:
        """Make the owner the owner, let it migrate, and let it grant what the others need."""
        owner = self.names[Kind.OWNER]
        grants.apply(self.dsn, "chancy", grants.statements(Kind.OWNER, owner))
        schema.upgrade(self.of(Kind.OWNER), components=components)
        for kind in (Kind.WORKER, Kind.PRODUCER, Kind.VIEWER):
            made = grants.statements(kind, self.names[kind], "chancy", components)
            grants.apply(self.of(Kind.OWNER), "chancy", made)


@contextmanager
def roles(dsn: str, names: Sequence[str]) -> Generator[None]:
    """Roles are shared by the whole server: they go with the test."""

    def each(connection: psycopg.Connection[Any], *statements: LiteralString) -> None:
        for name in names:
            for statement in statements:
                connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

    with psycopg.connect(dsn, autocommit=True) as connection:
        each(connection, "create role {}")
        try:
            yield
        finally:
            each(connection, "drop owned by {} cascade", "drop role {}")


@pytest.fixture
def cast(empty_dsn: str) -> Iterator[Cast]:
    made = Cast(empty_dsn)
    with roles(empty_dsn, [*made.names.values()]):
        yield made


def execute(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(statement.encode())
        return found.fetchall() if found.description else []


def test_a_fleet_under_its_role_does_all_of_its_work(cast: Cast, tmp_path: Path) -> None:
    """Pushed by the producer; retried, rescued after a kill, led, ticked and buried by the worker;
    seen by the viewer."""
    (tmp_path / "shop.py").write_text(SHOP)
    cast.grant()
    (newest,) = execute(cast.dsn, "select max(inhrelid::regclass::text) from pg_inherits where"
                        " inhrelid::regclass::text ~ 'finished_jobs_[0-9]{8}$'")  # fmt: skip
    execute(cast.dsn, f"drop table {newest[0]}")
    worker, producer, viewer = (
        {"CHANCY_DSN": cast.of(kind)} for kind in (Kind.WORKER, Kind.PRODUCER, Kind.VIEWER)
    )

    def push(function: str, *more: str) -> str:
        done = alone("push", f"shop.{function}", *more, "--app=shop", cwd=tmp_path, env=producer)
        return done.out.strip()

    options = ("--app=shop", "--processes=0", "--heartbeat=0.2", "--heartbeat-timeout=1.5")
    hung = tmp_path / "hung"
    with started(command("worker", *options), cwd=tmp_path, env=worker) as first:
        rescued = push("hang", f'--arg=path="{hung}"')
        retried = push("flaky", f'--arg=path="{tmp_path / "flaky"}"')
        buried = push("fail")
        eventually_sync(hung.exists)
        lease = "select holder is not null from chancy.leadership_leases where expires_at > now()"
        eventually_sync(lambda: execute(cast.dsn, lease) == [(True,)])
        ticks = "select 1 from chancy.cron_ticks limit 1"
        eventually_sync(lambda: execute(cast.dsn, ticks) == [(1,)])
        letters = "select id::text from chancy.dead_letters"
        eventually_sync(lambda: execute(cast.dsn, letters) == [(buried,)])
        eventually_sync(lambda: "prune_not_allowed" in first.log)
        shown = alone("job", "wait", retried, "--json", cwd=tmp_path, env=viewer).json
        assert (shown["result"], shown["attempt"], len(shown["errors"])) == ("at last", 2, 1)
        first.process.kill()
        first.process.wait()
    with started(command("worker", *options), cwd=tmp_path, env=worker) as second:
        eventually_sync(lambda: len(hung.read_text().splitlines()) == 2, timeout=20)
        ended = alone("job", "wait", rescued, "--json", cwd=tmp_path, env=viewer).json
        assert (ended["state"], ended["crashes"]) == ("succeeded", 1)
        alone("queue", "pause", "default", "--app=shop", cwd=tmp_path, env=worker)
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(20) == 0
        said = second.log
    refused = [line for line in said.splitlines() if "permission denied" in line]
    assert [line for line in refused if "prune" not in line] == []
    for panel in (("queue", "list"), ("worker", "list"), ("job", "list"), ("cron", "list")):
        alone(*panel, "--app=shop", "--json", cwd=tmp_path, env=viewer)
    denied = alone("queue", "resume", "default", cwd=tmp_path, env=viewer, code=None)
    assert denied.code != 0
    assert "permission denied" in denied.err


def test_a_worker_that_is_a_member_of_the_owner_prunes(cast: Cast) -> None:
    cast.grant()
    make = "select chancy.make_days(12)"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(cast.of(Kind.WORKER), make)
    worker, owner = cast.names[Kind.WORKER], cast.names[Kind.OWNER]
    execute(cast.dsn, f"grant {owner} to {worker}")
    assert execute(cast.of(Kind.WORKER), make)[0][0] > 0
    execute(cast.dsn, f"revoke {owner} from {worker}")
    # What a member made belongs to itself; it works as the others do, by way of the parent.
    insert = (
        "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
        " max_attempts, crashes, pushed_at, finished_at) values (gen_random_uuid(), 1, 4, 'q', 0,"
        " 'a.b', 1, 1, 0, now(), now() + interval '11 days')"
    )
    execute(cast.of(Kind.WORKER), insert)
    (table,) = execute(cast.dsn, "select tableoid::regclass::text from chancy.finished_jobs")[0]
    assert table != "chancy.finished_jobs_default"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(cast.of(Kind.VIEWER), f"select from {table}")
    assert execute(cast.of(Kind.VIEWER), "select queue from chancy.finished_jobs") == [("q",)]


JOB = (
    "insert into chancy.jobs (id, pos, state, queue, func)"
    " values (gen_random_uuid(), 1, 0, 'q', 'a.b')"
)
WORKER = "11111111-0000-4000-8000-000000000000"
IDS = "array[gen_random_uuid()], array[gen_random_uuid()]"
W, P, V = Kind.WORKER, Kind.PRODUCER, Kind.VIEWER
#: What somebody might try, and who of those that do not own the tables can.
MATRIX: dict[str, set[Kind]] = {
    JOB: {W, P},
    "select id, queue, state from chancy.jobs": {W, P, V},
    "select arguments from chancy.jobs": {W, V},
    "select errors, meta from chancy.jobs": {W, V},
    "select unique_key from chancy.jobs": {W, V},
    "update chancy.jobs set arguments = '{}'": {W},
    "update chancy.jobs set lease = lease": {W},
    "delete from chancy.jobs": {W},
    "truncate chancy.jobs": set(),
    "select id from chancy.jobs for update": {W},
    "select id from chancy.finished_jobs": {W, P, V},
    "select arguments, result, errors from chancy.finished_jobs": {W, V},
    "insert into chancy.finished_jobs select f.* from chancy.finished_jobs f": {W},
    "update chancy.finished_jobs set state = 4": set(),
    "delete from chancy.finished_jobs": set(),
    "delete from chancy.finished_jobs_default": set(),
    "select from chancy.finished_jobs_default": set(),
    "truncate chancy.finished_jobs": set(),
    f"select from chancy.claim('{WORKER}', gen_random_uuid(), 'q', 5, null, null)": {W},
    f"select from chancy.claim('{WORKER}', gen_random_uuid(), 'q', null, null, 5)": {W},
    f"select from chancy.finish({IDS}, '{{4}}', null, null, null, null, null)": {W},
    f"select from chancy.finish_plain({IDS}, '{{4}}', null)": {W},
    f"select from chancy.note({IDS}, null)": {W},
    f"select from chancy.settled({IDS})": {W, V},
    "select from chancy.cancel(array(select id from chancy.jobs))": {W},
    "select from chancy.promote(5)": {W},
    "select from chancy.orphans(15, 5)": {W},
    "select chancy.wake('q', false)": {W, P, V},
    "select chancy.make_days(30)": set(),
    "insert into chancy.workers (id, host, pid) values (gen_random_uuid(), 'h', 1)": {W},
    "update chancy.workers set beat_at = now()": {W},
    "delete from chancy.workers": {W},
    "select * from chancy.workers": {W, V},
    "insert into chancy.queues (name) values ('other')": {W},
    "update chancy.queues set paused_at = now()": {W},
    "delete from chancy.queues": {W},
    "select * from chancy.queues": {W, V},
    "insert into chancy.awaited (id) values (gen_random_uuid())": {W, P},
    "select nextval('chancy.positions')": {W, P},
    "select setval('chancy.positions', 1)": set(),
    "select version_num from chancy.core_version": {W, P, V},
    "select version_num from chancy.ledger_version": {W, P, V},
    "update chancy.core_version set version_num = '0001'": set(),
    "update chancy.ledger_version set version_num = '0001'": set(),
    "select * from chancy.leadership_leases": {W, V},
    "delete from chancy.leadership_leases": {W},
    "select arguments from chancy.cron_entries": {W, V},
    "update chancy.cron_entries set func = 'os.system'": {W},
    "delete from chancy.cron_ticks": {W},
    "select arguments from chancy.dead_letters": {W, V},
    "delete from chancy.dead_letters": {W},
    "insert into chancy.ledger_entries (worker_id) values (gen_random_uuid())": {W},
    "select * from chancy.ledger_entries": {W, V},
    "create table chancy.mine (a int)": set(),
    "create function chancy.mine() returns int language sql return 1": set(),
    "create or replace function chancy.channel() returns text language sql return 'x'": set(),
    "create index on chancy.jobs (func)": set(),
    "create trigger t before insert on chancy.jobs for each row execute function"
    " suppress_redundant_updates_trigger()": set(),
    "alter table chancy.jobs add mine int": set(),
    "alter table chancy.jobs disable trigger all": set(),
    "drop table chancy.jobs": set(),
    "drop function chancy.channel": set(),
    "drop schema chancy cascade": set(),
    "lock table chancy.jobs in access exclusive mode": {W},
    "alter role current_user superuser": set(),
}  # fmt: skip


def test_who_can_do_what(cast: Cast) -> None:
    cast.grant()
    execute(cast.dsn, f"insert into chancy.workers (id, host, pid) values ('{WORKER}', 'h', 1)")
    execute(cast.dsn, JOB)
    wrong = []
    for kind in (W, P, V):
        with psycopg.connect(cast.of(kind)) as connection:
            for statement, allowed in MATRIX.items():
                try:
                    connection.execute(statement.encode())
                    can = True
                except psycopg.errors.InsufficientPrivilege:
                    can = False
                except psycopg.Error as error:
                    raise AssertionError(f"{statement}: {error}") from error
                finally:
                    connection.rollback()
                if can != (kind in allowed):
                    wrong.append((kind.value, "can" if can else "cannot", statement))
    assert wrong == []


def test_somebody_else_can_do_nothing(cast: Cast) -> None:
    """Functions may be called by everybody, but not in a schema that is not theirs to use."""
    cast.grant()
    name = f"nobody_{secrets.token_hex(4)}"
    with roles(cast.dsn, [name]), psycopg.connect(cast.dsn, options=f"-c role={name}") as nobody:
        for statement in ("select from chancy.jobs", "select chancy.channel()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                nobody.execute(statement.encode())
            nobody.rollback()


def access(dsn: str) -> list[Any]:
    """Every right on what is in the schema, and who owns it."""
    return execute(
        dsn, "select relname, relowner, relacl::text from pg_class"
        " where relnamespace = 'chancy'::regnamespace union all"
        " select proname, proowner, proacl::text from pg_proc"
        " where pronamespace = 'chancy'::regnamespace union all"
        " select nspname, nspowner, nspacl::text from pg_namespace where nspname = 'chancy'"
        " union all select a.attrelid::regclass::text || a.attname, 0, a.attacl::text"
        " from pg_attribute a where a.attacl is not null order by 1, 2, 3",
    )  # fmt: skip


@pytest.mark.parametrize("kind", [*Kind])
def test_grants_bear_to_be_repeated_and_by_hand_are_the_same(cast: Cast, kind: Kind) -> None:
    schema.upgrade(cast.dsn, components=COMPONENTS)
    options = ("migrate", "grants", "--role", cast.names[kind], "--kind", kind.value,
               "--app", f"{__name__}:application")  # fmt: skip
    printed = inside(*options, dsn="postgresql://nowhere").out
    execute(cast.dsn, printed)
    first = access(cast.dsn)
    assert cast.names[kind] in str(first) or kind is Kind.OWNER
    applied = inside(*options, "--apply", "--json", dsn=cast.dsn).json
    assert access(cast.dsn) == first
    assert (applied["role"], applied["kind"], applied["applied"]) == (
        cast.names[kind], kind.value, True,
    )  # fmt: skip
    assert printed == "".join(f"{one};\n" for one in ("begin", *applied["statements"], "commit"))


def application() -> Chancy:
    return Chancy(plugins=[Ledger(), Cron()])


def test_the_owner_gets_what_others_have_made(cast: Cast) -> None:
    """And migrates on, without any right on the database."""
    schema.upgrade(cast.dsn, components=COMPONENTS, component="core")
    schema.upgrade(cast.dsn, components=COMPONENTS, component="ledger", revision="0001")
    execute(cast.dsn, "create type chancy.ledger_kind as enum ('a')")
    with pytest.raises(ConfigurationError, match="permission denied"):
        schema.upgrade(cast.of(Kind.OWNER), components=COMPONENTS)
    cast.grant()
    owners = execute(
        cast.dsn, "select distinct relowner::regrole::text from pg_class"
        " where relnamespace = 'chancy'::regnamespace union select proowner::regrole::text"
        " from pg_proc where pronamespace = 'chancy'::regnamespace union"
        " select typowner::regrole::text from pg_type where typnamespace = 'chancy'::regnamespace",
    )  # fmt: skip
    assert owners == [(cast.names[Kind.OWNER],)]
    schema.downgrade(cast.of(Kind.OWNER), components=COMPONENTS)
    schema.upgrade(cast.of(Kind.OWNER), components=COMPONENTS)


async def test_tables_that_come_later_are_granted_by_another_run(cast: Cast) -> None:
    few = tuple(one for one in COMPONENTS if one.name != "ledger")
    cast.grant(few)
    schema.upgrade(cast.of(Kind.OWNER), components=COMPONENTS)
    read = "select from chancy.ledger_entries"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(cast.of(W), read)
    cast.grant()
    execute(cast.of(W), read)
    async with Chancy(cast.of(V)) as viewer:
        await viewer.check_tables()
        assert await viewer.find_jobs(JobFilter()) == []
        with pytest.raises(StatementFailed, match="permission denied"):
            await viewer.pause_queue("default")


def test_a_plugin_says_who_may_do_what_with_its_tables(cast: Cast) -> None:
    """Instead of: workers write, viewers read. One whose name begins as another's has its own."""
    special = Component(
        Migrations(
            name="ledger_secrets", package="p", head="1",
            grants={W: {"ledger_secrets": "select (a), update (a)"},
                    P: {"ledger_secrets": "insert (a, b)", "ledger_secrets_numbers": "usage"},
                    V: {}},
        ), "x.secrets",
    )  # fmt: skip
    schema.upgrade(cast.dsn, components=COMPONENTS)
    execute(
        cast.dsn, "create table chancy.ledger_secrets (a int, b int);"
        "create sequence chancy.ledger_secrets_numbers; create sequence chancy.ledger_numbers;"
        "create table chancy.ledger_secrets_version (version_num text)",
    )  # fmt: skip
    everything = (*COMPONENTS, special)
    for kind in (W, P, V):
        made = grants.statements(kind, cast.names[kind], "chancy", everything)
        grants.apply(cast.dsn, "chancy", made)
    for statement, allowed in {
        "select a from chancy.ledger_secrets": {W},
        "select b from chancy.ledger_secrets": set(),
        "update chancy.ledger_secrets set a = 1": {W},
        "insert into chancy.ledger_secrets values (1, 2)": {P},
        "select nextval('chancy.ledger_secrets_numbers')": {P},
        "select nextval('chancy.ledger_numbers')": {W},
        "select from chancy.ledger_entries": {W, V},
    }.items():
        for kind in (W, P, V):
            if kind in allowed:
                execute(cast.of(kind), statement)
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    execute(cast.of(kind), statement)


@pytest.mark.parametrize(
    ("kind", "relation", "privileges", "said"),
    [
        (Kind.OWNER, "a_x", "select", "kinds of roles"),
        ("boss", "a_x", "select", "'boss'"),
        (W, "jobs", "select", "whose name begins with a_"),
        (W, 'a_"x', "select", "whose name begins with a_"),
        (W, "ab_x", "select", "whose name begins with a_"),
        (W, "a_x", "all", "write privileges like"),
        (W, "a_x", "select; drop table x", "write privileges like"),
        (W, "a_x", "truncate", "write privileges like"),
    ],
)
def test_grants_that_cannot_be_are_refused(
    kind: Any, relation: str, privileges: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Migrations(name="a", package="p", head="1", grants={kind: {relation: privileges}})


HOSTILE = 'we"ird; drop schema chancy cascade; -- $chancy$ $chancy_$ :x %s {role} \\'


@pytest.mark.parametrize("kind", [*Kind])
def test_a_hostile_name_of_a_role_is_a_name(empty_dsn: str, kind: Kind) -> None:
    name = f"{HOSTILE[:-2]}{secrets.token_hex(3)[:4]}\\"[-63:]
    schema.upgrade(empty_dsn, components=COMPONENTS)
    psql = shutil.which("psql")
    assert psql, "postgresql-client is not installed"
    with roles(empty_dsn, [name]):
        for setting in ("on", "off"):
            text = "\n".join(f"{s};" for s in grants.statements(kind, name, "chancy", COMPONENTS))
            done = subprocess.run(
                [psql, "-v", "ON_ERROR_STOP=1", "-q", empty_dsn],
                input=f"set standard_conforming_strings = {setting};\n{text}",
                capture_output=True, text=True, check=False, timeout=20,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
        grants.apply(empty_dsn, "chancy", grants.statements(kind, name, "chancy", COMPONENTS))
        assert schema.revisions(empty_dsn)["core"] == schema.HEAD
        can = execute(
            empty_dsn, f"select has_schema_privilege(rolname, 'chancy', 'usage') from pg_roles"
            f" where rolname = {sql.Literal(name).as_string(None)}",
        )  # fmt: skip
        assert can == [(True,)]


@pytest.mark.parametrize(
    "name", ["", "public", "PUBLIC", "none", "pg_monitor", "a\nb", "ü" * 32, "a\0"]
)
def test_a_name_that_can_be_no_role_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"no role that|cannot be the name of a role"):
        grants.statements(W, name)


def test_what_cannot_be_granted_says_why(dsn: str, empty_dsn: str) -> None:
    options = ("migrate", "grants", "--role", "no_such_role_of_ours", "--kind", "worker", "--apply")
    refused = inside(*options, dsn=dsn, code=2)
    assert 'role "no_such_role_of_ours" does not exist' in refused.err
    assert "nothing was granted" in refused.err
    behind = inside(*options, dsn=empty_dsn, code=3)
    assert "chancy migrate upgrade" in behind.err
    assert json.loads(inside(*options[:-1], "--json").out)["applied"] is False
