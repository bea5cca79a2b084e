"""Queues whose jobs are spread over several Postgres servers, which are databases of one here."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from chancy import Chancy, GlobalConcurrency, Job, JobSelection, Queue, State, Worker
from chancy.app.checkup.rounds import examine
from chancy.attempt.claim import Claim
from chancy.broker.values import Cancellation, JobFilter
from chancy.cli import serving
from chancy.errors import BrokerUnavailable, ConfigurationError, PushError, SchemaMismatch
from chancy.job.unique import Unique
from chancy.plugin.finding import Severity
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.dashboard.job_rows import PAGE
from chancy.plugins.leadership import ImmediateLeadership
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery
from chancy.plugins.shards import PostgresShards, ShardBroker, shard_of
from chancy.routing.router import RoutedBroker
from tests.plugins.dashboard.browsing import ADMIN, browser, text_of
from tests.plugins.pruner.finished import add_day
from tests.support import jobs
from tests.support.postgres_fixtures import _database, find_run, template_with
from tests.support.proxy import Proxy
from tests.support.sql import ask
from tests.support.waiting import eventually

MAIL = Queue("mail", executor="async", poll_interval_s=0.1)
KEYS = [f"customer {number}" for number in range(40)]


def note(key: object) -> Job[object]:
    return jobs.note.job(value=key).with_queue("mail")


def test_a_shard_that_is_added_takes_keys_and_moves_none_between_the_others() -> None:
    keys = [str(number) for number in range(3_000)]
    two = {key: shard_of(key, ("pg1", "pg2")) for key in keys}
    three = {key: shard_of(key, ("pg3", "pg2", "pg1")) for key in keys}
    moved = {key for key in keys if two[key] != three[key]}
    assert {three[key] for key in moved} == {"pg3"}
    assert 900 < len(moved) < 1_100
    assert 1_400 < sum(shard == "pg1" for shard in two.values()) < 1_600


async def test_what_cannot_be_spread_is_refused_before_it_is_stored(dsn: str) -> None:
    for wrong in ({}, {"postgres": dsn}, {"Pg 1": dsn}, {"pg1": 5}):
        with pytest.raises(ConfigurationError):
            PostgresShards(wrong)  # type: ignore[arg-type]
    shards = PostgresShards({"pg1": dsn})
    with pytest.raises(ConfigurationError, match="no shard 'pg2'"):
        shards.spread(MAIL, over=["pg2"])
    ruled = Queue("ruled", broker="pg1", rules=(GlobalConcurrency(1),))
    with pytest.raises(ConfigurationError, match="requires a broker with rules of queues"):
        Chancy(dsn, queues=[ruled], plugins=[shards])
    queues = [*shards.spread(MAIL, by="value.customer"), *shards.spread(Queue("any"))]
    assert [(one.name, one.broker) for one in queues] == [("mail/pg1", "pg1"), ("any/pg1", "pg1")]
    async with Chancy(dsn, queues=queues, plugins=[shards]) as chancy:
        with pytest.raises(PushError, match=r"spread over shards by 'value\.customer'"):
            await chancy.push(note({"customer": None}))
        unique = jobs.note.job(value=1).with_queue("any").with_unique(Unique())
        with pytest.raises(PushError, match="spread the queue by an argument"):
            await chancy.push(unique)
        assert await chancy.counts() == {}


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, DashboardPlugin())


@pytest.fixture
def servers(request: pytest.FixtureRequest, template: str) -> Iterator[dict[str, str]]:
    """The DSNs of two shards."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(_database(find_run(request.config), request, template))
            for name in ("pg1", "pg2")
        }


@pytest.fixture
def third(request: pytest.FixtureRequest, template: str) -> Iterator[str]:
    with _database(find_run(request.config), request, template) as dsn:
        yield dsn


async def test_a_shard_without_tables_is_named_with_the_command_for_it(
    dsn: str, servers: Mapping[str, str]
) -> None:
    with psycopg.connect(servers["pg2"], autocommit=True) as connection:
        connection.execute("drop schema chancy cascade")
    shards = PostgresShards(servers)
    async with Chancy(dsn, queues=shards.spread(MAIL), plugins=[shards]) as chancy:
        with pytest.raises(SchemaMismatch, match=r"shard pg2 .* --dsn DSN`, with the DSN of pg2"):
            async with Worker(chancy) as worker:
                await worker.wait_for_shutdown()


async def test_a_worker_knows_the_names_of_queues_that_are_spread(
    dsn: str,
    servers: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(serving, "NAMED_QUEUES", {"mail", "male"})
    options: Any = SimpleNamespace(queues=None)
    worker: Any = SimpleNamespace(queues=[])
    async with spread_over(dsn, servers) as chancy:
        await serving._log_unserved(chancy, worker, options)
    assert "queue_undeclared queue=male nearest=" in caplog.text
    assert "queue=mail " not in caplog.text


async def test_jobs_on_shards_are_cancelled_in_bulk_but_not_moved(
    dsn: str, servers: Mapping[str, str]
) -> None:
    async with spread_over(dsn, servers) as chancy:
        await chancy.push_many([note(key) for key in KEYS])
        jobs_of_one = chancy.select_jobs(JobSelection(queue="mail/pg1"))
        refusal = (
            r"application's own database, and those of the queue 'mail/pg1' are in pg1: select "
            "another queue, or cancel"
        )
        for change in (jobs_of_one.move("mail/pg2"), jobs_of_one.prioritize(1)):
            with pytest.raises(ConfigurationError, match=refusal):
                await change
        cancelled = await jobs_of_one.cancel()
        assert cancelled.changed == cancelled.matched > 0


@contextlib.asynccontextmanager
async def spread_over(dsn: str, servers: Mapping[str, str]) -> AsyncGenerator[Chancy]:
    jobs.noted.clear()
    jobs.started.clear()
    shards = PostgresShards(servers)
    plugins = [shards, DashboardPlugin(), Recovery(sweep_s=0.2), ImmediateLeadership()]
    plugins.append(Pruner(every_s=0.2))
    queues = shards.spread(MAIL, by="value")
    async with Chancy(dsn, queues=queues, plugins=plugins, pool_size=3) as chancy:
        await chancy.delete_queue("default")
        for queue in queues:
            await chancy.declare(queue)
        yield chancy


def stored(dsn: str) -> list[str]:
    """The keys of the jobs that a server has, finished or not."""
    return [
        row[0]
        for row in ask(
            dsn,
            "select arguments->>'value' from chancy.jobs union all"
            " select arguments->>'value' from chancy.finished_jobs",
        )
    ]


async def test_jobs_on_hold_are_released_on_every_shard(dsn: str, servers: dict[str, str]) -> None:
    async with spread_over(dsn, servers) as chancy:
        held = await chancy.push_many(note(key).with_hold("k") for key in KEYS)
        assert await chancy.release(held[0].id, held[1].id) == 2
        assert await chancy.release(key="k") == 38
        assert await chancy.release(key="k") == 0
        counts = await chancy.counts()
        assert sum(one.pending for one in counts.values()) == 40
        assert len(counts) == 2


async def test_a_shard_that_is_down_keeps_no_other_from_releasing_its_jobs(
    dsn: str, servers: dict[str, str], proxy: Proxy
) -> None:
    servers["pg1"] = proxy.dsn(servers["pg1"])
    async with spread_over(dsn, servers) as chancy:
        await chancy.push_many(note(key).with_hold("k") for key in KEYS)
        before = await chancy.counts()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BrokerUnavailable, match="the shard pg1 is unavailable"):
            await chancy.release(key="k")
        assert isinstance(chancy.broker, RoutedBroker)
        counts, _ = await chancy.broker.counted()
        assert counts["mail/pg2"].pending == before["mail/pg2"].held > 0
        proxy.heal()


async def test_jobs_of_a_key_stay_together_and_every_call_covers_all_shards(
    dsn: str, servers: dict[str, str], third: str
) -> None:
    async with spread_over(dsn, servers) as chancy:
        references = await chancy.push_many(note(key) for key in KEYS * 2)
        pg1, pg2 = (stored(server) for server in servers.values())
        assert sorted(pg1 + pg2) == sorted(KEYS * 2)
        assert set(pg1).isdisjoint(pg2)
        assert len(pg1) > 10 < len(pg2)
        counts = {name: one.pending for name, one in (await chancy.counts()).items()}
        assert counts == {"mail/pg1": len(pg1), "mail/pg2": len(pg2)}
        assert len(await chancy.find_jobs(JobFilter(limit=100))) == 80
        by_queue = JobFilter(queue="mail/pg2", limit=100)
        assert len(await chancy.find_jobs(by_queue)) == len(pg2)
        for reference in references[:3]:
            assert "no workers" in [reason.why for reason in await chancy.why(reference.id)]
        async with browser(chancy, ADMIN) as ada:
            queues = text_of(await ada.get("queues"))
            assert f"mail/pg2 pg2 pending {len(pg2)}" in queues
            listed = text_of(await ada.get("jobs?q=queue:mail/pg1"))
            assert f"{min(len(pg1), PAGE)} jobs, " in listed
            assert "mail/pg1" in listed
            assert "mail/pg2" not in listed
            listed = text_of(await ada.get("jobs?broker=pg2"))
            assert f"{min(len(pg2), PAGE)} jobs, " in listed
            assert "mail/pg2" in listed
            assert "There is no job yet" in text_of(await ada.get("jobs?broker=postgres"))
        gone = await chancy.cancel(*(one.id for one in references[:10]))
        assert set(gone.values()) == {Cancellation.CANCELLED}
        later = [await chancy.push(note(key).with_delay(0.3)) for key in KEYS[:6]]
        async with Worker(chancy) as worker:
            assert worker.queues == ("mail/pg1", "mail/pg2")
            assert [await one.result(10) for one in later] == KEYS[:6]
            await eventually(lambda: len(jobs.noted) == 76)
        assert await chancy.counts() == {}
    servers["pg3"] = third
    before = {name: Counter(stored(server)) for name, server in servers.items()}
    async with spread_over(dsn, servers) as chancy:
        await chancy.push_many(note(key) for key in KEYS)
        new = {name: Counter(stored(server)) - before[name] for name, server in servers.items()}
        assert sorted(key for keys in new.values() for key in keys.elements()) == sorted(KEYS)
        assert new["pg1"].keys() < before["pg1"].keys()
        assert new["pg2"].keys() < before["pg2"].keys()
        assert new["pg3"]
    assert stored(dsn) == []


async def test_a_shard_that_is_down_leaves_the_others_going(
    dsn: str, servers: dict[str, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers["pg2"] = proxy.dsn(servers["pg2"])
    by_shard = {shard_of(key, ("pg1", "pg2")): key for key in KEYS}
    async with spread_over(dsn, servers) as chancy, Worker(chancy) as worker:
        await eventually(lambda: len(worker.queues) == 2)
        proxy.refuse()
        proxy.cut()
        for _ in range(3):
            assert await (await chancy.push(note(by_shard["pg1"]))).result(10) == by_shard["pg1"]
        with monkeypatch.context() as patch:
            patch.setattr("chancy.postgres.push.coalescing.PATIENCE_S", 0.5)
            with pytest.raises(BrokerUnavailable, match="the shard pg2 is unavailable"):
                await chancy.push(note(by_shard["pg2"]))
        assert isinstance(chancy.broker, RoutedBroker)
        _, missing = await chancy.broker.counted()
        assert missing.keys() == {"pg2"}
        assert "the shard pg2 is unavailable" in missing["pg2"]
        async with browser(chancy, ADMIN) as ada:
            assert "The broker pg2 is unavailable" in text_of(await ada.get())
        proxy.heal()
        back = await chancy.push(note(by_shard["pg2"]))
        assert await back.result(20) == by_shard["pg2"]


async def test_a_worker_that_starts_while_a_shard_is_down_reports_it_and_serves_it_later(
    dsn: str, servers: dict[str, str], proxy: Proxy
) -> None:
    servers["pg2"] = proxy.dsn(servers["pg2"])
    by_shard = {shard_of(key, ("pg1", "pg2")): key for key in KEYS}
    proxy.refuse()
    async with spread_over(dsn, servers) as chancy, Worker(chancy) as worker:
        assert worker.queues == ("mail/pg1",)

        async def broken() -> str:
            [record] = await chancy.get_workers()
            return record.broken.get("mail/pg2", "")

        assert "the shard pg2 is unavailable: " in await eventually(broken)
        proxy.heal()
        await eventually(lambda: len(worker.queues) == 2)
        assert await (await chancy.push(note(by_shard["pg2"]))).result(20) == by_shard["pg2"]


class FarWorker:
    """A worker of another process, with a job of a shard."""

    def __init__(self, session: psycopg.AsyncConnection[Any]) -> None:
        self._session = session
        self._id = uuid.uuid4()

    async def claim(self, queue: str) -> None:
        await self._session.execute(
            "insert into chancy.workers (id, host, pid) values (%s, 'far', 1)", [self._id]
        )
        await self._session.execute(
            "select from chancy.claim(%s, gen_random_uuid(), %s, 1, 1000000, null, null)",
            [self._id, queue],
        )

    async def beats(self) -> bool:
        """Send a heartbeat; returns whether it is still registered."""
        sent = await self._session.execute(
            "update chancy.workers set beat_at = clock_timestamp() where id = %s", [self._id]
        )
        return sent.rowcount == 1

    async def beat_until(self, outage: asyncio.Event) -> None:
        while not outage.is_set() and await self.beats():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(outage.wait(), 0.1)

    async def all_overdue(self) -> bool:
        overdue = "select from chancy.workers where beat_at < clock_timestamp() - interval '2.5 s'"
        return (await self._session.execute(overdue)).rowcount == 2


async def test_an_outage_of_a_shard_declares_no_worker_dead_there(
    dsn: str,
    servers: dict[str, str],
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its workers send no heartbeats during the outage, and not all of them at once after it."""
    swept: list[str] = []
    orphans = ShardBroker.orphans

    async def recorded(broker: ShardBroker, **asked: Any) -> Sequence[Claim]:
        found = await orphans(broker, **asked)
        swept.append(broker.name)
        return found

    monkeypatch.setattr(ShardBroker, "orphans", recorded)
    direct, servers["pg2"] = servers["pg2"], proxy.dsn(servers["pg2"])
    by_shard = {shard_of(key, ("pg1", "pg2")): key for key in KEYS}
    outage = asyncio.Event()
    async with (
        spread_over(dsn, servers) as chancy,
        await psycopg.AsyncConnection.connect(direct, autocommit=True) as session,
    ):
        reference = await chancy.push(note(by_shard["pg2"]))
        other = FarWorker(session)
        await other.claim("mail/pg2")
        beating = asyncio.create_task(other.beat_until(outage))
        async with Worker(chancy, heartbeat_s=0.5, heartbeat_timeout_s=2.0) as worker:
            await eventually(lambda: len(worker.queues) == 2)
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: "broker_unavailable broker=pg2" in caplog.text)
            outage.set()
            await beating
            await eventually(other.all_overdue)
            proxy.heal()
            assert await reference.status() is State.RUNNING  # which ends the pause of the sweeps
            before = swept.count("pg2")
            await eventually(lambda: swept.count("pg2") > before)
            assert await other.beats()
            # Once it is silent while the others are not, its job is run by another worker.
            assert (await reference.wait(30)).crashes == 1
            assert not await other.beats()


async def test_a_queue_whose_jobs_are_not_counted_behind_many_others_stays(
    dsn: str, servers: dict[str, str]
) -> None:
    ask(
        servers["pg1"],
        "insert into chancy.jobs (id, pos, state, queue, func, run_at)"
        " select gen_random_uuid(), n, 2, 'crowd', 'x', now() + interval '1 hour'"
        " from generate_series(1, 100001) n",
    )
    far = Queue("far", broker="pg1")
    async with Chancy(dsn, queues=[far], plugins=[PostgresShards(servers)]) as chancy:
        await chancy.declare(far)
        late = await chancy.push(note(1).with_queue("far").with_delay(7_200))
        assert sum((await chancy.counts()).get("far", ())) == 0
        with pytest.raises(ConfigurationError, match="'pg1' with 1 unfinished jobs"):
            await chancy.declare(Queue("far"), upsert=True)
        await chancy.cancel(late.id)
        assert (await chancy.declare(Queue("far"), upsert=True)).broker == "postgres"


async def test_each_shard_is_recovered_and_pruned(dsn: str, servers: dict[str, str]) -> None:
    day = datetime.now(UTC).date() - timedelta(days=9)
    for server in servers.values():
        with psycopg.connect(server, autocommit=True) as session:
            add_day(session, day)

    def partitions(server: str) -> set[str]:
        with psycopg.connect(server) as session:
            found = session.execute(
                "select relname from pg_class where relname ~ '^finished_jobs_2'"
            )
            return {name.removeprefix("finished_jobs_") for (name,) in found}

    ahead = f"{datetime.now(UTC).date() + timedelta(days=7):%Y%m%d}"

    def pruned(server: str) -> bool:
        found = partitions(server)
        return ahead in found and f"{day:%Y%m%d}" not in found

    async with spread_over(dsn, servers) as chancy:
        references = await chancy.push_many(note(key) for key in KEYS)
        for server in servers.values():
            ask(server, LOST)
        async with Worker(chancy):
            ended = [await one.wait(20) for one in references]
            for server in servers.values():
                await eventually(partial(pruned, server))
    assert {(job.state, job.crashes) for job in ended} == {(State.SUCCEEDED, 1)}


LOST = """
update chancy.jobs set state = 1, worker_id = gen_random_uuid(), lease = gen_random_uuid(),
  claimed_at = now(), attempt = 1
"""


async def test_the_doctor_checks_the_tables_of_each_shard(
    dsn: str, servers: dict[str, str]
) -> None:
    async with spread_over(dsn, servers) as chancy:
        found = {one.about: one for one in await examine(chancy, transaction_s=60, wait_s=60)}
        for name in ("schema", "pg1: schema", "pg2: schema", "pg1: partitions", "pg2: sizes"):
            assert found[name].ok, found[name]
        assert "pg1: workers" not in found
        ask(servers["pg2"], "drop schema chancy cascade")
        found = {one.about: one for one in await examine(chancy, transaction_s=60, wait_s=60)}
        assert found["schema"].ok
        assert found["pg1: schema"].ok
        assert found["workers"].ok
        missing = found["pg2: schema"]
        assert missing.severity is Severity.ERROR
        assert missing.todo == "chancy migrate upgrade --dsn DSN, that of pg2"
        assert "pg2: sizes" not in found


async def test_the_doctor_reports_a_shard_that_is_down_once(
    dsn: str, servers: dict[str, str], proxy: Proxy
) -> None:
    servers["pg2"] = proxy.dsn(servers["pg2"])
    async with spread_over(dsn, servers) as chancy:
        proxy.refuse()
        proxy.cut()
        found = await examine(chancy, transaction_s=60, wait_s=60)
        [away] = [one for one in found if one.about.startswith("pg2: ")]
        assert (away.about, away.severity) == ("pg2: schema", Severity.UNKNOWN)
        assert "the shard pg2 is unavailable" in away.found
        assert [one.ok for one in found if one.about in ("schema", "pg1: schema")] == [True, True]
