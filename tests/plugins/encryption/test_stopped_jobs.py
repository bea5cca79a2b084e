"""What workers log of jobs whose payloads are encrypted, while they are stopped."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Chancy, Queue, State, Worker, job
from chancy.plugins.encryption import Encryption, new_key

_started = asyncio.Event()


@job(queue="stopped")
async def refund(card: str) -> None:
    _started.set()
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError(f"refund of {card} failed")


async def test_an_error_in_the_cleanup_is_logged_without_its_message(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [Queue(name="stopped", executor="async")]
    plugins = [Encryption({"one": new_key()})]
    async with Chancy(dsn, queues=queues, plugins=plugins) as chancy, Worker(chancy):
        reference = await chancy.push(refund.job(card="4111"))
        await _started.wait()
        await chancy.cancel(reference.id)
        assert (await reference.wait(20)).state is State.CANCELLED
    assert "raised while it was being stopped: ValueError" in caplog.text
    assert "refund of" not in caplog.text
