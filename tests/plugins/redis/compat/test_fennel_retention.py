"""How long a program of fennel keeps what has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chancy.plugins.redis.compat.fennel.client import AsyncResult
from chancy.plugins.redis.compat.fennel.exceptions import JobNotFound, TaskFailed
from chancy.plugins.redis.transport.shard import linked
from tests.plugins.redis.compat.fennel_worker import Shop, opened
from tests.support.waiting import eventually_sync


@pytest.fixture
def shop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dsn: str, redis_url: str
) -> Iterator[Shop]:
    late = "tests.plugins.redis.compat.fennel_shop.late"
    yield from opened(monkeypatch, tmp_path, dsn, redis_url, results_ttl="2", retry_backoff=late)


async def lapse(shop: Shop) -> None:
    """As if the last worker that had the turn to clear had begun with it a while ago."""
    async with linked(shop.program.app.redis) as link:
        assert await link.command("DEL", f"{link.tag}:upkeep") == 1


@pytest.mark.row("F18")
@pytest.mark.chaos
def test_only_what_succeeded_goes_with_its_age(shop: Shop) -> None:
    program = shop.program
    with shop.worker() as worker:
        # Just before its first turn, in which there is nothing to forget.
        eventually_sync(lambda: "redis_may_lose_jobs" in worker.log)
        done, dead = program.echo.delay(value=1), program.fail.delay("baz")
        again = program.count.delay(str(shop.folder / "notes"))
        assert done.get(20) == 1
        with pytest.raises(TaskFailed):
            dead.get()
        eventually_sync(lambda: again.status() == "RETRY")
    waiting = program.fail.delay("late")
    began = time.monotonic()
    eventually_sync(lambda: time.monotonic() - began > 2.2)
    assert _is_gone(done), "though nobody has cleared it away"
    assert waiting.status() == "SENT"
    asyncio.run(lapse(shop))
    with shop.worker() as worker:
        eventually_sync(lambda: "redis_trimmed jobs=1" in worker.log)
        with pytest.raises(TaskFailed, match="late"):
            waiting.get(20)
    found = [one.status() for one in (dead, again, waiting)]
    assert found == ["DEAD", "RETRY", "DEAD"]


def _is_gone(result: AsyncResult) -> bool:
    try:
        result.status()
    except JobNotFound:
        return True
    return False
