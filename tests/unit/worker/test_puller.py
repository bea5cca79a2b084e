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
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.worker.puller import Puller
from chancy.worker.runner import Runner
from chancy.worker.settler import MOST_WAITING, Settler
from tests.support.claims import claimed
from tests.support.waiting import eventually
from tests.unit.worker.test_runner import UNKNOWN, OneByOne
from tests.unit.worker.test_settler import ended

WORKER = uuid.uuid4()


class Claims:
    """Records the calls of the puller. Finds as many jobs as it is told to, and raises the errors
    that it is given. At most `most` jobs at a time, each with so many characters of arguments."""

    def __init__(self) -> None:
        self.thorough: list[bool] = []
        self.most, self.characters = 1_000, 0
        self.errors: list[BrokerUnavailable] = []
        self.jobs = 0
        #: Cleared by each claim.
        self.cuts_off = asyncio.Event()

    async def claim(
        self, queue: str, *, limit: int, thorough: bool = False, **_: object
    ) -> Sequence[Claim]:
        self.thorough.append(thorough)
        if self.errors:
            raise self.errors.pop()
        self.cuts_off.clear()
        found = min(limit, self.jobs, self.most)
        self.jobs -= found
        return [claimed()._replace(arguments="x" * self.characters) for _ in range(found)]


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
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def calls() -> list[str]:
    """One entry each time the puller calls other workers."""
    return []


@pytest.fixture
def executor() -> OneByOne:
    return OneByOne()


@pytest.fixture
def in_contact() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.fixture
async def puller(
    claims: Claims,
    settler: Settler,
    clock: ManualClock,
    calls: list[str],
    executor: OneByOne,
    in_contact: asyncio.Event,
    surveyed: bool,
) -> AsyncIterator[Puller]:
    """Has room for one job at a time, and claims by a clock that only a test moves."""
    puller = Puller(
        Queue(name="q", executor="async"),
        Runner(executor, judge, settler.add, clock, UNKNOWN),
        settler,
        clock,
        claims=claims,
        knows=never,
        give=lambda _: None,
        worker_id=lambda: WORKER,
        in_contact=in_contact,
        listening=None if surveyed else lambda: True,
        call=lambda: calls.append("q"),
    )
    serving = asyncio.create_task(puller.serve())
    yield puller
    serving.cancel()
    await asyncio.wait([serving])


@pytest.fixture
def surveyed() -> bool:
    return True


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


async def test_a_worker_that_is_cut_off_claims_nothing(
    puller: Puller, claims: Claims, in_contact: asyncio.Event
) -> None:
    await eventually(lambda: claims.thorough == [True])
    in_contact.clear()
    puller.wake()
    await _turns()
    assert claims.thorough == [True]
    in_contact.set()
    await eventually(lambda: len(claims.thorough) == 2)


async def test_what_a_worker_claims_as_it_is_cut_off_does_not_start(
    puller: Puller,
    claims: Claims,
    in_contact: asyncio.Event,
    executor: OneByOne,
    settler: Settler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await eventually(lambda: claims.thorough == [True])
    monkeypatch.setattr(puller, "_give", puller._runner.give)
    claims.cuts_off = in_contact
    claims.jobs = 1
    puller.wake()
    await eventually(lambda: claims.jobs == 0)
    await _turns()
    assert executor.ran == []
    assert [job.state for job in settler._waiting] == [State.PENDING]
    await puller._runner.close()


async def test_a_paused_queue_is_not_claimed_from(puller: Puller, claims: Claims) -> None:
    await eventually(lambda: claims.thorough == [True])
    puller.pause(True)
    puller.wake()
    await _turns()
    assert claims.thorough == [True]
    puller.pause(False)
    await eventually(lambda: claims.thorough == [True, True])


async def test_queue_that_surveys_cover_is_never_polled(
    puller: Puller, claims: Claims, clock: ManualClock
) -> None:
    await eventually(lambda: puller.resting)
    clock.advance(3_600)
    await _turns()
    assert claims.thorough == [True]
    assert puller.resting


@pytest.mark.parametrize(("poll_interval_s", "rested_s"), [(1.0, 0.0), (60.0, 61.0)])
async def test_survey_wakes_a_queue_that_has_rested_for_its_poll_interval(
    puller: Puller, claims: Claims, clock: ManualClock, poll_interval_s: float, rested_s: float
) -> None:
    puller.queue = Queue(name="q", executor="async", poll_interval_s=poll_interval_s)
    await eventually(lambda: puller.resting)
    if rested_s:
        clock.advance(rested_s - 2)
        puller.claim_found(False)
        await _turns()
        assert claims.thorough == [True]
        clock.advance(2)
    puller.claim_found(False)
    await eventually(lambda: claims.thorough == [True, True])


async def test_poll_interval_does_not_delay_jobs_whose_notifications_were_lost(
    puller: Puller, claims: Claims
) -> None:
    puller.queue = Queue(name="q", executor="async", poll_interval_s=60)
    await eventually(lambda: puller.resting)
    puller.claim_found(True)
    await eventually(lambda: claims.thorough == [True, True])


@pytest.mark.parametrize("surveyed", [False])
async def test_queue_without_surveys_is_polled(
    puller: Puller, claims: Claims, clock: ManualClock
) -> None:
    await eventually(lambda: clock.sleepers)
    clock.advance(6)
    await eventually(lambda: len(claims.thorough) == 2)


@pytest.mark.parametrize("surveyed", [True, False])
async def test_worker_that_is_chosen_claims_a_few_times_in_the_second_after(
    puller: Puller, claims: Claims, clock: ManualClock
) -> None:
    await eventually(lambda: claims.thorough == [True])
    puller.notify(1, 0.0)
    await eventually(lambda: len(claims.thorough) == 2)
    again = 2 if puller._listening is None else 3
    for _ in range(again):
        await eventually(lambda: clock.sleepers)
        clock.advance(1.0)
        await _turns()
    assert len(claims.thorough) == 2 + again
    await _turns()
    assert len(claims.thorough) == 2 + again


async def test_spare_worker_claims_once_and_only_if_no_claim_comes_before(
    puller: Puller, claims: Claims
) -> None:
    await eventually(lambda: claims.thorough == [True])
    puller.notify(1, 0.001)
    await eventually(lambda: len(claims.thorough) == 2)
    await _turns()
    assert len(claims.thorough) == 2
    puller.notify(1, 0.01)
    puller.wake()
    await eventually(lambda: len(claims.thorough) == 3)
    assert puller._spare is None


@pytest.mark.parametrize("surveyed", [True, False])
async def test_spare_worker_that_finds_a_job_claims_like_one_that_was_chosen(
    puller: Puller, claims: Claims, clock: ManualClock
) -> None:
    await eventually(lambda: claims.thorough == [True])
    claims.jobs = 1
    puller.notify(1, 0.001)
    await eventually(lambda: len(claims.thorough) >= 3)
    again = 2 if puller._listening is None else 3
    for _ in range(again):
        await eventually(lambda: clock.sleepers)
        clock.advance(1.0)
        await _turns()
    assert len(claims.thorough) == 3 + again


@pytest.mark.parametrize(
    ("announced", "jobs", "called"), [(1, 1, False), (1, 2, True), (2, 1, False), (0, 1, True)]
)
async def test_others_are_called_for_more_jobs_than_were_announced(
    puller: Puller, claims: Claims, calls: list[str], announced: int, jobs: int, called: bool
) -> None:
    await eventually(lambda: claims.thorough == [True])
    claims.jobs = jobs
    if announced:
        puller.notify(announced, 0.0)
    else:
        puller.wake(thorough=True)  # a survey has found jobs
    await eventually(lambda: claims.jobs == 0)
    await _turns()
    assert bool(calls) is called


async def test_claim_that_may_have_ended_because_of_its_size_is_followed_by_another(
    puller: Puller, claims: Claims, executor: OneByOne
) -> None:
    await eventually(lambda: claims.thorough == [True])
    executor.slots = 8
    claims.jobs, claims.most, claims.characters = 6, 2, 150_000
    puller.wake()
    await _turns()
    assert claims.jobs == 0


async def test_others_are_called_by_a_chosen_worker_without_room(
    puller: Puller, claims: Claims, calls: list[str], settler: Settler
) -> None:
    await eventually(lambda: claims.thorough == [True])
    for _ in range(MOST_WAITING + 1):
        settler.add(ended())
    puller.wake()
    await eventually(lambda: puller.occupied)
    assert calls == []
    puller.notify(1, 0.01)
    assert calls == []
    puller.notify(1, 0.0)
    assert calls == ["q"]


async def _turns() -> None:
    """Let everything run that is ready: a claim that is to come has come."""
    for _ in range(20):
        await asyncio.sleep(0)
