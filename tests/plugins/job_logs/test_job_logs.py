"""The lines that jobs log, stored and read."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from chancy import BrokerUnavailable, Chancy, Queue, Worker
from chancy.plugins.job_logs import JobLogs, LogLine, commands
from chancy.plugins.job_logs.lines import (
    _MAX_EARLY,
    _MAX_HELD,
    MAX_JOB,
    SQL,
    HeldLine,
    LineBuffer,
    prune_step,
    read,
    store,
)
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from tests.plugins.job_logs.logging_jobs import in_loop, in_process, in_thread
from tests.support.command import inside
from tests.support.postgres_fixtures import template_with
from tests.support.sql import ask
from tests.support.waiting import eventually

APP = "tests.plugins.job_logs.logging_jobs:application"


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, JobLogs())


def held(job_id: UUID, text: str, attempt: int = 1) -> HeldLine:
    return HeldLine(job_id, 0.0, attempt, logging.INFO, text, len(text) + 32)


async def test_lines_of_every_executor_are_stored_and_followed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_LOOK_S", 0.1)
    monkeypatch.setattr(commands, "_LATE_S", 1.0)
    followed: list[LogLine] = []
    plugin = JobLogs(every_s=0.05)
    queues = [
        Queue("looped", executor="async"),
        Queue("threaded", executor="thread"),
        Queue("forked", executor="process", concurrency=1),
    ]
    async with Chancy(dsn, queues=queues, plugins=[plugin, Retries(Constant(0.01))]) as chancy:
        async with Worker(chancy):
            jobs = [in_loop.job(fails=True), in_thread.job(), in_process.job()]
            references = await chancy.push_many(jobs)
            following = asyncio.create_task(
                commands._show(chancy, references[0].id, True, followed.append)
            )
            for reference in references:
                await reference.wait(30)
            assert await following == (True, False)
        found = [
            [
                (line.attempt, line.level_name, line.text)
                for line in await plugin.read(chancy, one.id)
            ]
            for one in references
        ]
    assert found == [
        [(1, "INFO", "begun, 1"), (2, "INFO", "begun, 2")],
        [(1, "INFO", "a\\x00b\nc")],
        [(1, "ERROR", "from a child"), (1, "INFO", "and more")],
    ]
    assert [line.text for line in followed] == ["begun, 1", "begun, 2"]

    async def run(*words: object, code: int = 0) -> str:
        words = ("job", "logs", *words)
        return (await asyncio.to_thread(inside, *words, code=code, app=APP, dsn=dsn)).out

    printed = (await run(references[0].id, "--json")).splitlines()
    assert [json.loads(line)["text"] for line in printed] == ["begun, 1", "begun, 2"]
    assert " 1 ERROR from a child" in await run(references[2].id)
    assert await run(uuid4(), code=1) == ""
    assert "job logs [OPTIONS] ID" in await run("--help")
    unknown = await asyncio.to_thread(inside, "job", "logs", uuid4(), code=2, dsn=dsn)
    assert "The plugin chancy.job_logs provides it" in unknown.err


async def test_a_job_has_a_megabyte_over_all_of_its_attempts(dsn: str) -> None:
    id, other = uuid4(), uuid4()
    text = "x" * 9_968
    async with Chancy(dsn, plugins=[JobLogs()]) as chancy:
        table = SQL.on(chancy.broker)
        for attempt in (1, 2):
            lines = [held(id, text, attempt)] * 60
            await store(table, [*lines, held(other, f"attempt {attempt}")])
        found = await read(table, id, 0, 1_000)
        assert [line.text for line in await read(table, other, 0, 10)] == ["attempt 1", "attempt 2"]
    assert len(found) == MAX_JOB // 10_000
    assert [line.number for line in found if line.last] == [found[-1].number]


def test_a_buffer_is_bounded_by_job_and_in_all() -> None:
    buffer, worker_id = LineBuffer(), uuid4()

    def log(job_id: UUID, worker_id: UUID = worker_id) -> None:
        record = logging.LogRecord("chancy.job", logging.INFO, "", 0, "x" * 9_968, (), None)
        record.job_id, record.worker_id = str(job_id), worker_id
        buffer.emit(record)

    # Lines of other workers, and of this one before its service has started.
    for _ in range(100):
        log(uuid4(), uuid4())
    log(early := uuid4())
    assert buffer.take() == []
    assert buffer._early_bytes <= _MAX_EARLY
    buffer.serve(
        cast("Any", SimpleNamespace(worker_id=worker_id, encode_line=lambda _, line: line))
    )
    assert [line.job_id for line in buffer.take()] == [early]

    flooding = uuid4()
    for _ in range(300):
        log(flooding)
    assert len(buffer.take()) == MAX_JOB // 10_000
    assert buffer.take_dropped() == 0
    for _ in range(_MAX_HELD // 10_000 + 5):
        log(uuid4())
    buffer.emit(logging.LogRecord("chancy.job", logging.INFO, "", 0, "of no job", (), None))
    lines = buffer.take()
    assert (len(lines), buffer.take_dropped()) == (_MAX_HELD // 10_000, 5)
    buffer.give_back(lines)
    assert buffer.take() == lines


def test_the_level_of_the_logger_is_lowered_while_lines_are_stored() -> None:
    lines = logging.getLogger("chancy.job")
    gc.collect()
    # To walk what earlier tests left takes a second each time.
    gc.freeze()
    before = lines.level
    first, second = JobLogs(level=15), JobLogs(level=5)
    assert lines.level == 5
    del second
    gc.collect()
    assert lines.level == 15
    del first
    gc.collect()
    assert lines.level == before


async def test_applications_in_one_process_store_the_lines_of_their_own_jobs(dsn: str) -> None:
    queues = [Queue("looped", executor="async"), Queue("threaded", executor="thread")]
    plugins = [JobLogs(every_s=0.05), JobLogs(every_s=0.05)]
    idle = JobLogs()
    async with (
        Chancy(dsn, queues=queues[:1], plugins=[plugins[0]]) as one,
        Chancy(dsn, queues=queues[1:], plugins=[plugins[1]]) as other,
        Worker(one),
        Worker(other),
    ):
        references = await one.push_many([in_loop.job(), in_thread.job()])
        for reference in references:
            await reference.wait(20)
            await eventually(partial(plugins[0].read, one, reference.id))
    # The workers have stored their last lines.
    texts = ask(dsn, "select line from chancy.job_logs order by line")
    assert texts == [("a\\x00b\nc",), ("begun, 1",)]
    assert idle._buffer.take() == []


async def test_lines_wait_while_the_database_is_unavailable(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = JobLogs(every_s=0.05)
    failures = 0

    async def unavailable(table: object, lines: Sequence[HeldLine]) -> None:
        nonlocal failures
        failures += 1
        raise BrokerUnavailable("it is away")

    queue = Queue("looped", executor="async")
    async with Chancy(dsn, queues=[queue], plugins=[plugin]) as chancy, Worker(chancy):
        with monkeypatch.context() as patch:
            patch.setattr("chancy.plugins.job_logs.store", unavailable)
            reference = await chancy.push(in_loop.job())
            await reference.wait(20)
            await eventually(lambda: failures > 1)
        await eventually(lambda: plugin.read(chancy, reference.id))
    postponed = [one for one in caplog.messages if one.startswith("job_logs_postponed")]
    assert postponed == ["job_logs_postponed lines=1 error=it is away"]


async def test_lines_are_removed_with_their_job(dsn: str) -> None:
    queue = Queue("looped", executor="async")
    async with Chancy(dsn, queues=[queue], plugins=[JobLogs()]) as chancy:
        table = SQL.on(chancy.broker)
        waiting = (await chancy.push(in_loop.job())).id
        gone = [uuid4() for _ in range(150)]
        await store(table, [held(id, "old") for id in (waiting, *gone)])
        recent = uuid4()
        await store(table, [held(recent, "old"), held(recent, "new")._replace(at=time.time())])
        steps, after = 1, await prune_step(table, None)
        while after is not None:
            steps, after = steps + 1, await prune_step(table, after)
    assert steps == 3
    left = ask(dsn, "select job_id from chancy.job_logs order by number")
    assert [UUID(str(id)) for (id,) in left] == [waiting, recent, recent]
