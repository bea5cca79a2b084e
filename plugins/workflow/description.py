"""Descriptions of workflows: steps and the edges between them. Nothing here is stored."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

from chancy.errors import PushError
from chancy.job.definition import Job
from chancy.job.ids import new_id
from chancy.plugin.pushing import Pushable
from chancy.plugins.workflow.reference import WorkflowReference
from chancy.plugins.workflow.sources import prefixes, step_names
from chancy.plugins.workflow.step import (
    MISSING,
    OnFailure,
    OnTimeout,
    Policy,
    Step,
    policy_of,
    renamed,
    wait_of,
)
from chancy.text import shown

#: The maximum characters of the name of a workflow or a step.
MAX_NAME = 100
#: The maximum number of steps of a workflow, including steps added while it runs.
MAX_STEPS = 50_000
#: The maximum number of edges between steps of a description.
MAX_EDGES = 500_000
#: The prefix of the names of undo steps.
UNDO = "undo "

_NAME = re.compile(r"[^\x00-\x1f\x7f{}\"\\]{1,100}")


@dataclass(slots=True)
class Workflow(Pushable[WorkflowReference]):
    """A graph of steps: each runs after the steps that it waits for, and may take their results.

    ``add``, ``wait_for`` and ``include`` return the workflow, so you can chain calls. Only
    `Chancy.push` checks the graph as a whole, and stores it.

    :param name: 1 to 100 characters; need not be unique.
    :param id: makes a repeated push of the same workflow a no-op.
    :raises PushError: the name is invalid.
    """

    name: str
    id: UUID = field(default_factory=new_id)
    _steps: dict[str, Step] = field(default_factory=dict[str, Step], init=False)
    _groups: dict[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]], init=False
    )
    #: The names of the steps in order, for prefixes; None: not sorted since a step was added.
    _sorted: list[str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name, "a workflow")

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        """The steps in the order in which they were added."""
        return iter(self._steps.values())

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Names that stand for several steps: the name of an included workflow, for its last
        steps."""
        return MappingProxyType(self._groups)

    def add(
        self,
        job: Job[Any],
        name: str | None = None,
        *,
        after: str | Iterable[str] = (),
        on_failure: Policy = OnFailure.FAIL,
        undo: Job[Any] | None = None,
    ) -> Self:
        """Add a step.

        :param name: default: the name of the job's function.
        :param after: names of the steps that it waits for; they may be added later. Steps that its
            arguments name with `From` and `Each`, also by a prefix, need not be listed.
        :param on_failure: what happens to the workflow if the step fails for good.
        :param undo: the job that runs if this step has succeeded and the workflow compensates; its
            arguments may name this step and the steps that it waits for.
        :raises PushError: the name is taken or invalid.
        """
        if not isinstance(job, Job):
            raise PushError(f"step {shown(name)}: {shown(job)} is not a Job: use function.job(…)")
        if undo is not None and not isinstance(undo, Job):
            raise PushError(f"step {shown(name)}: undo={shown(undo)} is not a Job")
        name = self._free(job.func.rpartition(".")[2] if name is None else name)
        policy = policy_of(on_failure, name)
        self._put(Step(name=name, job=job, after=_names(after), on_failure=policy, undo=undo))
        return self

    def wait_for(
        self,
        name: str,
        gives: Any = None,
        *,
        after: str | Iterable[str] = (),
        timeout_s: float | timedelta | None = None,
        default: object = MISSING,
        on_timeout: OnTimeout = "fail",
        on_failure: Policy = OnFailure.FAIL,
    ) -> Self:
        """Add a step that waits for the signal with its name; its result is the signal's payload.

        :param gives: the type of the payload, checked against the parameters that take it, and
            against the default. Signals are not checked, so a payload of another type fails the
            step that takes it.
        :param timeout_s: seconds from when the steps before it have ended, by the clock of the
            database, which a worker checks every second. None: wait forever.
        :param default: the result if no signal arrives in time.
        :param on_timeout: without a default, fail the step or cancel the workflow.
        :param on_failure: what happens to the workflow if the step fails.
        :raises PushError: the name is taken or invalid, or the other parameters contradict each
            other.
        """
        name = self._free(name)
        wait = wait_of(name, timeout_s, default, on_timeout, gives)
        policy = policy_of(on_failure, name)
        before = _names(after)
        self._put(
            Step(name=name, job=None, after=before, on_failure=policy, wait=wait, gives=gives)
        )
        return self

    def include(
        self, other: Workflow, name: str | None = None, *, after: str | Iterable[str] = ()
    ) -> Self:
        """Add the steps of another workflow, each named ``NAME/STEP``.

        ``after=NAME`` then waits for all its last steps; `From` accepts NAME if there is only one.

        :param name: default: the name of the other workflow.
        :param after: names of the steps that its first steps wait for.
        :raises PushError: a name is taken or invalid, or it is the same workflow.
        """
        if other is self:
            raise PushError(f"workflow {self.name!r} cannot include itself")
        name = self._free(other.name if name is None else name)
        before = _names(after)
        groups = other.groups
        known = {*(step.name for step in other), *groups}
        for step in other:
            first = not any(waited in known for waited in other.before(step))
            self.take(renamed(step, name, known, before if first else ()))
        for group, steps in groups.items():
            self._groups[f"{name}/{group}"] = tuple(f"{name}/{step}" for step in steps)
        self._groups[name] = tuple(f"{name}/{last}" for last in other.last())
        return self

    def take(self, step: Step) -> Self:
        """Add a step unchanged."""
        self._free(step.name)
        self._put(step)
        return self

    def last(self) -> tuple[str, ...]:
        """The names of the steps that no other step waits for."""
        waited = {name for step in self for name in self.before(step)}
        return tuple(name for name in self._steps if name not in waited)

    def before(self, step: Step) -> tuple[str, ...]:
        """The names of the steps that a step waits for, each once; unknown names are included."""
        sources = step.sources
        if not sources and not self._groups:
            return step.after if len(step.after) < 2 else tuple(dict.fromkeys(step.after))
        found: dict[str, None] = {}
        for name in (*step.after, *step_names(sources)):
            for member in self._groups.get(name, (name,)):
                found[member] = None
        for prefix in prefixes(sources):
            found.update((name, None) for name in self._named(prefix) if name != step.name)
        return tuple(found)

    def _named(self, prefix: str) -> Sequence[str]:
        """The names of the steps that begin with a prefix, in their order."""
        if self._sorted is None:
            self._sorted = sorted(self._steps)
        first = bisect_left(self._sorted, prefix)
        return self._sorted[first : bisect_left(self._sorted, prefix + chr(0x10FFFF), lo=first)]

    def stands_for(self, name: str) -> tuple[str, ...]:
        """The steps that a name stands for: one step, or the last steps of an included workflow."""
        return self._groups.get(name, (name,))

    def _free(self, name: object) -> str:
        checked = check_name(name, "a step")
        if checked in self._steps or checked in self._groups:
            raise PushError(
                f"workflow {self.name!r}: there are two steps {checked!r}: give one another name "
                "by add(job, name)"
            )
        return checked

    def _put(self, step: Step) -> None:
        if len(self._steps) >= MAX_STEPS:
            raise PushError(
                f"workflow {self.name!r}: step {step.name!r} is one more than the {MAX_STEPS:,} "
                "that a workflow may have: push the rest as jobs, or as another workflow"
            )
        self._steps[step.name] = step
        self._sorted = None


def chain(name: str, *jobs: Job[Any]) -> Workflow:
    """A workflow whose steps run one after the other. ``From()`` is the previous step's result."""
    workflow = Workflow(name)
    before: tuple[str, ...] = ()
    for step_name, job in _numbered(jobs):
        workflow.add(job, step_name, after=before)
        before = (step_name,)
    return workflow


def group(name: str, jobs: Iterable[Job[Any]]) -> Workflow:
    """A workflow whose steps run in parallel."""
    workflow = Workflow(name)
    for step_name, job in _numbered(jobs):
        workflow.add(job, step_name)
    return workflow


def chord(name: str, jobs: Iterable[Job[Any]], then: Job[Any]) -> Workflow:
    """A group, and a step after all of it. ``Each()`` is the list of their results."""
    workflow = group(name, jobs)
    steps = tuple(step.name for step in workflow)
    (last, _), *_ = _numbered([then])
    taken = last in steps
    return workflow.add(then, f"then {last}"[:MAX_NAME] if taken else last, after=steps)


def check_name(name: object, what: str) -> str:
    """Return the name, or raise `PushError` if it is invalid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PushError(
            f"{shown(name)} cannot be the name of {what}: use 1 to {MAX_NAME} characters, no "
            'control characters, and none of { } " \\'
        )
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise PushError(
                f"{shown(name)} cannot be the name of {what}: it is not valid Unicode"
            ) from None
    if what == "a step" and name.startswith(UNDO):
        raise PushError(f"step {name!r}: names that begin with {UNDO!r} are reserved for undo=")
    return name


def _numbered(jobs: Iterable[Job[Any]]) -> Sequence[tuple[str, Job[Any]]]:
    """Jobs with names for their steps: the function's name, numbered from its second use."""
    found: list[tuple[str, Job[Any]]] = []
    seen: dict[str, int] = {}
    for job in jobs:
        if not isinstance(job, Job):
            raise PushError(f"{shown(job)} is not a Job: use function.job(…)")
        name = job.func.rpartition(".")[2]
        seen[name] = seen.get(name, 0) + 1
        found.append((name if seen[name] == 1 else f"{name} {seen[name]}", job))
    return found


def _names(after: str | Iterable[str]) -> tuple[str, ...]:
    return (after,) if isinstance(after, str) else tuple(after)
