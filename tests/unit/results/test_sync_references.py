"""Waiting for many jobs without an event loop, with a source that tells a story."""

from __future__ import annotations

import asyncio

import pytest

from chancy.errors import JobFailed, WaitTimeout
from chancy.results.reference import sync_as_completed, sync_gather
from chancy.states import State
from tests.support.waiting import eventually
from tests.unit.results.shelf import OOPS, Shelf


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_sync_gather_keeps_the_order(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    gathering = asyncio.create_task(asyncio.to_thread(sync_gather, references))
    await eventually(lambda: len(shelf.begun) == 3)
    for index in (2, 0, 1):
        shelf.sync_end(index, references[index], State.SUCCEEDED, index)
    assert await gathering == [0, 1, 2]
    assert sync_gather([]) == []
    assert sync_gather([references[0]] * 2) == [0, 0]


async def test_sync_gather_raises_the_first_failure_at_once(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    gathering = asyncio.create_task(asyncio.to_thread(sync_gather, references))
    await eventually(lambda: len(shelf.begun) == 3)
    shelf.sync_end(1, references[1], State.FAILED, None)
    with pytest.raises(JobFailed, match=r"shop\.Oops"):
        await gathering
    assert [one.cancelled() for one in shelf.begun] == [True, False, True]


def test_sync_as_completed_gives_them_as_they_finish(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    shelf.end(references[1], State.CANCELLED, None, OOPS)
    completed = sync_as_completed(references)
    assert shelf.begun == [], "the waits begin with the first step"
    assert next(completed) == references[1]
    shelf.sync_end(2, references[2], State.SUCCEEDED, None)
    shelf.sync_end(0, references[0], State.FAILED, None)
    assert list(completed) == [references[2], references[0]]


@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_closing_a_sync_iterator_early_leaves_no_waiter(shelf: Shelf, way: str) -> None:
    references = [shelf.reference() for _ in range(3)]
    shelf.end(references[0], State.SUCCEEDED)
    completed = sync_as_completed(references)
    assert next(completed) == references[0]
    if way == "closed":
        completed.close()
    else:
        del completed
    assert [one.cancelled() for one in shelf.begun] == [False, True, True]


def test_sync_waits_end_with_the_timeout(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(2)]
    with pytest.raises(WaitTimeout):
        sync_gather(references, timeout_s=0)
    with pytest.raises(WaitTimeout):
        next(sync_as_completed(references, timeout_s=0))
