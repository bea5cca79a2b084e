"""Each rule about access, attacked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from chancy import Chancy, Job
from chancy.broker import SqlStore
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Panel
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron, Entry
from chancy.plugins.dashboard import Action, BasicAuth, Dashboard, Person, Role
from chancy.plugins.dashboard.job_rows import PAGE
from chancy.plugins.dashboard.pages import PAGES
from chancy.plugins.dashboard.redaction import Masked
from chancy.plugins.dashboard.routes import HEADERS
from chancy.plugins.dashboard.search import SearchError, parse
from chancy.plugins.dead_letter import DeadLetters, LetterFilter
from chancy.plugins.workflow import Workflow, Workflows
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
from tests.plugins.dashboard.shop import HOSTILE, MARKS, send_receipt
from tests.support.command import inside
from tests.support.waiting import eventually

_NOBODY = str(UUID(int=0))
#: Each form of a page with fields, the lowest person who may send it, and the commands that do the
#: same. ``JOB`` is a pending job, ``DEAD`` one that has failed, ``MARK`` its group, ``ENTRY`` an
#: action of another person.
FORMS: Mapping[str, tuple[dict[str, str], Person, str]] = {
    "queues/pause": ({"queue": "mail"}, OPERATOR, "queue pause"),
    "queues/resume": ({"queue": "mail"}, OPERATOR, "queue resume"),
    "queues/change": ({"queue": "mail", "concurrency": "3"}, ADMIN, "queue declare"),
    "jobs/cancel": ({"id": "JOB"}, OPERATOR, "job cancel"),
    "jobs/run": ({"id": "JOB"}, OPERATOR, "job retry"),
    "jobs/release": ({"id": "JOB"}, OPERATOR, "job release"),
    "jobs/replay": ({"id": "DEAD"}, OPERATOR, "dead replay"),
    "jobs/change": ({"id": "JOB", "priority": "7"}, OPERATOR, "job prioritize, job reschedule"),
    "jobs/cancel-all": ({"q": "queue:mail"}, OPERATOR, "job cancel"),
    "jobs/run-all": ({"q": "queue:mail"}, OPERATOR, "job retry"),
    "jobs/replay-all": ({"q": "queue:mail"}, OPERATOR, "dead replay"),
    "dead-letters/replay": ({"id": "DEAD"}, OPERATOR, "dead replay"),
    "dead-letters/purge": ({"id": "DEAD"}, ADMIN, "dead purge"),
    "dead-letters/replay-all": ({"fingerprint": "MARK"}, OPERATOR, "dead replay"),
    "dead-letters/purge-all": ({"fingerprint": "MARK"}, ADMIN, "dead purge"),
    "cron/pause": ({"entry": "none"}, OPERATOR, "cron pause"),
    "cron/resume": ({"entry": "none"}, OPERATOR, "cron resume"),
    "cron/run": ({"entry": "none"}, OPERATOR, "cron run"),
    "limits/skip": ({"queue": "crawl", "key": "1"}, OPERATOR, "limits skip"),
    "workers/stop": ({"worker": _NOBODY}, OPERATOR, "worker stop"),
    "workflows/retry": ({"workflow": _NOBODY}, OPERATOR, "workflow retry"),
    "workflows/cancel": ({"workflow": _NOBODY}, OPERATOR, "workflow cancel"),
    "batches/cancel": ({"batch": _NOBODY}, OPERATOR, "batch cancel"),
    "audit/stop": ({"entry": "ENTRY"}, ADMIN, "audit stop"),
}


async def test_each_form_is_refused_below_its_role(shop: Chancy) -> None:
    forms = {path for method, path, _ in PAGES if method == "POST"}
    assert set(FORMS) == forms
    reference = await shop.push(send_receipt.job(order=1))
    await fail(shop, 1)
    (letter,) = await DeadLetters().find(shop)
    (group,) = await DeadLetters().groups(shop)
    async with browser(shop, VIEWER) as vera, browser(shop, OPERATOR) as olaf:
        for page, path in (
            ("queues", "queues/pause"),
            ("jobs?q=state:pending", "jobs/cancel-all"),
            (f"jobs/{reference.id}", "jobs/change"),
        ):
            button = f'action="/{path}"'
            assert button in (await olaf.get(page)).text, page
            assert button not in (await vera.get(page)).text
        entry = await site_of(shop).audit.add("eve", "purge dead letter", "queue:mail", ended=False)
        values = {
            "JOB": str(reference.id),
            "DEAD": str(letter.id),
            "MARK": group.fingerprint,
            "ENTRY": str(entry),
        }
        tokens = [(one, await one.token()) for one in (vera, olaf)]
        for path, (fields, lowest, _) in FORMS.items():
            form = {name: values.get(value, value) for name, value in fields.items()}
            for one, token in tokens:
                done = await one.client.post(f"/{path}", data={"token": token, **form})
                refused = one is vera or lowest is ADMIN
                assert (done.status_code == 403) == refused, (path, text_of(done))
                assert not refused or "may not do this" in text_of(done)
        assert (await vera.get("audit")).status_code == 403
    assert {queue.concurrency for queue in await shop.get_queues() if queue.name == "mail"} == {8}
    assert await DeadLetters().count(shop) == 1


def test_each_form_has_a_command(shop_dsn: str) -> None:
    plugins = "chancy.dashboard,chancy.batches,chancy.workflows,chancy.limits"
    for command in sorted({one for *_, many in FORMS.values() for one in many.split(", ")}):
        inside(*command.split(), "--help", dsn=shop_dsn, plugins=plugins)


async def test_forms_without_their_token_are_refused(shop: Chancy) -> None:
    form = {"queue": "mail"}
    async with browser(shop, ADMIN) as ada, browser(shop, OPERATOR) as olaf:
        stolen = await olaf.token("queues")
        await ada.get("queues")
        for token in ("", "x", stolen):
            done = await ada.client.post("/queues/pause", data={**form, "token": token})
            assert done.status_code == 403
        own = {**form, "token": await ada.token("queues")}
        site = {"sec-fetch-site": "cross-site"}
        origin = {"origin": "https://evil.example"}
        for headers in (site, origin, {**site, "origin": "http://localhost"}):
            done = await ada.client.post("/queues/pause", data=own, headers=headers)
            assert done.status_code == 403
        json = await ada.client.post("/queues/pause", json=own)
        assert json.status_code == 415
        assert (await ada.client.get("/queues/pause", params=own)).status_code == 404
        assert not any(queue.paused for queue in await shop.get_queues())
        cookie = ada.client.cookies.jar
        assert [(one.name, one.get_nonstandard_attr("SameSite")) for one in cookie] == [
            ("chancy_dashboard", "lax")
        ]
        assert (await ada.client.post("/queues/pause", data=own)).status_code == 303


async def test_without_auth_only_this_machine_is_served(shop: Chancy) -> None:
    async with browser(shop) as here:
        assert (await here.get()).status_code == 200
        for name in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Prefix",
                     "X-Forwarded-Proto", "X-Real-IP", "Via"):  # fmt: skip
            assert (await here.get(**{name: "/x"})).status_code == 403, name
    # The name of another site that resolves to this machine.
    async with browser(shop, host="evil.example") as rebound:
        refused = await rebound.get()
        assert refused.status_code == 403
        assert "evil.example" in refused.text
    transport = httpx.ASGITransport(app=Dashboard(shop), client=("10.0.0.9", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as far:
        assert (await far.get("/")).status_code == 403
        assert (await far.get("/live")).status_code == 403


async def test_pages_cannot_be_framed_and_injected_scripts_do_not_run(shop: Chancy) -> None:
    async with browser(shop, VIEWER) as vera:
        for path in ("", "static/dashboard.js", "nothing", "jobs?q=foo:bar"):
            found = (await vera.get(path)).headers
            assert HEADERS.items() <= dict(found).items(), path
        assert "frame-ancestors 'none'" in HEADERS["content-security-policy"]
        assert "unsafe" not in HEADERS["content-security-policy"]
        page = (await vera.get()).text
    assert " style=" not in page
    assert "onclick" not in page
    assert "<script>" not in page


async def test_no_redirect_leaves_the_dashboard(shop: Chancy) -> None:
    async with browser(shop, OPERATOR) as olaf:
        for back in ("//evil.example", "https://evil.example", "/\\evil.example", "a/../..//evil"):
            done = await olaf.post("queues/pause", {"queue": "mail", "back": back})
            assert done.headers["location"].startswith("/queues?done="), back
        for prefix in ("//evil.example", "/\\evil", "https://evil.example", "/a//b", "/.."):
            page = await olaf.get(**{"x-forwarded-prefix": prefix})
            assert "evil" not in page.text, prefix


async def test_hostile_jobs_are_text(shop: Chancy) -> None:
    bad = Job(
        func="shop.jobs.send",
        arguments={HOSTILE: HOSTILE, "marks": MARKS, "deep": [[[{"x": HOSTILE}]]]},
        queue="mail",
        meta={HOSTILE: MARKS},
    )
    reference = await shop.push(bad, validate=False)
    assert isinstance(shop.control, SqlStore)
    await shop.control.fetch(
        "update chancy.jobs set func = $2, queue = $2, errors = $1::jsonb",
        '[{"types": ["<img src=x>"], "message": "<script>1</script>\\n\\u202e", "trace": "<b>",'
        ' "at": "<i>", "worker_id": "<u>", "attempt": "<s>", "notes": ["<a>"],'
        ' "causes": [["<p>", "<q>"]]}]',
        HOSTILE + MARKS,
    )
    async with browser(shop, OPERATOR) as olaf:
        page = await olaf.get(f"jobs/{reference.id}")
        for path in ("", "queues", "jobs", "jobs?q=state:pending", f"jobs/{reference.id}"):
            page = await olaf.get(path)
            assert page.status_code == 200, path
            for mark in ("<script>1", "<script>window", "<img", "<s>", "<u>", "\u202e", "\u0007"):
                assert mark not in page.text, (path, mark)
        shown = text_of(page)
        assert "<script>window.hacked" in shown
        assert "{{7*7}}" in shown
        assert "\\u202e" in shown
        # What is long is cut.
        long = {"a": "<" * 400_000, "keys": {f"<{n}>": [n] for n in range(20_000)}}
        large = await shop.push(Job(func="a.b", queue="mail", arguments=long), validate=False)
        page = await olaf.get(f"jobs/{large.id}")
        assert "(400,000 characters)" in text_of(page)
        assert len(page.content) < 500_000
        searched = await olaf.get("jobs?q=%3Cscript%3E%22")
        assert "<script>" not in searched.text.partition("<main")[2]


async def test_masked_values_are_neither_shown_nor_found(shop: Chancy) -> None:
    arguments = {"order": 1, "password": "hunter2", "deep": [{"API_Key": "k3y", "ok": "fine"}]}
    reference = await shop.push(
        Job(func="shop.pay", arguments=arguments, queue="mail"), validate=False
    )
    async with browser(shop, ADMIN) as ada:
        page = await ada.get("jobs")
        for path in ("jobs", f"jobs/{reference.id}"):
            page = await ada.get(path)
            assert "hunter2" not in page.text, path
            assert "k3y" not in page.text, path
        assert "fine" in page.text
        for q in ("arg.password:hunter2", "arg.deep.0.API_Key:k3y"):
            assert (await ada.get(f"jobs?q={q}")).status_code == 400
        assert "No job matches" in text_of(await ada.get('jobs?q=arg.deep:\'[{"ok":"fine"}]\''))
        assert "pay" in text_of(await ada.get("jobs?q=arg.order:1"))
    with pytest.raises(SearchError, match="masked"):
        parse("arg.card.pin:1234", Masked(["pin"]))

    def careful(person: Person, action: Action, subject: str) -> bool:
        return action is not Action.VIEW_ARGUMENTS

    async with browser(shop, ADMIN, can=careful) as blind:
        for path in ("jobs", f"jobs/{reference.id}"):
            assert "fine" not in (await blind.get(path)).text


async def test_auth_may_be_async_redirect_or_ask_for_a_password(shop: Chancy) -> None:
    async def login(request: Request) -> Person | Response:
        await asyncio.sleep(0)
        return by_header(request) or RedirectResponse("/login", 303)

    def client(site: Dashboard) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=site, client=("10.1.1.1", 1)),
            base_url="https://shop.example",
        )

    async with client(Dashboard(shop, auth=login)) as browser_:
        assert (await browser_.get("/")).headers["location"] == "/login"
        page = await browser_.get("/", headers={"x-person": "vera"})
        assert page.status_code == 200
        assert "Secure" in page.headers["set-cookie"]
    basic = BasicAuth({"eve": ("correct horse", Role.VIEWER)})
    async with client(Dashboard(shop, auth=basic)) as browser_:
        for name, password in (("eve", "wrong"), ("adam", ""), ("", "")):
            asked = await browser_.get("/", auth=(name, password))
            assert asked.status_code == 401
            assert "Basic" in asked.headers["www-authenticate"]
        assert (await browser_.get("/", auth=("eve", "correct horse"))).status_code == 200
        for value in (b"Basic \xe9", b"Basic =", b"Basic /w=="):
            headers = [(b"authorization", value)]
            assert (await browser_.get("/", headers=headers)).status_code == 401
    async with client(Dashboard(shop, auth=lambda request: None)) as browser_:
        assert (await browser_.get("/")).status_code == 401


@pytest.mark.parametrize(
    "path", ["?done=²", "audit?before=²", "workers?page=²", "jobs?q=state:held&after=" + "[" * 3000]
)
async def test_parameters_that_cannot_be_read_are_ignored(shop: Chancy, path: str) -> None:
    async with browser(shop, ADMIN) as ada:
        assert (await ada.get(path)).status_code == 200


@pytest.mark.parametrize("fields", [{"id": "x" * 200_000}, {"id": ["1"] * 1_200}])
async def test_forms_are_bounded(shop: Chancy, fields: dict[str, object]) -> None:
    async with browser(shop, ADMIN) as ada:
        assert (await ada.post("jobs/cancel", fields)).status_code in (400, 413)


async def test_arguments_of_a_denied_function_are_neither_listed_nor_found(shop: Chancy) -> None:
    """Not by a search either, which would tell a value by what it finds."""
    secret = {"order": 1, "who": "s3cr1t"}
    pays = [
        Job(func="shop.pay", arguments=secret, queue="mail", meta={"who": "s3cr1t"})
        for _ in range(PAGE + 9)
    ]
    await shop.push_many(pays, validate=False)
    sends = Job(func="shop.send", arguments={"who": "public"}, queue="mail")
    await shop.push(sends, validate=False)
    await fail(shop, 3)
    assert isinstance(shop.control, SqlStore)
    await shop.control.fetch('update chancy.dead_letters set arguments = \'{"who": "s3cr1t"}\'')

    def careful(person: Person, action: Action, subject: str) -> bool:
        if action is Action.VIEW_ARGUMENTS:
            assert subject.startswith("func:")
        return (action, subject) != (Action.VIEW_ARGUMENTS, "func:shop.pay")

    async with browser(shop, ADMIN, can=careful) as ada:
        page = await ada.get("jobs?q=state:pending")
        assert "shop" in page.text
        assert "s3cr1t" not in page.text
        assert "public" in (await ada.get("jobs")).text
        (group,) = set(re.findall(r"dead-letters/groups/\w+", (await ada.get("dead-letters")).text))
        assert "s3cr1t" not in (await ada.get(group)).text
        for name in ("arg", "meta"):
            found = [
                text_of(await ada.get(f"jobs?q={q}{name}.who:{value}")).replace(value, "")
                for q in ("", "queue:mail+", "state:pending+queue:mail+")
                for value in ("s3cr1t", "n0thing")
            ]
            assert found[0::2] == found[1::2], name
        assert "send" in text_of(await ada.get("jobs?q=arg.who:public"))
    async with browser(shop, ADMIN) as ada:
        assert "pay" in text_of(await ada.get("jobs?q=arg.who:s3cr1t"))


async def test_a_group_is_purged_only_where_the_person_may(shop: Chancy) -> None:
    await fail(shop, 3)
    assert isinstance(shop.control, SqlStore)
    await shop.control.fetch(
        "with mail as (select id from chancy.dead_letters limit 1)"
        " update chancy.dead_letters set died_at = died_at - interval '1 minute',"
        " queue = case when id in (select id from mail) then 'mail' else queue end"
    )
    await shop.control.fetch(
        "update chancy.dead_letters set died_at = died_at + interval '1 s' where queue = 'mail'"
    )

    def mail_only(person: Person, action: Action, subject: str) -> bool:
        return not subject.startswith("queue:") or subject == "queue:mail"

    letters = DeadLetters()
    async with browser(shop, ADMIN, can=mail_only) as ada:
        (group,) = await letters.groups(shop)
        token = await ada.token("queues")
        form = {"fingerprint": group.fingerprint, "confirmed": "yes", "token": token}
        for path, left in (("replay-all", 3), ("purge-all", 2)):
            assert (await ada.client.post(f"/dead-letters/{path}", data=form)).status_code == 303

            async def ended() -> bool:
                return "in progress" not in text_of(await ada.get("audit"))

            await eventually(ended)
            assert await letters.count(shop) == left
    assert await letters.count(shop, LetterFilter(queue="billing", replayed=False)) == 2


#: What the name of a workflow, a step or a batch may have.
TAGS = "<script>window.hacked = 1</script>'<img src=x onerror=window.hacked>"


class _Panels(Plugin):
    """A plugin of a third party with a panel, which is as hostile as a job."""

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.hostile"

    def panels(self) -> Sequence[Panel]:
        return [Panel(name="hostile", title=f"Stock {HOSTILE}", rows=self._rows)]

    async def _rows(self, chancy: Application) -> Sequence[Mapping[str, Any]]:
        return [{HOSTILE: HOSTILE + MARKS, "token": "t0ps3cret", "n": 7, "none": None}] * 501


async def test_names_results_and_panels_are_text(shop_dsn: str) -> None:
    """Names of groups, progress, workers, panels and the audit are escaped, as arguments are."""
    shop = application(shop_dsn, _Panels())
    async with shop:
        plugins = {type(plugin): plugin for plugin in shop.hooks.plugins}
        workflows, batches, cron = plugins[Workflows], plugins[Batches], plugins[Cron]
        assert isinstance(workflows, Workflows)
        assert isinstance(batches, Batches)
        assert isinstance(cron, Cron)
        flow = Workflow(name=TAGS)
        flow.add(send_receipt.job(order=1), TAGS)
        started = await shop.push(flow)
        batch = await batches.push(shop, Batch(name=TAGS), [send_receipt.job(order=2)])
        await cron.add(shop, Entry("nightly", "0 3 * * *", send_receipt.job(order=3)))
        job = await shop.push(send_receipt.job(order=4))
        await fail(shop, 1)
        await _hostile(shop, job.id)
        async with browser(shop, ADMIN) as ada:
            await site_of(shop).audit.add(HOSTILE, HOSTILE, HOSTILE + MARKS, {HOSTILE: MARKS})
            (group,) = await DeadLetters().groups(shop)
            (letter,) = await DeadLetters().find(shop)
            shown = ""
            for path in (
                "", "workers", "workflows", f"workflows/{started.id}", "batches",
                f"batches/{batch.id}", "cron", f"cron/{quote(HOSTILE)}", "audit", "panels/hostile",
                f"jobs/{job.id}", "jobs?q=state:running", "dead-letters",
                f"dead-letters/{letter.id}", f"dead-letters/groups/{group.fingerprint}",
            ):  # fmt: skip
                page = await ada.get(path)
                assert page.status_code == 200, (path, text_of(page))
                for mark in ("<script>w", "<img", "\u202e", "\u0007", "t0ps3cret"):
                    assert mark not in page.text, (path, mark)
                shown += text_of(page)
            asked = await ada.post("workflows/retry", {"workflow": started.id, "step": TAGS})
            assert "<script>w" not in asked.text
            shown += text_of(asked)
            assert f"from {TAGS}" in shown
            assert shown.count("<script>window.hacked") > 8
            assert "\\u202e" in shown
            assert "There are more rows." in shown
            assert (await ada.get("panels/none")).status_code == 404


async def _hostile(chancy: Chancy, job: UUID) -> None:
    """Write hostile text where a job, a worker and a failure have some."""
    assert isinstance(chancy.control, SqlStore)
    worker = UUID(int=7)
    await chancy.control.fetch(
        "insert into chancy.workers (id, host, pid, version, queues, unknown, beat_at, broken)"
        " values ($1, $2, 1, $2, array[$2], array[$2], now(), jsonb_build_object($2::text, 'x'))",
        worker,
        HOSTILE,
    )
    await chancy.control.fetch(
        "update chancy.jobs set state = 1, worker_id = $1, claimed_at = now(), meta ="
        " jsonb_build_object('progress', jsonb_build_object('fraction', 0.5, 'text', $2::text))"
        " where id = $3",
        worker,
        HOSTILE,
        job,
    )
    # Neither `Entry` nor the table allows such a name.
    await chancy.control.fetch(
        "alter table chancy.cron_entries drop constraint cron_entries_name_check"
    )
    await chancy.control.fetch(
        "update chancy.cron_entries set name = $1, func = $1, queue = $1, problem = $1", HOSTILE
    )
    await chancy.control.fetch(
        "update chancy.dead_letters set func = $1, host = $1, error = $1, meta ="
        " jsonb_build_object($1::text, $1::text), errors = jsonb_build_array(jsonb_build_object("
        "'message', $1::text, 'types', jsonb_build_array($1::text), 'trace', $1::text))",
        HOSTILE,
    )
