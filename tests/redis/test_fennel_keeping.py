"""How long a program of fennel keeps what has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chancy.plugins.redis.compat.fennel.exceptions import JobNotFound, TaskFailed
from chancy.plugins.redis.link import linked
from chancy.plugins.redis.upkeep import Upkeep
from tests.redis.fennel_worker import Shop, opened
from tests.waiting import eventually_sync


@pytest.fixture
def shop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dsn: str, redis_url: str
) -> Iterator[Shop]:
    late = "tests.redis.fennel_shop.late"
    yield from opened(monkeypatch, tmp_path, dsn, redis_url, results_ttl="0.5", retry_backoff=late)


async def clear(shop: Shop) -> int:
    """The turn of the upkeep, which workers take twice a minute."""
    async with linked(shop.program.app.redis) as link:
        await link.open()
        await link.command("DEL", f"{link.tag}:upkeep")
        return await Upkeep(link).turn()


@pytest.mark.row("F18")
def test_only_what_succeeded_goes_with_its_age(shop: Shop) -> None:
    program = shop.program
    done, dead = program.echo.delay(value=1), program.fail.delay("baz")
    again = program.count.delay(str(shop.folder / "notes"))
    with shop.worker():
        assert done.get(20) == 1
        with pytest.raises(TaskFailed):
            dead.get()
        eventually_sync(lambda: again.status() == "RETRY")
    waiting = program.echo.delay(value=2)
    assert done.status() == "SUCCESS"
    began = time.monotonic()
    eventually_sync(lambda: time.monotonic() - began > 0.6)
    assert asyncio.run(clear(shop)) == 1
    with pytest.raises(JobNotFound):
        done.status()
    found = [one.status() for one in (dead, again, waiting)]
    assert found == ["DEAD", "RETRY", "SENT"]
