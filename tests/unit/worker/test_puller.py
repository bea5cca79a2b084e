"""When a worker claims, and which claims start at the front of the queue."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.judge import judge
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import never
from chancy.errors import BrokerUnavailable
from chancy.queue.queue import Queue
from chancy.testing.clock import ManualClock
from chancy.worker.puller import Puller
from chancy.worker.runner import Runner
from chancy.worker.settler import MOST_WAITING, Settler
from tests.support.waiting import eventually
from tests.unit.worker.test_runner import UNKNOWN, OneByOne
from tests.unit.worker.test_settler import ended

WORKER = uuid.uuid4()


class Claims:
    """Records the calls of the puller, and finds no jobs. Raises the errors that it is given."""

    def __init__(self) -> None:
        self.thorough: list[bool] = []
        self.errors: list[BrokerUnavailable] = []

    async def __call__(self, queue: str, *, thorough: bool = False, **_: object) -> Sequence[Claim]:
        self.thorough.append(thorough)
        if self.errors:
            raise self.errors.pop()
        return []


async def settled(_: Sequence[Settlement]) -> frozenset[uuid.UUID]:
    return frozenset()


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def settler() -> Settler:
    """Writes nothing: it is not served."""
    return Settler(settled, ManualClock(), on_stale=lambda _: None)


@pytest.fixture
async def puller(claims: Claims, settler: Settler) -> AsyncIterator[Puller]:
    """Polls by a clock that stands still."""
    clock = ManualClock()
    puller = Puller(
        Queue(name="q", executor="async"),
        Runner(OneByOne(), judge, settler.add, clock, UNKNOWN),
        settler,
        clock,
        claim=claims,
        knows=never,
        give=lambda _: None,
        worker_id=lambda: WORKER,
        listening=lambda: True,
    )
    serving = asyncio.create_task(puller.serve())
    yield puller
    serving.cancel()
    await asyncio.wait([serving])


async def test_the_first_claim_and_those_for_released_jobs_start_at_the_front(
    puller: Puller, claims: Claims
) -> None:
    await eventually(lambda: claims.thorough == [True])
    puller.wake()
    await eventually(lambda: claims.thorough == [True, False])
    puller.wake(thorough=True)
    await eventually(lambda: claims.thorough == [True, False, True])
    puller.wake()
    await eventually(lambda: claims.thorough == [True, False, True, False])


async def test_a_claim_after_a_failed_one_starts_at_the_front(
    puller: Puller, claims: Claims
) -> None:
    """The failed one may have released or skipped jobs."""
    await eventually(lambda: claims.thorough == [True])
    claims.errors.append(BrokerUnavailable("gone"))
    puller.wake()
    await eventually(lambda: claims.thorough == [True, False])
    puller.wake()
    await eventually(lambda: claims.thorough == [True, False, True])


async def test_nothing_is_claimed_while_too_many_settlements_wait(
    puller: Puller, claims: Claims, settler: Settler
) -> None:
    await eventually(lambda: claims.thorough == [True])
    for _ in range(MOST_WAITING + 1):
        settler.add(ended())
    puller.wake()
    await _turns()
    assert claims.thorough == [True]
    settler.open.set()
    await eventually(lambda: len(claims.thorough) == 2)


async def test_a_paused_queue_is_not_claimed_from(puller: Puller, claims: Claims) -> None:
    await eventually(lambda: claims.thorough == [True])
    puller.pause(True)
    puller.wake()
    await _turns()
    assert claims.thorough == [True]
    puller.pause(False)
    await eventually(lambda: claims.thorough == [True, True])


async def _turns() -> None:
    """Let everything run that is ready: a claim that is to come has come."""
    for _ in range(20):
        await asyncio.sleep(0)
