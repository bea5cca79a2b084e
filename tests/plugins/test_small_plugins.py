"""The plugins of examples/plugins do what their page says."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Generator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from chancy import Chancy, Queue, State, Worker, job
from chancy.plugins.retry import Retries
from chancy.testing.plugin import PluginContract
from tests.support.sources import ROOT
from tests.support.waiting import eventually

RUNNING: Counter[str] = Counter()
MOST: Counter[str] = Counter()


@job(queue="small")
async def fetch(host: str, beside: int = 1) -> None:
    """Runs until so many have run at a time."""
    RUNNING[host] += 1
    MOST[host] = max(MOST[host], RUNNING[host])
    await eventually(lambda: MOST[host] >= beside)
    await asyncio.sleep(0.02)
    RUNNING[host] -= 1


@job(queue="small")
async def broken() -> None:
    raise ValueError("no such page")


@pytest.fixture
def shop_plugins(monkeypatch: pytest.MonkeyPatch) -> Generator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "plugins"))
    yield import_module("shop_plugins")
    sys.modules.pop("shop_plugins")


def application(dsn: str, *plugins: Any) -> Chancy:
    queue = Queue("small", executor="async", concurrency=10)
    return Chancy(dsn, queues=[queue], plugins=[Retries(False), *plugins])


async def test_the_limit_by_key_holds_and_costs_no_attempt(
    dsn: str, shop_plugins: ModuleType
) -> None:
    RUNNING.clear()
    MOST.clear()
    limit = shop_plugins.KeyLimit(by="host", limit=2, delay_s=0.01)
    async with application(dsn, limit) as chancy, Worker(chancy):
        jobs = [fetch.job(host=host, beside=2) for host in ("a", "b") for _ in range(6)]
        done = [await ref.wait(30) for ref in await chancy.push_many(jobs)]
    assert MOST == {"a": 2, "b": 2}
    assert {(one.state, one.attempt) for one in done} == {(State.SUCCEEDED, 1)}


async def test_outcomes_are_counted_and_dead_letters_alerted_again_after_a_failure(
    dsn: str, shop_plugins: ModuleType
) -> None:
    counter, alerts = shop_plugins.OutcomeCounter(every_s=0.01), list[dict[str, int]]()

    async def tell(dead: dict[str, int]) -> None:
        alerts.append(dead)
        if len(alerts) == 1:
            raise ConnectionError("the chat is down")

    alert = shop_plugins.DeadLetterAlert(tell, every_s=0.01)
    async with application(dsn, counter, alert) as chancy, Worker(chancy):
        await chancy.push_many([fetch.job(host="a"), broken.job(), fetch.job(host="b")])
        await eventually(lambda: len(alerts) == 2, timeout=30.0)
    func = "tests.plugins.test_small_plugins."
    assert alerts == [{f"{func}broken": 1}] * 2
    assert counter.counts == {
        (f"{func}fetch", State.SUCCEEDED): 2, (f"{func}broken", State.FAILED): 1
    }  # fmt: skip


@pytest.mark.parametrize("name", ["KeyLimit", "OutcomeCounter", "DeadLetterAlert"])
class TestContract(PluginContract):
    @pytest.fixture
    def plugin(self, shop_plugins: ModuleType, name: str) -> Any:
        async def tell(dead: dict[str, int]) -> None:
            pass

        made = {"KeyLimit": ("host", 2), "OutcomeCounter": (), "DeadLetterAlert": (tell,)}
        return getattr(shop_plugins, name)(*made[name])
