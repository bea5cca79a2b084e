"""What the dashboard shows in tests: queues, workers, jobs in all states, workflows, a batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from chancy import Chancy, GlobalConcurrency, Queue, Sequential, Worker
from chancy.broker import SqlStore
from chancy.plugin import Application, Panel, Plugin
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.job_logs import JobLogs
from chancy.plugins.metrics import Metrics
from chancy.plugins.workflow import Workflow, Workflows
from tests.plugins.cron.clockwork import hourly
from tests.plugins.dashboard.shop import charge, fetch, merge, render, send_receipt, stay
from tests.support.waiting import eventually

QUEUES = (
    Queue("mail", executor="async", concurrency=8),
    Queue("billing", executor="async", concurrency=4),
    Queue("reports", executor="async", concurrency=2),
    Queue("feeds", executor="async"),
    Queue("crawl", executor="async", rules=(GlobalConcurrency(1, by="feed"),)),
    Queue("ledger", executor="async", rules=(Sequential(by="account", on_failure="block"),)),
    Queue("video", executor="async", tags=frozenset({"gpu=.*"})),
)


class Stock(Plugin):
    """A plugin of the shop's own, with a panel."""

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.stock"

    def panels(self) -> Sequence[Panel]:
        async def rows(_: Application) -> Sequence[Mapping[str, Any]]:
            return [
                {"article": "kettle, 1.7 l", "in stock": 412, "reserved": 17, "due": None},
                {"article": "wok", "in stock": 0, "reserved": 5, "due": "Thursday"},
            ]

        return [Panel(name="stock", title="Stock", rows=rows)]


def application(dsn: str, *more: Plugin) -> Chancy:
    """An application with all plugins that have pages, and others."""
    # Not while a test runs, whose jobs are counted.
    far = f"0 {(datetime.now(UTC).hour + 12) % 24} * * *"
    nightly = Entry("reports/nightly", far, render.job(report="nightly"), zone="Europe/Paris")
    return Chancy(
        dsn,
        queues=QUEUES,
        plugins=[
            DashboardPlugin(secret="a secret of the tests"),
            Cron(nightly, Entry("feeds/hourly", hourly(), fetch.job(feed="all"))),
            Workflows(),
            Batches(),
            Metrics(every_s=0.1),
            JobLogs(every_s=0.1),
            Stock(),
            *more,
        ],
    )


@asynccontextmanager
async def staged(dsn: str) -> AsyncGenerator[Chancy]:
    """The application with a worker, and jobs in all states."""
    chancy = application(dsn)
    await chancy.migrate()
    names = [queue.name for queue in QUEUES if queue.name not in ("video", "mail")]
    async with chancy, Worker(chancy, queues=names, shutdown_timeout_s=0.1):
        await push(chancy)
        yield chancy


async def push(chancy: Chancy) -> None:
    """Push the jobs, and wait until they are where they belong."""
    await chancy.pause_queue("mail")
    receipts = [
        send_receipt.job(order=order, to=f"ann{order}@example.com", password="hunter2")
        for order in range(130)
    ]
    await chancy.push_many([job.with_priority(order % 3) for order, job in enumerate(receipts)])
    later = [fetch.job(feed=f"feed-{n}").with_delay(timedelta(hours=n + 1)) for n in range(12)]
    await chancy.push_many(later)
    await chancy.push_many([render.job(report=f"report {n}", rows=n * 1000) for n in range(3)])
    await chancy.push_many([fetch.job(feed="encode").with_queue("video") for _ in range(4)])
    crawls = [stay.job(feed=f"feed-{n % 2}").with_queue("crawl") for n in range(8)]
    await chancy.push_many(crawls)
    charges = [charge.job(order=n, card_number="4111 1111 1111 1111") for n in range(60)]
    slow = [fetch.job(feed=f"https://feeds.example.com/{n}", fails=True) for n in range(9)]
    references = await chancy.push_many([*charges, *slow])
    fine = await chancy.push_many([fetch.job(feed=f"feed-{n}") for n in range(40)])
    flow = Workflow("catalogue")
    flow.add(fetch.job(feed="prices"), "download")
    flow.add(merge.job(name="clean"), "clean", after="download")
    flow.add(merge.job(name="images"), "images", after="download")
    flow.add(merge.job(name="prices"), "prices", after="clean")
    flow.add(fetch.job(feed="stock", fails=True), "stock", after="clean")
    flow.add(merge.job(name="publish"), "publish", after=["prices", "stock", "images"])
    plugins = {type(plugin): plugin for plugin in chancy.hooks.plugins}
    workflows, batches = plugins[Workflows], plugins[Batches]
    assert isinstance(workflows, Workflows)
    assert isinstance(batches, Batches)
    started = await chancy.push(flow)
    batch = await batches.push(
        chancy, Batch(name="newsletter"), [merge.job(name=str(n)) for n in range(25)]
    )
    for reference in [*references, *fine]:
        await reference.wait(30)
    await batch.wait(30)

    async def settled() -> bool:
        record = await started.get()
        return record is not None and record.state.final

    await eventually(settled)

    async def running() -> bool:
        counts = await chancy.counts()
        return counts["reports"].running == 2

    await eventually(running)


async def fail(chancy: Chancy, count: int) -> None:
    """Store jobs that have failed for good, with their dead letters."""
    assert isinstance(chancy.control, SqlStore)
    await chancy.control.fetch(
        f"""
        with failed as (
          insert into chancy.finished_jobs (id, pos, state, queue, priority, func, arguments,
            attempt, max_attempts, crashes, errors, pushed_at)
          select gen_random_uuid(), i, 5, 'billing', 0, 'shop.pay', jsonb_build_object('order', i),
            1, 1, 0, jsonb_build_array(jsonb_build_object('types', array['shop.Declined'],
              'message', 'order ' || i || ' at "bank ' || i || '" was declined')), now()
          from generate_series(1, {count}) as i
          returning *)
        insert into chancy.dead_letters (id, queue, priority, func, arguments, max_attempts,
          attempt, crashes, errors, pushed_at, died_at, reason, error)
        select id, queue, 0, func, arguments, 1, 1, 0, errors, pushed_at, finished_at, 'failed',
          'shop.Declined'
        from failed""",
    )
