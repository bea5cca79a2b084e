"""Claims of a plugin that fail: in whatever way, the worker claims again later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from chancy.containment import Containment
from chancy.errors import BrokerError, BrokerUnavailable
from chancy.plugin import contained_claims
from chancy.plugin.contained_claims import ContainedClaims
from tests.support.claims import claimed


class Claims:
    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    @property
    def waits(self) -> bool:
        self._act()
        return True

    async def claim(self, queue: str, **given: Any) -> Any:
        found = self._act()
        return await found if asyncio.iscoroutine(found) else found


def contained(act: Callable[[], object]) -> ContainedClaims:
    claims: Any = Claims(act)
    return ContainedClaims(claims, Containment("shop.claims", "claiming"))


async def claim(claims: ContainedClaims) -> Any:
    return await claims.claim("q", worker_id=uuid4(), limit=2)


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


async def test_claims_of_a_plugin_are_passed_on() -> None:
    found = [claimed()]
    claims = contained(lambda: found)
    assert await claim(claims) is found
    assert claims.waits


@pytest.mark.parametrize(
    "act",
    [
        raising(ValueError("oops")),
        raising(SystemExit(3)),
        raising(asyncio.CancelledError()),
        lambda: None,
        lambda: [1, 2],
        lambda: (claimed() for _ in range(2)),
        lambda: asyncio.Event().wait(),
    ],
    ids=["exception", "exit", "cancelled", "none", "numbers", "generator", "endless"],
)
async def test_a_failure_is_logged_and_postpones_the_claim(
    act: Callable[[], object], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contained_claims, "CLAIM_S", 0.05)
    with pytest.raises(BrokerError, match=r"the plugin 'shop\.claims' did not claim"):
        await claim(contained(act))
    assert "hook_failed plugin=shop.claims hook=claiming" in caplog.text


async def test_an_outage_is_not_a_failure_of_the_plugin(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BrokerUnavailable, match="cut"):
        await claim(contained(raising(BrokerUnavailable("cut"))))
    assert caplog.text == ""


def test_claims_that_cannot_say_whether_they_wait_do_not_wait() -> None:
    assert not contained(raising(SystemExit(3))).waits
