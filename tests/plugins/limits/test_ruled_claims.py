"""Claims of a worker by rules."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from chancy import FairShare, GlobalConcurrency, Queue, RateLimit, Sequential
from chancy.errors import BrokerUnavailable
from chancy.plugins.limits.ruled_claims import SqlRules, TimedClaims
from chancy.queue.rules import Rule
from chancy.worker.queue_worker import ruled_prefetch


class Unavailable:
    """A broker that is unavailable after each claim."""

    schema = "chancy"

    async def claim(self, queue: str, **_: object) -> list[str]:
        return ["a claimed job"]

    async def claim_by(self, statement: str, queue: str, **_: object) -> list[str]:
        return ["a claimed job"]

    async def fetch(self, sql: str, *params: object) -> Any:
        raise BrokerUnavailable("cut")

    async def next_s(self, queue: str) -> float | None:
        raise BrokerUnavailable("cut")


@pytest.mark.parametrize("in_postgres", [True, False])
async def test_claimed_jobs_are_kept_if_the_broker_is_lost_after_the_claim(
    in_postgres: bool,
) -> None:
    broker: Any = Unavailable()
    source = SqlRules(broker) if in_postgres else broker
    queue = Queue("rated", rules=(RateLimit(10),))
    claims = TimedClaims(source.claim, source, queue, lambda: None)
    found: list[Any] = [*await claims.claim("rated", worker_id=uuid4(), limit=2)]
    assert found == ["a claimed job"]


@pytest.mark.parametrize(
    ("limit", "rules", "prefetched"),
    [
        (None, [GlobalConcurrency(5), FairShare("tenant"), RateLimit(5, by="host")], None),
        (None, [GlobalConcurrency(2, by="host")], 100),
        (7, [Sequential("account")], 7),
    ],
)
def test_prefetched_jobs_occupy_few_keys(
    limit: int | None, rules: list[Rule], prefetched: int | None
) -> None:
    assert ruled_prefetch(limit, rules, slots=100) == prefetched
