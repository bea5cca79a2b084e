"""Which workers claim for a notification."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from chancy.broker.notices import Notice, NoticeKind
from chancy.broker.optional import Survey
from chancy.testing.clock import ManualClock
from chancy.worker.crowd import Crowd


def survey(place: int, crowd: int, full: dict[str, float] | None = None) -> Survey:
    return Survey((), (), place, crowd, full or {}, "1", None, 0.0)


def crowds(size: int, full: dict[str, float] | None = None) -> list[Crowd]:
    found = []
    for place in range(size):
        crowd = Crowd(ManualClock())
        crowd.learn(survey(place, size, full))
        found.append(crowd)
    return found


def wake(number: int | None, jobs: int = 1) -> Notice:
    return Notice(NoticeKind.WAKE, "q", number, jobs)


def delays(workers: list[Crowd], notice: Notice) -> list[float]:
    """The delays of the workers that claim, the first one first."""
    found = [worker.delay_s(notice) for worker in workers]
    return sorted(delay for delay in found if delay is not None)


@pytest.mark.parametrize(
    ("size", "jobs", "first", "spares"),
    [(1, 1, 1, 0), (2, 1, 1, 1), (4, 1, 1, 3), (5, 1, 1, 2), (20, 1, 1, 2), (21, 1, 1, 1),
     (1_000, 1, 1, 1), (1_000, 50, 50, 1), (1_000, 10_000, 1_000, 0)],
)  # fmt: skip
def test_as_many_claim_at_once_as_there_are_jobs_and_spare_ones_a_little_later(
    size: int, jobs: int, first: int, spares: int
) -> None:
    workers = crowds(size)
    for number in (0, 1, 7, 2**63, 10**19):
        found = delays(workers, wake(number, jobs))
        assert found == [0.0] * first + [pytest.approx(0.01 * n) for n in range(1, spares + 1)]


@pytest.mark.parametrize("stride", [1, 2, 100, 200])
def test_the_turns_spread_evenly_at_any_stride(stride: int) -> None:
    workers = crowds(200)
    turns = Counter(
        place
        for number in range(0, 400 * stride, stride)
        for place, worker in enumerate(workers)
        if worker.delay_s(wake(number)) == 0.0
    )
    assert len(turns) == 200
    assert max(turns.values()) <= 4


def test_all_workers_claim_for_a_notification_without_a_number() -> None:
    assert delays(crowds(50), wake(None)) == [0.0] * 50


def test_worker_that_does_not_know_its_place_claims() -> None:
    worker = Crowd(ManualClock())
    assert worker.delay_s(wake(5)) == 0.0
    worker.learn(survey(7, 50))
    numbers = [number for number in range(50) if worker.delay_s(wake(number)) is None]
    assert len(numbers) > 40
    worker.forget()
    assert all(worker.delay_s(wake(number)) == 0.0 for number in numbers)


@pytest.mark.parametrize("share", [0.25, 0.8, 0.98])
def test_more_are_chosen_where_some_have_no_room(share: float) -> None:
    """One with room is among the first for nearly every notification."""
    workers = crowds(200, {"q": share})
    roomy = set(random.Random(1).sample(range(200), round(200 * (1 - share))))
    met = sum(
        any(workers[place].delay_s(wake(number)) is not None for place in roomy)
        for number in range(500)
    )
    assert met > 375
    assert delays(workers, Notice(NoticeKind.WAKE, "other", 5)) == [0.0, 0.01]


def test_all_claim_where_none_has_room() -> None:
    assert len(delays(crowds(50, {"q": 1.0}), wake(3))) == 50


def test_workers_that_see_the_crowd_a_little_differently_leave_few_jobs_to_none() -> None:
    """Half of them have not noticed yet that one has left."""
    missed = 0
    for number in range(300):
        chosen = 0
        for place in range(100):
            worker = Crowd(ManualClock())
            worker.learn(survey(place, 100 if place % 2 else 99))
            chosen += worker.delay_s(wake(number)) is not None
        missed += not chosen
    assert missed < 300 / 20


def test_all_workers_are_called_once_a_second_by_one_of_them() -> None:
    clock = ManualClock()
    worker = Crowd(clock)
    calls: list[int] = []
    worker.on_call(lambda: calls.append(1))
    worker.call("q")  # alone, as far as it knows
    worker.learn(survey(0, 10))
    worker.call("q")
    worker.call("q")
    worker.call("r")
    assert (worker.take_calls(), worker.take_calls(), len(calls)) == (["q", "r"], [], 2)
    clock.advance(0.9)
    worker.delay_s(Notice(NoticeKind.WAKE, "q"))  # another one has called
    clock.advance(0.9)
    worker.call("q")
    assert worker.take_calls() == []
    worker.call("q", later=True)
    assert (worker.take_calls(), len(calls)) == (["q"], 2)
    clock.advance(0.2)
    worker.call("q")
    assert worker.take_calls() == ["q"]


def test_one_of_a_large_crowd_suppresses_the_notifications_that_follow() -> None:
    for size, seconds in ((100, 0.02), (5_000, 0.2)):
        crowd = crowds(size)
        for notice in (wake(1), wake(2, jobs=50)):
            [one] = [worker for worker in crowd if worker.suppress_s(notice)]
            assert one.suppress_s(notice) == seconds
            assert one.delay_s(notice) == 0.0, "it claims"
    assert not any(worker.suppress_s(wake(1)) for worker in crowds(20))
    assert not any(worker.suppress_s(wake(None)) for worker in crowds(100))
