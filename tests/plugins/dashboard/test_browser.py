"""The dashboard in Chromium, against a worker: actions by their effect, and what a browser sees."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, async_playwright, expect

from chancy import Chancy, Worker
from chancy.broker import SqlStore
from chancy.plugins.cron import Cron
from chancy.plugins.dashboard import Dashboard
from chancy.plugins.dashboard.server import serve
from chancy.plugins.dead_letter import DeadLetters
from tests.plugins.dashboard.scene import staged
from tests.plugins.dashboard.shop import HOSTILE, MARKS, send_receipt
from tests.support import chromium
from tests.support.waiting import eventually

pytestmark = pytest.mark.browser


@dataclass(slots=True)
class Tab:
    """A page in the browser, and what must not happen in it."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        response = await self.page.goto(self.address + path)
        assert response is not None
        assert response.status == 200, path

    async def press(self, name: str) -> None:
        """Press the first button of this name, and wait for the page that follows."""
        async with self.page.expect_navigation():
            await self.page.get_by_role("button", name=name, exact=True).first.click()


@asynccontextmanager
async def tab(chancy: Chancy) -> AsyncGenerator[Tab]:
    """A tab of a browser that shows the dashboard, which is served by uvicorn."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(Dashboard(chancy), "127.0.0.1", 0, address.set_result))
    try:
        async with async_playwright() as player:
            launched = await player.chromium.launch(
                executable_path=chromium.find(),
                args=["--no-sandbox"],
                env=dict(chromium.environment()),
            )
            page = await launched.new_page()
            found = Tab(page, (await address).replace("127.0.0.1", "localhost"))
            host = urlsplit(found.address).netloc

            def note(what: str) -> None:
                found.wrong.append(what)

            page.on("pageerror", lambda error: note(str(error)))
            page.on("console", lambda said: note(said.text) if said.type == "error" else None)
            page.on(
                "request",
                lambda asked: note(asked.url) if urlsplit(asked.url).netloc != host else None,
            )
            yield found
            await launched.close()
    finally:
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server


async def _links(page: Page, pattern: str) -> Sequence[str]:
    """The paths of links in the page."""
    found = await page.eval_on_selector_all("main a[href]", "all => all.map(a => a.pathname)")
    return [path.lstrip("/") for path in found if re.fullmatch(pattern, path)]


async def test_an_operator_works_in_the_browser(shop_dsn: str) -> None:
    async with staged(shop_dsn) as chancy, tab(chancy) as it:
        page = it.page
        # A paused queue, found from the overview, is resumed, and a worker takes its jobs.
        await it.open("")
        await page.get_by_role("link", name=re.compile("mail: 130 jobs wait")).click()
        await expect(page.get_by_text("waits: it is paused").first).to_be_visible()
        await it.open("queues")
        async with Worker(chancy, queues=["mail"]):
            await it.press("Resume")
            await expect(page.get_by_role("status")).to_contain_text("pause queue")

            async def sent() -> bool:
                return "mail" not in await chancy.counts()

            await eventually(sent)
        # Selected jobs are cancelled together, after a question.
        await it.open("jobs?q=state:scheduled")
        await page.get_by_label("Select all jobs of this page").check()
        await it.press("Cancel")
        await it.press("Cancel 12 jobs")
        await expect(page.get_by_text("No job matches")).to_be_visible()
        assert chancy.broker is chancy.control
        assert "feeds" not in await chancy.counts()
        # A running job is stopped, by the keyboard alone.
        await it.open("jobs?q=state:running+func:render")
        link = page.locator("table.jobs a.whole").first
        await link.focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("rendered 4 of 10 pages")).to_be_visible()
        button = page.get_by_role("button", name="Cancel", exact=True)
        await button.focus()
        await page.keyboard.press("Enter")
        # The page follows the job without a reload.
        await expect(page.locator("#head .state")).to_have_text("cancelled", timeout=15_000)
        # A failed job is retried; its page leads to the new one.
        await it.open("jobs?q=state:failed+func:charge")
        await page.locator("table.jobs a.whole").first.click()
        await page.get_by_text("Traceback").first.click()
        await expect(page.locator(".trace").first).to_contain_text("CardDeclined")
        await it.press("Retry")
        await expect(page.get_by_text("Replay of", exact=False).first).to_be_visible()
        await _steer_plugins(it, chancy)
        await it.open("audit")
        assert await page.locator("tbody tr").count() == 7
        assert it.wrong == []


async def _steer_plugins(it: Tab, chancy: Chancy) -> None:
    page = it.page
    # A group of dead letters is purged.
    await it.open("dead-letters")
    await page.locator(".group a.whole").filter(has_text="no answer from https").click()
    await it.press("Purge all")
    await it.press("Purge all")

    async def purged() -> bool:
        found = await DeadLetters().find(chancy, limit=200)
        return not any("https" in letter.message for letter in found)

    await eventually(purged)
    # Cron, workflow, limits.
    await it.open("cron")
    await it.press("Run now")
    assert await Cron().history(chancy, "feeds/hourly")
    await it.open("workflows")
    await page.locator("tbody th a").first.click()
    await expect(page.locator(".graph g")).to_have_count(6)
    await it.press("Retry")
    await it.press("Retry the steps that did not succeed")


async def test_every_page_is_safe_quiet_and_accessible(shop_dsn: str) -> None:
    async with staged(shop_dsn) as chancy, tab(chancy) as it:
        hostile = await chancy.push(
            send_receipt.job(order=1, to=HOSTILE, **{HOSTILE: MARKS}).with_meta(x=HOSTILE)
        )
        assert isinstance(chancy.control, SqlStore)
        await chancy.control.fetch(
            "update chancy.jobs set func = $1, queue = $1 where id = $2",
            HOSTILE + MARKS,
            hostile.id,
        )
        page, check = it.page, chromium.accessibility()
        paths = await _menu(it)
        for listed, pattern in (
            ("jobs?q=state:failed", "/jobs/.*"),
            ("dead-letters", "/dead-letters/.*"),
            ("workflows", "/workflows/.*"),
            ("batches", "/batches/.*"),
            ("cron", "/cron/.*"),
        ):
            await it.open(listed)
            paths.append((await _links(page, pattern))[0])
        problems: list[str] = []
        for number, path in enumerate([*paths, f"jobs/{hostile.id}", "jobs?q=state:pending"]):
            await page.emulate_media(color_scheme="dark" if number % 2 else "light")
            await it.open(path)
            if check is not None:
                await page.evaluate(check)
                found = await page.evaluate(_SERIOUS)
                problems += [f"{path}: {one}" for one in found]
            await page.set_viewport_size({"width": 390, "height": 800})
            if await page.evaluate("document.documentElement.scrollWidth") > 390:
                problems.append(f"{path} is wider than a phone")
            await page.set_viewport_size({"width": 1280, "height": 800})
        assert problems == []
        assert await page.evaluate("window.hacked") is None
        # Without a reload the overview follows a queue that is paused elsewhere.
        await it.open("")
        await expect(page.locator("#live.on")).to_be_visible()
        await chancy.pause_queue("billing")
        row = page.locator("#queues tr").filter(has_text="billing")
        await expect(row).to_contain_text("it is paused", timeout=15_000)
        # The theme is kept.
        await page.get_by_role("button", name="Change between light and dark").click()
        await page.reload()
        assert await page.get_attribute("html", "data-theme") in ("light", "dark")
        assert it.wrong == []


#: The serious and critical findings of axe-core, each with an element.
_SERIOUS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => one.id + ": " + one.nodes[0].html.slice(0, 200) + one.nodes[0].failureSummary)"""


async def _menu(it: Tab) -> list[str]:
    await it.open("")
    found = await it.page.eval_on_selector_all(
        "nav[aria-label=Pages] a", "all => all.map(a => a.pathname)"
    )
    return [path.lstrip("/") for path in found]
