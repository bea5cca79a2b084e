"""The dashboard in Chromium, against a worker: actions by their effect, and what a browser sees."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from playwright.async_api import Page, expect

from chancy import Chancy, Job, Queue, State, Worker
from chancy.broker import SqlStore
from chancy.plugin import Plugin
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron
from chancy.plugins.dead_letter import DeadLetters, LetterFilter
from chancy.plugins.workflow import Workflow, Workflows
from tests.plugins.dashboard import shop
from tests.plugins.dashboard.scene import application, staged
from tests.plugins.dashboard.shop import HOSTILE, MARKS, book, send_receipt, stay
from tests.plugins.dashboard.tabs import Tab, clicks, tab, tab_to
from tests.support import chromium
from tests.support.command import SHOP, command, started
from tests.support.presence import present
from tests.support.waiting import eventually

pytestmark = pytest.mark.browser

P = TypeVar("P", bound=Plugin)
#: A job that runs until a file is there.
HOLD = """

@job
def hold(begun: str, gate: str) -> None:
    open(begun, "w").close()
    while not os.path.exists(gate):
        time.sleep(0.02)
"""


async def _links(page: Page, pattern: str) -> Sequence[str]:
    """The paths of links in the page."""
    found = await page.eval_on_selector_all("main a[href]", "all => all.map(a => a.pathname)")
    return [path.lstrip("/") for path in found if re.fullmatch(pattern, path)]


def _plugin(chancy: Chancy, kind: type[P]) -> P:
    return next(one for one in chancy.hooks.plugins if isinstance(one, kind))


async def _declared(chancy: Chancy, name: str) -> Queue:
    return next(queue for queue in await chancy.control.queues() if queue.name == name)


async def test_the_overview_fits_a_phone_when_a_queue_has_a_long_name(shop_dsn: str) -> None:
    async with application(shop_dsn) as chancy, tab(chancy) as it:
        assert isinstance(chancy.control, SqlStore)
        await chancy.control.fetch(
            "insert into chancy.metrics select 60,"
            " date_bin('1 min', clock_timestamp() - interval '2 min', 'epoch'), q, 'shop.x',"
            " 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{5}', '{5}', '{5}'"
            " from unnest(array['mail', rpad('q', 60, 'abcdefghi_')]) as q"
        )
        await it.page.set_viewport_size({"width": 375, "height": 740})
        await it.open("")
        await expect(it.page.get_by_role("combobox")).to_be_visible()
        assert await it.page.evaluate("document.documentElement.scrollWidth") == 375


async def test_an_operator_steers_queues_and_jobs(shop_dsn: str) -> None:
    async with staged(shop_dsn) as chancy, tab(chancy) as it:
        page = it.page
        # A paused queue, found from the overview, is resumed, and a worker takes its jobs.
        await it.open("")
        await page.get_by_role("link", name=re.compile("mail: 130 jobs wait")).click()
        await expect(page.get_by_text("waits: it is paused").first).to_be_visible()
        await it.open("queues")
        async with Worker(chancy, queues=["mail"]):
            await it.press("Resume")
            await expect(page.get_by_role("status")).to_contain_text("resume queue")

            async def sent() -> bool:
                return "mail" not in await chancy.counts()

            await eventually(sent)
        # Another one is paused.
        card = page.locator("article").filter(has=page.get_by_role("heading", name="reports"))
        async with page.expect_navigation():
            await card.get_by_role("button", name="Pause").click()
        assert (await _declared(chancy, "reports")).paused
        # A backlog: more jobs of a queue at a time.
        await it.open("")
        before = await clicks(page)
        await page.get_by_role("navigation").get_by_role("link", name="Queues").click()
        await card.locator("summary").click()
        await card.get_by_label("on each worker").fill("7")
        async with page.expect_navigation():
            await card.get_by_role("button", name="Change").click()
        assert (await _declared(chancy, "reports")).concurrency == 7
        assert await clicks(page) - before <= 4  # one of them into the field
        await _steer_jobs(it, chancy)
        await it.open("audit")
        assert await page.locator("tbody tr").count() == 7
        assert it.wrong == []


async def _steer_jobs(it: Tab, chancy: Chancy) -> None:
    page = it.page
    # A scheduled job runs now; all others are cancelled together, after a question.
    await it.open("jobs?q=state:scheduled")
    await page.locator("table.jobs a.whole").first.click()
    await it.press("Run now")
    await expect(page.locator("#head .state")).to_have_text("succeeded")
    await it.open("jobs?q=state:scheduled")
    await page.get_by_label("Select all jobs of this page").check()
    await it.press("Cancel")
    await it.press("Cancel 11 jobs")
    await expect(page.get_by_text("No job matches")).to_be_visible()
    assert "feeds" not in await chancy.counts()
    # A running job is stopped, by the keyboard alone, from the menu on.
    await it.open("")
    for name in ("Jobs", "running", re.compile("^render")):
        await tab_to(page, name)
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
    await expect(page.get_by_text("rendered 4 of 10 pages")).to_be_visible()
    await tab_to(page, "Cancel")
    await page.keyboard.press("Enter")
    # The page follows the job without a reload.
    await expect(page.locator("#head .state")).to_have_text("cancelled")
    # A failed job is retried; its page leads to the new one.
    await it.open("jobs?q=state:failed+func:charge")
    await page.locator("table.jobs a.whole").first.click()
    await page.get_by_text("Traceback").first.click()
    await expect(page.locator(".trace").first).to_contain_text("CardDeclined")
    await it.press("Retry")
    await expect(page.get_by_text("Replay of", exact=False).first).to_be_visible()


@pytest.mark.chaos
async def test_an_operator_steers_what_plugins_keep(shop_dsn: str) -> None:
    async with staged(shop_dsn) as chancy, tab(chancy) as it:
        await _steer_cron(it, chancy)
        await _steer_workflows(it, chancy)
        await _steer_batch(it, chancy)
        await _skip_a_block(it, chancy)
        await _steer_letters(it, chancy)
        await _stop_an_action(it, chancy)
        assert it.wrong == []


async def _steer_cron(it: Tab, chancy: Chancy) -> None:
    cron = _plugin(chancy, Cron)
    await it.open("cron/feeds/hourly")
    for button, paused in (("Pause", True), ("Resume", False)):
        await it.press(button)
        entry = present(await cron.get(chancy, "feeds/hourly"))
        assert (entry.paused_at is not None) is paused
    await it.press("Run now")
    (tick,) = await cron.history(chancy, "feeds/hourly")
    assert tick.manual


async def _steer_workflows(it: Tab, chancy: Chancy) -> None:
    """Retry one from a step that its graph leads to, and cancel another one."""
    page, workflows = it.page, _plugin(chancy, Workflows)
    flow = Workflow("endless")
    flow.add(stay.job(feed="workflow"), "stay")
    endless = await chancy.push(flow)
    await it.open("workflows")
    await page.get_by_role("link", name=re.compile("catalogue")).click()
    await expect(page.locator(".graph g")).to_have_count(6)
    await page.locator(".graph a").filter(has_text="clean").click()
    await expect(page.get_by_role("heading", name="merge")).to_be_visible()
    await page.go_back()
    row = page.locator("#steps tr").filter(has=page.get_by_role("rowheader", name="clean"))
    id = UUID(urlsplit(page.url).path.rpartition("/")[2])
    async with page.expect_navigation():
        await row.get_by_role("button", name="Retry from here").click()
    await it.press("Retry the workflow from clean")

    async def again() -> bool:
        steps = {step.name: step.run for step in await workflows.reference(chancy, id).steps()}
        return steps["clean"] == steps["prices"] == 2 and steps["download"] == 1

    await eventually(again)
    await it.open(f"workflows/{endless.id}")
    await it.press("Cancel")
    await it.press("Cancel the workflow and its steps")
    assert (await endless.wait(30)).label == "cancelled"


async def _steer_batch(it: Tab, chancy: Chancy) -> None:
    jobs = [stay.job(feed=f"batch {number}") for number in range(3)]
    batch = await _plugin(chancy, Batches).push(chancy, Batch(name="endless"), jobs)
    await it.open(f"batches/{batch.id}")
    await it.press("Cancel")
    await it.press("Cancel the batch and its jobs")
    await batch.wait(30)
    record = present(await batch.get())
    assert (record.state.label, record.progress.cancelled) == ("cancelled", 3)


async def _skip_a_block(it: Tab, chancy: Chancy) -> None:
    await chancy.push(book.job(account="savings", fails=True))
    behind = await chancy.push(book.job(account="savings"))
    await it.open("limits?queue=ledger")
    await it.page.get_by_role("button", name="Skip it").wait_for()
    await it.press("Skip it")
    await it.press("Skip all failed jobs that block this partition")
    assert (await behind.wait(30)).state is State.SUCCEEDED


async def _steer_letters(it: Tab, chancy: Chancy) -> None:
    """Replay and purge one dead letter each, and replay a group."""
    page, letters = it.page, _plugin(chancy, DeadLetters)
    first, second, *_ = await letters.find(chancy, LetterFilter(error="builtins.TimeoutError"))
    await it.open(f"dead-letters/{first.id}")
    await it.press("Replay")
    replayed = present(await letters.get(chancy, first.id))
    assert page.url.partition("?")[0].endswith(f"/jobs/{replayed.replayed_as}")
    await it.open(f"dead-letters/{second.id}")
    await it.press("Purge")
    assert await letters.get(chancy, second.id) is None
    # A function that always failed, and was mended: from the overview on.
    await it.open("")
    before = await clicks(page)
    await page.get_by_role("link", name=re.compile("have failed for good")).click()
    await page.locator(".group a.whole").filter(has_text="was declined by").click()
    await it.press("Replay all that wait")
    await it.press("Replay all dead letters of this group")
    assert await clicks(page) - before == 4
    row = page.locator("#entries tbody tr").first
    await expect(row).to_contain_text("done")
    await expect(row).to_contain_text("60")
    found = await letters.find(
        chancy, LetterFilter(error=f"{shop.__name__}.CardDeclined"), limit=200
    )
    assert sum(one.replayed_at is not None for one in found) == 60


async def _stop_an_action(it: Tab, chancy: Chancy) -> None:
    """Stop a purge of 1,200 dead letters, which is seen to be in progress, after one batch."""
    page = it.page
    assert isinstance(chancy.control, SqlStore)
    await chancy.control.fetch("""
insert into chancy.dead_letters (
  id, queue, priority, func, max_attempts, attempt, crashes, pushed_at, died_at, reason, error)
select gen_random_uuid(), 'billing', 0, 'shop.refund', 1, 1, 0, now(), now(), 'failed', 'Refused'
from generate_series(1, 1200)""")
    group = await chancy.control.fetch(
        "select fingerprint from chancy.dead_letters where func = 'shop.refund' limit 1"
    )
    async with chancy.transaction() as connection:
        await connection.fetch("lock table chancy.dead_letters in share mode")
        await it.open(f"dead-letters/groups/{group[0][0]}")
        await it.press("Purge all")
        await it.press("Purge all dead letters of this group")
        row = page.locator("#entries tbody tr").first
        await expect(row).to_contain_text("of 1,200")
        await expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.0")
        await it.press("Stop")
        await expect(page.locator("#entries tbody tr").first).to_contain_text("stopping")
    ended = page.locator("#entries tbody tr").first
    await expect(ended).to_contain_text("stopped by local")
    await expect(ended).to_contain_text("500")
    left = await chancy.control.fetch(
        "select count(*) from chancy.dead_letters where func = 'shop.refund'"
    )
    assert left[0][0] == 700


@pytest.mark.chaos
async def test_an_operator_stops_a_worker_by_the_keyboard(shop_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP + HOLD)
    line = command("worker", "--app=shop", "--processes=0", "--heartbeat=0.5")
    async with application(shop_dsn) as chancy, tab(chancy) as it:
        with started(line, cwd=tmp_path, env={"CHANCY_DSN": shop_dsn}) as worker:
            begun, gate = tmp_path / "begun", tmp_path / "gate"
            arguments = {"begun": str(begun), "gate": str(gate)}
            held = Job(func="shop.hold", arguments=arguments)
            reference = await chancy.push(held, validate=False)
            await eventually(begun.exists)
            page = it.page

            async def measured() -> bool:
                """Whether its memory is known: the second heartbeat carries it."""
                await it.open("workers")
                return "MiB" in await page.locator("article dl").inner_text()

            await eventually(measured)
            await expect(page.locator("article")).to_contain_text(f"process {worker.pid}")
            for name in ("Stop", re.compile("^Stop the worker")):
                await tab_to(page, name)
                async with page.expect_navigation():
                    await page.keyboard.press("Enter")
            await expect(page.locator("article .tag")).to_contain_text("asked to stop")
            # It ends when its job has.
            gate.touch()
            await expect(page.get_by_text("No worker is running.")).to_be_visible(timeout=15_000)
            assert await asyncio.to_thread(worker.process.wait, 15) == 0
            assert (await reference.wait(5)).state is State.SUCCEEDED
        assert it.wrong == []


@pytest.mark.timeout(300)  # axe-core reads each page twice
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
        problems: list[str] = []

        async def look(what: str) -> None:
            """Check the page that is shown, in both schemes and on a phone."""
            if check is not None:
                await page.evaluate(check)
                found = await page.evaluate(_SERIOUS)
                await page.emulate_media(color_scheme="dark")
                found += await page.evaluate(_CONTRAST)
                await page.emulate_media(color_scheme="light")
                problems.extend(f"{what}: {one}" for one in found)
            await page.set_viewport_size({"width": 390, "height": 800})
            if await page.evaluate("document.documentElement.scrollWidth") > 390:
                problems.append(f"{what} is wider than a phone")
            await page.set_viewport_size({"width": 1280, "height": 800})

        for path in [*await _paths(it), f"jobs/{hostile.id}", "jobs?q=state:pending"]:
            await it.open(path)
            await look(path)
        # What answers a form that is not confirmed, and what is not there.
        await it.open("jobs?q=state:failed")
        await page.get_by_label("Select all jobs of this page").check()
        await it.press("Retry")
        await look("the question about several jobs")
        await it.open("dead-letters")
        await page.locator(".group a.whole").first.click()
        await it.press("Purge all")
        await look("the question about a group")
        assert it.wrong == []
        for path in (f"jobs/{UUID(int=1)}", "cron/nothing", "jobs?q=state:lost"):
            await page.goto(it.address + path)
            await look(path)
        assert len(it.wrong) == 3  # the console says that each of them is an error
        it.wrong.clear()
        assert problems == []
        assert await page.evaluate("window.hacked") is None
        # Without a reload the overview follows a queue that is paused elsewhere.
        await it.open("")
        await expect(page.locator("#live.on")).to_be_visible()
        await chancy.pause_queue("billing")
        row = page.locator("#queues tr").filter(has_text="billing")
        await expect(row).to_contain_text("it is paused")
        # The theme is kept.
        await page.get_by_role("button", name="Change between light and dark").click()
        await page.reload()
        assert await page.get_attribute("html", "data-theme") in ("light", "dark")
        assert it.wrong == []


async def _paths(it: Tab) -> list[str]:
    """A page of each kind."""
    await it.open("")
    found = await it.page.eval_on_selector_all(
        "nav[aria-label=Pages] a", "all => all.map(a => a.pathname)"
    )
    paths = [path.lstrip("/") for path in found]
    for listed, pattern in (
        ("jobs?q=state:failed", "/jobs/.*"),
        ("dead-letters", "/dead-letters/.*"),
        ("workflows", "/workflows/.*"),
        ("batches", "/batches/.*"),
        ("cron", "/cron/.*"),
    ):
        await it.open(listed)
        paths.append((await _links(it.page, pattern))[0])
    await it.open(next(path for path in paths if "groups" in path))
    letter = next(path for path in await _links(it.page, "/dead-letters/[^/]*"))
    return [*paths, letter, "jobs?q=func:nothing", "limits?queue=ledger"]


#: The serious and critical findings of axe-core, each with an element; and those of the scheme.
_FOUND = """.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => one.id + ": " + one.nodes[0].html.slice(0, 200) + one.nodes[0].failureSummary)"""
_SERIOUS = f"async () => (await axe.run(document, {{resultTypes: ['violations']}})){_FOUND}"
_CONTRAST = f"async () => (await axe.run(document, {{runOnly: ['color-contrast']}})){_FOUND}"
