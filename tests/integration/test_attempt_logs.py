"""Log records of the attempts of a worker: one for each, whatever runs it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from chancy import AsyncOptions, Chancy, Queue, State, Worker
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from chancy.testing.sandbox import Sandbox
from tests.contract.executor.calls import claim_of
from tests.integration import failing_jobs
from tests.support import jobs

QUEUES = [
    Queue(name="async", executor="async"),
    Queue(name="process", executor="process", concurrency=1),
]


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=QUEUES, plugins=[Retries(Constant(0.01))], pool_size=3) as made:
        yield made


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "chancy.attempts")


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object, int]]:
    records = [record for record in caplog.records if record.name == "chancy.attempts"]
    return [(vars(one)["event"], vars(one)["job_id"], vars(one)["attempt"]) for one in records]


@pytest.mark.parametrize("queue", ["async", "process"])
async def test_each_attempt_is_logged_once(
    chancy: Chancy, caplog: pytest.LogCaptureFixture, tmp_path: Path, queue: str
) -> None:
    once = jobs.fail_times.job(path=str(tmp_path / "count"), times=1).with_queue(queue)
    never = failing_jobs.fail.job().with_queue(queue).with_max_attempts(2)
    async with Worker(chancy, queues=[queue]):
        first = await (await chancy.push(once.with_max_attempts(3))).wait(60)
        second = await (await chancy.push(never)).wait(60)
    assert (first.state, second.state) == (State.SUCCEEDED, State.FAILED)
    assert events(caplog) == [
        ("job_started", str(first.id), 1),
        ("job_retrying", str(first.id), 1),
        ("job_started", str(first.id), 2),
        ("job_succeeded", str(first.id), 2),
        ("job_started", str(second.id), 1),
        ("job_retrying", str(second.id), 1),
        ("job_started", str(second.id), 2),
        ("job_failed", str(second.id), 2),
    ]
    [retrying, *_] = [one for one in caplog.records if one.msg.startswith("job_retrying")]
    assert vars(retrying)["error"] == "builtins.ValueError: failure 1"
    [failed] = [one for one in caplog.records if one.msg.startswith("job_failed")]
    assert failed.exc_text
    assert "in raise_it" in failed.exc_text
    if queue == "process":
        assert vars(failed)["trace"] == failed.exc_text
    else:
        assert failed.exc_info
        assert isinstance(failed.exc_info[1], failing_jobs.OutOfStock)


async def test_attempts_of_a_sandbox_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = Chancy("postgresql://nowhere.invalid/none", plugins=[Retries(Constant(60))])
    with Sandbox(app) as sandbox:
        await app.push(failing_jobs.fail.job().with_max_attempts(2))
        await sandbox.drain(ahead=timedelta(hours=1), raises=False)
    assert [event for event, *_ in events(caplog)] == ["job_retrying", "job_failed"]


@pytest.mark.parametrize("wait", [False, True])
async def test_memory_of_a_failed_job_is_freed_without_the_garbage_collector(wait: bool) -> None:
    setup = ExecutorSetup(concurrency=1, find=lambda _: failing_jobs.hold, options=AsyncOptions())
    executor = make_executor("async", setup)
    await executor.start()
    gc.disable()
    try:
        outcome = await executor.run(claim_of("hold", wait=wait))
        assert failing_jobs.held is not None
        assert failing_jobs.held() is not None, "the exception has its frames for the log record"
        del outcome
        await asyncio.sleep(0)  # the loop refers to the future that has just woken this task
        assert failing_jobs.held() is None
    finally:
        gc.enable()
        await executor.stop()
