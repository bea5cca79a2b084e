"""``chancy dashboard`` as a container runs it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from chancy import Chancy
from chancy.broker import SqlStore
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.dashboard.audit import Audit
from chancy.postgres.schema import grants
from chancy.postgres.schema.component import RoleKind
from tests.plugins.dashboard.browsing import ADMIN, browser
from tests.support.command import Answer, command, inside, started
from tests.support.ports import free_port
from tests.support.roles import roles
from tests.support.waiting import eventually_sync


def test_it_asks_for_a_user_and_stops_on_sigterm(shop_dsn: str, tmp_path: Path) -> None:
    port = free_port()
    env = {
        "CHANCY_DSN": shop_dsn,
        "CHANCY_PLUGINS": "chancy.dashboard",
        "CHANCY_DASHBOARD_USER": "eve",
        "CHANCY_DASHBOARD_PASSWORD": "correct horse",
    }
    with started(command("dashboard", "--port", port), cwd=tmp_path, env=env) as running:

        def status(path: str, auth: tuple[str, str] | None = None) -> int:
            assert running.process.poll() is None, running.log
            try:
                address = f"http://127.0.0.1:{port}/{path}"
                return httpx.get(address, auth=auth, timeout=30).status_code
            except httpx.TransportError:
                return 0

        eventually_sync(lambda: status("static/icon.svg") == 200, timeout=30)
        assert status("queues") == 401
        assert status("queues", ("eve", "wrong horse")) == 401
        assert status("queues", ("eve", "correct horse")) == 200
        # An open page does not hold it up.
        eve = ("eve", "correct horse")
        live = httpx.stream("GET", f"http://127.0.0.1:{port}/live", auth=eve, timeout=30)
        with live as stream:
            lines = stream.iter_lines()  # the stream closes with it
            assert "retry" in next(lines)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(30) == 0, running.log
    assert "Traceback" not in running.log


def test_without_uvicorn_the_error_names_the_extra(
    shop_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "chancy.plugins.dashboard.server", raising=False)
    for words in (["dashboard"], ["demo", "--modules", "1", "--dashboard"]):
        answer = inside(*words, code=2, dsn=shop_dsn, plugins="chancy.dashboard")
        assert "pip install 'chancy-queue[dashboard]'" in answer.err


def test_a_user_needs_a_password(shop_dsn: str) -> None:
    answer = inside("dashboard", "--user", "eve", code=2, dsn=shop_dsn, plugins="chancy.dashboard")
    assert "CHANCY_DASHBOARD_PASSWORD" in answer.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_other_machines_are_not_served_without_auth(shop_dsn: str, host: str) -> None:
    answer = inside("dashboard", "--host", host, code=2, dsn=shop_dsn, plugins="chancy.dashboard")
    assert f"--host {host} is reachable from other machines" in answer.err


async def test_a_role_that_may_only_read_sees_the_audit(shop: Chancy) -> None:
    assert isinstance(shop.control, SqlStore)
    await Audit(shop.control, 365).add("eve", "cancel job", "queue:mail")
    role = f"viewer_{secrets.token_hex(4)}"
    dsn = make_conninfo(shop.dsn, options=f"-c role={role}")
    with roles(shop.dsn, [role]):
        made = grants.statements(RoleKind.VIEWER, role, "chancy", shop.hooks.components)
        grants.apply(shop.dsn, "chancy", made)
        async with (
            Chancy(dsn, plugins=[DashboardPlugin()]) as reading,
            browser(reading, ADMIN) as ada,
        ):
            page = await ada.get("audit")
        assert (page.status_code, "cancel job" in page.text) == (200, True)
        run = partial(inside, "audit", "list", "--json", dsn=dsn, plugins="chancy.dashboard")
        (entry,) = (await asyncio.to_thread(run)).json
        assert entry["who"] == "eve"


async def test_the_audit_is_listed_and_its_actions_are_stopped(shop: Chancy) -> None:
    assert isinstance(shop.control, SqlStore)
    audit = Audit(shop.control, 365)
    done = await audit.add("eve", "cancel job", "queue:mail", {"ids": ["x"]}, jobs=3)
    going = await audit.add("eve", "replay dead letter", "queue:mail", ended=False)

    def run(*words: object, code: int = 0) -> Answer:
        return inside("audit", *words, code=code, dsn=shop.dsn, plugins="chancy.dashboard")

    first, second = await asyncio.to_thread(lambda: run("list", "--json").json)
    assert (first["id"], first["ended_at"]) == (going, None)
    assert (second["id"], second["jobs"], second["detail"]) == (done, 3, {"ids": ["x"]})
    page = await asyncio.to_thread(run, "list", "--limit", 1)
    assert "in progress" in page.out
    assert f"--before {going}" in page.err
    stopped = await asyncio.to_thread(run, "stop", going, "--json")
    assert stopped.json == {"entry": going, "found": True}
    assert await audit.count(going, 1) == "chancy audit stop"
    assert "stopping" in (await asyncio.to_thread(run, "list")).out
    for id in (done, 999):
        await asyncio.to_thread(partial(run, "stop", id, code=1))
