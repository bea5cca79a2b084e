"""``python -m tests.plugins.dashboard.pictures --into DIR``: a PNG of each page, in each look."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from chancy import Chancy
from chancy.embedded import PostgresServer
from chancy.plugins.dashboard import Dashboard
from chancy.plugins.dashboard.server import serve
from tests.plugins.dashboard.pictures.staging import application, in_disorder, staged
from tests.support import chromium
from tests.support.presence import present

#: Width, height, colours, and whether the picture is as long as the page.
LOOKS = {
    "light": (1280, 800, "light"),
    "dark": (1280, 800, "dark"),
    "phone": (390, 800, "light"),
}
#: The pages that are the same in every application.
PAGES = {
    "overview": "",
    "overview-7d": "?span=7d",
    "queues": "queues",
    "jobs": "jobs",
    "jobs-pending": "jobs?q=state:pending",
    "jobs-failed": "jobs?q=state:failed",
    "jobs-none": "jobs?q=func:nothing",
    "jobs-problem": "jobs?q=state:lost",
    "dead-letters": "dead-letters",
    "workers": "workers",
    "cron": "cron",
    "cron-entry": "cron/feeds/hourly",
    "workflows": "workflows",
    "batches": "batches",
    "limits": "limits?queue=suppliers",
    "panel": "panels/stock",
    "checkup": "checkup",
    "audit": "audit",
    "problem": "cron/nothing",
}
EMPTY = ("", "queues", "jobs", "dead-letters", "workers", "cron", "workflows", "batches", "limits")
#: The pictures of the documentation: page, look, height.
KEPT = {
    "dashboard-overview": ("overview", "light", 900),
    "dashboard-job": ("job-retried", "light", 740),
    "dashboard-workflow": ("workflow", "light", 880),
    "dashboard-dead-letters": ("dead-letters", "dark", 690),
    "dashboard-phone": ("overview", "phone", 1040),
}


@asynccontextmanager
async def served(chancy: Chancy) -> AsyncGenerator[str]:
    """The address of the dashboard of an application."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(Dashboard(chancy), "127.0.0.1", 0, address.set_result))
    try:
        yield (await address).replace("127.0.0.1", "localhost")
    finally:
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server


async def take(page: Page, address: str, file: Path, height: int | None = None) -> None:
    """Save a picture of a page: of its top, or of all of it."""
    await page.goto(address)
    await page.wait_for_timeout(150)  # the stream has opened: the page is live
    size = present(page.viewport_size)
    clip = {"x": 0, "y": 0, "width": size["width"], "height": height} if height else None
    taken = await page.screenshot(full_page=True, clip=clip)  # type: ignore[arg-type]
    await asyncio.to_thread(_save, taken, file)


def _save(taken: bytes, file: Path) -> None:
    """As small as can be without a loss."""
    Image.open(BytesIO(taken)).convert("RGB").save(file, optimize=True)


async def take_all(
    browser: Browser, address: str, pages: Mapping[str, str], into: Path, wanted: re.Pattern[str]
) -> None:
    for look, (width, height, scheme) in LOOKS.items():
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            locale="en",
        )
        page = await context.new_page()
        for name, path in pages.items():
            if wanted.search(f"{name}-{look}"):
                await take(page, address + path, into / f"{name}-{look}.png")
        await context.close()


async def keep(browser: Browser, address: str, pages: Mapping[str, str], into: Path) -> None:
    """Save the pictures of the documentation."""
    for name, (shown, look, height) in KEPT.items():
        width, _, scheme = LOOKS[look]
        page = await browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        await take(page, address + pages[shown], into / f"{name}.png", height)
        await page.close()


async def run(into: Path, wanted: re.Pattern[str], *, docs: Path | None) -> None:
    with PostgresServer() as server:
        async with (
            staged(server.dsn()) as (chancy, paths),
            served(chancy) as address,
            async_playwright() as player,
        ):
            browser = await player.chromium.launch(
                executable_path=chromium.find(),
                args=["--no-sandbox"],
                env=dict(chromium.environment()),
            )
            if docs is not None:
                await keep(browser, address, {**PAGES, **paths}, docs)
            async with in_disorder(chancy) as more:
                await take_all(browser, address, {**PAGES, **paths, **more}, into, wanted)
            quiet = application(server.dsn(), None, "quiet")
            await quiet.migrate()
            async with quiet, served(quiet) as address:
                nothing = {f"empty-{path or 'overview'}": path for path in EMPTY}
                await take_all(browser, address, nothing, into, wanted)
            await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="pictures", description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("pictures"))
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--docs", type=Path, help="also write those of the documentation here")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(given.into, given.only, docs=given.docs))


if __name__ == "__main__":
    main()
