"""Workers whose event loop a job blocks: reported, restarted if asked for, and stopped in time."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support.command import Started, command, inside, started
from tests.support.waiting import eventually_sync

_SHOP = """\
import os
import re
import time
from pathlib import Path
from chancy import Chancy, Queue, job
from chancy.plugins.recovery import Recovery

chancy = Chancy(
    queues=[Queue(name="loop", executor="async")],
    plugins=[Recovery(sweep_s=0.2)],
    no_default_plugins=True,
)


@job(queue="loop")
async def block(folder: str, hold: bool) -> None:
    "Blocks the event loop in its first run, until the test lets it go or it is killed."
    path = Path(folder)
    first = not (path / "begun").exists()
    (path / "begun").touch()
    if first and hold:
        re.match(r"(a+)+$", "a" * 60 + "b")  # holds the lock of the interpreter for years
    while first and not (path / "end").exists():
        time.sleep(0.01)
"""

#: A supervisor that is quick to decide.
_DRIVER = """\
import asyncio, json, logging, sys
from chancy.worker.supervisor import supervisor
logging.basicConfig(level=logging.INFO, format="%(message)s")
supervisor._BLOCKED_S, supervisor._CHECK_S, supervisor._FLUSH_S = 0.5, 0.1, 30.0
command, options = json.loads(sys.argv[1])
sys.exit(asyncio.run(supervisor.Supervisor(command, processes=1, **options).run()))
"""


#: Whether the job holds the lock of the interpreter, too.
HOLDING = pytest.mark.parametrize(
    "hold", [False, pytest.param(True, marks=pytest.mark.chaos, id="interpreter held")]
)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(_SHOP)
    return tmp_path


@contextmanager
def supervised(shop: Path, dsn: str, **options: float) -> Generator[Started]:
    """A worker with quick heartbeats, under a supervisor with these options."""
    times = ("--heartbeat=0.3", "--heartbeat-timeout=30", "--processes=0")
    worker = command("worker", "--app=shop", "--queues=loop", *times)
    driver = [sys.executable, "-c", _DRIVER, json.dumps([worker, options])]
    with started(driver, cwd=shop, env={"CHANCY_DSN": dsn}) as supervisor:
        eventually_sync(lambda: "listening for notifications" in supervisor.log)
        try:
            yield supervisor
        finally:
            # A worker that is blocked does not end with its supervisor.
            for pid in re.findall(r"child_started number=1 pid=(\d+)", supervisor.log):
                with suppress(psutil.NoSuchProcess):
                    child = psutil.Process(int(pid))
                    if "--app=shop" in child.cmdline():
                        child.kill()


def push_blocking(shop: Path, dsn: str, *, hold: bool = False) -> str:
    """Push a job that blocks, and wait until it runs; returns its id."""
    arguments = json.dumps({"folder": str(shop), "hold": hold})
    options = ("--queue=loop", "--no-validate", f"--args={arguments}", "--json")
    done = inside("push", "shop.block", *options, dsn=dsn)
    eventually_sync((shop / "begun").exists)
    return str(done.json["id"])


def blocked_s(dsn: str) -> float:
    [worker] = inside("worker", "list", "--json", dsn=dsn).json
    return float(worker["blocked_s"])


@HOLDING
def test_blocked_worker_is_not_healthy_and_keeps_its_jobs(shop: Path, dsn: str, hold: bool) -> None:
    with supervised(shop, dsn) as supervisor:
        job = push_blocking(shop, dsn, hold=hold)
        eventually_sync(lambda: blocked_s(dsn) > 1.2)
        unhealthy = inside("worker", "health", "--blocked=1", dsn=dsn, code=1).err
        assert "has been blocked for" in unhealthy
        assert "1 worker alive" in inside("worker", "health", dsn=dsn).out, "not for 30 s yet"
        assert inside("job", "show", job, "--json", dsn=dsn).json["crashes"] == 0
        if hold:
            return
        reported = rf"loop_blocked seconds=[\d.]+ job={job} func=shop\.block\n"
        eventually_sync(lambda: re.search(reported, supervisor.log))
        eventually_sync(lambda: "in block\n" in supervisor.log)
        (shop / "end").touch()
        assert inside("job", "wait", job, "--timeout=20", "--json", dsn=dsn).json["crashes"] == 0
        eventually_sync(lambda: blocked_s(dsn) == 0.0)
        healthy = ("worker", "health", "--blocked=1")
        eventually_sync(lambda: inside(*healthy, dsn=dsn, code=None).code == 0)
        assert "child_killed" not in supervisor.log


@HOLDING
def test_supervisor_restarts_a_blocked_worker_if_asked_to(shop: Path, dsn: str, hold: bool) -> None:
    # A busy machine keeps a new worker from its loop for a second, too.
    with supervised(shop, dsn, restart_blocked_s=3.0) as supervisor:
        job = push_blocking(shop, dsn, hold=hold)
        done = inside("job", "wait", job, "--timeout=60", "--json", dsn=dsn).json
        assert (done["state"], done["attempt"], done["crashes"]) == ("succeeded", 1, 1)
        assert "its event loop has been blocked for" in supervisor.log
        assert supervisor.log.count("child_started") == 2


@HOLDING
def test_supervisor_stops_in_time_although_a_worker_is_blocked(
    shop: Path, dsn: str, hold: bool
) -> None:
    with supervised(shop, dsn, shutdown_timeout_s=0.5) as supervisor:
        push_blocking(shop, dsn, hold=hold)
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.process.wait(20) == 0
        assert "child_killed" in supervisor.log
        assert "worker_removed" in supervisor.log, "its jobs are rescued without a timeout"
    assert inside("worker", "list", "--json", dsn=dsn).json == []
