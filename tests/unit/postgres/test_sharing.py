"""Statements of several lanes that share one session."""

from __future__ import annotations

import asyncio

from chancy.postgres.connections.lane import Sharing
from tests.support.presence import present


async def test_no_statement_waits_for_a_long_one_that_is_about_to_begin() -> None:
    sharing = Sharing()
    first = present(await sharing.begin())
    long = asyncio.create_task(sharing.begin())
    await asyncio.sleep(0)
    first.release()
    # The task has been woken, and has not run yet.
    assert not long.done()
    async with asyncio.timeout(10):
        assert await sharing.begin() is None
    present(await long).release()
    assert await sharing.begin() is not None
