"""Workers of a program of fennel: how they share work, end, and are killed."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.compat.fennel import App
from chancy.plugins.redis.compat.fennel.client import gather
from chancy.plugins.redis.compat.fennel.exceptions import TaskFailed
from tests.plugins.redis.compat.fennel_worker import APP, Shop, with_settings
from tests.support.command import environment, started
from tests.support.waiting import eventually_sync

SETTINGS = {"retry_backoff": "tests.plugins.redis.compat.fennel_shop.at_once"}


@pytest.mark.row("F10")
def test_as_many_run_at_once_as_are_allowed(shop: Shop) -> None:
    """Of nine jobs, one waits until the first of the others has ended."""
    with shop.serving():
        for task in (shop.program.gate, shop.program.async_gate):
            name = task.func.__name__
            results = [task.delay(str(shop.folder / name)) for _ in range(9)]
            eventually_sync(partial(_has_begun, shop, name, 8))
            # The time in which the ninth job would begin: there is no condition to await.
            time.sleep(0.2)
            assert len(shop.notes(name)) == 8
            (shop.folder / f"{name}.open").touch()
            assert gather(results, task_timeout=20) == [None] * 9


def _has_begun(shop: Shop, name: str, times: int) -> bool:
    return len(shop.notes(name)) >= times


@pytest.mark.row("F11", "F39")
@with_settings(concurrency="4")
def test_processes_share_the_queue(shop: Shop) -> None:
    found: list[tuple[int, int]] = []

    def both() -> bool:
        results = [shop.program.where.delay(0.1) for _ in range(50)]
        found.extend(gather(results, task_timeout=30))
        return len({process for process, _ in found}) == 2

    with shop.worker(processes=2) as supervisor:
        eventually_sync(both, timeout=30)
        assert max(len({t for p, t in found if p == process}) for process, _ in found) <= 4
        results = [shop.program.number.delay(str(shop.folder / "runs"), n) for n in range(50)]
        assert gather(results, task_timeout=30) == list(range(50))
        runs = sorted(int(text) for text, _ in shop.notes("runs"))
        assert runs == list(range(50)), "each was run once"
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.process.wait(20) == 0


@pytest.mark.row("F34", "F36")
def test_running_jobs_may_finish(shop: Shop) -> None:
    """Jobs pushed meanwhile wait for another worker, although seven slots are free."""
    x = shop.program.gate.delay(str(shop.folder / "gate"))
    with shop.worker("--shutdown-timeout", "20") as worker:
        eventually_sync(lambda: shop.notes("gate"))
        worker.process.send_signal(signal.SIGTERM)
        eventually_sync(lambda: "running jobs have 20 s" in worker.log)
        y = shop.program.number.delay(str(shop.folder / "more"), 1)
        # The time in which the job would begin.
        time.sleep(0.3)
        (shop.folder / "gate.open").touch()
        assert worker.process.wait(20) == 0
    assert (x.status(), y.status()) == ("SUCCESS", "SENT")


@pytest.mark.row("F35", "F41")
def test_jobs_that_cannot_finish_in_time_are_released(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The loggers of other libraries are not changed."""
    mine = logging.getLogger("tests.mine")
    App("another")
    with caplog.at_level("INFO", "tests.mine"):
        mine.info("still here")
    assert "still here" in caplog.text
    spoken = shop.program.speak.delay("heard")
    x = shop.program.slow.delay(str(shop.folder / "notes"), 20.0)
    words = ("--shutdown-timeout", "0.2", "--log-format", "json", "--log-level", "warning")
    with shop.worker(*words) as worker:
        eventually_sync(lambda: shop.notes("notes"))
        spoken.get(20)
        worker.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        assert worker.process.wait(30) == 0
        assert time.monotonic() - told < 15.0, "the grace and the end of a process, not of the job"
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert {line["level"] for line in lines} == {"warning"}
    [own] = [line for line in lines if line["logger"] == "chancy.job"]
    wanted = ("heard", spoken.uuid, "tests.plugins.redis.compat.fennel_shop.speak")
    assert (own["message"], own["job"], own["func"]) == wanted
    assert x.status() == "SENT"
    assert shop.job(x.uuid).attempt == 0, "no try was used up"


FENNEL = [sys.executable, "-m", "chancy.plugins.redis.compat.fennel"]


def run(shop: Shop, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the program."""
    done = subprocess.run(
        words, cwd=shop.folder, env=environment(shop.environment), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def fennel(shop: Shop, *words: str) -> Any:
    """Run a command of fennel; return its output."""
    return json.loads(run(shop, *FENNEL, *words).stdout)


#: A program of two modules, as fennel's documentation lays it out.
CORE = "from chancy.plugins.redis.compat.fennel import App\napp = App(name='shop')\n"
TASKS = "from core import app\n\n@app.task\ndef double(n):\n    return 2 * n\n"
START = """
from core import app
from chancy.plugins.redis.compat.fennel.worker import EXIT_COMPLETE, start
start(app, exit=EXIT_COMPLETE)
"""


@pytest.mark.row("F02", "F39", "F40", "F41")
@with_settings(processes="1", concurrency="4", log_format="json", log_level="INFO")
@pytest.mark.chaos
def test_its_command_line_takes_the_settings_and_options_over_them(shop: Shop) -> None:
    found: dict[int, set[int]] = {}

    def both() -> bool:
        results = [shop.program.where.delay(0.1) for _ in range(30)]
        for process, thread in gather(results, task_timeout=30):
            found.setdefault(process, set()).add(thread)
        return len(found) == 2 and max(map(len, found.values())) >= 3

    words = [*FENNEL, "worker", "-a", f"{APP}:app", "-p", "2", "-c", "3"]
    with started(words, cwd=shop.folder, env=shop.environment) as worker:
        eventually_sync(both)
        assert max(map(len, found.values())) == 3
        dead = shop.program.fail.delay("baz")
        with pytest.raises(TaskFailed):
            dead.get()
        told = fennel(shop, "info", "-a", f"{APP}:app")
        assert [queue["name"] for queue in told["queues"]] == ["shop"]
        assert [len(told["heartbeats"]), told["queues"][0]["concurrency"]] == [2, 4]
        # The sweep of the leader files the dead letter.
        eventually_sync(lambda: fennel(shop, "dlq", "read", "-a", f"{APP}:app"))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert "info" in {line["level"] for line in lines}
    assert fennel(shop, "task", "-a", f"{APP}:app", "-u", dead.uuid)["state"] == "failed"
    assert [one["id"] for one in fennel(shop, "dlq", "read", "-a", f"{APP}:app")] == [dead.uuid]
    assert fennel(shop, "dlq", "purge", "-a", f"{APP}:app") == {"purged": 1}


@pytest.mark.row("F38", "F41", "F43")
@with_settings(log_format="json", log_level="info", concurrency="2")
def test_a_worker_imports_the_modules_of_the_pattern_and_may_end_with_the_queue(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.folder / "core.py").write_text(CORE)
    (shop.folder / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(shop.folder)
    monkeypatch.syspath_prepend(str(shop.folder))
    core, tasks = map(importlib.import_module, ("core", "tasks"))
    results = [tasks.double.delay(n) for n in range(50)]
    done = run(shop, sys.executable, "-c", START)
    levels = {json.loads(line)["level"] for line in done.stderr.splitlines()}
    assert "info" in levels
    assert "debug" not in levels
    assert gather(results) == list(range(0, 100, 2))
    core.app.close()
    for name in ("core", "tasks"):
        monkeypatch.delitem(sys.modules, name)
