"""The shop: an application with all plugins that have pages, and what its database holds."""

from __future__ import annotations

import asyncio
import importlib
import math
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from chancy import Chancy, GlobalConcurrency, Job, Queue, Worker
from chancy.broker import SqlStore
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.job_logs import JobLogs
from chancy.plugins.metrics import Metrics
from chancy.plugins.workflow import Workflow, Workflows
from tests.plugins.dashboard.pictures.statements import AGE, AUDIT, BEAT, METRICS, PENDING, WORKERS
from tests.plugins.dashboard.scene import Stock
from tests.plugins.dashboard.shop import HOSTILE, MARKS
from tests.support.waiting import eventually

LONG = "suppliers-of-spare-parts-and-accessories-for-the-nordic-countries-v2"
QUEUES = (
    Queue("billing", executor="async", concurrency=4),
    Queue("feeds", executor="async"),
    Queue("mail", executor="async", concurrency=8),
    Queue("search", executor="async", concurrency=2),
    Queue("suppliers", executor="async", rules=(GlobalConcurrency(1, by="supplier"),)),
    Queue("thumbnails", executor="async", tags=frozenset({"gpu=.*"})),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The functions of the shop."""

    billing: Any
    mail: Any
    catalogue: Any


def load() -> Shop:
    """Import the shop under its own name."""
    sys.path.insert(0, str(Path(__file__).parent))
    names = ("billing", "mail", "catalogue")
    return Shop(**{name: importlib.import_module(f"shop.{name}") for name in names})


def application(dsn: str, shop: Shop | None, schema: str = "chancy") -> Chancy:
    """The application; without a shop one that has never done anything."""
    entries = [
        Entry("billing/close-books", "30 2 * * *", shop.billing.close_books.job(day="yesterday"),
              zone="Europe/Paris"),
        Entry("feeds/hourly", "15 * * * *", shop.catalogue.download.job(feed="all")),
        Entry("mail/newsletter-of-the-week-for-customers-of-the-nordic-countries", "0 9 * * mon",
              shop.mail.send_newsletter.job(to="everyone")),
    ] if shop else []  # fmt: skip
    return Chancy(
        dsn,
        schema=schema,
        queues=QUEUES if shop else (),
        plugins=[
            DashboardPlugin(secret="a secret of the pictures"),
            Cron(*entries),
            Workflows(),
            Batches(),
            Metrics(every_s=0.2),
            JobLogs(every_s=0.1),
            Stock(),
        ],
    )


@asynccontextmanager
async def staged(dsn: str) -> AsyncGenerator[tuple[Chancy, Mapping[str, str]]]:
    """The application in the middle of a day; and the paths of pages about one thing."""
    shop = load()
    chancy = application(dsn, shop)
    await chancy.migrate()
    served = ["billing", "feeds", "search", "suppliers"]
    async with chancy, Worker(chancy, queues=served, shutdown_timeout_s=0.1):
        await chancy.pause_queue("mail")
        paths = await _push(chancy, shop)
        await _age(chancy)
        gone = await chancy.push_many([shop.catalogue.crawl.job(supplier="acme")] * 2)
        await chancy.cancel(*(one.id for one in gone))
        yield chancy, paths


@asynccontextmanager
async def in_disorder(chancy: Chancy) -> AsyncGenerator[Mapping[str, str]]:
    """Add what tries the layout: hostile strings, long names, workers with troubles."""
    hostile = await chancy.push(
        Job(func="shop.mail.send_receipt", queue="mail",
            arguments={"order": 1, "to": HOSTILE, "note": MARKS, HOSTILE[:40]: MARKS})
    )  # fmt: skip
    store = _store(chancy)
    sql = "update chancy.jobs set func = $1, queue = $1, priority = 9 where id = $2"
    await store.fetch(sql, HOSTILE + MARKS, hostile.id)
    await chancy.declare(Queue(LONG, executor="async"))
    await store.fetch(WORKERS)
    beating = asyncio.create_task(_beat(chancy))
    yield {"job-hostile": f"jobs/{hostile.id}"}
    beating.cancel()


async def _beat(chancy: Chancy) -> None:
    """Keep the workers that are only rows alive."""
    while True:
        await _store(chancy).fetch(BEAT)
        await asyncio.sleep(1)


async def _push(chancy: Chancy, shop: Shop) -> Mapping[str, str]:
    billing, catalogue = shop.billing, shop.catalogue
    await chancy.push_many([
        catalogue.download.job(feed=f"feed-{n}").with_delay(timedelta(hours=n + 1))
        for n in range(12)
    ])  # fmt: skip
    searches = [catalogue.rebuild_index.job(shop=name, products=81_204)
                for name in ("shop.example.fr", "shop.example.de", "shop.example.se")]  # fmt: skip
    (search, *_) = await chancy.push_many(searches)
    await chancy.push_many(
        [catalogue.download.job(feed=f"cover-{n}.jpg").with_queue("thumbnails") for n in range(41)]
    )
    suppliers = ("acme", "umbrella", "stark industries of the far north, wholesale department")
    await chancy.push_many([catalogue.crawl.job(supplier=suppliers[n % 3]) for n in range(9)])
    charges = [
        billing.charge.job(
            order=5_000 + n, customer=f"c-{n * 37 % 900}", amount=f"{n * 7.31 % 190:.2f}",
            card_number="4111 1111 1111 1111",
        )
        for n in range(90)
    ]  # fmt: skip
    charged = await chancy.push_many([one.with_max_attempts(1) for one in charges])
    books = await chancy.push_many(
        [billing.close_books.job(day=f"2026-11-{n:02}", ledger="main") for n in range(18, 24)]
    )
    portal = billing.reconcile_supplier_invoices_with_purchase_orders_and_deliveries
    path = "orders?since=2026-11-01T00:00:00Z&status=delivered&page=17&fields=all"
    failed = await chancy.push_many(
        [portal.job(supplier=f"https://b2b.example/{n}/{path}") for n in range(3)]
    )
    retried = await chancy.push(billing.charge.job(order=6_000, customer="c-17", amount="48.10"))
    workflow = await _workflows(chancy, shop)
    batch = await _batches(chancy, shop)
    for reference in [*charged, *books, *failed]:
        await reference.wait(30)
    store = _store(chancy)
    await store.fetch(AUDIT)
    letters = await store.fetch(
        "select fingerprint, min(id::text) from chancy.dead_letters where func like $1 group by 1",
        "%close_books",
    )
    return {
        "job": f"jobs/{charged[0].id}",
        "job-errors": f"jobs/{books[0].id}",
        "job-running": f"jobs/{search.id}",
        "job-retried": f"jobs/{retried.id}",
        "job-gone": f"jobs/{UUID(int=7)}",
        "dead-letters-group": f"dead-letters/groups/{letters[0][0]}",
        "dead-letter": f"dead-letters/{letters[0][1]}",
        "workflow": f"workflows/{workflow}",
        "batch": f"batches/{batch}",
    }


async def _batches(chancy: Chancy, shop: Shop) -> UUID:
    """Push a batch that ends, with failures, and another one that waits."""
    batches = {type(plugin): plugin for plugin in chancy.hooks.plugins}[Batches]
    assert isinstance(batches, Batches)
    transform, newsletter = shop.catalogue.transform, shop.mail.send_newsletter
    parts = [transform.job(part=f"part {n}", fails=n % 9 == 4) for n in range(25)]
    batch = await batches.push(chancy, Batch(name="import of the spring collection"), parts)
    letters = [newsletter.job(to=f"ann{n}@example.com") for n in range(400)]
    await batches.push(chancy, Batch(name="newsletter 12"), letters)
    await batch.wait(30)
    return batch.id


async def _workflows(chancy: Chancy, shop: Shop) -> UUID:
    """Push a workflow that fails half-way, and another one that goes on."""
    transform, download = shop.catalogue.transform, shop.catalogue.download
    workflows = {type(plugin): plugin for plugin in chancy.hooks.plugins}[Workflows]
    assert isinstance(workflows, Workflows)

    def flow(name: str, fails: bool) -> Workflow:
        flow = Workflow(name)
        flow.add(download.job(feed="supplier"), "download")
        flow.add(transform.job(part="prices"), "prices", after="download")
        flow.add(transform.job(part="stock", fails=fails), "stock", after="download")
        flow.add(transform.job(part="images"), "images", after="download")
        flow.add(transform.job(part="thumbnails"), "thumbnails", after="images")
        flow.add(transform.job(part="watermarks"), "watermarks", after="thumbnails")
        flow.add(
            transform.job(part="validation"), "validate everything against the schema",
            after=["prices", "stock"],
        )  # fmt: skip
        flow.add(
            transform.job(part="diff"),
            "diff",
            after=["validate everything against the schema", "download"],
        )
        flow.add(transform.job(part="publish"), "publish", after=["diff", "watermarks"])
        flow.add(shop.mail.send_receipt.job(order=0, to="buyers"), "notify", after=["publish"])
        return flow

    started = await chancy.push(flow("import of the spring collection", True))

    async def settled() -> bool:
        record = await started.get()
        return record is not None and record.state.final

    await eventually(settled)
    await chancy.push(flow("import of a supplier with a name that does not end", False))
    return started.id


def _store(chancy: Chancy) -> SqlStore:
    assert isinstance(chancy.control, SqlStore)
    return chancy.control


async def _age(chancy: Chancy) -> None:
    """Spread what has happened over the day, and add what a shop has after some days."""
    store = _store(chancy)
    for statement in AGE.values():
        await store.fetch(statement, datetime.now(UTC))
    await store.fetch(PENDING)
    await _metrics(store)


async def _metrics(store: SqlStore) -> None:
    """Metrics of a week: busy by day, quiet by night, with an incident two hours ago."""
    minute = [(step, n) for step, count in ((60, 1_440), (3_600, 168)) for n in range(count)]
    rows = [(step, n, queue, func, *_totals(step, n, busy))
            for step, n in minute
            for queue, func, busy in (("billing", "shop.billing.charge", 40),
                                      ("feeds", "shop.catalogue.download", 22),
                                      ("mail", "shop.mail.send_receipt", 130))
            if step == 60 or n >= 24]  # fmt: skip
    columns = [list(column) for column in zip(*rows, strict=True)]
    waits = ["{" + ",".join(map(str, one)) + "}" for one in columns[7]]
    await store.fetch(METRICS, *columns[:7], waits)


def _totals(step: int, n: int, busy: int) -> tuple[int, int, int, list[int]]:
    hour = n * step / 3_600
    wave = 1 + 0.6 * math.sin(hour / 24 * 2 * math.pi) + 0.15 * math.sin(n * 1.7)
    count = int(busy * wave * step / 60)
    incident = 1.9 < hour < 2.4 or (step == 60 and 18 < n < 26)
    failed = int(count * (0.3 if incident else 0.004 + 0.01 * (n % 11 == 0)))
    waits = [0] * 24
    slow = 5 if incident else 0
    for place, share in (
        (5, 0.3),
        (6, 0.4),
        (7, 0.2),
        (8 + (n * 7 // 3) % 2, 0.07),
        (10 + (n * n // 7) % 3, 0.03),
    ):
        waits[place + slow] += int(count * share) + (place == 10 and n % 4 == 0)
    return count - failed, failed, failed // 2, waits
