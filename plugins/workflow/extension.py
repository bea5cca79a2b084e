"""Steps that a running step adds to its workflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from chancy.broker.values import Capability
from chancy.context.context import JobContext, current_job
from chancy.errors import LeaseLost, PushError
from chancy.plugin.runtime import Application
from chancy.plugins.workflow.description import MAX_STEPS, Workflow
from chancy.plugins.workflow.ends import KEY
from chancy.plugins.workflow.preparation import Preparation, Prepared
from chancy.plugins.workflow.sources import Many, One, Source, sources_of
from chancy.plugins.workflow.step import Step
from chancy.plugins.workflow.store import statement
from chancy.postgres.within.calls import Fetch, FetchSync


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The step that runs here, under its lease."""

    workflow: UUID
    step: str
    run: int
    job: UUID
    lease: UUID

    @classmethod
    def now(cls) -> StepContext:
        """Raises `PushError` if no step of a workflow runs here, `NoCurrentJob` if no job does."""
        context: JobContext = current_job()
        try:
            said = context.meta[KEY]
            place = UUID(said["id"]), str(said["step"]), int(said["run"])
        except (KeyError, TypeError, ValueError):
            raise PushError(
                f"job {context.id} ({context.func}) is no step of a workflow: steps can be added "
                "by those alone"
            ) from None
        workflow, step, run = place
        return cls(workflow=workflow, step=step, run=run, job=context.id, lease=context.lease)


class Extension:
    """Steps to be added, by the step that runs here.

    :param more: the steps. Those that wait for nothing wait for the one that adds them.
    :param before: steps of the workflow that are to wait for the last of these.
    """

    def __init__(
        self,
        more: Workflow,
        before: Sequence[str],
        schema: str,
        chancy: Application,
        *,
        validate: bool,
    ) -> None:
        self._here = StepContext.now()
        self._more = more
        named = [before] if isinstance(before, str) else before
        # Each once: it waits for each of the last steps once.
        self._before = list(dict.fromkeys(named))
        self._schema = schema
        self._registry = chancy.registry if validate else None
        self._max_payload = chancy.max_payload

    def looking(self) -> tuple[str, UUID, list[str]]:
        """The statement, with its parameters, that tells which names are known."""
        names = {step.name for step in self._more}
        for step in self._more:
            names.update(self._more.before(step))
        return (
            statement("names", self._schema),
            self._here.workflow,
            sorted({*names, *self._before, self._here.step}),
        )

    def writing(self, rows: Sequence[Sequence[Any]]) -> tuple[str, list[object]] | None:
        """The statement, with its parameters, that adds what is not there; None: all of it is.

        :param rows: what is known. Steps that an earlier attempt has added stay as they are.
        :raises PushError: something cannot be; nothing was written.
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
        last = zip(columns.names, columns.next, strict=True)
        ends = [name for name, behind in last if behind == '{""}']
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
            ends,
        ]
        return statement("extend", self._schema), parameters + columns.parameters()

    def _prepare(self, known: dict[str, str | None]) -> Prepared | None:
        here = self._here
        new = Workflow(self._more.name)
        for step in self._more:
            if step.name not in known:
                new.take(self._tied(step))
            elif known[step.name] != here.step:
                raise PushError(
                    f"the workflow has a step {step.name!r}: name the new one otherwise"
                )
        if not len(new):
            return None
        return Preparation(
            new, self._registry, known=frozenset(known), max_payload=self._max_payload
        ).prepare()

    def _tied(self, step: Step) -> Step:
        """A step without names of groups, behind the one that runs here if behind none."""
        before = self._more.before(step) or (self._here.step,)
        job = step.job
        if job is not None:
            named = {
                parameter: self._named(source, before)
                for parameter, source in sources_of(job).items()
            }
            job = job.with_arguments(**named) if named else job
        return replace(step, after=before, job=job)

    def _named(self, source: Source, before: Sequence[str]) -> Source:
        """A source without names of groups: what is added has none."""
        match source:
            case One(step=None, path=path) if len(before) == 1:
                return One(before[0], path)
            case One(step=str(group), path=path):
                names = self._more.stands_for(group)
                if len(names) != 1:
                    raise PushError(
                        f"From({group!r}) stands for {len(names)} steps: name the one, or use Each"
                    )
                return One(names[0], path)
            case Many(steps=steps, prefix=None, path=path) if steps:
                found = [one for name in steps for one in self._more.stands_for(name)]
                return Many(tuple(found), None, path)
            case _:
                return source

    def check(self, said: str) -> None:
        """Raise unless they were added."""
        here, names = self._here, self._before
        where = f"step {here.step!r} of workflow {here.workflow}"
        match said:
            case "added":
                return
            case "lost":
                raise LeaseLost(f"{where} adds nothing: another worker has it, or it has ended")
            case "away":
                raise PushError(
                    f"{where} adds nothing: its job is in Redis, whose leases no transaction can "
                    "hold, so that a zombie could add steps, too: a broker with the capability "
                    f"{Capability.SETTLING.value!r} is needed: use a queue in Postgres for it"
                )
            case "over":
                raise PushError(f"{where} adds nothing: the workflow has ended, or was retried")
            case "failing":
                raise PushError(
                    f"{where} adds nothing: another step has failed, and nothing of the workflow "
                    "begins any more: a retry of it runs this step again, too, if it fails now"
                )
            case "begun":
                raise PushError(f"{where} adds nothing: one of {names} has begun already")
            case "circle":
                raise PushError(
                    f"{where} adds nothing: {names} would wait for steps that wait for them"
                )
            case many:
                count = int(many.removeprefix("many "))
                raise PushError(
                    f"{where} adds nothing: the workflow would have {count:,} steps, and "
                    f"{MAX_STEPS:,} may be: push jobs for the rest, or another workflow"
                )

    async def add(self, fetch: Fetch) -> None:
        """Add them by these statements."""
        writing = self.writing(list(await fetch(*self.looking())))
        if writing is not None:
            sql, parameters = writing
            self.check(str((await fetch(sql, *parameters))[0][0]))

    def add_sync(self, fetch: FetchSync) -> None:
        """The same for blocking code."""
        writing = self.writing(list(fetch(*self.looking())))
        if writing is not None:
            sql, parameters = writing
            self.check(str(fetch(sql, *parameters)[0][0]))
