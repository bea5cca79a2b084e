"""Workflows as they are described: steps, and which wait for which. Nothing here is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

from chancy.errors import PushError
from chancy.job.definition import Job
from chancy.job.ids import new_id
from chancy.plugins.workflow.sources import named
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

#: The longest name of a workflow and of a step, in characters.
MAX_NAME = 100
#: Steps that a workflow may have, those that are added while it runs included.
MAX_STEPS = 50_000
#: Ways from one step to another that a description may have.
MAX_EDGES = 500_000
#: How the names of steps that undo others begin.
UNDO = "undo "

_NAME = re.compile(r"[^\x00-\x1f\x7f{}\"\\]{1,100}")


@dataclass(slots=True)
class Workflow:
    """Steps that run in an order, and pass on what they return.

    ``add`` and its like give the workflow itself, so that calls can follow each other. Only
    ``push`` of the plugin looks at it as a whole, and writes anything.

    :param name: 1 to 100 characters, for people; any number of workflows may have it.
    :param id: makes a repeated push of the same workflow a no-op.
    :raises PushError: the name cannot be one.
    """

    name: str
    id: UUID = field(default_factory=new_id)
    _steps: dict[str, Step] = field(default_factory=dict[str, Step], init=False)
    _groups: dict[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]], init=False
    )

    def __post_init__(self) -> None:
        check_name(self.name, "a workflow")

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        """The steps in the order in which they were added."""
        return iter(self._steps.values())

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The names that stand for several steps, as that of a sub-workflow does for its last."""
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

        :param name: the name of its function unless given.
        :param after: the steps that it waits for, by name; they may be added later. Those that its
            arguments name by `From` and `Each` need not be said again.
        :param on_failure: what becomes of the workflow if it fails for good.
        :param undo: run if this step has succeeded and the workflow compensates; its arguments may
            name this step and those that this one waits for.
        :raises PushError: the name is taken or cannot be one.
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
        """Add a step that waits for the signal of its name; its result is what comes with it.

        :param gives: the type of that, which is held against the parameters that take it, and
            against the default. A signal is not: what does not fit fails the step that takes it.
        :param timeout_s: seconds from the moment when nothing else is waited for; the clock is the
            database's, and a worker looks at it every second. None: for ever.
        :param default: its result if no signal has come by then.
        :param on_timeout: without a default the step fails, or the workflow is cancelled.
        :param on_failure: what becomes of the workflow if it fails.
        :raises PushError: the name is taken or cannot be one, or the others do not fit.
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
        """Add the steps of another workflow, each called ``NAME/STEP``.

        ``after=NAME`` then waits for all its last steps; `From` takes NAME if there is one.

        :param name: the name of the other unless given.
        :param after: what its first steps wait for.
        :raises PushError: a name is taken or cannot be one.
        """
        name = self._free(other.name if name is None else name)
        before = _names(after)
        groups = other.groups
        known = {*(step.name for step in other), *groups}
        for step in other:
            own = (*step.after, *named(step.sources))
            first = not any(one in known for one in own)
            self.take(renamed(step, name, known, before if first else ()))
        for group, steps in groups.items():
            self._groups[f"{name}/{group}"] = tuple(f"{name}/{one}" for one in steps)
        self._groups[name] = tuple(f"{name}/{one}" for one in other.last())
        return self

    def take(self, step: Step) -> Self:
        """Add a step as it is."""
        self._free(step.name)
        self._put(step)
        return self

    def last(self) -> tuple[str, ...]:
        """The steps that no other waits for."""
        waited = {one for step in self for one in self.before(step)}
        return tuple(name for name in self._steps if name not in waited)

    def before(self, step: Step) -> tuple[str, ...]:
        """The steps that one waits for, each once; names that are no steps as they are."""
        sources = step.sources
        if not sources and not self._groups:
            return step.after if len(step.after) < 2 else tuple(dict.fromkeys(step.after))
        found: dict[str, None] = {}
        for name in (*step.after, *named(sources)):
            for one in self._groups.get(name, (name,)):
                found[one] = None
        return tuple(found)

    def stands_for(self, name: str) -> tuple[str, ...]:
        """The steps that a name means: its own, or the last ones of a sub-workflow."""
        return self._groups.get(name, (name,))

    def _free(self, name: object) -> str:
        checked = check_name(name, "a step")
        if checked in self._steps or checked in self._groups:
            raise PushError(
                f"workflow {self.name!r}: there are two steps {checked!r}: name one otherwise, as "
                "add(job, name)"
            )
        return checked

    def _put(self, step: Step) -> None:
        if len(self._steps) >= MAX_STEPS:
            raise PushError(
                f"workflow {self.name!r}: step {step.name!r} is one more than the {MAX_STEPS:,} "
                "that a workflow may have: push jobs for the rest, or another workflow"
            )
        self._steps[step.name] = step


def chain(name: str, *jobs: Job[Any]) -> Workflow:
    """A workflow whose steps run one after the other. ``From()`` is what the one before gave."""
    made = Workflow(name)
    before: tuple[str, ...] = ()
    for step_name, job in _numbered(jobs):
        made.add(job, step_name, after=before)
        before = (step_name,)
    return made


def group(name: str, jobs: Iterable[Job[Any]]) -> Workflow:
    """A workflow whose steps run at once, in no order."""
    made = Workflow(name)
    for step_name, job in _numbered(jobs):
        made.add(job, step_name)
    return made


def chord(name: str, jobs: Iterable[Job[Any]], then: Job[Any]) -> Workflow:
    """A group, and a step behind all of it. ``Each()`` is the list of what they gave."""
    made = group(name, jobs)
    steps = tuple(step.name for step in made)
    (last, _), *_ = _numbered([then])
    taken = last in steps
    return made.add(then, f"then {last}"[:MAX_NAME] if taken else last, after=steps)


def check_name(name: object, what: str) -> str:
    """Return the name, or raise `PushError` if it cannot be one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PushError(
            f"{shown(name)} cannot be the name of {what}: use 1 to {MAX_NAME} characters, no "
            'control characters, and none of { } " \\'
        )
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise PushError(f"{shown(name)} cannot be the name of {what}: it is no text") from None
    if what == "a step" and name.startswith(UNDO):
        raise PushError(f"step {name!r}: names that begin with {UNDO!r} are those of undo=")
    return name


def _numbered(jobs: Iterable[Job[Any]]) -> Sequence[tuple[str, Job[Any]]]:
    """Names for steps: that of the function, with a number where it comes again."""
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
