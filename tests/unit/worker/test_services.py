"""Loops that go on, also after an end that nobody asked for."""

from __future__ import annotations

import asyncio

import pytest

from chancy.errors import StatementFailed
from chancy.testing.clock import ManualClock
from chancy.worker.services import ServiceLoops
from tests.support.waiting import eventually


async def test_a_loop_whose_inner_task_was_cancelled_is_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    services = ServiceLoops(clock)
    runs = 0
    inner = asyncio.create_task(asyncio.Event().wait())

    async def loop() -> None:
        nonlocal runs
        runs += 1
        await (inner if runs == 1 else asyncio.Event().wait())

    services.start("one", loop)
    await eventually(lambda: runs == 1)
    inner.cancel()
    await eventually(lambda: clock.sleepers)
    assert "worker_loop_failed name=one failures=1" in caplog.text
    assert "error=CancelledError" in caplog.text
    clock.advance(1.0)
    await eventually(lambda: runs == 2)
    await services.stop_all()
    assert runs == 2
    assert caplog.text.count("worker_loop_failed") == 1


@pytest.mark.parametrize(
    ("sqlstate", "level", "has_trace"), [("55P03", "WARNING", False), ("42501", "ERROR", True)]
)
async def test_a_statement_that_may_succeed_later_is_logged_as_a_warning_without_a_trace(
    caplog: pytest.LogCaptureFixture, sqlstate: str, level: str, has_trace: bool
) -> None:
    clock = ManualClock()
    services = ServiceLoops(clock)

    async def loop() -> None:
        raise StatementFailed("canceled", sqlstate=sqlstate)

    services.start("one", loop)
    await eventually(lambda: clock.sleepers)
    await services.stop_all()
    (record,) = caplog.records
    assert "error=StatementFailed: canceled" in record.message
    assert (record.levelname, bool(record.exc_info)) == (level, has_trace)


async def test_a_loop_that_is_stopped_while_it_fails_at_that_is_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    services = ServiceLoops(ManualClock())
    runs = 0
    inner = asyncio.create_task(asyncio.Event().wait())

    async def loop() -> None:
        nonlocal runs
        runs += 1
        try:
            await asyncio.Event().wait()
        finally:
            inner.cancel()
            await inner

    services.start("one", loop)
    await eventually(lambda: runs == 1)
    await services.stop("one")
    assert runs == 1
    assert "worker_loop_failed name" not in caplog.text


async def test_a_loop_that_is_started_while_all_are_stopped_is_stopped_too() -> None:
    services = ServiceLoops(ManualClock())
    started = asyncio.Event()

    async def endless() -> None:
        await asyncio.Event().wait()

    async def loop() -> None:
        started.set()
        try:
            await endless()
        finally:
            services.start("late", endless)

    services.start("one", loop)
    await started.wait()
    await services.stop_all()
    assert not services.runs("late")
