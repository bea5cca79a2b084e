"""``chancy dashboard`` as a container runs it."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx

from chancy.embedded import free_port
from tests.support.command import command, inside, started
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
                return httpx.get(f"http://127.0.0.1:{port}/{path}", auth=auth).status_code
            except httpx.TransportError:
                return 0

        eventually_sync(lambda: status("static/icon.svg") == 200, timeout=30)
        assert status("queues") == 401
        assert status("queues", ("eve", "wrong horse")) == 401
        assert status("queues", ("eve", "correct horse")) == 200
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0, running.log
    assert "Traceback" not in running.log


def test_a_user_needs_a_password(shop_dsn: str) -> None:
    answer = inside("dashboard", "--user", "eve", code=2, dsn=shop_dsn, plugins="chancy.dashboard")
    assert "CHANCY_DASHBOARD_PASSWORD" in answer.err
