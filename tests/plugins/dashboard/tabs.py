"""A tab of Chromium that shows the dashboard, which is served by uvicorn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.async_api import Page, async_playwright, expect

from chancy import Chancy
from chancy.plugins.dashboard import Dashboard
from chancy.plugins.dashboard.server import serve
from tests.support import chromium
from tests.support.presence import present

# On a busy machine a page follows what happens later than after 5 s.
expect.set_options(timeout=30_000)

#: Counts the clicks of a tab.
_COUNT = """addEventListener("click", () => {
  sessionStorage.clicks = Number(sessionStorage.clicks ?? 0) + 1;
}, true)"""


@dataclass(slots=True)
class Tab:
    """A page in the browser, and what must not happen in it."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        response = present(await self.page.goto(self.address + path))
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
            # An animation would keep its processes busy for as long as a page is open.
            page = await launched.new_page(reduced_motion="reduce")
            await page.add_init_script(_COUNT)
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


async def clicks(page: Page) -> int:
    """The clicks so far; the Enter key on a link or a button is one too."""
    return int(await page.evaluate("sessionStorage.clicks ?? 0"))


async def tab_to(page: Page, name: str | re.Pattern[str]) -> None:
    """Press the tabulator until what has this text is focused."""
    for _ in range(120):
        await page.keyboard.press("Tab")
        text = (await page.evaluate("document.activeElement.textContent")).strip()
        if text == name if isinstance(name, str) else name.match(text):
            return
    raise AssertionError(f"the tabulator does not lead to {name!r}")
