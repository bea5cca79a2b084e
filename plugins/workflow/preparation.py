"""From a description to what is stored: every check, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from chancy.annotations import Annotations
from chancy.codec import DEFAULT_MAX_PAYLOAD, encode
from chancy.errors import ConfigurationError, PushError
from chancy.identity import new_ids
from chancy.job import Job
from chancy.limits import check_limits, encode_limits
from chancy.names import check_function_path, check_queue_name, shown
from chancy.plugins.workflow.description import MAX_EDGES, UNDO, Step, Workflow
from chancy.plugins.workflow.graph import order
from chancy.plugins.workflow.results import Types
from chancy.plugins.workflow.sources import Many, One, Source, sources_of
from chancy.registry import Registry
from chancy.signature import Signature

#: What a job may have; as for every push.
PRIORITIES = range(-100, 101)
ATTEMPTS = range(1, 10_001)
MAX_DELAY = timedelta(days=365_000)
#: Bytes that the arguments of all steps may take together.
MAX_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class Prepared:
    """A workflow that passed every check, as the columns of its steps."""

    id: UUID
    name: str
    ends: int = 0
    names: list[str] = field(default_factory=list[str])
    next: list[str] = field(default_factory=list[str])
    needs: list[int] = field(default_factory=list[int])
    jobs: list[UUID] = field(default_factory=list[UUID])
    queues: list[str] = field(default_factory=list[str])
    priorities: list[int] = field(default_factory=list[int])
    funcs: list[str | None] = field(default_factory=list[str | None])
    arguments: list[str] = field(default_factory=list[str])
    froms: list[str | None] = field(default_factory=list[str | None])
    run_ats: list[datetime | None] = field(default_factory=list[datetime | None])
    delays: list[float | None] = field(default_factory=list[float | None])
    max_attempts: list[int] = field(default_factory=list[int])
    limits: list[str | None] = field(default_factory=list[str | None])
    metas: list[str | None] = field(default_factory=list[str | None])
    on_failure: list[int] = field(default_factory=list[int])
    undoes: list[str | None] = field(default_factory=list[str | None])

    def columns(self) -> list[object]:
        """The parameters of the statement from ``names`` on; None for those that say nothing."""
        return [
            self.names,
            self.next,
            self.needs,
            self.jobs,
            self.queues,
            self.priorities,
            self.funcs,
            f"[{','.join(self.arguments)}]",
            _said(self.froms),
            _said(self.run_ats),
            _said(self.delays),
            self.max_attempts,
            _said(self.limits),
            _said(self.metas),
            self.on_failure,
            _said(self.undoes),
        ]


def _said(values: Sequence[object]) -> Sequence[object] | None:
    return None if values.count(None) == len(values) else values


class Preparation:
    """Checks and encodes one workflow.

    :param known: names of steps that are there already, as when steps are added to a workflow that
        runs: they may be waited for, and what they return is not known.
    :param validate: False for functions that this process cannot import.
    """

    def __init__(
        self,
        workflow: Workflow,
        registry: Registry | None,
        *,
        known: frozenset[str] = frozenset(),
        validate: bool = True,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
    ) -> None:
        self._workflow = workflow
        self._known = known
        self._max_payload = max_payload
        self._where = f"workflow {workflow.name!r}"
        self._signature: Callable[[str], Signature | None] = (
            registry.signature if validate and registry is not None else lambda _: None
        )
        self._types = Types(registry) if validate and registry is not None else None
        self._partial: dict[tuple[str, frozenset[str]], Signature] = {}
        self._passed: set[tuple[object, ...]] = set()
        self._bytes = 0

    def prepare(self) -> Prepared:
        """Raise `PushError` unless all of it can be stored and run."""
        workflow = self._workflow
        steps = {step.name: step for step in workflow}
        if not steps:
            raise PushError(f"{self._where} has no steps: add some")
        before = {name: self._before(step, steps) for name, step in steps.items()}
        if sum(map(len, before.values())) > MAX_EDGES:
            raise PushError(
                f"{self._where}: its steps wait for {sum(map(len, before.values())):,} others, "
                f"{MAX_EDGES:,} may be: put a step between two layers of many"
            )
        behind = order(before, self._where)
        prepared = Prepared(workflow.id, workflow.name)
        for name, step in steps.items():
            try:
                froms = self._froms(step, before[name], steps)
                nexts = behind[name] or [""]
                self._put(prepared, name, step.job, froms, nexts, len(before[name]))
                prepared.on_failure.append(int(step.on_failure))
                prepared.undoes.append(None)
            except (PushError, ConfigurationError) as error:
                raise _told(error, f"{self._where}: step {name!r}: {error}") from error.__cause__
        for name, step in steps.items():
            if step.undo is not None:
                self._undo(prepared, name, step, before[name], steps)
        prepared.ends = sum(not behind[name] for name in steps)
        prepared.jobs = new_ids(len(prepared.names))
        return prepared

    def _before(self, step: Step, steps: Mapping[str, Step]) -> list[str]:
        found = self._workflow.before(step)
        for name in found:
            if name not in steps and name not in self._known:
                raise PushError(
                    f"{self._where}: step {step.name!r} waits for {shown(name)}, and there is no "
                    "step of this name"
                )
        return list(found)

    def _froms(
        self, step: Step, before: Sequence[str], steps: Mapping[str, Step]
    ) -> Mapping[str, Source]:
        """The sources of a step with all names in place, their types held against each other."""
        if step.job is None:
            return {}
        return self._sources(step.job, before, steps)

    def _sources(
        self, job: Job[Any], before: Sequence[str], steps: Mapping[str, Step]
    ) -> Mapping[str, Source]:
        found = {
            parameter: self._named(parameter, source, before)
            for parameter, source in sources_of(job).items()
        }
        if self._types is not None:
            for parameter, source in found.items():
                self._types.check(job, parameter, source, steps)
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
                names = tuple(
                    one for name in steps for one in self._workflow.stands_for(name)
                ) or tuple(before)
                return Many(names, None, path)
            case _:
                return source

    def _undo(
        self,
        prepared: Prepared,
        name: str,
        step: Step,
        before: Sequence[str],
        steps: Mapping[str, Step],
    ) -> None:
        job = step.undo
        assert job is not None
        try:
            froms = self._sources(job, [name], steps)
            for source in froms.values():
                for one in (source.step,) if isinstance(source, One) else source.steps:
                    if one != name and one not in before:
                        raise PushError(
                            f"{shown(one)} need not have run when {name!r} is undone: name that "
                            "step or one that it waits for"
                        )
            self._put(prepared, f"{UNDO}{name}", job, froms, [], 1)
        except (PushError, ConfigurationError) as error:
            raise _told(error, f"{self._where}: undo of step {name!r}: {error}") from None
        prepared.on_failure.append(0)
        prepared.undoes.append(name)

    def _put(
        self,
        prepared: Prepared,
        name: str,
        job: Job[Any] | None,
        froms: Mapping[str, Source],
        nexts: Sequence[str],
        needs: int,
    ) -> None:
        prepared.names.append(name)
        prepared.next.append("{" + ",".join(f'"{one}"' for one in nexts) + "}")
        prepared.needs.append(needs)
        prepared.queues.append("" if job is None else job.queue)
        prepared.priorities.append(0 if job is None else job.priority)
        prepared.funcs.append(None if job is None else job.func)
        prepared.max_attempts.append(1 if job is None else job.max_attempts)
        arguments, meta, limits = "{}", None, None
        run_at, delay_s = None, None
        if job is not None:
            self._check(job)
            arguments = self._arguments(job, froms)
            if job.meta:
                meta = encode(job.meta, what=f"the meta of {job.func}", limit=self._max_payload)
            limits = encode_limits(check_limits(job.limits, f"job {job.func}"))
            run_at, delay_s = _due(job)
        prepared.arguments.append(arguments)
        prepared.froms.append(_encoded(froms) if froms else None)
        prepared.metas.append(meta)
        prepared.limits.append(limits)
        prepared.run_ats.append(run_at)
        prepared.delays.append(delay_s)
        self._bytes += len(arguments)
        if self._bytes > MAX_BYTES:
            raise PushError(
                f"the arguments of all steps up to here take over {MAX_BYTES:,} bytes: store the "
                "data elsewhere and pass references"
            )

    def _check(self, job: Job[Any]) -> None:
        """Raise `PushError` if a field other than the arguments cannot be stored."""
        settings = (job.func, job.queue, job.priority, job.max_attempts, job.run_at is None)
        plain = job.run_at is None and job.id is None and job.unique is None
        plain = plain and type(job.priority) is int and type(job.max_attempts) is int
        if plain and settings in self._passed:
            return
        check_function_path(job.func)
        check_queue_name(job.queue)
        for what, value, allowed in (
            ("priority", job.priority, PRIORITIES),
            ("max_attempts", job.max_attempts, ATTEMPTS),
        ):
            if type(value) is not int or value not in allowed:
                raise PushError(
                    f"job {job.func}: {what}={shown(value)} must be a whole number from "
                    f"{allowed[0]} to {allowed[-1]:,}"
                )
        if job.unique is not None:
            raise PushError(f"job {job.func} is unique, and steps cannot be: each has to run")
        if job.id is not None:
            raise PushError(f"job {job.func} has an id of its own, and steps get theirs here")
        if plain:
            self._passed.add(settings)

    def _arguments(self, job: Job[Any], froms: Mapping[str, Source]) -> str:
        signature = self._signature(job.func)
        arguments = job.arguments
        if froms:
            arguments = {name: value for name, value in arguments.items() if name not in froms}
            if signature is not None:
                signature = self._without(job.func, frozenset(froms))
        if signature is None:
            what = f"the arguments of {job.func}"
            return encode(dict(arguments), what=what, limit=self._max_payload)
        return signature.encode(arguments, self._max_payload)

    def _without(self, func: str, parameters: frozenset[str]) -> Signature:
        """The signature of a function for the arguments that are known by now."""
        found = self._partial.get((func, parameters))
        if found is None:
            assert self._types is not None
            said = self._types.of(func)
            left = tuple(one for one in said.parameters if one.name not in parameters)
            found = Signature(Annotations(left, said.rest, said.result), func)
            self._partial[func, parameters] = found
        return found


def _encoded(froms: Mapping[str, Source]) -> str:
    """What the server makes arguments of; see the function workflows_value."""
    found: dict[str, dict[str, object]] = {}
    for parameter, source in froms.items():
        path = [str(part) for part in source.path]
        match source:
            case One(step=step):
                found[parameter] = {"step": step, "path": path}
            case Many(prefix=str(prefix)):
                found[parameter] = {"prefix": prefix, "path": path}
            case Many(steps=steps):
                found[parameter] = {"steps": list(steps), "path": path}
    return json.dumps(found)


def _due(job: Job[Any]) -> tuple[datetime | None, float | None]:
    match job.run_at:
        case None:
            return None, None
        case datetime(tzinfo=None):
            raise PushError(f"job {job.func}: run_at={job.run_at!r} has no time zone")
        case datetime():
            return job.run_at.astimezone(UTC), None
        case timedelta() if abs(job.run_at) <= MAX_DELAY:
            return None, job.run_at.total_seconds()
        case _:
            raise PushError(f"job {job.func}: run_at={shown(job.run_at)} cannot be")


def _told(error: PushError | ConfigurationError, message: str) -> PushError:
    """The same kind of error with the step named."""
    kind = type(error) if isinstance(error, PushError) else PushError
    try:
        return kind(message)
    except TypeError:
        return PushError(message)
