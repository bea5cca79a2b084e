"""Checkpoints of a job, by themselves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from chancy.attempt.claim import Claim
from chancy.context.checkpoints import MAX_CHECKPOINTS, MAX_NAME
from chancy.context.context import AttemptInfo, JobContext
from chancy.context.host import DetachedHost
from chancy.errors import Interrupted, InvalidCheckpoint, JobError, PayloadTooLarge
from tests.support.claims import claimed
from tests.unit.context.hosts import Ear, Stored


def job_with(checkpoints: object = None, ear: Ear | None = None) -> tuple[JobContext, Ear]:
    claim: Claim = claimed(attempt=2, meta=json.dumps({"checkpoints": checkpoints, "mine": 1}))
    ear = ear or Ear()
    return JobContext(claim, ear), ear


def kept(ear: Ear) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ear.kept[-1])
    assert list(found) == ["checkpoints"]
    checkpoints: dict[str, Any] = found["checkpoints"]
    return checkpoints


def add(x: int, *, y: int) -> int:
    return x + y


def never(*args: object) -> Any:
    raise AssertionError("it was run")


def test_a_stored_checkpoint_is_returned_without_running() -> None:
    job, ear = job_with({"one": {"value": [1, None], "attempt": 1}, "none": {"value": None}})
    assert job.sync_checkpoint("one", never) == [1, None]
    assert job.sync_checkpoint("none", never) is None
    assert ear.kept == []
    assert job.sync_checkpoint("two", lambda: 2) == 2
    assert kept(ear) == {
        "one": {"value": [1, None], "attempt": 1},
        "none": {"value": None},
        "two": {"value": 2, "attempt": 2},
    }


@pytest.mark.parametrize("stored", [None, [], "x", 7, {"one": 1}, {"one": {}}, {"one": None}])
def test_a_value_that_is_no_checkpoint_is_computed(stored: object) -> None:
    job, ear = job_with(stored)
    assert job.sync_checkpoint("one", lambda: "run") == "run"
    assert kept(ear) == {"one": {"value": "run", "attempt": 2}}


async def test_a_value_is_given_as_it_comes_back() -> None:
    job, ear = job_with()
    # Typed as the function has it; JSON has no tuples.
    assert await job.checkpoint("pair", lambda: (1, 2)) == [1, 2]  # type: ignore[comparison-overlap]
    assert await job.checkpoint('ü " \\', add, 1, y=2) == 3
    assert list(kept(ear)) == ["pair", 'ü " \\']


class Size(StrEnum):
    SMALL = "s"


@dataclass
class Receipt:
    amount: Decimal
    at: datetime


RECEIPT = Receipt(Decimal("9.90"), datetime(2031, 5, 1, tzinfo=UTC))


def receipt() -> Receipt:
    return RECEIPT


async def amount() -> Decimal:
    return RECEIPT.amount


def amount_later() -> Awaitable[Decimal]:
    return amount()


def amount_task() -> asyncio.Task[Decimal]:
    return asyncio.create_task(amount())


def amount_future() -> asyncio.Future[Decimal]:
    return amount_task()


def untyped_task() -> asyncio.Task:  # type: ignore[type-arg]
    async def numbers() -> list[int]:
        return [1]

    return asyncio.create_task(numbers())


def pair() -> tuple[int, int]:
    return 1, 2


def size() -> Size:
    return Size.SMALL


def names() -> set[str]:
    return {"tea"}


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (receipt, RECEIPT),
        (amount, RECEIPT.amount),
        (amount_later, RECEIPT.amount),
        (amount_task, RECEIPT.amount),
        (amount_future, RECEIPT.amount),
        (untyped_task, [1]),
        (pair, (1, 2)),
        (size, Size.SMALL),
        (names, {"tea"}),
    ],
)
async def test_a_value_has_the_annotated_type_also_when_it_is_read_back(
    function: Callable[[], Any], value: object
) -> None:
    job, ear = job_with()
    first = await job.checkpoint("one", function)
    again, _ = job_with(kept(ear))
    for found in (first, await again.checkpoint("one", function)):
        assert (type(found), found) == (type(value), value)


def misannotated() -> int:
    return "x"  # type: ignore[return-value]


def test_a_value_fits_the_annotation() -> None:
    job, ear = job_with({"old": {"value": "x"}})
    with pytest.raises(
        InvalidCheckpoint, match=r"value of checkpoint 'one' of shop\.work: .* valid integer"
    ):
        job.sync_checkpoint("one", misannotated)
    with pytest.raises(InvalidCheckpoint, match=r"the stored value of checkpoint 'old'"):
        job.sync_checkpoint("old", misannotated)
    assert ear.kept == []


@dataclass
class Charge:
    card: str

    def __call__(self) -> int:
        return misannotated()


def charge(card: str) -> int:
    return misannotated()


@pytest.mark.parametrize(
    ("function", "named"), [(partial(charge, card="4111"), "charge"), (Charge("4111"), "Charge")]
)
def test_errors_name_a_function_without_its_arguments(
    function: Callable[[], int], named: str
) -> None:
    job, _ = job_with()
    with pytest.raises(InvalidCheckpoint, match=rf"test_checkpoints\.{named}: ") as raised:
        job.sync_checkpoint("one", function)
    assert "4111" not in str(raised.value)
    assert job.sync_checkpoint("two", str.upper, "tea") == "TEA"


def unstorable() -> Iterator[threading.Lock]:
    raise AssertionError("it was run")


def numbers() -> Iterable[int]:
    raise AssertionError("it was run")


def optional_numbers() -> Iterable[int] | None:
    raise AssertionError("it was run")


def generated() -> Generator[int]:
    raise AssertionError("it was run")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unstorable, ""),
        *((one, r".*: annotate list\[…]") for one in (numbers, optional_numbers, generated)),
    ],
)
def test_a_function_whose_values_cannot_be_stored_is_not_run(
    function: Callable[[], Any], said: str
) -> None:
    job, _ = job_with()
    for _ in range(2):
        with pytest.raises(InvalidCheckpoint, match=rf"its annotation .* cannot be stored{said}"):
            job.sync_checkpoint("one", function)


async def test_a_name_distinguishes_checkpoints() -> None:
    job, ear = job_with({"old": {"value": 1}})
    await job.checkpoint("one", int)
    assert await job.checkpoint("old", never) == 1
    for name in ("one", "old"):
        with pytest.raises(
            InvalidCheckpoint, match="this attempt already has a checkpoint of this name"
        ):
            await job.checkpoint(name, never)
    assert list(kept(ear)) == ["old", "one"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "string of 1 to 200 characters") for name in ("", "x" * (MAX_NAME + 1), None, 7)),
        *((name, r"checkpoint '\\.* of shop\.work .* without NUL") for name in ("\x00", "\ud800")),
    ],
)
def test_a_name_is_short_text_that_can_be_stored(name: Any, said: str) -> None:
    job, ear = job_with()
    with pytest.raises(InvalidCheckpoint, match=said):
        job.sync_checkpoint(name, never)
    assert ear.kept == []


async def test_a_checkpoint_takes_a_function() -> None:
    job, _ = job_with()

    async def fetch() -> int:
        return 1

    with pytest.raises(InvalidCheckpoint, match="is not a function"):
        await job.checkpoint("one", fetch())  # type: ignore[call-overload]
    assert await job.checkpoint("one", fetch) == 1


def test_a_plain_function_has_no_asynchronous_checkpoints() -> None:
    job, _ = job_with()

    async def fetch() -> int:
        return 1

    with pytest.raises(InvalidCheckpoint, match="it is asynchronous"):
        _ = job.sync_checkpoint("one", fetch)


async def test_the_loop_is_not_held_up() -> None:
    job, _ = job_with()
    with pytest.raises(JobError, match="use await checkpoint"):
        job.sync_checkpoint("one", never)


class SlowEar(Ear):
    """Takes its time over what is said first."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.go = threading.Event()

    def keep(self, attempt: AttemptInfo, meta: str) -> Stored:
        if not self.asked.is_set():
            self.asked.set()
            self.go.wait(10)
        return super().keep(attempt, meta)


def test_the_last_stored_checkpoints_include_the_earlier_ones() -> None:
    ear = SlowEar()
    job, _ = job_with(ear=ear)
    first = threading.Thread(target=job.sync_checkpoint, args=("one", int))
    first.start()
    assert ear.asked.wait(10)
    second = threading.Thread(target=job.sync_checkpoint, args=("two", int))
    second.start()
    # As long as it takes to come first, if it could.
    second.join(0.1)
    ear.go.set()
    first.join()
    second.join()
    assert [list(json.loads(meta)["checkpoints"]) for meta in ear.kept] == [["one"], ["one", "two"]]


def test_failed_jobs_can_be_run_again() -> None:
    job, ear = job_with()
    with pytest.raises(ZeroDivisionError):
        job.sync_checkpoint("one", lambda: 1 // 0)
    with pytest.raises(InvalidCheckpoint, match=r"the value of checkpoint 'one' of shop\.work"):
        job.sync_checkpoint("one", object)
    assert job.sync_checkpoint("one", lambda: 1) == 1
    assert len(ear.kept) == 1


def test_there_are_so_many_checkpoints_and_not_more() -> None:
    job, _ = job_with(ear=Ear(1_000_000))
    for number in range(MAX_CHECKPOINTS):
        job.sync_checkpoint(f"{number}", int)
    with pytest.raises(InvalidCheckpoint, match="1,000 checkpoints already"):
        job.sync_checkpoint("one more", never)


def test_checkpoints_take_so_much_together_and_not_more() -> None:
    job, ear = job_with()
    job.sync_checkpoint("one", lambda: "x" * 900)
    with pytest.raises(PayloadTooLarge, match=r"the checkpoints of shop\.work take 1,"):
        job.sync_checkpoint("two", lambda: "ü" * 40)
    with pytest.raises(
        PayloadTooLarge, match=r"value of checkpoint 'two' of shop\.work: .* must be at most 1,"
    ):
        job.sync_checkpoint("two", lambda: "x" * 2_000)
    assert job.sync_checkpoint("two", lambda: "x") == "x"
    assert list(kept(ear)) == ["one", "two"]


def test_a_job_that_is_to_end_begins_no_checkpoint() -> None:
    job, _ = job_with()
    job.ask_to_stop("enough")
    with pytest.raises(Interrupted, match="enough"):
        job.sync_checkpoint("one", never)


def test_there_are_no_checkpoints_before_the_function_runs() -> None:
    with pytest.raises(JobError, match="call checkpoints in the job"):
        JobContext(claimed(), DetachedHost()).sync_checkpoint("one", int)
