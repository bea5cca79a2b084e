"""From a description to what is stored: every check, before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job
from chancy.job.ids import new_ids
from chancy.job.registry import Registry
from chancy.plugin.runtime import Application
from chancy.plugins.workflow.description import MAX_EDGES, UNDO, Workflow
from chancy.plugins.workflow.encoding import Columns, StepEncoding
from chancy.plugins.workflow.graph import order
from chancy.plugins.workflow.results import Types
from chancy.plugins.workflow.sources import NO_SOURCES, Many, One, Source, inside, sources_of
from chancy.plugins.workflow.step import Step
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.text import shown

#: Names that one which nobody has is held against: 1,000 take 20 ms.
_COMPARED = 1_000

_END = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A workflow that passed every check.

    :param ends: how many of its steps no other waits for.
    :param outer: pairs of a step that was there before, and one that waits for it.
    """

    id: UUID
    name: str
    ends: int
    columns: Columns
    outer: Sequence[tuple[str, str]] = ()


def prepared(chancy: Application, workflow: Workflow, *, validate: bool) -> Prepared:
    """What is stored of a workflow. Raises `PushError` unless all of it can be stored and run."""
    registry = chancy.registry if validate else None
    return Preparation(workflow, registry, max_payload=chancy.max_payload).prepare()


class Preparation:
    """Checks and encodes one workflow.

    :param known: names of steps that are there already, as when steps are added to a workflow that
        runs: they may be waited for, and what they return is not known here.
    :param registry: None for functions that this process cannot import.
    :param max_payload: bytes that the arguments, or the meta, of one job may take.
    """

    def __init__(
        self,
        workflow: Workflow,
        registry: Registry | None,
        *,
        known: frozenset[str] = frozenset(),
        max_payload: int = DEFAULT_MAX_PAYLOAD,
    ) -> None:
        self._workflow = workflow
        self._steps = {step.name: step for step in workflow}
        self._known = known
        self._where = f"workflow {workflow.name!r}"
        self._types = None if registry is None else Types(registry)
        self._encoding = StepEncoding(self._types, max_payload)

    def prepare(self) -> Prepared:
        """Raise `PushError` unless all of it can be stored and run."""
        steps, known = self._steps, self._known
        if not steps:
            raise PushError(f"{self._where} has no steps: add some")
        before = {name: self._before(step) for name, step in steps.items()}
        edges = sum(map(len, before.values()))
        if edges > MAX_EDGES:
            raise PushError(
                f"{self._where}: its steps wait for {edges:,} others, {MAX_EDGES:,} may be: put a "
                "step between two layers of many"
            )
        behind = order(before, self._where)
        put = self._encoding.put
        for name, step in steps.items():
            those = before[name]
            try:
                sources = self._sources(step.job, those)
                put(
                    name,
                    step.job,
                    sources,
                    behind=behind[name] or _END,
                    before=those,
                    on_failure=step.on_failure,
                    wait=step.wait,
                )
            except (PushError, ConfigurationError) as error:
                why = _hidden(step.job) or error
                raise _told(error, f"{self._where}: step {name!r}: {why}") from error.__cause__
        for name, step in steps.items():
            if step.undo is not None:
                self._undo(name, step.undo, before[name])
        columns = self._encoding.columns
        columns.fill()
        columns.jobs = new_ids(len(columns.names))
        return Prepared(
            id=self._workflow.id,
            name=self._workflow.name,
            ends=sum(not those for those in behind.values()),
            columns=columns,
            outer=[(one, name) for name, those in before.items() for one in those if one in known]
            if known
            else (),
        )

    def _before(self, step: Step) -> Sequence[str]:
        found = self._workflow.before(step)
        for name in found:
            if name not in self._steps and name not in self._known:
                near = difflib.get_close_matches(name, list(self._steps)[:_COMPARED], n=1)
                hint = f": did you mean {near[0]!r}?" if near else ""
                raise PushError(
                    f"{self._where}: step {step.name!r} waits for {shown(name)}, and there is no "
                    f"step of this name{hint}"
                )
        return found

    def _sources(self, job: Job[Any] | None, before: Sequence[str]) -> Mapping[str, Source]:
        """The sources of a job with all names in place, their types held against each other."""
        sources = NO_SOURCES if job is None else sources_of(job)
        if not sources or job is None:
            return NO_SOURCES
        found = {
            parameter: self._named(parameter, source, before)
            for parameter, source in sources.items()
        }
        if self._types is not None:
            for parameter, source in found.items():
                self._types.check(job, parameter, source, self._steps)
        return found

    def _named(self, parameter: str, source: Source, before: Sequence[str]) -> Source:
        match source:
            case One(step=step, path=path):
                names = self._workflow.stands_for(step) if step is not None else tuple(before)
                if len(names) != 1:
                    what = "From()" if step is None else f"From({step!r})"
                    raise PushError(
                        f"parameter {parameter!r}: {what} stands for {len(names)} steps: name the "
                        "one, or use Each"
                    )
                return One(names[0], path)
            case Many(prefix=None, steps=steps, path=path):
                those = tuple(one for name in steps for one in self._workflow.stands_for(name))
                return Many(those or tuple(before), None, path)
            case _:
                return source

    def _undo(self, name: str, job: Job[Any], before: Sequence[str]) -> None:
        try:
            sources = self._sources(job, [name])
            for source in sources.values():
                for one in (source.step,) if isinstance(source, One) else source.steps:
                    if one != name and one not in before:
                        raise PushError(
                            f"{shown(one)} need not have run when {name!r} is undone: name that "
                            "step, or one that it waits for"
                        )
            self._encoding.put(
                f"{UNDO}{name}", job, sources, behind=(), before=[name], undoes=name
            )  # fmt: skip
        except (PushError, ConfigurationError) as error:
            why = _hidden(job) or error
            raise _told(error, f"{self._where}: undo of step {name!r}: {why}") from None


def _hidden(job: Job[Any] | None) -> str | None:
    """What is wrong with a job if a source is inside one of its arguments."""
    if job is None:
        return None
    for parameter, value in job.arguments.items():
        found = inside(value)
        if found is not None:
            return (
                f"{found!r} is inside parameter {parameter!r} of {job.func}: it "
                "stands for a whole argument; for a list of results there is Each(…)"
            )
    return None


def _told(error: PushError | ConfigurationError, message: str) -> PushError:
    """The same kind of error, with the step named."""
    return type(error)(message) if isinstance(error, PushError) else PushError(message)
