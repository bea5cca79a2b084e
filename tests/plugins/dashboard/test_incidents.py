"""Incidents of the database, made on purpose and understood in the browser alone."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import pytest
from playwright.async_api import Page, expect

from chancy import Chancy, Queue, Worker
from chancy.embedded import PostgresServer
from chancy.plugins.dashboard import DashboardPlugin, live, snapshot
from chancy.plugins.leadership import Leadership
from tests.plugins.dashboard.tabs import Tab, clicks, tab
from tests.support.postgres_fixtures import OwnServer
from tests.support.sql import ask

# Most of it waits for what a page shows after seconds; other tests hold what it says.
pytestmark = [pytest.mark.browser, pytest.mark.chaos]


@contextmanager
def _open(dsn: str, name: str, statement: str) -> Generator[None]:
    """A session that is left in a transaction."""
    with psycopg.connect(dsn, application_name=name) as session:
        session.execute("set transaction isolation level repeatable read")
        session.execute(statement.encode())
        yield
        session.close()


async def _solve(it: Tab, dsn: str, line: str, finding: str, culprit: str) -> None:
    """Follow the line that appears in the open overview to the checkup, and run the statement that
    stands beside a finding."""
    page = it.page
    await it.open("")
    before = await clicks(page)
    link = page.get_by_role("link", name=re.compile(line))
    await link.click(timeout=30_000)
    row = page.locator("#findings tr").filter(has_text=culprit).filter(has_text=finding)
    todo = await row.first.locator("td").last.inner_text()
    assert await clicks(page) - before == 1
    ask(dsn, todo)
    await it.open("")
    await expect(page.locator("#attention")).not_to_contain_text("Checkup", timeout=30_000)


async def test_incidents_are_understood_in_the_browser_alone(
    own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_TRANSACTION_S", 0.5)
    monkeypatch.setattr(live, "_CHECKED_S", 0.5)
    server = own_server(migrated=False)
    dsn = server.dsn()
    plugins = [DashboardPlugin(), Leadership(lease_s=1)]
    chancy = Chancy(dsn, queues=[Queue("mail", executor="async")], plugins=plugins)
    await chancy.migrate()
    async with chancy, Worker(chancy), tab(chancy) as it:
        with _open(dsn, "report", "select count(*) from chancy.finished_jobs"):
            await _solve(it, dsn, "Checkup:.*report.*held the horizon", "horizon", "report")
        with _open(dsn, "backup", "lock table chancy.leadership_leases in exclusive mode"):
            await _solve(it, dsn, "Checkup: no worker leads", "transactions", "backup")
        assert it.wrong == []
        await _database_dies(it.page, server)
        assert it.wrong
        assert all("503" in one for one in it.wrong)


async def _database_dies(page: Page, server: PostgresServer) -> None:
    """An open page says so, others do too, and all of them go on when it is back."""
    await expect(page.locator("#live.on")).to_be_visible()
    before = await clicks(page)
    server.stop("immediate")
    await expect(page.locator("#lost")).to_be_visible(timeout=30_000)
    assert await clicks(page) - before == 0
    await page.get_by_role("navigation").get_by_role("link", name="Queues").click()
    await expect(page.get_by_role("heading", name="No database")).to_be_visible(timeout=30_000)
    await expect(page.get_by_role("alert")).to_contain_text("Look at its server and its log")
    server.start()
    await expect(page.get_by_role("heading", name="mail")).to_be_visible(timeout=30_000)
    await expect(page.locator("#live.on")).to_be_visible(timeout=30_000)
    assert await clicks(page) - before == 1
