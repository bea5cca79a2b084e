"""Coroutines that run without an event loop."""

from __future__ import annotations

import asyncio

import pytest

from chancy.postgres.within import run_blocking


def test_a_coroutine_of_blocking_calls_runs_without_an_event_loop() -> None:
    async def inner() -> int:
        return 20

    async def work() -> int:
        return await inner() + 1

    assert run_blocking(work()) == 21


def test_a_coroutine_that_waits_for_an_event_loop_is_refused() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaited an event loop"):
        run_blocking(work())
