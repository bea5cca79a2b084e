"""Rules by an argument that functions of their queue do not have."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chancy import Chancy, FairShare, GlobalConcurrency, Queue, Sequential, Worker, job
from chancy.queue import rule_keys

TENANT = "tests.plugins.limits.test_rule_keys.for_tenant"


@job(queue="keyed")
async def for_tenant(tenant_id: str, order: dict[str, str] | None = None) -> None: ...


@job(queue="elsewhere")
async def for_all() -> None: ...


@job(queue="keyed")
async def for_anything(**named: Any) -> None: ...


RULES = (
    Sequential(by="tenat_id"),
    FairShare(by="tenant_id"),
    GlobalConcurrency(9),
    GlobalConcurrency(5, by="order.customer"),
    GlobalConcurrency(4, by="func"),
    GlobalConcurrency(3, by="key"),
)
QUEUE = Queue("keyed", executor="async", rules=RULES)
MISSPELLED = (
    f"rule_key_missing queue=keyed rule=Sequential by=tenat_id func={TENANT} nearest=tenant_id"
)


@pytest.fixture(autouse=True)
def _warned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(rule_keys, "_warned", set())
    caplog.set_level(logging.WARNING)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "chancy.rules"]


async def test_a_worker_warns_of_the_functions_that_name_its_queue(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    # The worker reads the queue from its row: its application does not declare it.
    async with Chancy(dsn) as chancy:
        await chancy.declare(QUEUE)
        async with Worker(chancy, queues=["keyed"]):
            assert lines(caplog) == [MISSPELLED]


async def test_a_push_of_a_known_function_warns_once(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Chancy(dsn, queues=[QUEUE]) as chancy:
        await chancy.push(for_all.job())
        await chancy.push(for_anything.job(tenat_id="a"))
        assert lines(caplog) == []
        for delay in (0, 5, 5):  # jobs with a delay are checked one by one
            await chancy.push(for_tenant.job("a").with_delay(delay))
        assert lines(caplog) == [MISSPELLED]
