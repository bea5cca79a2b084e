"""The context of a job, by itself."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from uuid import uuid4

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Returned
from chancy.context.context import MAX_TEXT, AttemptInfo, JobContext, Progress
from chancy.errors import Interrupted, NoCurrentJob
from chancy.executors.base import AttemptCallbacks
from chancy.executors.progress import Reporter
from tests.support.claims import claimed
from tests.support.waiting import eventually
from tests.unit.context.hosts import Ear


class Listener(Ear):
    def __init__(self, claim: Claim, heard: list[Progress]) -> None:
        super().__init__()
        self._claim = claim
        self._said = heard

    def say(self, attempt: AttemptInfo, progress: Progress) -> None:
        assert attempt is self._claim
        self._said.append(progress)


def context_of(claim: Claim, heard: list[Progress] | None = None) -> JobContext:
    return JobContext(claim, Listener(claim, [] if heard is None else heard))


def test_it_is_asked_to_end_once() -> None:
    job = context_of(claimed())
    job.check()
    assert (job.cancelled, job.why_cancelled, job.heeded) == (False, None, False)
    job.ask_to_stop("the first")
    job.ask_to_stop("the second")
    assert [job.heeded, job.cancelled, job.heeded] == [False, True, True]
    assert job.why_cancelled == "the first"
    with pytest.raises(Interrupted, match="the first"):
        job.check()


def test_looking_before_it_was_asked_is_not_heeding() -> None:
    job = context_of(claimed())
    assert not job.cancelled
    job.ask_to_stop("now")
    assert not job.heeded


@pytest.mark.parametrize(
    ("fraction", "kept"), [(-1, 0.0), (0, 0.0), (0.4, 0.4), (1, 1.0), (7, 1.0), (math.inf, 1.0)]
)
def test_progress_is_from_0_to_1(fraction: float, kept: float) -> None:
    heard: list[Progress] = []
    context_of(claimed(), heard).progress(fraction)
    assert heard == [Progress(kept, "")]


def test_the_text_of_progress_is_bounded_and_storable() -> None:
    heard: list[Progress] = []
    context_of(claimed(), heard).progress(0.5, "x\0" * MAX_TEXT)
    assert len(heard[0].text) <= MAX_TEXT
    assert "\0" not in heard[0].text
    with pytest.raises(ValueError, match="NaN"):
        context_of(claimed(), heard).progress(math.nan)


def test_progress_after_the_end_is_dropped() -> None:
    heard: list[Progress] = []
    job = context_of(claimed(), heard)
    job.outcome = Returned()
    job.progress(1.0)
    assert heard == []


def test_seconds_left_end_at_nothing() -> None:
    assert context_of(claimed()).seconds_left is None
    job = context_of(claimed())
    job.deadline = time.monotonic() - 1
    assert job.seconds_left == 0
    job.deadline = time.monotonic() + 60
    assert 30 < (job.seconds_left or 0) <= 60


def test_only_a_context_of_hooks_has_a_stack() -> None:
    with pytest.raises(NoCurrentJob, match="has no stack"):
        _ = context_of(claimed()).stack


def test_a_context_is_taken_over_for_its_own_claim_only() -> None:
    claim, ear = claimed(), Ear()
    job = context_of(claim)
    assert not job.bind(claimed(), ear)
    assert not job.bind(claim._replace(lease=uuid4()), ear)
    assert job.bind(claim, ear)
    job.progress(0.5)
    assert ear.heard == [(claim, Progress(0.5))]


async def test_no_word_is_lost_between_threads() -> None:
    """Each of eight jobs talks from a thread of its own while the loop listens."""
    last: dict[object, float] = {}

    def hear(claim: Claim, progress: Progress) -> None:
        last[claim.id] = progress.fraction

    reporter = Reporter(AttemptCallbacks(report=hear), 1_000)
    reporter.attach(asyncio.get_running_loop())
    claims = [claimed()._replace(id=uuid4()) for _ in range(8)]

    def talk(claim: Claim) -> None:
        for number in range(2_000):
            reporter.say(claim, Progress(number / 2_000))

    threads = [threading.Thread(target=talk, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    await eventually(lambda: not any(thread.is_alive() for thread in threads))
    for claim in claims[:4]:
        reporter.end(claim)
        assert last[claim.id] == 1_999 / 2_000
    # Nobody says that the others have ended: their last words come all the same, in time.
    await eventually(lambda: [last.get(claim.id) for claim in claims] == [1_999 / 2_000] * 8)
    await eventually(lambda: not reporter._pending)
