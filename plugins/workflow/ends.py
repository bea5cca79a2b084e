"""The ends of steps: which settlements are of workflows, and how they are told to the tables."""

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

#: The key of a job's meta that says which step it is.
KEY = "workflow"
#: How the meta of a job of a step looks, as jsonb is written, and as Redis has it once it was
#: changed.
_MARK, _DENSE = f'"{KEY}": {{', f'"{KEY}":{{'
#: Meta with nothing else in it, as jsonb is written, up to the name of the step, and after it: what
#: comes before the name is the same for most of a workflow. Read in 0.6 µs, as JSON in 2.9.
_USUAL = re.compile(
    r'\{"workflow": \{"id": "([0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})", "run": ([0-9]{1,9})'
)
_SUCCEEDED = int(State.SUCCEEDED)
_STEP, _USUAL_END = ', "step": "', '"}}'
#: Characters of the message of a failure that stay with the step.
MAX_MESSAGE = 1_000
#: Steps of which this process has seen the attempt end, and not yet what was made of it; at most.
MAX_NOTED = 20_000
#: Of those that were told, two batches of the broker.
MAX_TOLD = 2_000
#: Characters of the results of those that the hook failed to tell; the oldest are given up first.
MAX_UNTOLD = 64 * 1024**2


class StepRef(NamedTuple):
    """Which step a job is.

    :param again: it is the replay of a dead letter.
    """

    workflow: UUID
    step: str
    run: int
    again: bool


class StepOutcome(NamedTuple):
    """How a step ended.

    :param state: a final one.
    :param result: JSON text.
    :param error: JSON text of the failure.
    :param took_s: seconds for which its last attempt ran; None: it is not known.
    """

    place: StepRef
    job: UUID
    state: int
    result: str | None
    error: str | None
    took_s: float | None


def place_of(meta: str | None) -> StepRef | None:
    """The step that a job with this meta is; None if it is none, or says nonsense."""
    if meta is None or (_MARK not in meta and _DENSE not in meta):
        return None
    head, _, tail = meta.partition(_STEP)
    if (usual := _usual(head)) is not None and tail.endswith(_USUAL_END):
        step = tail[: -len(_USUAL_END)]
        if step and '"' not in step and "\\" not in step:
            return StepRef(usual[0], step, usual[1], False)
    try:
        data = json.loads(meta)
        said = data[KEY]
        replayed = isinstance(data.get("dead_letters"), dict)
        return StepRef(UUID(said["id"]), str(said["step"]), int(said["run"]), replayed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@functools.lru_cache(maxsize=128)
def _usual(head: str) -> tuple[UUID, int] | None:
    """The workflow and the run of usual meta, of what comes before the name of the step."""
    found = _USUAL.fullmatch(head)
    return None if found is None else (UUID(found[1]), int(found[2]))


class RecordedAttempt(NamedTuple):
    """An attempt that has ended: when, by the clock of this process, and how long it took."""

    place: StepRef
    at: float
    took_s: float


class StepOutcomes:
    """The steps whose attempts have ended in this process, until they are settled.

    A settlement does not say which step its job is, and the claim does. So plain jobs cost a look
    at their meta, and no question to the database. What is left here after a while was settled
    without being told, or goes on: the plugin's service looks at it.
    """

    def __init__(self) -> None:
        self._noted: dict[UUID, RecordedAttempt] = {}
        # Those that were told last, and before: a batch is told again if its answer was lost. By
        # turns, as the first key of a dict that others were taken from is found slowly.
        self._told: dict[UUID, RecordedAttempt] = {}
        self._told_before: dict[UUID, RecordedAttempt] = {}
        # How those were to end of which the hook failed to tell.
        self._untold: dict[UUID, StepOutcome] = {}
        self._untold_size = 0

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, claim: Claim, outcome: Outcome, at: float) -> None:
        """Take note of an attempt that has ended. The oldest is given up when there are too many:
        the sweep finds it."""
        place = place_of(claim.meta)
        if place is not None:
            self._noted[claim.id] = RecordedAttempt(place, at, outcome.elapsed_s)
            if len(self._noted) > MAX_NOTED:
                self._noted.pop(next(iter(self._noted)), None)

    def __contains__(self, id: UUID) -> bool:
        """Whether a job is a step whose attempt has ended here a while ago at most."""
        return id in self._noted or id in self._told or id in self._told_before

    def ends(self, batch: Iterable[Settlement]) -> list[StepOutcome]:
        """The ends of steps among settlements."""
        found: list[StepOutcome] = []
        for one in batch:
            id = one.id
            noted = self._noted.get(id) or self._told.get(id) or self._told_before.get(id)
            if noted is not None:
                found.append(_end(noted, one))
        found.sort(key=order)
        return found

    def told(self, ends: Iterable[StepOutcome]) -> None:
        """These were written, if their transaction is committed."""
        if len(self._told) >= MAX_TOLD // 2:
            self._told, self._told_before = {}, self._told
        for end in ends:
            job = end.job
            noted = self._noted.pop(job, None)
            if noted is not None:
                self._told[job] = noted
            if self._untold:
                self._tell(job)

    def not_told(self, ends: Iterable[StepOutcome]) -> None:
        """These could not be written; whether they were settled is to be seen. A queue that keeps
        no finished jobs says nothing then of those that succeeded."""
        for end in ends:
            # One of them was told before, if the commit failed then.
            noted = (
                self._noted.get(end.job)
                or self._told.pop(end.job, None)
                or self._told_before.pop(end.job, None)
            )
            if noted is not None:
                self._noted[end.job] = noted
                self._tell(end.job)
                self._untold[end.job] = end
                self._untold_size += len(end.result or "")
        while self._untold_size > MAX_UNTOLD or len(self._untold) > MAX_NOTED:
            self._tell(next(iter(self._untold)))

    def untold(self, id: UUID) -> StepOutcome | None:
        """How one was to end of which the hook failed to tell."""
        return self._untold.get(id)

    def _tell(self, id: UUID) -> None:
        end = self._untold.pop(id, None)
        if end is not None:
            self._untold_size -= len(end.result or "")

    def settled(self, batch: Iterable[Settlement]) -> list[StepOutcome]:
        """The ends of steps among settlements that were stored in no transaction. Those that go on
        are forgotten until they end again."""
        found: list[StepOutcome] = []
        for one in batch:
            noted = self._noted.pop(one.id, None)
            if noted is not None and one.state.final:
                found.append(_end(noted, one))
        return found

    def forget(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._noted.pop(id, None)
            self._tell(id)

    def older(self, than: float, most: int) -> dict[UUID, RecordedAttempt]:
        """Up to so many of those that were noted before, those first that were given the longest
        ago. They stay until they are told or forgotten."""
        given = dict(islice(((id, one) for id, one in self._noted.items() if one.at < than), most))
        for id in given:  # to the end
            self._noted[id] = self._noted.pop(id)
        return given


def end_of(
    place: StepRef, job: UUID, state: int, result: str | None, message: str | None, kind: str | None
) -> StepOutcome:
    """The end of a step, of what its finished job says."""
    error = None
    if state != State.SUCCEEDED:
        error = _failure(kind or "", message or "")
    return StepOutcome(place, job, state, result, error, None)


def _failure(kind: str, message: str) -> str:
    return json.dumps({"type": kind, "message": message[:MAX_MESSAGE]})


def refused(error: StatementFailed) -> str:
    """The failure of a step of which the server refuses something, as JSON text."""
    kind = f"{StatementFailed.__module__}.{StatementFailed.__qualname__}"
    return _failure(kind, str(error))


def gone(place: StepRef, job: UUID) -> StepOutcome:
    """The end of a step whose job is nowhere."""
    why = f"its job {job} is gone, so what became of it cannot be known"
    return end_of(place, job, int(State.FAILED), None, why, "chancy.JobGone")


#: The order in which ends are taken, by everybody.
order: Callable[[StepOutcome], Any] = attrgetter("place.workflow.int", "place.step")


def _end(noted: RecordedAttempt, settlement: Settlement) -> StepOutcome:
    error = None
    if settlement.failure is not None and settlement.state is not State.SUCCEEDED:
        failure = settlement.failure
        kind = failure.types[0] if failure.types else ""
        error = _failure(kind, failure.message)
    return StepOutcome(
        noted.place,
        settlement.id,
        int(settlement.state),
        settlement.result,
        error,
        noted.took_s,
    )


def advancing(
    schema: str, ends: Sequence[StepOutcome], *, alone: bool = False, most: int | None = None
) -> tuple[Any, ...]:
    """The statement, with its parameters, that takes ends and starts what they let go on.

    :param alone: lock the workflows so that none of their steps ends meanwhile.
    :param most: start so many, and leave the others in pieces of as many; None: start all.
    """
    states = [one.state for one in ends]
    places = [one.place for one in ends]
    alone = alone or states.count(_SUCCEEDED) < len(ends) or any(one.again for one in places)
    results: list[str | None] = [one.result for one in ends]
    errors: list[str | None] = [one.error for one in ends]
    return (
        statement("advance", schema),
        _shared([one.workflow for one in places]),
        [one.step for one in places],
        _shared([one.run for one in places]),
        [one.job for one in ends],
        _shared(states),
        results if any(one is not None for one in results) else None,
        errors if any(one is not None for one in errors) else None,
        [one.took_s for one in ends],
        alone,
        most,
    )


def _shared(values: list[T]) -> list[T]:
    """The one value if all are the same, as they mostly are: drivers take 0.4 µs for each."""
    return values[:1] if values and values.count(values[0]) == len(values) else values
