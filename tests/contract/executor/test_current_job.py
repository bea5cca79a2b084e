"""What jobs see and say of themselves, in every executor."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Returned
from chancy.context.context import Progress, current_job
from chancy.errors import NoCurrentJob
from chancy.executors.base import Executor
from tests.contract.executor.calls import Place, claim_of, end_of, started
from tests.support.waiting import eventually

DESCRIBE = [
    "describe",
    "describe_async",
    "describe_later",
    "describe_in_task",
    "describe_in_thread",
]


def told_of(claim: Claim) -> Claim:
    return claim._replace(
        queue="mail", attempt=2, max_attempts=5, crashes=1, meta='{"tenant": "shop"}'
    )


async def test_a_job_sees_its_own_attempt(one: Executor) -> None:
    for function in [*DESCRIBE, *DESCRIBE]:
        claim = told_of(claim_of(function))
        outcome = await one.run(claim)
        assert isinstance(outcome, Returned), outcome
        assert json.loads(outcome.result or "") == {
            "id": str(claim.id),
            "queue": "mail",
            "func": claim.func,
            "attempt": 2,
            "max_attempts": 5,
            "crashes": 1,
            "meta": {"tenant": "shop"},
            "seconds_left": None,
            "cancelled": False,
            "outcome": None,
        }
    with pytest.raises(NoCurrentJob):
        current_job()


async def test_jobs_beside_each_other_see_each_their_own(name: str) -> None:
    async with started(name, concurrency=4) as it:
        claims = [claim_of(function) for _ in range(20) for function in DESCRIBE]
        outcomes = await asyncio.gather(*map(it.run, claims))
    for claim, outcome in zip(claims, outcomes, strict=True):
        assert isinstance(outcome, Returned)
        assert json.loads(outcome.result or "")["id"] == str(claim.id)


async def test_meta_that_is_none_is_empty(one: Executor) -> None:
    for meta in (None, "[]", "{", "1"):
        outcome = await one.run(claim_of("describe")._replace(meta=meta))
        assert isinstance(outcome, Returned)
        assert json.loads(outcome.result or "")["meta"] == {}


async def test_a_line_of_a_job_is_logged_in_the_worker(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    claim = claim_of("log", text="half-way\x1b[31m")
    async with started(name) as it:
        await it.run(claim)
    await eventually(lambda: [entry for entry in caplog.records if entry.name == "chancy.job"])
    [entry] = [entry for entry in caplog.records if entry.name == "chancy.job"]
    assert entry.getMessage() == "half-way\\x1b[31m"
    said = vars(entry)
    assert (said["job_id"], said["func"], said["attempt"]) == (str(claim.id), claim.func, 1)


class Listener:
    """Takes what jobs report; where and of whom."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.heard: list[tuple[Claim, Progress]] = []

    def __call__(self, claim: Claim, progress: Progress) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.heard.append((claim, progress))


async def test_the_last_word_is_received_before_the_end_and_few_before_it(name: str) -> None:
    heard = Listener()
    async with started(name, report=heard) as it:
        for function in ("tell", "tell_async", "tell_later"):
            heard.heard.clear()
            claim = claim_of(function, times=5_000)
            outcome = await end_of(asyncio.create_task(it.run(claim)))
            count = len(heard.heard)
            assert isinstance(outcome, Returned), outcome
            assert heard.heard[-1] == (claim, Progress(1.0, "step 5000"))
            fractions = [progress.fraction for _, progress in heard.heard]
            assert fractions == sorted(fractions)
            # One each 50 ms, the first at once, the last at the end.
            assert count <= 3 + outcome.elapsed_s / 0.05
            # Longer than the pause between two words: no late one follows.
            await asyncio.sleep(0.06)
            assert len(heard.heard) == count


async def test_progress_is_stored_while_the_job_runs(name: str, place: Place) -> None:
    heard = Listener()
    async with started(name, report=heard) as it:
        for function in ("tell_and_wait", "tell_and_wait_async"):
            heard.heard.clear()
            place.until.unlink(missing_ok=True)
            claim = claim_of(function, until=str(place.until))
            running = asyncio.create_task(it.run(claim))
            await eventually(lambda: heard.heard)
            assert heard.heard == [(claim, Progress(0.5, "half"))]
            assert not running.done()
            place.until.touch()
            await end_of(running)
            assert len(heard.heard) == 1


async def test_a_listener_that_raises_harms_no_job(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(claim: Claim, progress: Progress) -> None:
        raise ValueError("deaf")

    async with started(name, report=broken) as it:
        for function in ("tell", "tell_async"):
            outcome = await it.run(claim_of(function, times=3))
            assert isinstance(outcome, Returned)
            assert outcome.result == '"told"'
    assert "report_failed" in caplog.text


@pytest.mark.parametrize("call", [lambda: current_job().progress(0.5), current_job])
def test_there_is_no_job_outside_of_one(call: Callable[[], object]) -> None:
    with pytest.raises(NoCurrentJob, match="outside a job"):
        call()
