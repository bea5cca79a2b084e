"""What the pages show and do, by the effect, without a browser."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import shlex
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import unescape
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from uuid import UUID

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.types import ASGIApp

from chancy import (
    Chancy,
    ConfigurationError,
    GlobalConcurrency,
    Job,
    JobFilter,
    Queue,
    Reference,
    State,
    Worker,
)
from chancy.asgi import chancy_lifespan
from chancy.broker import SqlStore
from chancy.broker.values import WorkerRecord
from chancy.cli.doctor import doctor
from chancy.plugin import Application, Panel, Plugin
from chancy.plugin.finding import Finding
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.dashboard import (
    Action,
    Dashboard,
    DashboardPlugin,
    Person,
    audit,
    job_rows,
    live,
    snapshot,
)
from chancy.plugins.dashboard.job_rows import PAGE, find_page
from chancy.plugins.dashboard.redaction import MASKED, Masked
from chancy.plugins.dashboard.search import SearchError, parse
from chancy.plugins.dashboard.site import Looks, View
from chancy.plugins.dashboard.snapshot import check_up, snapshot_of
from chancy.plugins.dashboard.undertaking import Deed, start
from chancy.plugins.dead_letter import DeadLetters, LetterFilter
from chancy.plugins.job_logs.lines import SQL, HeldLine, store
from chancy.retry import Constant
from tests.plugins.dashboard.browsing import (
    ADMIN,
    OPERATOR,
    VIEWER,
    browser,
    by_header,
    site_of,
    text_of,
)
from tests.plugins.dashboard.scene import application, fail
from tests.plugins.dashboard.shop import merge, send_receipt, tire
from tests.support.presence import present
from tests.support.two_brokers import TwoBrokers
from tests.support.waiting import eventually, gives, is_in


async def _sql(chancy: Chancy, statement: str) -> None:
    assert isinstance(chancy.control, SqlStore)
    await chancy.control.fetch(statement)


async def _state(reference: Reference[Any]) -> State:
    found = present(await reference.get())
    return found.state


def _done(response: httpx.Response) -> str:
    assert response.status_code == 303, text_of(response)
    return response.headers["location"]


async def test_every_page_answers_without_any_job(shop: Chancy) -> None:
    async with browser(shop, ADMIN) as ada:
        front = (await ada.get()).text
        paths = re.findall(r'href="/([^"]*)"', front.partition("<nav")[2].partition("</nav>")[0])
        assert len(paths) >= 10
        for path in paths:
            page = await ada.get(path)
            assert page.status_code == 200, path
        for path in ("jobs/x", f"jobs/{UUID(int=1)}", f"workflows/{UUID(int=1)}", "cron/none"):
            assert (await ada.get(path)).status_code == 404


async def test_pages_of_jobs_hold_each_job_once(shop: Chancy) -> None:
    jobs = [send_receipt.job(order=n).with_priority(n % 3) for n in range(2 * PAGE + 7)]
    later = [job.with_delay(timedelta(hours=1)) for job in jobs[: PAGE + 3]]
    await shop.push_many([*jobs, *later])
    for q in (
        "",
        "state:pending",
        "state:pending queue:mail",
        "state:scheduled",
        "func:send",
        "state:pending,scheduled",
        "queue:mail",
        "queue:mail func:send",
    ):
        wanted = parse(q, Masked(MASKED))
        found = await _found(shop, q)
        expected = await shop.find_jobs(
            JobFilter(states=wanted.states, queue=wanted.queue, limit=1_000)
        )
        assert len(found) == len(set(found)), q
        assert set(found) == {job.id for job in expected}, q


async def test_a_queue_is_found_behind_more_jobs_of_others_than_a_page_reads(shop: Chancy) -> None:
    job = send_receipt.job(order=1).with_queue("feeds")
    pushed = await shop.push_many([job, job.with_delay(timedelta(hours=1))])
    await _sql(
        shop,
        "insert into chancy.jobs (id, pos, state, queue, func) select"
        " ('ffffffff-ffff-7fff-8fff-' || lpad(to_hex(n), 12, '0'))::uuid,"
        " nextval('chancy.positions'), 0, 'mail', 'shop.x' from generate_series(1, 6000) as n",
    )
    async with browser(shop, VIEWER) as vera:
        page = await vera.get("jobs?q=queue:feeds")
    for reference in pushed:
        assert str(reference.id) in page.text


@pytest.mark.parametrize("q", ["func:send", "queue:mail arg.order:7"])
async def test_a_search_goes_on_from_where_its_time_was_up(
    shop: Chancy, q: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_rows, "_SOME", 20)
    jobs = [send_receipt.job(order=n % 9) for n in range(150)]
    pushed = await shop.push_many(jobs)
    matching = {
        one.id for one, job in zip(pushed, jobs, strict=True) if job.arguments["order"] == 7
    }
    pages: list[int] = []
    for scan_s in (60.0, -1.0):
        monkeypatch.setattr(job_rows, "_SCAN_S", scan_s)
        found = await _found(shop, q, pages)
        assert len(found) == len(set(found))
        assert set(found) == (matching if "arg" in q else {one.id for one in pushed})
    quick, slow = pages
    assert slow >= 8 > quick


async def _found(chancy: Chancy, q: str, pages: list[int] | None = None) -> list[UUID]:
    """The jobs of all pages of a search.

    :param pages: receives their number.
    """
    wanted, found, after = parse(q, Masked(MASKED)), list[UUID](), None
    assert isinstance(chancy.control, SqlStore)
    for number in itertools.count(1):
        page = await find_page(
            chancy.control, wanted, after, allows=lambda func: True, failures=True
        )
        found += [job.id for job in page.jobs]
        after = page.after
        if after is None:
            if pages is not None:
                pages.append(number)
            return found
    raise AssertionError


async def test_failed_jobs_are_paged_by_the_time_of_their_failure(shop: Chancy) -> None:
    await fail(shop, PAGE + 20)
    for q in ("state:failed", "state:failed queue:billing", "error:declined", "since:1h"):
        found = await _found(shop, q)
        assert len(set(found)) == len(found) == PAGE + 20, q
    assert await _found(shop, "error:fraud") == []


async def test_held_jobs_are_paged_whatever_holds_them(shop: Chancy) -> None:
    aside, ruled, hold = (
        '{"unknown_function": {}}',
        '{"limits": {"partition": "p"}}',
        '{"hold": "k"}',
    )
    for meta, each in ((aside, 1), (ruled, 1), (hold, 1)):
        await _sql(
            shop,
            f"""
            insert into chancy.jobs (id, pos, state, queue, priority, func, arguments, meta)
            select gen_random_uuid(), nextval('chancy.positions'), 3,
              case when i % 2 = 0 then 'mail' else 'crawl' end, i % 3, 'shop.x' || (i % 4), '{{}}',
              '{meta}'
            from generate_series(1, {each * PAGE + 12}) as i""",
        )
    total = 3 * (PAGE + 12)
    for q, count in (("state:held", total), ("state:held queue:mail", total // 2)):
        found = await _found(shop, q)
        assert len(found) == len(set(found)) == count, q
    assert isinstance(shop.control, SqlStore)
    counts = await audit.SQL.on(shop.control).fetch("queue_counts", 1_000)
    held = {queue: held for queue, _, _, _, held in counts if held}
    assert held == {"mail": total // 2, "crawl": total // 2}


async def test_a_worker_is_found_with_what_it_runs_and_what_ended_on_it(shop: Chancy) -> None:
    worker, other = UUID(int=7), UUID(int=8)
    await fail(shop, PAGE + 9)
    running = [await shop.push(send_receipt.job(order=n)) for n in range(3)]
    await _sql(shop, f"update chancy.finished_jobs set worker_id = '{worker}'")
    await _sql(
        shop, f"update chancy.jobs set state = 1, claimed_at = now(), worker_id = '{worker}'"
    )
    await _sql(shop, f"update chancy.jobs set worker_id = '{other}' where id = '{running[0].id}'")
    assert await _found(shop, f"worker:{other}") == [running[0].id]
    found = await _found(shop, f"worker:{worker}")
    assert {one.id for one in running[1:]} <= set(found)
    assert len(found) == len(set(found)) == PAGE + 11
    assert set(await _found(shop, f"state:running worker:{worker}")) == set(found) & {
        one.id for one in running
    }


async def test_a_full_queue_hides_no_count_of_another(
    shop: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST", 5)
    later = [send_receipt.job(order=n).with_delay(timedelta(hours=1)) for n in range(9)]
    await shop.push_many([job.with_queue("feeds") for job in later])
    await shop.push_many([*(job.with_queue("mail") for job in later[:3])])
    for meta in ("unknown_function", "limits"):
        for queue, count in (("billing", 9), ("video", 2)):
            await _sql(
                shop,
                f"""
                insert into chancy.jobs (id, pos, state, queue, func, meta)
                select gen_random_uuid(), nextval('chancy.positions'), 3, '{queue}', 'shop.x',
                  '{{"{meta}": {{"partition": "p"}}}}' from generate_series(1, {count})""",
            )
    Dashboard(shop)
    found = await snapshot_of(site_of(shop))
    counts = {one.name: (one.scheduled, one.held) for one in found.queues}
    assert counts["feeds"] == (6, 0)
    assert counts["mail"] == (3, 0)
    assert counts["billing"] == (0, 6)
    assert counts["video"] == (0, 4)


async def test_held_jobs_need_attention_if_their_queue_is_paused_or_not_served(
    shop: Chancy,
) -> None:
    await shop.broker.register(
        WorkerRecord(
            id=UUID(int=7), host="here", pid=7, tags=frozenset({"*"}), queues=("mail", "crawl"),
            version="1",
        )
    )  # fmt: skip
    await shop.pause_queue("mail")
    await _sql(
        shop,
        "insert into chancy.jobs (id, pos, state, queue, func, meta)"
        " select gen_random_uuid(), nextval('chancy.positions'), 3, queue, 'shop.x',"
        """ '{"limits": {"partition": "p"}}'"""
        " from unnest(array['mail', 'crawl', 'video']) as queue",
    )
    Dashboard(shop)
    found = await snapshot_of(site_of(shop))
    assert [(one.level, one.query["q"]) for one in found.attention if one.query] == [
        ("bad", "state:held queue:video"),
        ("warn", "state:held queue:mail"),
    ]


async def test_the_checkup_has_the_limits_of_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    chancy = Chancy("postgresql://", plugins=[DashboardPlugin()])
    Dashboard(chancy)
    asked: dict[str, float] = {}

    async def examine(_: Chancy, **limits: float) -> Sequence[Finding]:
        asked.update(limits)
        return []

    monkeypatch.setattr(snapshot, "examine", examine)
    await check_up(site_of(chancy), 0)
    given = {one.name: one.default for one in doctor.params}
    assert asked == {"transaction_s": given["transaction"], "wait_s": given["wait"]}


@pytest.mark.parametrize(
    "q", ["state:gone", "id:7", "since:2", "foo:bar", "tag:x", "queue:", "arg.:1", '"', "x" * 501]
)
def test_searches_that_cannot_be_read_are_refused(q: str) -> None:
    with pytest.raises(SearchError):
        parse(q, Masked(MASKED))


@pytest.mark.parametrize(
    "q", ["invoice send", "queue:a queue:b", "arg.x:1 arg.x:2", "meta.x:1 meta.x:1", "state:,"]
)
def test_no_condition_of_a_search_is_dropped(q: str) -> None:
    """An action on all jobs of the search would change others."""
    with pytest.raises(SearchError, match=r"is given twice|has no value"):
        parse(q, Masked(MASKED))


async def test_queues_are_paused_resumed_and_changed(shop: Chancy) -> None:
    async def mail() -> tuple[bool, int | None]:
        found = {queue.name: queue for queue in await shop.get_queues()}["mail"]
        return found.paused, found.concurrency

    async with browser(shop, ADMIN) as ada:
        done = _done(await ada.post("queues/pause", {"queue": "mail", "back": "queues"}))
        assert await mail() == (True, 8)
        assert "pause queue" in text_of(await ada.get(done.lstrip("/")))
        _done(await ada.post("queues/change", {"queue": "mail", "concurrency": "21"}))
        _done(await ada.post("queues/resume", {"queue": "mail"}))
        assert await mail() == (False, 21)
        for concurrency in ("0", "many", "-1", "99999999"):
            bad = await ada.post("queues/change", {"queue": "mail", "concurrency": concurrency})
            assert bad.status_code == 400
        assert (await ada.post("queues/pause", {"queue": "none"})).status_code == 404
        audit = text_of(await ada.get("audit"))
        assert audit.count("ada") == 3
        assert "before" in audit


async def test_jobs_are_cancelled_run_and_retried_one_by_one_and_together(shop: Chancy) -> None:
    now = [await shop.push(send_receipt.job(order=n)) for n in range(3)]
    later = await shop.push(send_receipt.job(order=9).with_delay(timedelta(hours=1)))
    await fail(shop, 1)
    async with browser(shop, OPERATOR) as olaf:
        _done(await olaf.post("jobs/run", {"id": str(later.id)}))
        assert (await _state(later)) is State.PENDING
        _done(await olaf.post("jobs/cancel", {"id": str(later.id)}))
        assert (await _state(later)) is State.CANCELLED
        ids = {"id": [str(one.id) for one in now]}
        asked = await olaf.post("jobs/cancel", ids)
        assert "Cancel 3 jobs?" in text_of(asked)
        assert {await _state(one) for one in now} == {State.PENDING}
        _done(await olaf.post("jobs/cancel", {**ids, "confirmed": "yes"}))
        assert {await _state(one) for one in now} == {State.CANCELLED}
        again = await olaf.post("jobs/cancel", {"id": str(later.id)})
        assert again.status_code == 409
        (failed,) = await DeadLetters().find(shop)
        location = _done(await olaf.post("jobs/replay", {"id": str(failed.id)}))
        (replayed,) = await DeadLetters().find(shop)
        assert f"/jobs/{replayed.replayed_as}" in location
        audit = text_of(await olaf.get("audit"))
        assert audit.count("cancel job") == 2
        assert "run job now" in audit


async def test_a_stale_page_does_not_replay_a_job_again(shop: Chancy) -> None:
    await fail(shop, 1)
    (failed,) = await DeadLetters().find(shop)
    id = str(failed.id)
    async with browser(shop, OPERATOR) as olaf:
        for path, page in (("jobs/replay", "jobs"), ("dead-letters/replay", "dead-letters")):
            seen = _seen((await olaf.get(f"{page}/{id}")).text)
            _done(await olaf.post(path, {"id": id, "seen": seen}))
            for stale in (seen, ""):
                refused = await olaf.post(path, {"id": id, "seen": stale})
                assert refused.status_code == 409, path
                assert "It was replayed already, as " in text_of(refused)
        assert ">Retry again<" in (await olaf.get(f"jobs/{id}")).text
        assert ">Replay again<" in (await olaf.get(f"dead-letters/{id}")).text
    assert (await shop.counts())["billing"].pending == 2


def _seen(page: str) -> str:
    """The last replay that the form of a page names."""
    found = re.search(r'name="seen" value="([^"]*)"', page)
    return present(found)[1]


async def test_jobs_retried_before_are_left_out_of_those_that_are_selected(shop: Chancy) -> None:
    await fail(shop, 3)
    ids = [str(one.id) for one in await DeadLetters().find(shop)]
    async with browser(shop, OPERATOR) as olaf:
        _done(await olaf.post("jobs/replay", {"id": ids[0]}))
        asked = text_of(await olaf.post("jobs/replay", {"id": ids}))
        assert "Retry 2 jobs? 1 of those selected was retried before, and is left out." in asked
        _done(await olaf.post("jobs/replay", {"id": ids[1]}))
        asked = text_of(await olaf.post("jobs/replay", {"id": ids}))
        assert "Retry 1 job? 2 of those selected were retried before, and are left out." in asked
        done = _done(await olaf.post("jobs/replay", {"id": ids, "confirmed": "yes"}))
        assert "1 changed, 2 left out." in text_of(await olaf.get(done.lstrip("/")))
        again = await olaf.post("jobs/replay", {"id": ids})
        assert again.status_code == 409
        assert "all of these jobs were retried before" in text_of(again)
    assert (await shop.counts())["billing"].pending == 3


async def test_a_job_on_hold_is_released(shop: Chancy) -> None:
    held = await shop.push(send_receipt.job(order=1).with_hold("invoice"))
    other = await shop.push(send_receipt.job(order=2))
    async with browser(shop, OPERATOR) as olaf:
        assert ">Release<" not in (await olaf.get(f"jobs/{other.id}")).text
        await _sql(shop, f"update chancy.jobs set state = 3 where id = '{other.id}'")
        assert ">Release<" not in (await olaf.get(f"jobs/{other.id}")).text, "a rule holds it"
        assert ">Release<" in (await olaf.get(f"jobs/{held.id}")).text
        _done(await olaf.post("jobs/release", {"id": str(held.id)}))
        assert (await _state(held)) is State.PENDING
        assert (await olaf.post("jobs/release", {"id": str(held.id)})).status_code == 409
        assert "release job" in text_of(await olaf.get("audit"))


async def test_an_action_whose_audit_fails_does_not_happen(shop: Chancy) -> None:
    reference = await shop.push(send_receipt.job(order=1))
    async with browser(shop, OPERATOR) as olaf:
        token = await olaf.token()
        await _sql(shop, "alter table chancy.dashboard_audit rename to elsewhere")
        form = {"id": str(reference.id), "token": token}
        assert (await olaf.client.post("/jobs/cancel", data=form)).status_code == 400
        await olaf.client.post("/queues/pause", data={"queue": "mail", "token": token})
    assert (await _state(reference)) is State.PENDING
    assert not any(queue.paused for queue in await shop.get_queues())


async def test_groups_of_dead_letters_are_replayed_and_purged_in_batches(shop: Chancy) -> None:
    await fail(shop, 1_200)
    letters = DeadLetters()
    async with browser(shop, ADMIN) as ada:
        page = await ada.get("dead-letters")
        (fingerprint,) = set(re.findall(r"/dead-letters/groups/(\w+)", page.text))
        assert "1,200 waiting" in text_of(page)
        assert (await ada.get(f"dead-letters/groups/{fingerprint}")).status_code == 200
        form = {"fingerprint": fingerprint, "rate": "100"}
        assert "Replay all" in text_of(await ada.post("dead-letters/replay-all", form))
        assert await letters.count(shop, LetterFilter(replayed=True)) == 0
        _done(await ada.post("dead-letters/replay-all", {**form, "confirmed": "yes"}))

        async def ended() -> bool:
            return "done" in text_of(await ada.get("audit")).partition("show")[0]

        await eventually(ended)
        assert await letters.count(shop, LetterFilter(replayed=True)) == 1_200
        counts = (await shop.counts())["billing"]
        assert counts.scheduled > 1_100, "a hundred a second"
        assert "1,200" in text_of(await ada.get("audit"))
        form = {"fingerprint": fingerprint, "confirmed": "yes"}
        _done(await ada.post("dead-letters/purge-all", form))

        await eventually(ended)
        assert await letters.count(shop) == 0


class _Streams:
    """Replays events, as the broker of streams does."""

    async def archive(self, store: SqlStore) -> None:
        """There is nothing to write."""

    async def replay_letters(
        self, store: SqlStore, ids: Sequence[UUID], new_ids: Sequence[UUID], *, force: bool
    ) -> Mapping[UUID, UUID]:
        rows = await store.fetch(
            "update chancy.dead_letters as d set replayed_at = now(), replayed_as = n.new"
            " from unnest($1::uuid[], $2::uuid[]) as n (id, new)"
            " where d.id = n.id and d.reason = 'event' returning d.id, d.replayed_as",
            list(ids),
            list(new_ids),
        )
        return {row[0]: row[1] for row in rows}


async def _ended(chancy: Chancy) -> None:
    """Wait until no action is in progress."""

    async def ended() -> bool:
        return all(one.ended_at for one in await site_of(chancy).audit.page(None, 50))

    await eventually(ended)


async def test_all_jobs_of_a_search_are_changed_in_batches(shop: Chancy) -> None:
    later = [send_receipt.job(order=n).with_delay(timedelta(hours=1)) for n in range(620)]
    references = await shop.push_many(later)
    kept = await shop.push(send_receipt.job(order=1).with_queue("billing"))
    await fail(shop, 3)

    def elsewhere(person: Person, action: Action, subject: str) -> bool:
        return subject != "queue:billing" or action is Action.REPLAY_LETTER

    async with browser(shop, OPERATOR, can=elsewhere) as olaf:
        form = {"q": "state:scheduled"}
        asked = await olaf.post("jobs/run-all", form)
        assert "all jobs of the search “state:scheduled”? 620 match now." in text_of(asked)
        assert (await shop.counts())["mail"].scheduled == 620
        assert "/audit?done=" in _done(await olaf.post("jobs/run-all", {**form, "confirmed": "y"}))
        await _ended(shop)
        assert (await shop.counts())["mail"].pending == 620
        _done(await olaf.post("jobs/cancel-all", {"q": "func:send_receipt", "confirmed": "y"}))
        await _ended(shop)
        assert (await _state(references[0])) is State.CANCELLED
        assert set(await shop.counts()) == {"billing"}
        assert (await _state(kept)) is State.PENDING
        _done(
            await olaf.post(
                "jobs/replay-all", {"q": "queue:billing error:declined", "confirmed": "y"}
            )
        )
        await _ended(shop)
        assert await DeadLetters().count(shop, LetterFilter(replayed=True)) == 3
        for path, q in (
            ("run-all", "state:failed"),
            ("cancel-all", "state:failed"),
            ("cancel-all", "foo:x"),
        ):
            assert (await olaf.post(f"jobs/{path}", {"q": q})).status_code == 400
        entries = await site_of(shop).audit.page(None, 50)
        assert [one.jobs for one in entries] == [3, 620, 620]
        assert entries[2].detail == {"search": "state:scheduled"}


async def test_the_priority_and_time_of_a_job_are_changed_on_its_page(shop: Chancy) -> None:
    reference = await shop.push(send_receipt.job(order=1))
    async with browser(shop, OPERATOR) as olaf:
        page = await olaf.get(f"jobs/{reference.id}")
        assert 'action="/jobs/change"' in page.text
        form = {"id": str(reference.id), "priority": "7", "run_at": "2099-01-31T12:00"}
        assert f"/jobs/{reference.id}?done=" in _done(await olaf.post("jobs/change", form))
        job = present(await shop.get_job(reference.id))
        assert (job.priority, job.state) == (7, State.SCHEDULED)
        assert job.run_at == datetime(2099, 1, 31, 12, tzinfo=UTC)
        for wrong in (
            {"priority": "101"},
            {"priority": "x"},
            {"run_at": "soon"},
            {"run_at": "9999"},
        ):
            bad = await olaf.post("jobs/change", {"id": str(reference.id), **wrong})
            assert bad.status_code == 400, wrong
        assert (await olaf.post("jobs/change", {"id": str(reference.id)})).status_code == 409
        await shop.cancel(reference.id)
        again = {"id": str(reference.id), "priority": "3"}
        assert (await olaf.post("jobs/change", again)).status_code == 409


async def test_a_job_of_another_broker_is_not_changed(shop_dsn: str) -> None:
    async with application(shop_dsn, TwoBrokers()) as shop, browser(shop, OPERATOR) as olaf:
        await shop.declare(Queue("far", broker="memory"))
        job = send_receipt.job(order=1).with_queue("far").with_delay(timedelta(hours=1))
        reference = await shop.push(job)
        assert "jobs/change" not in (await olaf.get(f"jobs/{reference.id}")).text
        refused = await olaf.post("jobs/change", {"id": str(reference.id), "priority": "7"})
    assert refused.status_code == 409
    assert "another broker has the job" in text_of(refused)


async def test_bulk_actions_need_confirmation(shop: Chancy) -> None:
    plugins = {type(plugin): plugin for plugin in shop.hooks.plugins}
    batches = plugins[Batches]
    assert isinstance(batches, Batches)
    batch = await batches.push(shop, Batch(name="n"), [send_receipt.job(order=n) for n in range(3)])
    async with browser(shop, OPERATOR) as olaf:
        form = {"batch": str(batch.id)}
        asked = await olaf.post("batches/cancel", form)
        assert "Cancel the batch and its jobs?" in text_of(asked)
        assert f'name="batch" value="{batch.id}"' in asked.text
        assert (await shop.counts())["mail"].pending == 3
        _done(await olaf.post("batches/cancel", {**form, "confirmed": "yes"}))
        for path, form in (
            ("workflows/cancel", {"workflow": str(batch.id)}),
            ("workflows/retry", {"workflow": str(batch.id)}),
            ("limits/skip", {"queue": "crawl", "key": " a b"}),
        ):
            asked = await olaf.post(path, form)
            assert asked.status_code == 200, path
            assert all(f'name="{k}" value="{v}"' in asked.text for k, v in form.items())
            done = await olaf.post(path, {**form, "confirmed": "yes"})
            assert done.status_code in (400, 404, 409), path


async def test_partitions_name_the_rule_whose_slots_are_taken(shop: Chancy) -> None:
    ruled = Queue("crawl", executor="async", rules=(GlobalConcurrency(1, by="feed"),))
    await shop.declare(ruled, upsert=True)
    await _sql(
        shop,
        """
        insert into chancy.limits_partitions
          (queue, key, priority, blocked, after_priority, after_pos)
        values ('crawl', 'a', 0, '1:a', 0, 0), ('crawl', 'b', 0, '2:b', 0, 0)""",
    )
    async with browser(shop, ADMIN) as ada:
        page = await ada.get("limits?queue=crawl")
    assert "a slot of <code>GlobalConcurrency(limit=1, by=&#39;feed&#39;)</code>" in page.text
    assert "a slot of a rule of its queue" in page.text


async def test_an_action_whose_process_died_gets_an_end(shop: Chancy) -> None:
    async with browser(shop, OPERATOR) as olaf:
        audit = site_of(shop).audit
        lost, alive = [await audit.add("eve", "cancel job", "jobs", ended=False) for _ in range(2)]
        await _sql(
            shop,
            "update chancy.dashboard_audit set counted_at = now() - interval '11 minutes'",
        )
        await audit.count(alive, 1)
        assert "its process died" in text_of(await olaf.get("audit"))
    (still, ended) = await audit.page(None, 2)
    assert (still.id, still.ended_at) == (alive, None)
    assert (ended.id, ended.ended_at is None) == (lost, False)


async def test_events_of_streams_are_replayed(
    shop: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail(shop, 3)
    await _sql(shop, "update chancy.dead_letters set reason = 'event'")
    letters = DeadLetters()
    replayed = LetterFilter(replayed=True)
    async with browser(shop, ADMIN) as ada:
        (one, *_) = await letters.find(shop)
        refused = await ada.post("dead-letters/replay", {"id": str(one.id)})
        assert refused.status_code == 409
        assert "no processor of its stream" in text_of(refused)
        streams = _Streams()
        for name in ("archive", "replay_letters"):
            monkeypatch.setattr(shop.broker, name, getattr(streams, name), raising=False)
        done = _done(await ada.post("dead-letters/replay", {"id": str(one.id)}))
        assert (await ada.get(done.lstrip("/"))).status_code == 200
        assert await letters.count(shop, replayed) == 1
        (group,) = await letters.groups(shop)
        form = {"fingerprint": group.fingerprint, "confirmed": "yes"}
        _done(await ada.post("dead-letters/replay-all", form))
        await eventually(lambda: gives(letters.count(shop, replayed), 3))


async def test_groups_of_dead_letters_are_paged_by_their_latest_failure(shop: Chancy) -> None:
    await fail(shop, 120)
    names = "'shop.f' || translate(arguments ->> 'order', '0123456789', 'abcdefghij')"
    await _sql(shop, f"update chancy.dead_letters set func = {names}")
    # More of the group that failed first, the last one again now.
    await _sql(
        shop,
        "update chancy.dead_letters set func = 'shop.fa', died_at = now() + interval '1 minute'"
        " where arguments ->> 'order' in ('7', '8', '9')",
    )
    found, path = list[str](), "dead-letters"
    async with browser(shop, ADMIN) as ada:
        while path:
            page = (await ada.get(path)).text
            found += re.findall(r"/dead-letters/groups/(\w+)", page)
            more = re.search(r'rel="next" href="/([^"]*)"', page)
            path = unescape(more[1]) if more else ""
        assert len(found) == len(set(found)) == 118
        first = text_of(await ada.get(f"dead-letters/groups/{found[0]}"))
        assert "fa" in first
    (group, *_) = await DeadLetters().groups(shop, limit=1)
    assert (group.fingerprint, group.func) == (found[0], "shop.fa")
    assert await DeadLetters().count(shop, LetterFilter(fingerprint=found[0])) == group.waiting


async def test_a_timeline_says_how_long_each_attempt_waited_and_ran(shop: Chancy) -> None:
    async with Worker(shop, queues=["feeds"]), browser(shop, ADMIN) as ada:
        job = tire.job(seconds=0.2).with_retry(Constant(3_600))
        reference = await shop.push(job)
        await eventually(lambda: is_in(reference, State.SCHEDULED))
        await shop.run_now(reference.id)
        done = await reference.wait(30)
        assert [error["attempt"] for error in done.errors] == [1, 2]
        for error in done.errors:
            assert 0.2 <= error["ran_s"] < 10
            assert 0 <= error["waited_s"] < 10
        page = text_of(await ada.get(f"jobs/{reference.id}"))
        assert (
            len(re.findall(r"attempt \d failed .*? waited [\d<.]+ m?s · ran [\d.]+ m?s", page)) == 2
        )
        succeeded = await shop.push(merge.job(name="fine"))
        await succeeded.wait(30)
        page = text_of(await ada.get(f"jobs/{succeeded.id}"))
        assert re.search(r"attempt 1 started .* waited .* succeeded .* ran", page)


async def test_a_job_page_gives_the_reason_and_how_to_push_another(shop: Chancy) -> None:
    reference = await shop.push(
        Job(func="shop.send", arguments={"to": "ann", "token": "t0p"}, queue="video"),
        validate=False,
    )
    line = HeldLine(reference.id, 0.0, 1, 30, "<b>bold</b>", 50)
    await store(SQL.on(shop.broker), [line])
    async with browser(shop, OPERATOR) as olaf:
        page = text_of(await olaf.get(f"jobs/{reference.id}"))
        assert "no worker is running" in page
        assert "chancy push" not in page, "it would push what stands for the token"
        assert "t0p" not in page
        assert "1 WARNING <b>bold</b>" in page
        large = await shop.push(
            Job(func="shop.send", arguments={"text": "x" * 900_000}, queue="mail"), validate=False
        )
        found = await olaf.get(f"jobs/{large.id}")
        assert found.status_code == 200
        assert len(found.text) < 100_000
        assert len((await olaf.get("jobs")).text) < 100_000
        assert not {("job", large.id), ("log", large.id)} & site_of(shop).looks._kept.keys()


async def test_a_command_pushes_the_same_arguments_or_is_not_shown(shop: Chancy) -> None:
    fine = """{"to": "ann's"}"""
    deep = '{"deep": ' + "[" * 25 + "]" * 25 + "}"
    unread = '{"deep": ' + "[" * 3_000 + "]" * 3_000 + "}"
    hidden = '{"to": "ann", "more": [{"password": "hunter2"}]}'
    async with browser(shop, OPERATOR) as olaf:
        for stored in (fine, deep, unread, hidden):
            reference = await shop.push(Job(func="shop.send", queue="video"), validate=False)
            assert isinstance(shop.control, SqlStore)
            await shop.control.fetch(
                "update chancy.jobs set arguments = $2::text::jsonb where id = $1",
                reference.id,
                stored,
            )
            page = text_of(await olaf.get(f"jobs/{reference.id}"))
            assert ("Push another one" in page) is (stored is fine), stored[:40]
            if stored is fine:
                (command,) = re.findall(r"chancy push .*? --max-attempts \d+", page)
                words = shlex.split(command)
                assert words[words.index("--args") + 1] == stored
            assert ("nested too deeply to be read" in page) is (stored is unread)
        assert (await olaf.get("jobs")).status_code == 200


def _no_cookies() -> CookieJar:
    """A jar that takes no cookies."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


@pytest.mark.parametrize("prefix", ["", "/eu"])
async def test_it_is_mounted_under_a_prefix_of_fastapi(shop: Chancy, prefix: str) -> None:
    """With and without a proxy that removes a prefix of its own."""
    base = f"{prefix}/ops/queue/"
    site = FastAPI()
    transport = httpx.ASGITransport(app=site, client=("127.0.0.1", 1))
    headers = {"x-person": "olaf", "x-forwarded-prefix": prefix}
    site.mount("/ops/queue", Dashboard(shop, auth=by_header))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, cookies=_no_cookies()
    ) as client:

        async def get(path: str) -> httpx.Response:
            return await client.get(f"/ops/queue/{path}")

        for path in ("queues", "jobs"):
            page = await get(path)
            links = set(re.findall(r'(?:href|src|action)="([^"]*)"', page.text)) - {"#main"}
            assert links
            assert {link for link in links if not link.startswith(base)} == set()
            assert f'href="{base}{path}" aria-current="page"' in page.text
            assert f'name="back" value="{path}"' in page.text
        # A browser sends the cookie, since it sees the whole path.
        cookie = (await get("queues")).headers["set-cookie"]
        assert f"Path={base[:-1]};" in cookie
        client.headers["cookie"] = cookie.partition(";")[0]
        found = re.search(r'name="token" value="(\w+)"', (await get("queues")).text)
        assert found
        for back in ("queues", "jobs?q=state:pending+*", "?span=24h"):
            form = {"token": found[1], "queue": "mail", "back": back}
            done = await client.post("/ops/queue/queues/pause", data=form)
            place = done.headers["location"]
            assert place.startswith(f"{base}{back}{'&' if '?' in back else '?'}done=")
            shown = await get(place.removeprefix(base))
            assert "pause queue" in text_of(shown)
        style = await client.get("/ops/queue/static/dashboard.css")
        assert style.headers["content-type"].startswith("text/css")


async def _by_django(scope: Any, receive: Any, send: Any) -> None:
    """Stands for what get_asgi_application() returns."""
    await PlainTextResponse("django")(scope, receive, send)


def _beside_django(site: ASGIApp) -> Callable[[Any, Any, Any], Coroutine[Any, Any, None]]:
    """As the guide has it."""

    async def beside(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await site(scope, receive, send)
        elif scope["type"] == "http" and f"{scope['path']}/".startswith("/ops/queue/"):
            below = dict(scope, root_path=scope.get("root_path", "") + "/ops/queue")
            await site(below, receive, send)
        else:
            await _by_django(scope, receive, send)

    return beside


async def test_beside_django_the_server_opens_the_application(shop_dsn: str) -> None:
    beside = _beside_django(Dashboard(application(shop_dsn), auth=by_header))
    asked, answered = asyncio.Queue[dict[str, Any]](), asyncio.Queue[Any]()
    serving = asyncio.create_task(beside({"type": "lifespan"}, asked.get, answered.put))
    await asked.put({"type": "lifespan.startup"})
    assert await answered.get() == {"type": "lifespan.startup.complete"}
    transport = httpx.ASGITransport(app=beside, client=("10.1.1.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        page = await client.get("/ops/queue/queues", headers={"x-person": "olaf"})
    assert page.status_code == 200
    await asked.put({"type": "lifespan.shutdown"})
    assert await answered.get() == {"type": "lifespan.shutdown.complete"}
    await serving


async def test_an_application_that_is_not_open_is_no_database_that_is_away(shop_dsn: str) -> None:
    async with browser(application(shop_dsn), OPERATOR) as olaf:
        page = await olaf.get("queues?done=1")
    assert page.status_code == 503
    assert "Not open The application is not open." in text_of(page)
    assert "chancy_lifespan(chancy)" in text_of(page)


async def test_the_menu_has_the_audit_for_those_who_may_see_it(shop: Chancy) -> None:
    for person, sees in ((VIEWER, False), (OPERATOR, True)):
        async with browser(shop, person) as one:
            assert ('href="/audit"' in (await one.get()).text) is sees


async def test_an_address_without_a_page_has_the_menu(shop: Chancy) -> None:
    async with browser(shop, VIEWER) as vera:
        for path in ("none", "jobs/", "jobs/cancel/", "static/none.css"):
            page = await vera.get(path)
            assert page.status_code == 404, path
            assert 'aria-label="Pages"' in page.text, path
            assert "There is no such page." in text_of(page)
        assert (await vera.client.post("/none")).status_code == 404
        stranger = await vera.get("none", **{"x-person": "eve"})
        assert stranger.status_code == 401


async def test_it_is_mounted_in_starlette_and_beside_django(shop: Chancy) -> None:
    site = Dashboard(shop, auth=by_header)
    beside = _beside_django(site)
    starlette = Starlette(routes=[Mount("/ops/queue", site)])
    for service in (starlette, beside):
        transport = httpx.ASGITransport(app=service, client=("10.1.1.1", 1))
        headers = {"x-person": "olaf"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://shop.example", headers=headers
        ) as client:
            page = await client.get("/ops/queue/queues")
            assert 'href="/ops/queue/queues" aria-current="page"' in page.text
            token = re.search(r'name="token" value="(\w+)"', page.text)
            assert token
            form = {"token": token[1], "queue": "mail", "back": "queues"}
            done = await client.post("/ops/queue/queues/pause", data=form)
            assert done.headers["location"].startswith("/ops/queue/queues?done=")
            assert (await client.get("/ops/queue/static/icon.svg")).status_code == 200
            assert (await client.get("/ops/queue/")).status_code == 200
            bare = await client.get("/ops/queue?span=7d")
            assert bare.status_code == 307
            assert bare.headers["location"].endswith("/ops/queue/?span=7d")
            if service is beside:
                assert (await client.get("/elsewhere")).text == "django"


async def test_actions_of_a_mounted_dashboard_stop_when_the_service_does(shop_dsn: str) -> None:
    shop = application(shop_dsn)
    begun = asyncio.Event()

    async def step(_: Deed) -> int:
        begun.set()
        return 1

    async with chancy_lifespan(shop)(FastAPI()):
        Dashboard(shop)
        site = site_of(shop)
        view = View(site, Request({"type": "http", "headers": []}), OPERATOR)
        entry = await start(view, Action.REPLAY_LETTER, "dead letters", {}, step)
        await begun.wait()
    async with shop:
        written = await site.audit.get(entry)
    assert written is not None
    assert written.ended_at is not None
    assert written.error == "the dashboard was stopped"


async def test_a_stopped_action_ends_with_who_stopped_it(shop: Chancy) -> None:
    begun, asked = asyncio.Event(), asyncio.Event()

    async def step(_: Deed) -> int:
        begun.set()
        await asked.wait()
        return 5

    async with browser(shop, ADMIN) as ada:
        view = View(site_of(shop), Request({"type": "http", "headers": []}), OPERATOR)
        entry = await start(view, Action.CANCEL_JOB, "queue:mail", {}, step)
        await begun.wait()
        _done(await ada.post("audit/stop", {"entry": str(entry)}))
        asked.set()
        await _ended(shop)
        shown = text_of(await ada.get("audit"))
    assert "stopped by ada" in shown
    assert "done" not in shown
    written = present(await site_of(shop).audit.get(entry))
    assert (written.who, written.jobs, written.error) == ("olaf", 5, "stopped by ada")


async def test_a_stream_ends_so_that_a_service_can_stop(
    shop: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LASTS_S", 0.05)
    async with browser(shop, OPERATOR) as olaf, asyncio.timeout(60):
        streamed = await olaf.get("live")
    assert streamed.text.startswith("retry: 1000\n\n")


async def test_viewers_share_one_look(shop: Chancy, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    broker: Any = shop.control
    fetch = broker.fetch

    async def counted(sql: str, *params: object, **more: Any) -> Any:
        asked.append(sql)
        return await fetch(sql, *params, **more)

    monkeypatch.setattr(broker, "fetch", counted)
    # To render 50 pages may take longer than the second for which an answer is kept.
    monkeypatch.setattr(Looks.get, "__kwdefaults__", {"keep_s": 600.0})
    async with browser(shop, OPERATOR) as olaf:
        pages = await asyncio.gather(*(olaf.get("queues") for _ in range(50)))
    assert {page.status_code for page in pages} == {200}
    assert sum("dashboard_counts" in sql for sql in asked) == 1


async def test_answers_are_dropped_when_they_are_too_old_to_be_shown() -> None:
    class Answer:
        pass

    async def look() -> Answer:
        return Answer()

    looks = Looks()
    old = weakref.ref(await looks.get("old", look, keep_s=0.0))
    kept = await looks.get("kept", look, keep_s=600.0)
    await looks.get("third", look)
    gc.collect()
    assert old() is None
    assert await looks.get("kept", look, keep_s=600.0) is kept


def test_an_application_without_the_plugin_is_refused(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="lacks the plugin"):
        Dashboard(Chancy(dsn))


class _Broken(Plugin):
    """A plugin whose panel cannot be read."""

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.broken"

    def panels(self) -> Sequence[Panel]:
        async def rows(_: Application) -> Sequence[Mapping[str, Any]]:
            raise OSError("the warehouse is away")

        return [Panel(name="broken", title="Warehouse", rows=rows)]


async def test_a_panel_that_cannot_be_read_says_why(shop_dsn: str) -> None:
    async with application(shop_dsn, _Broken()) as shop, browser(shop, VIEWER) as vera:
        page = await vera.get("panels/broken")
    assert page.status_code == 502
    assert "cannot show Warehouse now: OSError: the warehouse is away." in text_of(page)


async def test_the_checkup_shows_what_the_doctor_finds(shop: Chancy) -> None:
    async with browser(shop, OPERATOR) as olaf:
        found = text_of(await olaf.get("checkup"))
    assert "none, as no worker has been alive for a whole lease" in found
    for check in ("clock", "horizon", "schema", "workers", "leader"):
        assert f" {check} " in found, check
