"""The jobs of a bulk push, sorted by the brokers of their queues."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pytest

from chancy.app.preparation import chunks
from chancy.broker.values import CHUNK, PreparedJob
from chancy.errors import PushError
from chancy.queue.queue import Queue
from chancy.routing.partitioning import PushPartitioning
from chancy.routing.router import RoutedBroker
from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker


def job(queue: str) -> PreparedJob:
    return PreparedJob(uuid.uuid4(), queue, 0, "a.b", "{}", None, None, 1, None)


def home(queue: str) -> str:
    return queue[0]


def sorting(jobs: Sequence[PreparedJob], refuse: str = "") -> PushPartitioning:
    def check(name: str, part: Sequence[PreparedJob]) -> None:
        assert {home(one.queue) for one in part} == {name}
        if name == refuse:
            raise PushError("refused")

    return PushPartitioning(chunks(jobs, CHUNK), home, check, lambda name, part: None)


def test_no_jobs() -> None:
    assert sorting([]).start() is None


def test_chunks_of_one_broker_pass_as_they_are() -> None:
    given = [[job("a") for _ in range(CHUNK)], [job("a1")]]
    sorted_ = PushPartitioning(given, home, lambda name, part: None, lambda name, part: None)
    assert sorted_.start() == "a"
    taken = list(sorted_.stream("a"))
    assert taken == given
    assert list(sorted_.rest()) == []


@pytest.mark.parametrize("period", [2, 3, 7])
def test_each_broker_gets_its_jobs_in_their_order(period: int) -> None:
    jobs = [job("abc"[n % period % 3]) for n in range(4_321)]
    sorted_ = sorting(jobs)
    first = sorted_.start()
    assert first == "a"
    parts = {first: list(sorted_.stream(first))}
    parts |= {name: list(part) for name, part in sorted_.rest()}
    for name, part in parts.items():
        assert all(len(chunk) == CHUNK for chunk in part[:-1])
        assert [one for chunk in part for one in chunk] == [
            one for one in jobs if one.queue == name
        ]
    assert sum(len(chunk) for part in parts.values() for chunk in part) == len(jobs)


def test_a_refusal_of_any_broker_comes_before_the_end_of_the_first() -> None:
    sorted_ = sorting([job("a"), job("b"), job("a")], refuse="b")
    sorted_.start()
    with pytest.raises(PushError, match="refused"):
        next(sorted_.stream("a"))


def test_waiting_data_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.routing.partitioning.MAX_DEFERRED", 10)

    def given() -> Iterator[list[PreparedJob]]:
        yield [job("a"), *(job("b") for _ in range(10))]
        yield [job("b")]

    sorted_ = PushPartitioning(given(), home, lambda name, part: None, lambda name, part: None)
    sorted_.start()
    with pytest.raises(PushError, match=r"11 jobs of this call.*'a'; at most 10 jobs"):
        list(sorted_.stream("a"))


@pytest.mark.parametrize("blocking", [False, True])
async def test_only_the_event_loop_changes_what_it_remembers_of_pushed_jobs(blocking: bool) -> None:
    queues = [Queue(name="away", broker="far")]
    others = {"far": MemoryBroker()}
    routed = RoutedBroker(MemoryBroker(), others, ManualClock(), queues, lambda queue, broker: None)
    pushed = job("away")
    partitions = await routed.partition([[pushed]], blocking=blocking)
    assert partitions.start() == "far"
    assert [*partitions.stream("far")] == [[pushed]]
    assert routed.brokers.broker_of_job(pushed.id) == (None if blocking else "far")
    await routed.close()
