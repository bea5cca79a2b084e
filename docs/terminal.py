"""Captures ``chancy top`` and ``chancy doctor`` from a terminal, for the guide troubleshooting.md.

``python docs/terminal.py`` makes five problems at once on a private Postgres, and prints what the
commands show: a long transaction, a worker that died, a queue that no worker serves, a worker with
a wrong clock, a partition that is missing. It needs tmux, and libfaketime for the clock.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import psycopg

from chancy.embedded import PostgresServer

_JOBS = """\
import asyncio

from chancy import Chancy, Queue, job

chancy = Chancy(queues=[Queue("mail", executor="async"), Queue("reports", executor="async")])


@job(queue="mail")
async def send(to: int) -> None:
    await asyncio.sleep(600 if to == 0 else 0.05)


@job(queue="reports")
async def build(month: int) -> None: ...
"""
_FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
_SLOW = {"LD_PRELOAD": _FAKETIME, "FAKETIME": "-90s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
_DROP = """
do $$
begin
  execute format('drop table chancy.finished_jobs_%s',
    to_char((now() at time zone 'UTC')::date + 1, 'YYYYMMDD'));
end
$$"""
_BEAT = ("--heartbeat=0.5",)
_COLUMNS, _ROWS = 150, 40


def main() -> None:
    """Print both captures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer() as server,
        ExitStack() as cleanup,
    ):
        Path(folder, "shop").mkdir()
        Path(folder, "shop", "jobs.py").write_text(_JOBS)
        os.environ |= {"CHANCY_DSN": server.dsn(), "CHANCY_APP": "shop.jobs:chancy"}
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        _run("migrate", "upgrade")
        session = cleanup.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        for environment in (None, _SLOW):
            _worker(cleanup, *_BEAT, "--heartbeat-timeout=60", environment=environment)
        _until(lambda: _any(session, "select from chancy.workers where abs(ahead_s) > 60"))
        _until(lambda: _any(session, "select from chancy.leadership_leases"))
        # The others do not count it as dead for a minute, and leave it to be seen.
        dying = _worker(cleanup, *_BEAT, "--heartbeat-timeout=2")
        serving = "select from chancy.workers where 'mail' = any (queues) offset 2"
        _until(lambda: _any(session, serving))
        session.execute(_DROP)
        _run("push", "shop.jobs.send", "--args", '{"to": 0}')
        for month in range(3):
            _run("push", "shop.jobs.build", "--args", f'{{"month": {month}}}')
        report = cleanup.enter_context(psycopg.connect(server.dsn(), application_name="report"))
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("select count(*) from chancy.finished_jobs")
        dying.kill()
        silent = "select from chancy.workers where beat_at < clock_timestamp() - interval '3 s'"
        _until(lambda: _any(session, silent))
        for command in ("top", "doctor --transaction 2"):
            sys.stdout.write(f"$ chancy {command}\n{_captured(command)}\n\n")


def _run(*words: str) -> None:
    subprocess.run([_program(), *words], check=True, stdout=subprocess.DEVNULL)


def _program() -> str:
    return str(Path(sys.executable).with_name("chancy"))


def _worker(
    cleanup: ExitStack, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    command = [_program(), "worker", "--queues=mail", "--processes=0", "--log-level=error"]
    worker = subprocess.Popen([*command, *options], env=os.environ | dict(environment or {}))
    cleanup.callback(worker.wait)
    cleanup.callback(worker.kill)
    return worker


def _any(session: psycopg.Connection[tuple[object, ...]], statement: str) -> bool:
    return session.execute(statement.encode()).fetchone() is not None


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the state was not there after a minute")
        time.sleep(0.1)


def _captured(command: str) -> str:
    """What a terminal shows of a command once its output is there; the host has another name."""
    tmux = [shutil.which("tmux") or "tmux", "-L", f"chancy-{os.getpid()}", "-f", os.devnull]
    start = [*tmux, "new-session", "-d", "-x", str(_COLUMNS), "-y", str(_ROWS)]
    subprocess.run([*start, f"{_program()} {command}; sleep 60"], check=True)
    shown = ""

    def complete() -> bool:
        nonlocal shown
        done = subprocess.run(
            [*tmux, "capture-pane", "-p", "-J"], check=True, capture_output=True, text=True
        )
        shown = done.stdout
        return "warnings" in shown or "heartbeat" in shown

    try:
        _until(complete)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    lines = shown.replace(socket.gethostname(), "web-1").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip()


if __name__ == "__main__":
    main()
