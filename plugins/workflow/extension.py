"""Adds steps to a workflow from one of its running steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from chancy.context.context import JobContext, current_job
from chancy.errors import LeaseLost, PushError
from chancy.job.definition import Job
from chancy.plugin.runtime import Application
from chancy.plugins.workflow.description import MAX_STEPS, Workflow
from chancy.plugins.workflow.encoding import Prepared
from chancy.plugins.workflow.outcomes import KEY, SQL
from chancy.plugins.workflow.preparation import Preparation
from chancy.plugins.workflow.sources import Many, One, Source, sources_of
from chancy.plugins.workflow.step import Step
from chancy.postgres.within.calls import Fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The step that is running in this context, with its lease."""

    workflow: UUID
    step: str
    run: int
    job: UUID
    lease: UUID

    @classmethod
    def current(cls) -> StepContext:
        """The running step. Raises `PushError` if the job is not a step, `NoCurrentJob` if there is
        no job."""
        context: JobContext = current_job()
        try:
            mark = context.meta[KEY]
            workflow, step, run = UUID(mark["id"]), str(mark["step"]), int(mark["run"])
        except (KeyError, TypeError, ValueError):
            raise PushError(
                f"job {context.id} ({context.func}) is not a step of a workflow: only a running "
                "step can add steps"
            ) from None
        return cls(workflow=workflow, step=step, run=run, job=context.id, lease=context.lease)


class Extension:
    """Steps to add by the running step.

    :param more: the steps. Those that wait for no step wait for the running step.
    :param before: names of steps of the workflow that will wait for the last of these.
    """

    def __init__(
        self,
        more: Workflow,
        before: Sequence[str],
        chancy: Application,
        *,
        validate: bool,
        within: bool,
    ) -> None:
        self._here = StepContext.current()
        self._more = more
        named = [before] if isinstance(before, str) else before
        # Without duplicates: each step waits for each of the last steps once.
        self._before = list(dict.fromkeys(named))
        self._chancy = chancy
        self._schema = SQL.on(chancy.broker).schema
        self._validate = validate
        self._within = within

    def _names(self) -> list[str]:
        """The names of these steps, and of those that they name."""
        names = {step.name for step in self._more}
        for step in self._more:
            names.update(self._more.before(step))
        return sorted({*names, *self._before, self._here.step})

    def _extended(self, rows: Sequence[Sequence[Any]]) -> list[object] | None:
        """The parameters of the statement that adds the missing steps; None if none is missing.

        :param rows: the existing names. Steps that an earlier attempt has added stay unchanged.
        :raises PushError: the steps cannot be added; nothing was written.
        """
        here = self._here
        known: dict[str, str | None] = {str(name): by for name, by in rows}
        for name in self._before:
            if name not in known:
                raise PushError(f"there is no step {name!r} that could wait for these")
        prepared = self._prepare(known)
        if prepared is None:
            return None
        columns = prepared.columns
        edges = zip(columns.names, columns.joins, strict=True)
        last = [name for name, joins in edges if joins == '{""}']
        parameters: list[object] = [
            here.workflow,
            here.step,
            here.run,
            here.job,
            here.lease,
            MAX_STEPS,
            self._before,
            [one for one, _ in prepared.outer],
            [other for _, other in prepared.outer],
            last,
        ]
        return parameters + columns.parameters()

    def _prepare(self, known: dict[str, str | None]) -> Prepared | None:
        here = self._here
        new = Workflow(self._more.name)
        for step in self._more:
            if step.name not in known:
                new.take(self._attached(step))
            elif known[step.name] != here.step:
                raise PushError(
                    f"the workflow has a step {step.name!r}: give the new one another name"
                )
        if not len(new):
            return None
        return Preparation(
            self._chancy,
            new,
            validate=self._validate,
            within=self._within,
            known=frozenset(known),
        ).prepare()

    def _attached(self, step: Step) -> Step:
        """A step with group names resolved; it waits for the running step unless for others."""
        before = self._more.before(step) or (self._here.step,)
        return replace(
            step,
            after=before,
            job=self._named(step.job, before),
            undo=self._named(step.undo, (step.name,)),
        )

    def _named(self, job: Job[Any] | None, before: Sequence[str]) -> Job[Any] | None:
        """A job with the group names in its placeholders resolved."""
        sources = {} if job is None else sources_of(job)
        if job is None or not sources:
            return job
        return job.with_arguments(
            **{name: self._resolved(source, before) for name, source in sources.items()}
        )

    def _resolved(self, source: Source, before: Sequence[str]) -> Source:
        """A placeholder with group names resolved: added steps have no groups."""
        match source:
            case One(step=None, path=path) if len(before) == 1:
                return One(before[0], path)
            case One(step=str(group), path=path):
                names = self._more.stands_for(group)
                if len(names) != 1:
                    raise PushError(
                        f"From({group!r}) stands for {len(names)} steps: name one, or use Each"
                    )
                return One(names[0], path)
            case Many(steps=steps, prefix=None, path=path) if steps:
                found = [one for name in steps for one in self._more.stands_for(name)]
                return Many(tuple(found), None, path)
            case Many(prefix=str()):
                # It may stand for steps that are stored already.
                return replace(source, dynamic=True)
            case _:
                return source

    def _check(self, answer: str) -> None:
        """Raise unless ``workflows_extend`` has added the steps."""
        here, names = self._here, self._before
        where = f"step {here.step!r} of workflow {here.workflow}"
        match answer:
            case "added":
                return
            case "lost":
                raise LeaseLost(f"{where} adds nothing: another worker has it, or it has ended")
            case "over":
                raise PushError(
                    f"{where} adds nothing: the workflow has ended, or was retried, or this job is "
                    "the replay of a dead letter: retry the workflow instead"
                )
            case "failing":
                raise PushError(
                    f"{where} adds nothing: another step has failed, and no step of the workflow "
                    "starts any more. If this step fails now, a retry of the workflow runs it, too"
                )
            case "begun":
                raise PushError(f"{where} adds nothing: one of {names} has started already")
            case "circle":
                raise PushError(
                    f"{where} adds nothing: {names} would wait for steps that wait for them"
                )
            case many:
                count = int(many.removeprefix("many "))
                raise PushError(
                    f"{where} adds nothing: the workflow would have {count:,} steps; the "
                    f"limit is {MAX_STEPS:,}: push the rest as jobs, or as another workflow"
                )

    async def add(self, fetch: Fetch) -> None:
        """Add the steps."""
        names, extend = (SQL.statement(name, self._schema) for name in ("names", "extend"))
        parameters = self._extended(await fetch(names, self._here.workflow, self._names()))
        if parameters is not None:
            self._check(str((await fetch(extend, *parameters))[0][0]))
