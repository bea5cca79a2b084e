"""Checkpoints of jobs, in every executor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Cancelled, Outcome, Raised, Returned
from chancy.errors import BrokerUnavailable, LeaseLost
from tests.contract.executor.calls import MAX_PAYLOAD, claim_of, end_of, started
from tests.support.clusters import ON_RAY_TOO
from tests.support.waiting import eventually

TWO = [
    "two_checkpoints",
    "two_checkpoints_async",
    "two_checkpoints_later",
    "two_checkpoints_awaitable",
]


@pytest.fixture
def name(anywhere: str) -> str:
    return anywhere


class Store:
    """Keeps what checkpoints give, as a worker does."""

    def __init__(self) -> None:
        self.kept: list[tuple[Claim, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0

    async def keep(self, claim: Claim, meta: str) -> None:
        self.asked += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        self.kept.append((claim, json.loads(meta)))

    @property
    def last(self) -> dict[str, Any]:
        checkpoints: dict[str, Any] = self.kept[-1][1]["checkpoints"]
        return checkpoints


def value_of(outcome: Outcome) -> Any:
    assert isinstance(outcome, Returned), outcome
    return json.loads(outcome.result or "null")


@ON_RAY_TOO
async def test_each_checkpoint_is_kept_before_the_next_and_not_run_again(
    name: str, tmp_path: Path
) -> None:
    store = Store()
    async with started(name, keep=store.keep) as it:
        for function in TWO:
            store.kept.clear()
            marks = tmp_path / function
            claim = claim_of(function, path=str(marks))
            assert value_of(await end_of(asyncio.create_task(it.run(claim)))) == [1, [1, "zwei"]]
            assert [(one.id, list(meta["checkpoints"])) for one, meta in store.kept] == [
                (claim.id, ["one"]),
                (claim.id, ["one", "two"]),
            ]
            assert store.last["two"] == {"value": [1, "zwei"], "attempt": 1}
            # After the first checkpoint, and after both of them.
            for _, meta in list(store.kept):
                later = claim._replace(attempt=2, meta=json.dumps(meta))
                assert value_of(await it.run(later)) == [1, [1, "zwei"]]
            assert marks.read_text().splitlines() == ["1", "[1, 'zwei']", "[1, 'zwei']"]
            assert store.last == {
                "one": {"value": 1, "attempt": 1},
                "two": {"value": [1, "zwei"], "attempt": 2},
            }


async def test_checkpoints_beside_each_other_are_all_kept(name: str, tmp_path: Path) -> None:
    store = Store()
    async with started(name, keep=store.keep) as it:
        for function in (
            "checkpoints_in_threads",
            "checkpoints_in_tasks",
            "checkpoints_in_tasks_later",
        ):
            store.kept.clear()
            claim = claim_of(function, path=str(tmp_path / function), number=20)
            values = value_of(await end_of(asyncio.create_task(it.run(claim))))
            assert values == list(range(20))
            sizes = [len(meta["checkpoints"]) for _, meta in store.kept]
            assert sizes == sorted(sizes)
            kept = {checkpoint["value"] for checkpoint in store.last.values()}
            assert kept == set(range(20))


async def test_a_checkpoint_that_could_not_be_stored_raises(name: str, tmp_path: Path) -> None:
    """One whose lease is lost ends the job, which may see to it."""
    store = Store()
    async with started(name, keep=store.keep) as it:
        for function in ("lose", "lose_async"):
            store.error = LeaseLost("another worker has it")
            outcome = await it.run(claim_of(function, path=str(tmp_path / "marks")))
            assert value_of(outcome) == "another worker has it"
        for function in ("two_checkpoints", "two_checkpoints_async"):
            store.error = BrokerUnavailable("the worker stops")
            outcome = await it.run(claim_of(function, path=str(tmp_path / "marks")))
            assert isinstance(outcome, Raised)
            assert outcome.failure.is_a("chancy.errors.BrokerError")
            assert outcome.failure.message == "the worker stops"


async def test_checkpoints_take_no_more_than_a_payload_may(name: str) -> None:
    store = Store()
    async with started(name, keep=store.keep) as it:
        for number, function in enumerate(("keep_much", "keep_much_async")):
            assert isinstance(await it.run(claim_of(function, size=MAX_PAYLOAD - 100)), Returned)
            for size in (MAX_PAYLOAD - 40, 2 * MAX_PAYLOAD):
                outcome = await it.run(claim_of(function, size=size))
                assert isinstance(outcome, Raised)
                assert outcome.failure.is_a("chancy.errors.PayloadTooLarge")
            assert len(store.kept) == number + 1


async def test_there_are_no_checkpoints_without_a_worker(name: str, tmp_path: Path) -> None:
    async with started(name) as it:
        outcome = await it.run(claim_of("two_checkpoints", path=str(tmp_path / "marks")))
    assert isinstance(outcome, Raised)
    assert "checkpoints need a worker" in outcome.failure.message


@ON_RAY_TOO
async def test_a_job_can_be_stopped_while_a_checkpoint_is_being_stored(
    name: str, tmp_path: Path
) -> None:
    store = Store()
    async with started(name, keep=store.keep) as it:
        for function in ("wait_for_checkpoint", "wait_for_checkpoint_async"):
            store.open.clear()
            store.asked = 0
            claim = claim_of(function, started=str(tmp_path / "begun"))
            running = asyncio.create_task(it.run(claim))
            await eventually(lambda: store.asked)
            stop = Cancelled("cancelled by a user")
            it.interrupt(claim, stop)
            assert await end_of(running) == stop
            store.open.set()
            # The late answer has no effect on the next job.
            later = claim_of("two_checkpoints", path=str(tmp_path / "marks"))
            assert value_of(await it.run(later)) == [1, [1, "zwei"]]
