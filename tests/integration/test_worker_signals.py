"""SIGTERM to programs of somebody's own with a worker in them, wherever they have come to."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest

from chancy import Chancy, Job, State, Worker
from chancy.errors import BrokerUnavailable
from tests.support.command import Started, command, started
from tests.support.waiting import eventually_sync

_JOBS = """\
import asyncio, multiprocessing, os, select, signal, time
from chancy import Chancy, Queue, Worker, job

queues = [Queue(name="loop", executor="async"), Queue(name="thread", executor="thread")]
only = [queue.name for queue in queues]


def say(what):
    print(what, flush=True)


@job
async def linger() -> None:
    say("lingering")
    await asyncio.sleep(600)


@job
async def end_all() -> None:
    say("ending all")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(600)


def wait_for_its_end(says: int) -> None:
    os.write(says, b"!")
    time.sleep(600)


@job
def end_a_copy() -> None:
    # What a copy is told before it runs Python is lost: Python forgets it as its parent's.
    hears, says = os.pipe()
    copy = multiprocessing.get_context("fork").Process(target=wait_for_its_end, args=(says,))
    copy.start()
    if not select.select([hears], [], [], 20)[0]:
        say(f"the copy has not begun, and ended with {copy.exitcode}")
    copy.terminate()
    copy.join(20)
    say(f"the copy ended with {copy.exitcode}")
    copy.kill()
"""

_MAIN = """\
from program import *


async def main():
    async with Chancy(queues=queues) as chancy:
        async with Worker(chancy, queues=only, shutdown_timeout_s=0.1) as worker:
            {block}
        say("left the worker")
    say("left all")


asyncio.run(main())
"""

Run = Callable[[str], AbstractContextManager[Started]]


@pytest.fixture
def run(tmp_path: Path, dsn: str) -> Run:
    """Runs a program with this in the block of its worker."""

    def begin(block: str) -> AbstractContextManager[Started]:
        (tmp_path / "program.py").write_text(_JOBS)
        (tmp_path / "main.py").write_text(_MAIN.format(block=block))
        return started([sys.executable, "main.py"], cwd=tmp_path, env={"CHANCY_DSN": dsn})

    return begin


def push(dsn: str, function: str, queue: str = "loop") -> None:
    with Chancy(dsn) as chancy:
        chancy.sync_push(Job(func=f"program.{function}", queue=queue), validate=False)


def check_given_back(dsn: str) -> None:
    """The only job waits as if nobody had ever claimed it, and no worker is registered."""
    with psycopg.connect(dsn) as connection:
        jobs = connection.execute("select state, attempt, crashes from chancy.jobs").fetchall()
        workers = connection.execute("select count(*) from chancy.workers").fetchall()
    assert jobs == [(State.PENDING, 0, 0)]
    assert workers == [(0,)]


def test_a_program_that_does_something_else_ends_by_it_once_jobs_are_released(
    run: Run, dsn: str
) -> None:
    with run("await asyncio.sleep(600)") as program:
        push(dsn, "linger")
        eventually_sync(lambda: "lingering" in program.log)
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(20) == -signal.SIGTERM, program.log
        assert "left" not in program.log
    check_given_back(dsn)


def test_a_program_that_continues_to_wait_for_it_leaves_gracefully(run: Run, dsn: str) -> None:
    push(dsn, "end_all")
    with run("await worker.ending.wait(); await worker.wait_for_shutdown()") as program:
        assert program.process.wait(30) == 0, program.log
        assert "left the worker\nleft all" in program.log
    check_given_back(dsn)


def test_a_copy_that_a_job_makes_of_the_process_ends_alone(run: Run, dsn: str) -> None:
    with run("await worker.wait_for_shutdown()") as program:
        push(dsn, "end_a_copy", "thread")
        eventually_sync(lambda: "the copy " in program.log)
        assert f"the copy ended with {-signal.SIGTERM}" in program.log, program.log
        push(dsn, "linger")
        eventually_sync(lambda: "lingering" in program.log)
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(20) == 0, program.log


@pytest.fixture
def handlers() -> Generator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("asked", [False, True])
async def test_handlers_of_a_program_are_there_again_after_the_worker(
    dsn: str, asked: bool
) -> None:
    def own(*_: object) -> None:
        """What the program itself does about it."""

    signal.signal(signal.SIGTERM, own)
    interrupted = signal.getsignal(signal.SIGINT)
    async with Chancy(dsn) as chancy, Worker(chancy, queues=["none"]) as worker:
        assert signal.getsignal(signal.SIGTERM) is own, "nobody has asked the worker to catch it"
        if asked:
            worker.catch_signals()
            assert signal.getsignal(signal.SIGTERM) is not own
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGINT) is interrupted


@pytest.mark.usefixtures("handlers")
async def test_handlers_of_a_program_are_there_again_after_a_failed_start(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise BrokerUnavailable("not now")

    before = signal.getsignal(signal.SIGTERM)
    async with Chancy(dsn) as chancy:
        monkeypatch.setattr(chancy, "check_tables", refuse)
        worker = Worker(chancy, queues=["none"])
        worker.catch_signals()
        with pytest.raises(BrokerUnavailable, match="not now"):
            await worker.start()
    assert signal.getsignal(signal.SIGTERM) is before


_IMPORTING = "print('importing', flush=True); time.sleep(99)"


@pytest.mark.parametrize(
    "module",
    [
        f"import time; {_IMPORTING}",
        # As in a callback of importlib's locks, Python ignores what a handler raises.
        f"import time\nclass End:\n    def __del__(self):\n        {_IMPORTING}\nEnd()",
    ],
    ids=["module", "callback"],
)
def test_a_command_that_still_imports_the_application_ends(
    tmp_path: Path, dsn: str, module: str
) -> None:
    """Also as the first process of a container, for which the kernel has no default action."""
    (tmp_path / "shop.py").write_text(module)
    options = ("--app=shop", "--processes=0")
    with started(command("worker", *options), cwd=tmp_path, env={"CHANCY_DSN": dsn}) as worker:
        eventually_sync(lambda: "importing" in worker.log)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 128 + signal.SIGTERM, worker.log
        assert "Traceback" not in worker.log
