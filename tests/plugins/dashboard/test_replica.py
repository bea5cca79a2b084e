"""Lists and counts of the dashboard from a replica."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Chancy, Job, Queue, State
from chancy.plugins.dashboard import DashboardPlugin, replica
from chancy.plugins.metrics import Metrics, Totals
from chancy.plugins.metrics.series import MetricsTable
from tests.plugins.dashboard.browsing import ADMIN, VIEWER, Browser, browser, text_of
from tests.plugins.dashboard.scene import fail
from tests.support import jobs
from tests.support.postgres_fixtures import new_database
from tests.support.replicated import HERE, ReplicatedPostgres, ask_server
from tests.support.waiting import eventually


async def listed(ada: Browser) -> str:
    return text_of(await ada.get("jobs"))


async def test_lists_are_read_from_a_replica_and_jobs_and_actions_from_the_primary(
    replicated: ReplicatedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_PAUSE_S", 0.5)
    await Chancy(replicated.primary.server.dsn(), plugins=[DashboardPlugin()]).migrate()
    node = await asyncio.to_thread(replicated.add, "standby")
    assert node.feed is not None
    read_dsn = f"postgresql://postgres@{HERE}:{node.way.port}/postgres?sslmode=disable"
    plugins = [DashboardPlugin(read_dsn=read_dsn)]
    queues = [Queue("async")]
    async with Chancy(replicated.dsn, queues=queues, plugins=plugins) as chancy:
        first: Job[None] = jobs.wait_for_ever.job()
        await chancy.push(first)
        await eventually(lambda: ask_server(node.server, "select count(*) from chancy.jobs") == 1)
        async with browser(chancy, ADMIN) as ada:
            await eventually(lambda: _caught_up(ada))
            assert "wait_for_ever" in await listed(ada)

            node.feed.black_hole()
            second = await chancy.push(jobs.nap.job(seconds=1))
            await eventually(lambda: _behind(ada))
            page = await listed(ada)
            assert "wait_for_ever" in page
            assert "nap" not in page
            assert "nap" in text_of(await ada.get(f"jobs/{second.id}"))
            assert (await ada.post("jobs/cancel", {"id": str(second.id)})).status_code == 303
            assert (await second.wait(30)).state is State.CANCELLED

            node.way.refuse()
            node.way.cut()
            page = await listed(ada)
            assert "The read replica is away" in page
            assert "nap" in page

            node.feed.heal()
            node.way.heal()
            await eventually(lambda: _caught_up(ada), timeout=30)
            assert "nap" in await listed(ada)


async def test_dead_letters_and_charts_are_read_from_the_replica(
    request: pytest.FixtureRequest, shop_template: str, shop: Chancy
) -> None:
    """Another database in its place shows what comes from it."""
    await fail(shop, 3)
    await MetricsTable(shop.control).report({("mail", "shop.send"): Totals(failed=7)})
    plugins = [DashboardPlugin(read_dsn=shop.dsn), Metrics()]
    with new_database(request, shop_template) as dsn:
        async with Chancy(dsn, plugins=plugins) as chancy, browser(chancy, VIEWER) as vera:
            overview = await vera.get()
            assert "3 jobs have failed for good" in text_of(overview)
            assert 'data-name="failed">7<' in overview.text
            assert "shop.Declined" in text_of(await vera.get("dead-letters"))


async def _behind(ada: Browser) -> bool:
    page = await listed(ada)
    return "s behind" in page and " 0.0 s behind" not in page


async def _caught_up(ada: Browser) -> bool:
    return "read from a replica, 0.0 s behind" in await listed(ada)
