"""Outcomes of steps: found among settlements, and written to the tables of workflows."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.attempt.settlement import Settlement
from chancy.errors import StatementFailed
from chancy.plugins.workflow.store import statement
from chancy.states import State

T = TypeVar("T")

#: The key of a job's meta that names its step.
KEY = "workflow"
#: How the meta of a step's job begins: as jsonb is printed, and as Redis prints it after a change.
_MARK, _DENSE = f'"{KEY}": {{', f'"{KEY}":{{'
#: Meta that holds nothing else, as jsonb is printed, up to the name of the step. This part is the
#: same for most steps of a workflow. Reading it takes 0.6 µs, against 2.9 µs as JSON.
_USUAL = re.compile(
    r'\{"workflow": \{"id": "([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})", "run": ([0-9]{1,9})'
)
_SUCCEEDED = int(State.SUCCEEDED)
_STEP, _USUAL_END = ', "step": "', '"}}'
#: The longest failure message that is stored with a step, in characters.
MAX_MESSAGE = 1_000
#: Attempts that are recorded here while their settlement is pending, at most.
MAX_RECORDED = 20_000
#: Reported outcomes that are remembered: two batches of the broker.
MAX_REPORTED = 2_000
#: Characters of results that the hook failed to report; the oldest are dropped first.
MAX_UNREPORTED = 64 * 1024**2


class StepRef(NamedTuple):
    """The step, and its run, that a job belongs to.

    :param again: the job is the replay of a dead letter.
    """

    workflow: UUID
    step: str
    run: int
    again: bool


class StepOutcome(NamedTuple):
    """The outcome of a step.

    :param state: a final one.
    :param result: JSON text.
    :param error: JSON text of the failure.
    :param took_s: seconds that its last attempt ran; None if unknown.
    """

    ref: StepRef
    job: UUID
    state: int
    result: str | None
    error: str | None
    took_s: float | None


def ref_of(meta: str | None) -> StepRef | None:
    """The step that a job with this meta belongs to; None if none, or if the meta is malformed."""
    if meta is None or (_MARK not in meta and _DENSE not in meta):
        return None
    head, _, tail = meta.partition(_STEP)
    if (usual := _usual(head)) is not None and tail.endswith(_USUAL_END):
        step = tail[: -len(_USUAL_END)]
        if step and '"' not in step and "\\" not in step:
            return StepRef(usual[0], step, usual[1], False)
    try:
        data = json.loads(meta)
        mark = data[KEY]
        replayed = isinstance(data.get("dead_letters"), dict)
        return StepRef(UUID(mark["id"]), str(mark["step"]), int(mark["run"]), replayed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@functools.lru_cache(maxsize=128)
def _usual(head: str) -> tuple[UUID, int] | None:
    """The workflow and the run, from the part of usual meta before the name of the step."""
    found = _USUAL.fullmatch(head)
    return None if found is None else (UUID(found[1]), int(found[2]))


class RecordedAttempt(NamedTuple):
    """An attempt that has ended, with the time by this process's clock, and its duration."""

    ref: StepRef
    at: float
    took_s: float


class StepOutcomes:
    """Attempts of steps that have ended in this process and are not settled yet.

    A settlement does not name the step of its job; the claim does. So a plain job costs a look at
    its meta, and no query. An attempt that stays here for a while was settled without being
    reported, or goes on: the plugin's service checks it.
    """

    def __init__(self) -> None:
        self._recorded: dict[UUID, RecordedAttempt] = {}
        # The outcomes reported last, in two generations: a batch is reported again if its reply
        # was lost. Generations, because finding the first key of a dict after many deletions is
        # slow.
        self._reported: dict[UUID, RecordedAttempt] = {}
        self._reported_before: dict[UUID, RecordedAttempt] = {}
        # Outcomes that the hook failed to report.
        self._unreported: dict[UUID, StepOutcome] = {}
        self._unreported_size = 0

    def __len__(self) -> int:
        return len(self._recorded)

    def record(self, claim: Claim, outcome: Outcome, at: float) -> None:
        """Record an attempt that has ended. Over the limit, the oldest is dropped: the sweep finds
        it."""
        ref = ref_of(claim.meta)
        if ref is not None:
            self._recorded[claim.id] = RecordedAttempt(ref, at, outcome.elapsed_s)
            if len(self._recorded) > MAX_RECORDED:
                self._recorded.pop(next(iter(self._recorded)), None)

    def __contains__(self, id: UUID) -> bool:
        """Whether a job is a step with a recent attempt in this process."""
        return id in self._recorded or id in self._reported or id in self._reported_before

    def outcomes_of(self, batch: Iterable[Settlement]) -> list[StepOutcome]:
        """The outcomes of steps among settlements, in `outcome_order`."""
        found: list[StepOutcome] = []
        for settlement in batch:
            id = settlement.id
            attempt = (
                self._recorded.get(id) or self._reported.get(id) or self._reported_before.get(id)
            )
            if attempt is not None:
                found.append(_outcome(attempt, settlement))
        found.sort(key=outcome_order)
        return found

    def mark_reported(self, outcomes: Iterable[StepOutcome]) -> None:
        """Mark outcomes as written, provided that their transaction commits."""
        if len(self._reported) >= MAX_REPORTED // 2:
            self._reported, self._reported_before = {}, self._reported
        for outcome in outcomes:
            job = outcome.job
            attempt = self._recorded.pop(job, None)
            if attempt is not None:
                self._reported[job] = attempt
            if self._unreported:
                self._drop_unreported(job)

    def mark_unreported(self, outcomes: Iterable[StepOutcome]) -> None:
        """Keep outcomes that could not be written; whether their jobs were settled is unknown.

        In a queue without history, the table of jobs has no trace of those that succeeded.
        """
        for outcome in outcomes:
            # One of them was reported before, if the commit failed then.
            attempt = (
                self._recorded.get(outcome.job)
                or self._reported.pop(outcome.job, None)
                or self._reported_before.pop(outcome.job, None)
            )
            if attempt is not None:
                self._recorded[outcome.job] = attempt
                self._drop_unreported(outcome.job)
                self._unreported[outcome.job] = outcome
                self._unreported_size += len(outcome.result or "")
        while self._unreported_size > MAX_UNREPORTED or len(self._unreported) > MAX_RECORDED:
            self._drop_unreported(next(iter(self._unreported)))

    def unreported(self, id: UUID) -> StepOutcome | None:
        """The outcome of a job that the hook failed to report."""
        return self._unreported.get(id)

    def _drop_unreported(self, id: UUID) -> None:
        outcome = self._unreported.pop(id, None)
        if outcome is not None:
            self._unreported_size -= len(outcome.result or "")

    def settled(self, batch: Iterable[Settlement]) -> list[StepOutcome]:
        """The outcomes of steps among settlements that were stored outside a transaction. Attempts
        of jobs that go on are dropped, until the next one ends."""
        found: list[StepOutcome] = []
        for settlement in batch:
            attempt = self._recorded.pop(settlement.id, None)
            if attempt is not None and settlement.state.final:
                found.append(_outcome(attempt, settlement))
        return found

    def discard(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._recorded.pop(id, None)
            self._drop_unreported(id)

    def older(self, than: float, most: int) -> dict[UUID, RecordedAttempt]:
        """Up to `most` attempts recorded before a time, the least recently returned first. They
        stay until they are reported or discarded."""
        found = dict(
            islice(
                ((id, attempt) for id, attempt in self._recorded.items() if attempt.at < than),
                most,
            )
        )
        for id in found:  # move to the end
            self._recorded[id] = self._recorded.pop(id)
        return found


def outcome_of(
    ref: StepRef, job: UUID, state: int, result: str | None, message: str | None, kind: str | None
) -> StepOutcome:
    """The outcome of a step, from its finished job."""
    error = None
    if state != State.SUCCEEDED:
        error = _failure(kind or "", message or "")
    return StepOutcome(ref, job, state, result, error, None)


def _failure(kind: str, message: str) -> str:
    return json.dumps({"type": kind, "message": message[:MAX_MESSAGE]})


def refusal_failure(error: StatementFailed) -> str:
    """The failure of a step that the server refuses to store or start, as JSON text."""
    kind = f"{StatementFailed.__module__}.{StatementFailed.__qualname__}"
    return _failure(kind, str(error))


def lost_outcome(ref: StepRef, job: UUID) -> StepOutcome:
    """The outcome of a step whose job is in no table and no broker."""
    why = f"its job {job} is gone, so its outcome is unknown"
    return outcome_of(ref, job, int(State.FAILED), None, why, "chancy.JobGone")


#: The order in which every process writes outcomes, so that locks are taken in one order.
outcome_order: Callable[[StepOutcome], Any] = attrgetter("ref.workflow.int", "ref.step")


def _outcome(attempt: RecordedAttempt, settlement: Settlement) -> StepOutcome:
    error = None
    if settlement.failure is not None and settlement.state is not State.SUCCEEDED:
        failure = settlement.failure
        kind = failure.types[0] if failure.types else ""
        error = _failure(kind, failure.message)
    return StepOutcome(
        attempt.ref,
        settlement.id,
        int(settlement.state),
        settlement.result,
        error,
        attempt.took_s,
    )


def advance_statement(
    schema: str, outcomes: Sequence[StepOutcome], *, alone: bool = False, most: int | None = None
) -> tuple[Any, ...]:
    """The statement, with its parameters, that stores outcomes and starts the steps they enable.

    :param alone: lock the workflows, so that none of their steps ends meanwhile.
    :param most: start this many steps, and leave the others in pieces of the same size; None:
        start all.
    """
    states = [outcome.state for outcome in outcomes]
    refs = [outcome.ref for outcome in outcomes]
    alone = alone or states.count(_SUCCEEDED) < len(outcomes) or any(ref.again for ref in refs)
    results: list[str | None] = [outcome.result for outcome in outcomes]
    errors: list[str | None] = [outcome.error for outcome in outcomes]
    return (
        statement("advance", schema),
        _shared([ref.workflow for ref in refs]),
        [ref.step for ref in refs],
        _shared([ref.run for ref in refs]),
        [outcome.job for outcome in outcomes],
        _shared(states),
        results if any(result is not None for result in results) else None,
        errors if any(error is not None for error in errors) else None,
        [outcome.took_s for outcome in outcomes],
        alone,
        most,
    )


def _shared(values: list[T]) -> list[T]:
    """A single value if all are equal, which is usual: drivers take 0.4 µs for each."""
    return values[:1] if values and values.count(values[0]) == len(values) else values
