"""Least privilege: owner, worker, producer and viewer as roles of the database, on real work."""

from __future__ import annotations

import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from chancy.postgres.schema.component import RoleKind
from tests.support.command import alone, command, started
from tests.support.roles import Cast, P, V, W, roles
from tests.support.sources import ROOT
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

SHOP = """\
import os
import time
from chancy import Chancy, Queue, job
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.retry import Retries
from chancy.retry import Constant


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
    plugins=[Retries(Constant(0.05)), Cron(Entry("each", "* * * * * *", tick.job()), poll_s=0.1)],
)
"""


@pytest.fixture
def cast(empty_dsn: str) -> Iterator[Cast]:
    made = Cast(empty_dsn)
    with roles(empty_dsn, [*made.names.values()]):
        yield made


@pytest.mark.chaos
def test_a_fleet_under_its_role_does_all_of_its_work(cast: Cast, tmp_path: Path) -> None:
    """Pushed by the producer; retried, rescued after a kill, led, ticked and buried by the worker;
    seen by the viewer."""
    (tmp_path / "shop.py").write_text(SHOP)
    cast.grant()
    (newest,) = ask(cast.dsn, "select max(inhrelid::regclass::text) from pg_inherits where"
                        " inhrelid::regclass::text ~ 'finished_jobs_[0-9]{8}$'")  # fmt: skip
    ask(cast.dsn, f"drop table {newest[0]}")
    worker, producer, viewer = (
        {"CHANCY_DSN": cast.of(kind)}
        for kind in (RoleKind.WORKER, RoleKind.PRODUCER, RoleKind.VIEWER)
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
        eventually_sync(lambda: ask(cast.dsn, lease) == [(True,)])
        ticks = "select 1 from chancy.cron_ticks limit 1"
        eventually_sync(lambda: ask(cast.dsn, ticks) == [(1,)])
        letters = "select id::text from chancy.dead_letters"
        eventually_sync(lambda: ask(cast.dsn, letters) == [(buried,)])
        eventually_sync(lambda: "prune_not_allowed" in first.log)
        shown = alone("job", "wait", retried, "--json", cwd=tmp_path, env=viewer).json
        assert (shown["result"], shown["attempt"], len(shown["errors"])) == ("at last", 2, 1)
        first.process.kill()
        first.process.wait()
    with started(command("worker", *options), cwd=tmp_path, env=worker) as second:
        eventually_sync(lambda: len(hung.read_text().splitlines()) == 2)
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
        ask(cast.of(RoleKind.WORKER), make)
    worker, owner = cast.names[RoleKind.WORKER], cast.names[RoleKind.OWNER]
    ask(cast.dsn, f"grant {owner} to {worker}")
    assert ask(cast.of(RoleKind.WORKER), make)[0][0] > 0
    ask(cast.dsn, f"revoke {owner} from {worker}")
    # What a member made belongs to the owner, who migrates it, and is used by way of the parent.
    owners = (
        "select distinct relowner::regrole::text from pg_class"
        " where relnamespace = 'chancy'::regnamespace"
    )
    assert ask(cast.dsn, owners) == [(owner,)]
    insert = (
        "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
        " max_attempts, crashes, pushed_at, finished_at) values (gen_random_uuid(), 1, 4, 'q', 0,"
        " 'a.b', 1, 1, 0, now(), now() + interval '11 days')"
    )
    ask(cast.of(RoleKind.WORKER), insert)
    (table,) = ask(cast.dsn, "select tableoid::regclass::text from chancy.finished_jobs")[0]
    assert table != "chancy.finished_jobs_default"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(cast.of(RoleKind.VIEWER), f"select from {table}")
    assert ask(cast.of(RoleKind.VIEWER), "select queue from chancy.finished_jobs") == [("q",)]


JOB = (
    "insert into chancy.jobs (id, pos, state, queue, func)"
    " values (gen_random_uuid(), 1, 0, 'q', 'a.b')"
)
WORKER = "11111111-0000-4000-8000-000000000000"
IDS = "array[gen_random_uuid()], array[gen_random_uuid()]"
#: What somebody might try, and who of those that do not own the tables can.
MATRIX: dict[str, set[RoleKind]] = {
    JOB: {W, P},
    "select id, queue, state from chancy.jobs": {W, P, V},
    "select arguments from chancy.jobs": {W, V},
    "select errors, meta from chancy.jobs": {W, V},
    "select unique_key from chancy.jobs": {W, P, V},
    "select chancy.push('q', 'a.b')": {W, P},
    "select chancy.push('q', 'a.b', unique_key => 'k') from generate_series(1, 2)": {W, P},
    "select chancy.push('q', 'a.b', unique_key => 'k', unique_period => '1 s')": {W, P},
    "select chancy.push('q', 'a.b', unique_key => 'k', on_conflict => 'replace')"
    " from generate_series(1, 2)": {W},
    "delete from chancy.unique_periods": {W},
    "select * from chancy.unique_periods": {W, P, V},
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
    f"select from chancy.claim('{WORKER}', gen_random_uuid(), 'q', 5, 1000000, null, null)": {W},
    f"select from chancy.claim_set_aside('{WORKER}', gen_random_uuid(), 'q', 5, '{{a.b}}', 1)": {W},
    "select from chancy.set_aside('q', 5)": {W, RoleKind.VIEWER},
    f"select from chancy.finish({IDS}, '{{4}}', null, null, null, null, null)": {W},
    f"select from chancy.finish_plain({IDS}, '{{4}}', null)": {W},
    f"select from chancy.update_meta({IDS}, null)": {W},
    f"select from chancy.settled({IDS})": {W, V},
    "select from chancy.cancel(array(select id from chancy.jobs))": {W},
    "select from chancy.promote(5, null, null)": {W},
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


def test_permissions_of_each_role(cast: Cast) -> None:
    cast.grant()
    ask(cast.dsn, f"insert into chancy.workers (id, host, pid) values ('{WORKER}', 'h', 1)")
    ask(cast.dsn, JOB)
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


def test_a_producer_that_replaces_is_granted_that_too(cast: Cast) -> None:
    """The right that the guide names is enough."""
    cast.grant()
    guide = (ROOT / "docs/guides/deploying.md").read_text()
    (grant,) = re.findall(r"`(grant select \(priority.*) to …`", guide)
    ask(cast.dsn, f"{grant} to {cast.names[P]}")
    ask(
        cast.of(P),
        "select chancy.push('q', 'a.b', jsonb_build_object('n', n), unique_key => 'k',"
        " on_conflict => 'replace', priority => n) from generate_series(1, 2) as n",
    )
    assert ask(cast.dsn, "select arguments, priority from chancy.jobs") == [({"n": 2}, 2)]


def test_another_worker_cannot_use_the_lease(cast: Cast) -> None:
    """Functions may be called by everybody, but not in a schema that is not theirs to use."""
    cast.grant()
    name = f"nobody_{secrets.token_hex(4)}"
    with roles(cast.dsn, [name]), psycopg.connect(cast.dsn, options=f"-c role={name}") as nobody:
        for statement in ("select from chancy.jobs", "select chancy.channel()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                nobody.execute(statement.encode())
            nobody.rollback()
