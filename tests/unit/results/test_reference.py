"""Handles to jobs, with a source that tells a story."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from chancy.errors import InvalidResult, JobCancelled, JobError, JobFailed, WaitTimeout
from chancy.results.reference import (
    Reference,
    References,
    as_completed,
    gather,
    result_of,
    sync_as_completed,
    sync_gather,
)
from chancy.serialization.signature import Signature
from chancy.states import State
from tests.support.presence import present
from tests.unit.results.shelf import AT, OOPS, Shelf, queued


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_a_handle_asks_its_source(shelf: Shelf) -> None:
    reference = shelf.reference()
    assert await reference.get() is None
    assert await reference.status() is None
    assert reference.sync_get() is None
    shelf.end(reference, State.SUCCEEDED, 7)
    found = present(await reference.get())
    assert found is reference.sync_get() is await reference.wait() is reference.sync_wait()
    assert await reference.status() is State.SUCCEEDED
    assert await reference.result() == reference.sync_result() == 7


async def test_the_result_of_a_failed_job_is_its_failure(shelf: Shelf) -> None:
    reference = shelf.reference()
    shelf.end(reference, State.FAILED, None, {"types": ["a.B"], "message": "x"}, OOPS)
    with pytest.raises(JobFailed) as caught:
        await reference.result()
    failure = caught.value
    assert str(failure) == f"job {reference.id} (shop.work) failed: shop.Oops: no"
    assert (failure.type_name, failure.message, failure.trace) == ("shop.Oops", "no", "line 1")
    assert failure.is_a("builtins.ValueError")
    assert not failure.is_a("a.B")
    assert failure.id == reference.id
    again = pickle.loads(pickle.dumps(failure))
    assert (str(again), again.types) == (str(failure), failure.types)


async def test_the_result_of_a_cancelled_job_is_an_error(shelf: Shelf) -> None:
    reference = shelf.reference()
    shelf.end(reference, State.CANCELLED, None, {"message": "asked to"})
    with pytest.raises(JobCancelled, match="was cancelled: asked to"):
        await reference.result()


@pytest.mark.parametrize("errors", [(), ({"types": 3},), ({"message": None},)])
def test_whatever_stands_in_the_errors_is_taken(errors: tuple[Mapping[str, Any], ...]) -> None:
    with pytest.raises(JobFailed) as caught:
        result_of(queued(uuid.uuid4(), State.FAILED, None, *errors))
    assert caught.value.type_name == "unknown"


def test_a_job_that_is_not_finished_has_no_result() -> None:
    with pytest.raises(JobError, match="is running: it has no result yet"):
        result_of(queued(uuid.uuid4(), State.RUNNING))


async def test_gather_keeps_the_order(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    gathering = asyncio.create_task(gather(references))
    for index in (2, 0, 1):
        await shelf.waited_for(references[index])
        shelf.end(references[index], State.SUCCEEDED, index)
    assert await gathering == [0, 1, 2]
    assert await gather([]) == []


async def test_gather_raises_the_first_failure_at_once(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    gathering = asyncio.create_task(gather(references))
    await shelf.waited_for(references[1])
    shelf.end(references[1], State.FAILED, None, OOPS)
    with pytest.raises(JobFailed, match=r"shop\.Oops"):
        await gathering
    assert shelf.waits[references[0].id].cancelled()


async def test_as_completed_gives_them_as_they_finish(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    completed = as_completed(references)
    for index in (2, 0, 1):
        following = asyncio.ensure_future(anext(completed))
        await shelf.waited_for(references[index])
        shelf.end(references[index], State.SUCCEEDED)
        assert await following == references[index]
    with pytest.raises(StopAsyncIteration):
        await anext(completed)


async def test_closing_an_iterator_early_leaves_no_waiter(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    shelf.end(references[0], State.FAILED, None, OOPS)
    completed = as_completed(references)
    assert await anext(completed) == references[0]
    await completed.aclose()  # type: ignore[attr-defined]
    assert all(waiting.cancelled() for waiting in shelf.waits.values())


async def test_as_completed_ends_with_the_timeout(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(2)]
    with pytest.raises(WaitTimeout):
        async for _ in as_completed(references, timeout_s=0):
            pass


def test_references_are_equal_by_id(shelf: Shelf) -> None:
    one = shelf.reference()
    same: Reference[Any] = Reference(one.id, Shelf())
    other = shelf.reference()
    assert one == same
    assert one != other
    assert one != one.id
    assert {one, same, other} == {one, other}
    assert repr(one) == f"Reference({one.id})"


def test_many_references_are_a_sequence(shelf: Shelf) -> None:
    ids = [uuid.uuid4() for _ in range(10)]
    references = References[Any](shelf)
    assert len(references) == 0
    references.extend(ids[:4])
    references.extend([])
    references.extend(ids[4:])
    assert [reference.id for reference in references] == ids
    assert references[-1].id == ids[-1]
    assert [reference.id for reference in references[2:5]] == ids[2:5]
    assert [reference.id for reference in references[::-3]] == ids[::-3]
    assert references[3] in references
    for index in (10, -11):
        with pytest.raises(IndexError):
            references[index]


async def test_what_is_no_reference_is_refused(shelf: Shelf) -> None:
    given: Any = [shelf.reference(), uuid.uuid4()]
    with pytest.raises(TypeError, match="of the type UUID is not a Reference"):
        await gather(given)
    with pytest.raises(TypeError, match="of the type UUID is not a Reference"):
        await anext(as_completed(given))
    with pytest.raises(TypeError, match="of the type UUID is not a Reference"):
        sync_gather(given)
    with pytest.raises(TypeError, match="of the type UUID is not a Reference"):
        next(sync_as_completed(given))


async def test_many_references_ask_like_one(shelf: Shelf) -> None:
    references = References[Any](shelf)
    references.extend([uuid.uuid4()])
    shelf.end(references[0], State.SUCCEEDED, "x")
    assert await references[0].result() == "x"


def due() -> datetime:
    return AT


async def test_a_result_is_what_the_annotation_of_the_function_says(shelf: Shelf) -> None:
    references = [shelf.reference() for _ in range(3)]
    for reference in references:
        shelf.end(reference, State.SUCCEEDED, "2030-01-01T00:00:00Z")
    assert await references[0].result() == "2030-01-01T00:00:00Z", "it is not known"
    shelf.signatures["shop.work"] = Signature.of(due, "shop.work")
    assert await references[0].result() == references[0].sync_result() == AT
    assert await gather(references) == [AT] * 3
    assert [await one.result() async for one in as_completed(references)] == [AT] * 3
    found = await references[0].wait()
    assert found.result == "2030-01-01T00:00:00Z", "a job is as the database has it"


async def test_a_result_that_does_not_fit_the_function_raises_a_clear_error(shelf: Shelf) -> None:
    reference = shelf.reference()
    shelf.end(reference, State.SUCCEEDED, "soon")
    shelf.signatures["shop.work"] = Signature.of(due, "shop.work")
    with pytest.raises(
        InvalidResult, match=r"shop\.work: the result: Input should be a valid date"
    ):
        await reference.result()


async def test_no_result_is_none_whatever_the_annotation_says(shelf: Shelf) -> None:
    """A job may complete itself without one."""
    reference = shelf.reference()
    shelf.end(reference, State.SUCCEEDED, None)
    shelf.signatures["shop.work"] = Signature.of(due, "shop.work")
    assert await reference.result() is None
