"""Metrics of jobs: counted by workers, rolled up by the leader, read back and exposed."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount

from chancy import BrokerUnavailable, Chancy, ConfigurationError, Job, Queue, Worker
from chancy.attempt.settlement import Settlement
from chancy.plugin.plugin import Plugin
from chancy.plugin.pushing import PUSH
from chancy.plugins import metrics as metrics_plugin
from chancy.plugins.metrics import Metrics, MetricsPoint, Totals
from chancy.plugins.metrics import endpoint as endpoints
from chancy.plugins.metrics.endpoint import Endpoint, parse_address, resolved
from chancy.plugins.metrics.gauges import Gauges, look
from chancy.plugins.metrics.series import MetricsTable
from chancy.plugins.metrics.tally import (
    BOUNDS,
    MOST_FUNCTIONS,
    OTHER,
    PLACES,
    Tally,
    TotalsByFunction,
    quantile,
)
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from chancy.states import State
from chancy.testing.memory import MemoryBroker
from tests.plugins.metrics.jobs import block, work
from tests.support.claims import claimed
from tests.support.postgres_fixtures import template_with
from tests.support.roles import roles
from tests.support.sql import ask
from tests.support.two_brokers import TwoBrokers
from tests.support.waiting import eventually, gives

DEPLOY = Path(__file__).parents[3] / "deploy"
#: The metrics of a scrape: samples with their labels and values, by family.
Families = dict[str, list[tuple[str, dict[str, str], float]]]
#: Two held jobs: one that rules hold, one of an unknown function.
HELD = """insert into chancy.jobs (id, pos, state, queue, func, meta)
    select gen_random_uuid(), 1, 3, 'QUEUE', 'a.b', jsonb_build_object(held_by, 1)
    from unnest(array['limits', 'unknown_function']) as held_by returning 1"""
#: A job that waits to be released.
ON_HOLD = """insert into chancy.jobs (id, pos, state, queue, func, meta)
    select gen_random_uuid(), 1, 3, 'QUEUE', 'a.b', '{"hold": "k"}' returning 1"""
EACH_STATE = """insert into chancy.jobs (id, pos, state, queue, func, run_at)
    select gen_random_uuid(), 1, state, 'idle', 'a.b', now() + interval '1 h'
    from generate_series(0, 3) as state returning 1"""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, Metrics())


def application(dsn: str, *plugins: Plugin) -> Chancy:
    queue = Queue("counted", executor="async")
    return Chancy(dsn, queues=[queue], plugins=[*plugins, Retries(Constant(0.01))])


async def in_all(metrics: Metrics, chancy: Chancy) -> MetricsPoint:
    """What the jobs of the only function have come to: an hour may have begun meanwhile."""
    first, *more = await metrics.read(chancy, 2 * HOUR, HOUR, queue="counted", by_func=True)
    for one in more:
        assert one.func == first.func
        first.totals.add(one.totals)
    return first


async def test_each_ending_is_counted_once(dsn: str) -> None:
    metrics = Metrics(every_s=0.1)
    endings = ["fine", "fine", "fail", "retry", "snooze"]
    async with application(dsn, metrics) as chancy:
        async with Worker(chancy):
            for reference in await chancy.push_many(work.job(ending) for ending in endings):
                await reference.wait(20)
        point = await in_all(metrics, chancy)
        assert await metrics.read(chancy, HOUR, HOUR, queue="other") == []
    totals = point.totals
    assert point.func == work.job("").func
    assert (totals.succeeded, totals.failed, totals.retried, totals.snoozed) == (4, 1, 2, 1)
    assert (sum(totals.waits), sum(totals.runs), sum(totals.ends)) == (7, 7, 7)
    assert totals.run_s >= 4 * 0.02
    slowest, median = point.run_s(0.99), point.run_s(0.3)
    assert slowest is not None
    assert median is not None
    assert slowest >= 0.016
    assert slowest > median
    total, wait = point.total_s(0.5), point.wait_s(0.5)
    assert total is not None
    assert wait is not None
    assert total >= max(wait, median)


async def test_waiting_jobs_that_are_cancelled_or_expire_are_counted(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    func = work.job("").func

    def exposed(text: str, outcome: str) -> float:
        labels = f'func="{func}",outcome="{outcome}",queue="counted"'
        found = re.search(rf"chancy_jobs_total\{{{re.escape(labels)}\}} (\S+)", text)
        return float(found[1]) if found else 0.0

    async with served(dsn, caplog) as (chancy, _, port):
        later = work.job("fine").with_delay(3_600)
        *waiting, late = await chancy.push_many([later, later, later, later])
        ask(dsn, f"select chancy.cancel('{{{waiting[0].id}}}')")
        await chancy.cancel(waiting[1].id, waiting[2].id)
        expire = f"update chancy.jobs set expires_at = now() where id = '{late.id}' returning 1"
        ask(dsn, expire)

        async def scraped() -> bool:
            _, text = await asyncio.to_thread(get, port, "/metrics")
            return (exposed(text, "cancelled"), exposed(text, "expired")) == (3, 1)

        await eventually(scraped)
        point = await in_all(Metrics(), chancy)
    assert (point.totals.cancelled, point.totals.expired) == (3, 1)
    assert (sum(point.totals.waits), sum(point.totals.ends)) == (0, 0)
    assert ask(dsn, "select distinct step from chancy.metrics") == [(0,)]


async def test_cancellations_are_not_counted_while_no_worker_collects_them(dsn: str) -> None:
    async with application(dsn, Metrics()) as chancy:
        for at in ("30 minutes", "2 hours", "2 hours"):
            reference = await chancy.push(work.job("fine"))
            await chancy.cancel(reference.id)
            ask(dsn, f"update chancy.metrics set at = now() - interval '{at}' returning 1")
    assert ask(dsn, "select count(*) from chancy.metrics") == [(2,)]


async def test_a_role_without_privileges_on_metrics_cancels_jobs(dsn: str) -> None:
    role = f"canceller_{secrets.token_hex(4)}"
    async with application(dsn, Metrics()) as chancy:
        reference = await chancy.push(work.job("fine"))
        with roles(dsn, [role]), psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"grant usage on schema chancy to {role}".encode())
            connection.execute(f"grant all on all tables in schema chancy to {role}".encode())
            connection.execute(f"revoke all on chancy.metrics from {role}".encode())
            connection.execute(f"set role {role}".encode())
            found = connection.execute("select what from chancy.cancel(%s)", [[reference.id]])
            assert found.fetchall() == [("cancelled",)]
    assert ask(dsn, "select count(*) from chancy.metrics") == [(0,)]


async def test_jobs_are_cancelled_although_they_cannot_be_counted(dsn: str) -> None:
    async with application(dsn, Metrics()) as chancy:
        reference = await chancy.push(work.job("fine"))
        ask(dsn, "alter table chancy.metrics add check (cancelled = 0)")
        await chancy.cancel(reference.id)
        assert (await reference.wait(10)).state is State.CANCELLED


async def test_jobs_of_a_dead_worker_count_as_rescued(dsn: str) -> None:
    metrics = Metrics(every_s=0.1)
    async with application(dsn, metrics) as chancy:
        reference = await chancy.push(work.job("fine"))
        claimed_by_dead = """update chancy.jobs set state = 1, worker_id = gen_random_uuid(),
            lease = gen_random_uuid(), claimed_at = now(), attempt = 1 returning 1"""
        ask(dsn, claimed_by_dead)
        async with Worker(chancy):
            await reference.wait(30)
        point = await in_all(metrics, chancy)
    assert (point.totals.rescued, point.totals.crashed, point.totals.succeeded) == (1, 0, 1)


async def test_old_metrics_are_rolled_up_and_removed(dsn: str) -> None:
    metrics = Metrics()
    async with application(dsn, metrics) as chancy:
        table = MetricsTable(chancy.broker)
        totals = Totals(succeeded=3, run_s=0.5, runs=[0] * 9 + [3] + [0] * (PLACES - 10))
        for _ in range(2):
            await table.report({("counted", "a.b"): totals, ("counted", "a.c"): totals})
        # A minute may begin between them.
        ask(dsn, "update chancy.metrics set at = (select min(at) from chancy.metrics) returning 1")
        await table.roll_up(90)
        assert ask(dsn, "select distinct step from chancy.metrics") == [(0,)]
        # A minute stays for readers of minutes, beside the hour that holds it.
        for age, rows in (
            ("2 minutes", {60: 2}),
            ("2 hours", {60: 2, 3_600: 2}),
            ("44 hours", {60: 2, 3_600: 2}),
            ("1 hour", None),
            ("1 hour", None),
            ("1 hour", None),
            ("1 hour", {3_600: 2}),
            ("90 days", {}),
        ):
            ask(dsn, f"update chancy.metrics set at = at - interval '{age}' returning 1")
            await table.roll_up(90)
            if rows is not None:
                found = ask(dsn, "select abs(step), count(*) from chancy.metrics group by 1")
                assert dict(found).items() >= rows.items()
                assert bool(found) is bool(rows)
            for step in (HOUR, timedelta(minutes=1)):
                points = await metrics.read(chancy, 80 * DAY, step)
                assert sum(point.totals.succeeded for point in points) == (0 if rows == {} else 12)
                assert sum(point.totals.runs[9] for point in points) == (0 if rows == {} else 12)


async def test_hours_begin_with_the_part_of_the_first_one_that_is_in_the_span(dsn: str) -> None:
    metrics = Metrics()
    ((hour,),) = ask(dsn, "select date_trunc('hour', now(), 'UTC') - interval '2 hours'")
    async with application(dsn, metrics) as chancy:
        table = MetricsTable(chancy.broker)
        for minute in (10, 50):
            await table.report({("counted", "a.b"): Totals(succeeded=minute)})
            at = hour + timedelta(minutes=minute)
            ask(dsn, "update chancy.metrics set at = %s where step = 0 returning 1", [at])
            await table.roll_up(90)
        ((span,),) = ask(dsn, "select now() - %s", [hour + HOUR / 2])
        assert ask(dsn, "select distinct step from chancy.metrics order by 1") == [(-60,), (3_600,)]
        found = await metrics.read(chancy, span, HOUR)
        assert [point.totals.succeeded for point in found] == [50]
        found = await metrics.read(chancy, span + HOUR, HOUR)
        assert [point.totals.succeeded for point in found] == [60]


def test_a_share_lies_below_its_quantile() -> None:
    assert quantile([0] * PLACES, 0.5) is None
    counts = [0] * PLACES
    counts[5], counts[PLACES - 1] = 99, 1  # 16 to 32 ms, and over the last bound
    assert quantile(counts, 0.5) == pytest.approx(0.024, rel=0.02)
    assert quantile(counts, 0.99) == BOUNDS[5]
    assert quantile(counts, 0.999) == float("inf")


def test_a_worker_counts_a_bounded_number_of_functions() -> None:
    tally, claim = Tally(), claimed()
    for number in range(MOST_FUNCTIONS + 10):
        claim = claimed()._replace(func=f"a.f{number}", waited_s=float("-inf"))
        ended = Settlement(claim.id, claim.lease, State.SUCCEEDED, claim=claim)
        tally.add([ended], [ended])
    totals = tally.take()
    assert len(totals) == MOST_FUNCTIONS + 1
    other = totals[claim.queue, OTHER]
    assert (other.succeeded, other.stale, other.wait_s) == (10, 10, 0.0)
    assert tally.totals == {}


def test_pushes_of_many_threads_are_counted_by_a_bounded_number_of_functions() -> None:
    metrics, jobs = Metrics(), [Job(func=f"a.f{number}") for number in range(MOST_FUNCTIONS + 10)]

    def push(_: int) -> None:
        for pushed in jobs:
            metrics.pushing(pushed, PUSH)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(push, range(4)))
    [family] = (one for one in metrics.registry.collect() if one.name == "chancy_jobs_pushed")
    counts = {sample.labels["func"]: sample.value for sample in family.samples}
    assert sum(counts.values()) == 4 * len(jobs)
    assert (len(counts), counts[OTHER]) == (MOST_FUNCTIONS + 1, 4 * 10)


def test_queues_beyond_the_bound_are_counted_together() -> None:
    metrics, tally = Metrics(), Tally()
    for number in range(2 * MOST_FUNCTIONS + 10):
        queue = f"tenant-{number}"
        metrics.pushing(Job(func="a.f", queue=queue), PUSH)
        claim = claimed()._replace(queue=queue)
        tally.add([Settlement(claim.id, claim.lease, State.SUCCEEDED, claim=claim)], [])
    [family] = (one for one in metrics.registry.collect() if one.name == "chancy_jobs_pushed")
    pushed = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    totals = tally.take()
    assert len(pushed) == len(totals) == 2 * MOST_FUNCTIONS + 1
    assert pushed[OTHER, OTHER] == totals[OTHER, OTHER].succeeded == 10


async def test_the_horizon_counts_the_transactions_since_the_oldest_snapshot(dsn: str) -> None:
    async with application(dsn, Metrics()) as chancy:
        with psycopg.connect(dsn) as report:
            report.execute("set transaction isolation level repeatable read")
            report.execute("select count(*) from chancy.jobs")
            for _ in range(5):
                ask(dsn, "select txid_current()")
            assert (await look(chancy.broker)).horizon_transactions >= 5


def test_times_are_counted_in_the_places_of_their_histograms() -> None:
    tally, batch, claim = Tally(), list[Settlement](), claimed()
    for func, waited_s, elapsed_s, outcome in (
        ("a", 0.0005, 0.001, "returned"),
        ("b", None, 0.0, "returned"),
        ("a", 0.0015, 0.003, "returned"),
        ("a", -1.0, 1e9, "failed"),
        ("a", float("inf"), 0.003, "returned"),
    ):
        claim = claim._replace(func=func, waited_s=waited_s)
        state = State.SUCCEEDED if outcome == "returned" else State.FAILED
        batch.append(Settlement(claim.id, claim.lease, state, claim=claim, elapsed_s=elapsed_s))
    tally.add(batch, [])
    a, b = tally.totals[claim.queue, "a"], tally.totals[claim.queue, "b"]
    assert (a.succeeded, a.failed, b.succeeded) == (3, 1, 1)
    assert {place: number for place, number in enumerate(a.waits) if number} == {0: 2, 1: 1, 23: 1}
    assert {place: number for place, number in enumerate(a.runs) if number} == {1: 1, 2: 2, 23: 1}
    # 0.5 + 1, 1.5 + 3 and ∞ + 3 ms, and 1e9 - 1 s
    assert {place: number for place, number in enumerate(a.ends) if number} == {1: 1, 3: 1, 23: 2}
    assert [a.wait_s, a.run_s] == pytest.approx([0.002, 1e9 + 0.007])
    assert (b.waits[0], b.runs[0]) == (1, 1)


@pytest.mark.parametrize("text", ["", "9100", "host", "host:x", "host:70000", "a:b:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        parse_address(text)


def test_worker_processes_listen_on_following_ports() -> None:
    assert parse_address("0.0.0.0:9100", 2) == ("0.0.0.0", 9102)
    assert parse_address("[::1]:80") == ("::1", 80)


async def test_a_name_is_resolved_outside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolver, threads = socket.getaddrinfo, set[int]()

    def slow(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.get_ident())
        return resolver(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert await resolved(("localhost", 9100)) == ("127.0.0.1", 9100)
    assert threads
    assert threading.get_ident() not in threads
    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    with pytest.raises(ConfigurationError, match=r"on nowhere:9100: .*not known"):
        await resolved(("nowhere", 9100))


def no_name(*args: object, **kwargs: object) -> None:
    raise socket.gaierror(-2, "Name or service not known")


async def test_metrics_are_served_at_a_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chancy.metrics")
    bound: list[tuple[str, int]] = []

    def made(address: tuple[str, int], *rest: Any) -> Endpoint:
        bound.append(address)  # a name would be looked up here, in the event loop
        return Endpoint(address, *rest)

    monkeypatch.setattr(endpoints, "Endpoint", made)
    runtime: Any = None  # `/metrics` does not look at it
    serving = asyncio.create_task(Metrics()._listen(runtime, "localhost:0"))
    try:
        await eventually(lambda: "metrics_served" in caplog.text or serving.done())
        assert "metrics_served host=127.0.0.1 port=" in caplog.text
        assert bound == [("127.0.0.1", 0)]
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_both_families_of_addresses_are_served_without_the_dns(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    asked: list[str] = []

    def getfqdn(name: str = "") -> str:
        asked.append(name)
        return name

    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    runtime: Any = None  # `/metrics` does not look at it
    endpoint = Endpoint((host, 0), CollectorRegistry(), runtime)
    endpoint.start()
    try:
        place = f"[{host}]" if ":" in host else host
        assert (await asyncio.to_thread(get, endpoint.port, "/metrics", place))[0] == 200
    finally:
        await asyncio.to_thread(endpoint.stop)
    assert asked == []


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@asynccontextmanager
async def served(
    dsn: str, caplog: pytest.LogCaptureFixture, *plugins: Plugin
) -> AsyncGenerator[tuple[Chancy, Worker, int]]:
    caplog.set_level("INFO", "chancy.metrics")
    metrics = Metrics(every_s=0.1, listen="127.0.0.1:0")
    async with application(dsn, metrics, *plugins) as chancy, Worker(chancy) as worker:

        def port() -> int:
            return int(re.findall(r"metrics_served host=\S+ port=(\d+)", caplog.text)[0])

        yield chancy, worker, await eventually(lambda: "metrics_served" in caplog.text and port())


async def test_prometheus_and_the_files_of_deploy_find_the_metrics(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    succeeded = {"queue": "counted", "func": work.job("").func, "outcome": "succeeded"}
    ask(dsn, EACH_STATE)
    async with served(dsn, caplog) as (chancy, _, port):
        for reference in await chancy.push_many(work.job("fine") for _ in range(5)):
            await reference.wait(20)

        async def scraped() -> Families:
            status, text = await asyncio.to_thread(get, port, "/metrics")
            assert status == 200
            families: Families = {
                family.name: [
                    (sample.name, sample.labels, sample.value) for sample in family.samples
                ]
                for family in text_string_to_metric_families(text)
            }
            assert families.get("chancy_queue_pending")
            assert ("chancy_jobs_total", succeeded, 5.0) in families["chancy_jobs"]
            pushed = {name: succeeded[name] for name in ("queue", "func")}
            assert ("chancy_jobs_pushed_total", pushed, 5.0) in families["chancy_jobs_pushed"]
            return families

        families = await eventually(scraped)
        assert (await asyncio.to_thread(get, port, "/scale/counted")) == (
            200,
            '{"queue": "counted", "backlog": 0}',
        )
        assert (await asyncio.to_thread(get, port, "/else"))[0] == 404
    assert ("chancy_job_wait_seconds_count", {"queue": "counted"}, 5.0) in families[
        "chancy_job_wait_seconds"
    ]
    assert families["chancy_workers"] == [("chancy_workers", {}, 1.0)]
    known = set(families) | {sample[0] for samples in families.values() for sample in samples}
    named = re.findall(r"expr: (.+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert len(named) >= 5
    board = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    named += [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    labels = labels_of(families)
    for expression in named:
        names = set(re.findall(r"\bchancy_\w+", expression))
        assert names, expression
        assert names <= known, expression
        for name, selector in re.findall(r"\b(chancy_\w+)\{(.+?)\}", expression):
            for label, values in re.findall(r'(\w+)=~?"([^"]+)"', selector):
                assert set(values.split("|")) <= labels[name][label], expression
        for grouped in re.findall(r"\bby \(([^)]+)\)", expression):
            for name in names:
                assert set(grouped.split(", ")) <= labels[name].keys(), expression


def labels_of(families: Families) -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, labels, _ in (sample for samples in families.values() for sample in samples):
        for label, value in labels.items():
            found.setdefault(name, {}).setdefault(label, set()).add(value)
    return found


def succeeded(text: str) -> float:
    """The jobs that succeeded, by a scrape."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "chancy_jobs_total" and sample.labels["outcome"] == "succeeded"
    )


class HeldReports:
    """Holds the reports of metrics until it is told to go on, and fails some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way, self.go_on, self.failures = asyncio.Event(), asyncio.Event(), 0
        report = MetricsTable.report

        async def held(table: MetricsTable, totals: TotalsByFunction) -> None:
            self.under_way.set()
            await self.go_on.wait()
            if self.failures:
                self.failures -= 1
                raise BrokerUnavailable("away")
            await report(table, totals)

        monkeypatch.setattr(MetricsTable, "report", held)


def stored(dsn: str) -> int:
    return int(ask(dsn, "select coalesce(sum(succeeded), 0) from chancy.metrics")[0][0])


async def test_counters_do_not_fall_while_a_report_is_stored_or_fails(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = HeldReports(monkeypatch)
    reports.failures = 1
    async with served(dsn, caplog) as (chancy, worker, port):
        await chancy.push_many(work.job("fine") for _ in range(5))
        await eventually(lambda: worker.settled == 5)
        await reports.under_way.wait()
        assert succeeded((await asyncio.to_thread(get, port, "/metrics"))[1]) == 5
        reports.go_on.set()

        seen: set[float] = set()

        async def all_stored() -> bool:
            seen.add(succeeded((await asyncio.to_thread(get, port, "/metrics"))[1]))
            return stored(dsn) == 5

        await eventually(all_stored)
    assert seen == {5.0}
    assert "metrics_postponed" in caplog.text
    assert stored(dsn) == 5


async def test_a_stop_during_a_report_loses_no_count(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = HeldReports(monkeypatch)
    async with application(dsn, Metrics(every_s=0.1)) as chancy, Worker(chancy) as worker:
        await chancy.push_many(work.job("fine") for _ in range(5))
        await reports.under_way.wait()
        await eventually(lambda: worker.settled == 5)
        stopping = asyncio.create_task(worker.stop())
        await eventually(lambda: not worker.queues)
        reports.go_on.set()
        await stopping
    assert stored(dsn) == 5


async def test_the_endpoint_stays_while_the_database_is_unavailable(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(dsn, caplog) as (_, _, port):

        async def leads() -> bool:
            status, text = await asyncio.to_thread(get, port, "/metrics")
            assert status == 200
            return "chancy_leader 1.0" in text

        async def leads_no_more() -> bool:
            return not await leads()

        await eventually(leads)

        async def away(_: object) -> Gauges:
            raise BrokerUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(metrics_plugin, "look", away)
            await eventually(leads_no_more)
            await eventually(lambda: caplog.text.count("metrics_look_failed") >= 3)
            assert (await asyncio.to_thread(get, port, "/healthz")) == (200, "ok\n")
        await eventually(leads)
    assert caplog.text.count("metrics_served") == 1


async def test_a_port_in_use_is_logged_once_and_counts_are_stored(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_plugin, "_LISTEN_AGAIN_S", 0.05)
    caplog.set_level("INFO", "chancy.metrics")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chancy = application(dsn, Metrics(every_s=0.1, listen=f"127.0.0.1:{port}"))
        async with chancy, Worker(chancy):
            await (await chancy.push(work.job("fine"))).wait(20)
            await eventually(lambda: stored(dsn) == 1)
            taken.close()
            await eventually(lambda: "metrics_served" in caplog.text)
            assert (await asyncio.to_thread(get, port, "/healthz")) == (200, "ok\n")
    assert caplog.text.count("metrics_not_served") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in caplog.text
    assert "hook_failed" not in caplog.text


def test_an_address_that_cannot_be_served_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        Metrics(listen="9100")
    with pytest.raises(ConfigurationError, match="requires a broker with SQL statements"):
        Chancy(broker=MemoryBroker(), plugins=[Metrics(listen="127.0.0.1:0")])
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match="prometheus_client is not installed"):
        Metrics(listen="127.0.0.1:0")


async def test_scalers_get_true_counts_or_a_refusal(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    other, queues = TwoBrokers(), ("kept", "far", "gone")
    ask(dsn, HELD.replace("QUEUE", "kept"))
    async with served(dsn, caplog, other) as (chancy, _, port):
        await chancy.declare(Queue("far", broker="memory"))
        await chancy.pause_queue("far")
        await chancy.push_many(work.job("fine").with_queue("far") for _ in range(3))
        ask(dsn, "insert into chancy.queues (name, broker) values ('gone', 'no')")

        async def scale(queue: str) -> tuple[int, str]:
            return await asyncio.to_thread(get, port, f"/scale/{queue}")

        answers = [await scale(queue) for queue in (*queues, "misspelled")]
        assert [status for status, _ in answers] == [200, 200, 501, 404]
        assert [json.loads(text)["backlog"] for _, text in answers[:2]] == [2, 3]
        assert "has no broker no" in answers[2][1]
        await chancy.declare(Queue("mail/pg1"))
        for path in ("mail/pg1", "mail%2Fpg1"):
            assert await scale(path) == (200, json.dumps({"queue": "mail/pg1", "backlog": 0}))

        async def gauges() -> bool:
            _, text = await asyncio.to_thread(get, port, "/metrics")
            return {
                'chancy_queue_held{queue="kept"} 2.0',
                'chancy_queue_pending{queue="far"} 3.0',
            } <= set(text.splitlines())

        await eventually(gauges)
        other.away = True
        assert (await scale("far"))[0] == 503


def test_a_scaler_needs_no_rights_on_the_tables(dsn: str) -> None:
    ask(dsn, HELD.replace("QUEUE", "kept"))
    ask(dsn, ON_HOLD.replace("QUEUE", "kept"))
    ask(dsn, "insert into chancy.queues (name, broker) values ('far', 'redis')")
    role = f"scaler_{secrets.token_hex(4)}"
    with roles(dsn, [role]), psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"grant usage on schema chancy to {role}".encode())
        connection.execute(f"set role {role}".encode())
        found = connection.execute("select chancy.queue_backlog('kept')").fetchone()
        assert found == (2,)
        with pytest.raises(psycopg.errors.UndefinedObject, match="no jobs"):
            connection.execute("select chancy.queue_backlog('misspelled')")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="the broker redis"):
            connection.execute("select chancy.queue_backlog('far')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select from chancy.jobs")


async def test_counts_that_stopped_say_so(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    ask(
        dsn,
        "insert into chancy.jobs (id, pos, state, queue, func) select gen_random_uuid(), n, 0,"
        " 'deep', 'a.b' from generate_series(1, 10001) as n returning 1",
    )
    async with application(dsn, Metrics()) as chancy:
        found = await look(chancy.broker)
    assert found.jobs["pending"] == {"deep": 10_000, "default": 0}
    assert found.capped == {("pending", "deep")}


async def test_declared_queues_without_jobs_have_counts_of_zero(dsn: str) -> None:
    other = TwoBrokers()
    async with application(dsn, Metrics(), other) as chancy:
        for queue in (Queue("empty"), Queue("far", broker="memory")):
            await chancy.declare(queue)
        await chancy.push(work.job("fine").with_queue("later").with_delay(timedelta(hours=1)))
        found = await look(chancy.broker)
        for state in ("pending", "held", "running", "scheduled"):
            assert found.jobs[state]["empty"] == found.jobs[state]["far"] == 0
        assert found.jobs["scheduled"]["later"] == 1
        assert "empty" not in found.oldest_s
        other.away = True
        found = await look(chancy.broker)
    assert "empty" in found.jobs["pending"]
    assert "far" not in found.jobs["pending"]


async def test_a_web_process_exposes_what_all_workers_have_stored(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_KEEP_S", 600.0)
    async with application(dsn, Metrics(every_s=0.1)) as chancy, Worker(chancy):
        await (await chancy.push(work.job("fine"))).wait(20)
        await eventually(lambda: stored(dsn) == 1)
    ahead = "update chancy.metrics set at = at + interval '1 min' returning 1"  # an hour may begin
    before = """insert into chancy.metrics
        select step, at - interval '2 h', queue, func, succeeded, failed, retried, crashed,
        rescued, cancelled, expired, snoozed, released, stale, wait_s, run_s, waits, runs, ends
        from chancy.metrics returning 1"""
    ask(dsn, ahead)
    ask(dsn, before)
    metrics = Metrics()
    chancy = application(dsn, metrics)
    site = Starlette(routes=[Mount("/metrics", metrics.asgi(chancy))])
    transport = httpx.ASGITransport(site)
    async with chancy, httpx.AsyncClient(transport=transport, base_url="http://web") as client:
        answer = await client.get("/metrics/")
    assert answer.status_code == 200
    assert succeeded(answer.text) == 1
    assert "chancy_workers 0.0" in answer.text
    assert "chancy_leader" not in answer.text
    async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
        assert (await client.get("/metrics/")).text == answer.text, "a look is kept for some time"


async def test_a_worker_that_can_take_no_jobs_is_not_ready(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(dsn, caplog) as (_, worker, port):

        async def ready() -> tuple[int, str]:
            return await asyncio.to_thread(get, port, "/readyz")

        await eventually(lambda: gives(ready(), (200, "ok\n")))
        with psycopg.connect(dsn) as connection:
            # In a thread: the worker of this loop may hold a lock that this waits for.
            lock = "lock table chancy.workers in access exclusive mode"
            await asyncio.to_thread(connection.execute, lock)
            with monkeypatch.context() as patch:
                patch.setattr(endpoints, "_DATABASE_S", 0.3)
                assert await ready() == (503, "the database has not responded within 0.3 s\n")
            connection.rollback()
        await eventually(lambda: gives(ready(), (200, "ok\n")))

        async def silent() -> bool:
            ask(dsn, "update chancy.workers set beat_at = beat_at - interval '1 minute'")
            status, text = await ready()
            return status == 503 and text.startswith("no heartbeat has been stored for ")

        await eventually(silent)

        async def unregistered() -> bool:
            # Again and again: the next heartbeat registers it.
            ask(dsn, "delete from chancy.workers")
            return await ready() == (503, "the worker is not registered\n")

        await eventually(unregistered)
        worker.shut_down()
        assert await ready() == (503, "the worker is shutting down\n")
        assert (await asyncio.to_thread(get, port, "/healthz")) == (200, "ok\n")


async def test_a_blocked_worker_is_reported(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_LOOP_S", 0.2)
    async with served(dsn, caplog) as (chancy, worker, port):
        await eventually(lambda: gives(asyncio.to_thread(get, port, "/readyz"), (200, "ok\n")))
        looking = asyncio.create_task(asyncio.to_thread(_first_bad, port))
        await chancy.push(block.job(1.5))
        assert "a job blocks it" in await looking
        await eventually(lambda: worker.settled)
        await eventually(lambda: gives(asyncio.to_thread(get, port, "/healthz"), (200, "ok\n")))


def _first_bad(port: int) -> str:
    while True:
        status, text = get(port, "/healthz")
        if status == 503:
            return text
