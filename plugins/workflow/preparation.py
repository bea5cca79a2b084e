"""Prepares workflows for a push: every check, and the columns to store."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job
from chancy.job.ids import new_ids
from chancy.plugin.pushing import PushContext, PushWay
from chancy.plugin.runtime import Application
from chancy.plugins.workflow.description import MAX_EDGES, UNDO, Workflow
from chancy.plugins.workflow.encoding import Prepared, StepEncoding
from chancy.plugins.workflow.results import ResultTypes
from chancy.plugins.workflow.sources import NO_SOURCES, Many, One, Source, inside, sources_of
from chancy.plugins.workflow.step import Step
from chancy.text import shown

#: Names that an unknown one is compared with for a hint: 1,000 take 20 ms.
_COMPARED = 1_000
#: Steps of a cycle that an error lists.
_SHOWN = 10

_END = ("",)


class Preparation:
    """Checks and encodes one workflow of an application.

    :param validate: False for functions that this process cannot import.
    :param within: whether the transaction is the caller's.
    :param known: names of steps that are stored already, when steps are added to a running
        workflow: new steps may wait for them, and the types of their results are unknown.
    """

    def __init__(
        self,
        chancy: Application,
        workflow: Workflow,
        *,
        validate: bool,
        within: bool = False,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._workflow = workflow
        self._before_push = chancy.before_push
        self._context = PushContext(PushWay.WORKFLOW, within)
        self._steps = {step.name: step for step in workflow}
        self._known = known
        self._where = f"workflow {workflow.name!r}"
        self._types = ResultTypes(chancy.registry) if validate else None
        self._encoding = StepEncoding(self._types, chancy)

    def prepare(self) -> Prepared:
        """Check and encode all steps. Raises `PushError` if they cannot be stored and run."""
        steps, known = self._steps, self._known
        if not steps:
            raise PushError(f"{self._where} has no steps: add some")
        before = {name: self._before(step) for name, step in steps.items()}
        edges = sum(map(len, before.values()))
        if edges > MAX_EDGES:
            raise PushError(
                f"{self._where}: it has {edges:,} edges between steps; the limit is "
                f"{MAX_EDGES:,}: put a step between two wide layers"
            )
        dependents = dependents_of(before, self._where)
        joins = {name for name, waited in before.items() if len(waited) > 1}
        put = self._encoding.put
        for name, step in steps.items():
            try:
                job = self._changed(step.job)
                sources = self._sources(job, before[name])
                put(
                    name,
                    job,
                    sources,
                    dependents=[one for one in dependents[name] if one not in joins],
                    joins=[one for one in dependents[name] or _END if one == "" or one in joins],
                    before=before[name],
                    on_failure=step.on_failure,
                    wait=step.wait,
                )
            except (PushError, ConfigurationError) as error:
                why = _hidden(step.job) or error
                raise _with_message(
                    error, f"{self._where}: step {name!r}: {why}"
                ) from error.__cause__
        for name, step in steps.items():
            if step.undo is not None:
                self._undo(name, step.undo, before[name])
        columns = self._encoding.columns
        columns.fill()
        columns.jobs = new_ids(len(columns.names))
        return Prepared(
            id=self._workflow.id,
            name=self._workflow.name,
            sinks=sum(not names for names in dependents.values()),
            columns=columns,
            outer=[(one, name) for name, names in before.items() for one in names if one in known]
            if known
            else (),
        )

    def _changed(self, job: Job[Any] | None) -> Job[Any] | None:
        return None if job is None else self._before_push(job, self._context)

    def _before(self, step: Step) -> Sequence[str]:
        found = self._workflow.before(step)
        for name in found:
            if name not in self._steps and name not in self._known:
                close = difflib.get_close_matches(name, list(self._steps)[:_COMPARED], n=1)
                hint = f": did you mean {close[0]!r}?" if close else ""
                raise PushError(
                    f"{self._where}: step {step.name!r} waits for {shown(name)}, and there is no "
                    f"step of this name{hint}"
                )
        return found

    def _sources(self, job: Job[Any] | None, before: Sequence[str]) -> Mapping[str, Source]:
        """The placeholders of a job, with all names resolved and their types checked."""
        sources = NO_SOURCES if job is None else sources_of(job)
        if not sources or job is None:
            return NO_SOURCES
        found = {
            parameter: self._resolved(parameter, source, before)
            for parameter, source in sources.items()
        }
        if self._types is not None:
            for parameter, source in found.items():
                self._types.check(job, parameter, source, self._steps)
        return found

    def _resolved(self, parameter: str, source: Source, before: Sequence[str]) -> Source:
        match source:
            case One(step=step, path=path):
                names = self._workflow.stands_for(step) if step is not None else tuple(before)
                if len(names) != 1:
                    placeholder = "From()" if step is None else f"From({step!r})"
                    raise PushError(
                        f"parameter {parameter!r}: {placeholder} stands for {len(names)} steps: "
                        "name one, or use Each"
                    )
                return One(names[0], path)
            case Many(prefix=str(prefix), dynamic=False):
                if not any(name.startswith(prefix) for name in before):
                    raise PushError(
                        f"parameter {parameter!r}: no step has a name that begins with {prefix!r}: "
                        "correct the prefix, or pass dynamic=True if steps are added later"
                    )
                return source
            case Many(prefix=None, steps=steps, path=path):
                names = tuple(one for name in steps for one in self._workflow.stands_for(name))
                return Many(names or tuple(before), None, path)
            case _:
                return source

    def _undo(self, name: str, job: Job[Any], before: Sequence[str]) -> None:
        try:
            job = self._changed(job) or job
            sources = self._sources(job, [name])
            for source in sources.values():
                for one in (source.step,) if isinstance(source, One) else source.steps:
                    if one != name and one not in before:
                        raise PushError(
                            f"{shown(one)} need not have run when {name!r} is undone: name "
                            f"{name!r} or a step that it waits for"
                        )
            self._encoding.put(
                f"{UNDO}{name}", job, sources, dependents=(), joins=(), before=[name], undoes=name
            )  # fmt: skip
        except (PushError, ConfigurationError) as error:
            why = _hidden(job) or error
            raise _with_message(error, f"{self._where}: undo of step {name!r}: {why}") from None


def _hidden(job: Job[Any] | None) -> str | None:
    """The message for a placeholder nested in one of a job's arguments; None if there is none."""
    if job is None:
        return None
    for parameter, value in job.arguments.items():
        found = inside(value)
        if found is not None:
            return (
                f"{found!r} is inside parameter {parameter!r} of {job.func}: it "
                "stands for a whole argument; for a list of results use Each(…)"
            )
    return None


def _with_message(error: PushError | ConfigurationError, message: str) -> PushError:
    """An error of the same class, whose message names the step."""
    return type(error)(message) if isinstance(error, PushError) else PushError(message)


def dependents_of(before: Mapping[str, Sequence[str]], where: str) -> dict[str, list[str]]:
    """The steps that wait for each step, from the steps that each step waits for.

    :param before: unknown names among them are left out.
    :param where: the name of the workflow in errors.
    :raises PushError: steps wait for each other in a cycle; lists them.
    """
    dependents: dict[str, list[str]] = {name: [] for name in before}
    missing = dict.fromkeys(before, 0)
    for name, waited in before.items():
        for one in waited:
            if one in dependents:
                dependents[one].append(name)
                missing[name] += 1
    free = [name for name, count in missing.items() if not count]
    for name in free:
        for dependent in dependents[name]:
            missing[dependent] -= 1
            if not missing[dependent]:
                free.append(dependent)
    if len(free) < len(before):
        cycle = _cycle(before, {name for name, count in missing.items() if count})
        raise PushError(
            f"{where}: steps wait for each other in a cycle: {' after '.join(map(repr, cycle))}"
        )
    return dependents


def _cycle(before: Mapping[str, Sequence[str]], stuck: set[str]) -> list[str]:
    """A cycle among steps each of which waits for one of them."""
    path: dict[str, None] = {}
    name = min(stuck)
    while name not in path:
        path[name] = None
        name = next(waited for waited in before[name] if waited in stuck)
    cycle = [*path][[*path].index(name) :]
    listed = cycle if len(cycle) <= _SHOWN else [*cycle[:_SHOWN], "…"]
    return [*listed, name]
