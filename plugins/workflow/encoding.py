"""Steps, checked and encoded as columns of their table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from chancy.errors import PushError
from chancy.job.definition import Job
from chancy.job.fields import check_hold, check_job, check_run_at, due
from chancy.job.limits import check_limits, encode_limits
from chancy.plugin.runtime import Application
from chancy.plugins.workflow.outcomes import shared
from chancy.plugins.workflow.results import ResultTypes
from chancy.plugins.workflow.sources import Many, One, Source
from chancy.plugins.workflow.step import Wait
from chancy.serialization.codec import encode
from chancy.serialization.signature import Signature

#: The largest arguments and meta of all steps together, in bytes.
MAX_BYTES = 256 * 1024 * 1024


T = TypeVar("T")


@dataclass(slots=True)
class Columns:
    """The steps of a workflow, one list for each column."""

    names: list[str] = field(default_factory=list[str])
    next: list[str] = field(default_factory=list[str])
    joins: list[str] = field(default_factory=list[str])
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
    previous: list[str | None] = field(default_factory=list[str | None])

    def fill(self) -> None:
        """Extend the columns that few steps set with their default, to the full length."""
        count = len(self.names)
        for column in (self.froms, self.limits, self.metas, self.undoes):
            _fill(column, count, None)
        _fill(self.run_ats, count, None)
        _fill(self.delays, count, None)
        _fill(self.on_failure, count, 0)

    def parameters(self) -> list[object]:
        """The parameters of the statements, in their order; None for columns without values.

        One value stands for a column of equal values. Long columns are the text of an array: a
        driver takes 0.4 µs for each value of a list, and the server 0.1 µs to read it. Names need
        no escapes; see `check_name`.
        """
        return [
            _text(self.names),
            _texts(self.next),
            _texts(self.joins),
            f"{{{','.join(map(str, self.needs))}}}",
            self.jobs,
            shared(self.queues),
            shared(self.priorities),
            shared(self.funcs),
            f"[{','.join(self.arguments)}]",
            _or_none(self.froms),
            _or_none(self.run_ats),
            _or_none(self.delays),
            shared(self.max_attempts),
            _or_none(self.limits),
            _or_none(self.metas),
            shared(self.on_failure),
            _or_none(self.undoes),
            _text(self.previous),
        ]


def _or_none(values: Sequence[object]) -> Sequence[object] | None:
    return None if values.count(None) == len(values) else values


def _text(values: Sequence[str | None]) -> str | None:
    """The text of an array of names or escaped strings; None if all are None."""
    nones = values.count(None)
    if nones == len(values):
        return None
    joined = '","'.join([value or "" for value in values])
    array = f'{{"{joined}"}}'
    # Only None became an empty string.
    return array.replace('""', "null") if nones else array


def _texts(arrays: Sequence[str]) -> str | None:
    """The text of an array of texts of arrays."""
    return _text([array.replace('"', '\\"') for array in arrays])


def _fill(column: list[T], count: int, usual: T) -> None:
    column.extend([usual] * (count - len(column)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A workflow that passed every check.

    :param sinks: the number of steps that no other step waits for.
    :param outer: pairs of a step that is stored already and a new one that waits for it.
    """

    id: UUID
    name: str
    sinks: int
    columns: Columns
    outer: Sequence[tuple[str, str]] = ()


class StepEncoding:
    """Checks and encodes the jobs of steps.

    :param types: the annotations of their functions; None: types are not checked.
    """

    def __init__(self, types: ResultTypes | None, chancy: Application) -> None:
        self._encode_arguments = chancy.encode_arguments
        self.columns = Columns()
        self._types = types
        self._max_payload = chancy.max_payload
        self._signatures: dict[tuple[str, frozenset[str]], Signature | None] = {}
        self._passed: dict[tuple[object, ...], Signature | None] = {}
        self._bytes = 0

    def put(
        self,
        name: str,
        job: Job[Any] | None,
        sources: Mapping[str, Source],
        *,
        dependents: Sequence[str],
        joins: Sequence[str],
        before: Sequence[str],
        on_failure: int = 0,
        undoes: str | None = None,
        wait: Wait | None = None,
    ) -> None:
        """Add a step. Raises `PushError` if its job cannot be stored."""
        columns = self.columns
        at, arguments = len(columns.names), "{}"
        if job is None:
            self._put_no_job()
            if wait is not None:
                arguments = self._at_timeout(wait)
                _put(columns.delays, at, wait.timeout_s)
        else:
            signature = self._check(job)
            arguments = self._arguments(job, sources, signature)
            arguments = self._encode_arguments(job.func, arguments, job.queue)
            if job.meta or job.limits or job.run_at is not None:
                self._put_rare(at, job)
            columns.queues.append(job.queue)
            columns.priorities.append(job.priority)
            columns.funcs.append(job.func)
            columns.max_attempts.append(job.max_attempts)
        self._bytes += len(arguments)
        if self._bytes > MAX_BYTES:
            raise PushError(
                f"the arguments and meta of all steps up to here take over {MAX_BYTES:,} bytes: "
                "store the data elsewhere and pass references"
            )
        columns.names.append(name)
        columns.next.append(_array(dependents))
        columns.joins.append(_array(joins))
        columns.needs.append(len(before))
        columns.previous.append(before[0] if len(before) == 1 else None)
        columns.arguments.append(arguments)
        # Few steps set these; see `Columns.fill`.
        if sources:
            _put(columns.froms, at, _encoded(name, sources))
        if undoes is not None:
            _put(columns.undoes, at, undoes)
        if on_failure:
            _fill(columns.on_failure, at, 0)
            columns.on_failure.append(int(on_failure))

    def _at_timeout(self, wait: Wait) -> str:
        """What happens to a step at its timeout, as a JSON object; see ``sql/due.sql``."""
        if wait.cancels:
            return '{"cancel": true}'
        if wait.default is None:
            return "{}"
        # As the payload of a signal, it has no function and no queue.
        return f'{{"default": {self._encode_arguments("", wait.default, None)}}}'

    def _put_rare(self, at: int, job: Job[Any]) -> None:
        columns = self.columns
        if job.meta:
            check_hold(job)
            meta = encode(job.meta, what=f"the meta of {job.func}", limit=self._max_payload)
            _put(columns.metas, at, meta)
            self._bytes += len(meta)
        if job.limits:
            limits = encode_limits(check_limits(job.limits, f"job {job.func}"))
            _put(columns.limits, at, limits)
        if job.run_at is not None:
            check_run_at(job.run_at, job.func)
            run_at, delay_s = due(job)
            _put(columns.run_ats, at, run_at)
            _put(columns.delays, at, delay_s)

    def _put_no_job(self) -> None:
        columns = self.columns
        columns.queues.append("")
        columns.priorities.append(0)
        columns.funcs.append(None)
        columns.max_attempts.append(1)

    def _check(self, job: Job[Any]) -> Signature | None:
        """The signature of a job's function; None if types are not checked. Raises `PushError` if a
        field other than the arguments cannot be stored."""
        settings = (job.func, job.queue, job.priority, job.max_attempts)
        plain = job.id is None and job.unique is None and job.expires_at is None
        plain = plain and type(job.priority) is int and type(job.max_attempts) is int
        if plain and settings in self._passed:
            return self._passed[settings]
        check_job(job)
        if job.unique is not None:
            raise PushError(f"job {job.func} is unique, and steps cannot be: each must run")
        if job.expires_at is not None:
            raise PushError(f"job {job.func} expires, and steps cannot: each must run")
        if job.id is not None:
            raise PushError(
                f"job {job.func} has an id of its own, and the ids of steps are generated"
            )
        signature = self._signature(job.func, frozenset())
        if plain:
            self._passed[settings] = signature
        return signature

    def _arguments(
        self, job: Job[Any], sources: Mapping[str, Source], signature: Signature | None
    ) -> str:
        arguments = job.arguments
        if sources:
            arguments = {name: value for name, value in arguments.items() if name not in sources}
            signature = self._signature(job.func, frozenset(sources))
        if signature is None:
            what = f"the arguments of {job.func}"
            return encode(dict(arguments), what=what, limit=self._max_payload)
        return signature.encode(arguments, self._max_payload)

    def _signature(self, func: str, without: frozenset[str]) -> Signature | None:
        """The signature of a function without parameters that take results; None if unchecked."""
        if self._types is None:
            return None
        found = self._signatures.get((func, without))
        if found is None:
            found = self._types.signature(func)
            if without:
                found = found.without(without)
            self._signatures[func, without] = found
        return found


def _put(column: list[T | None], at: int, value: T | None) -> None:
    _fill(column, at, None)
    column.append(value)


def _array(names: Sequence[str]) -> str:
    return '{"' + '","'.join(names) + '"}' if names else "{}"


def _encoded(name: str, sources: Mapping[str, Source]) -> str:
    """The placeholders of a step as JSON, which the server replaces by results; see
    ``workflows_value``."""
    found: dict[str, dict[str, object]] = {}
    for parameter, source in sources.items():
        path = [str(part) for part in source.path]
        match source:
            case One(step=step):
                found[parameter] = {"step": step, "path": path}
            case Many(prefix=str(prefix)):
                found[parameter] = {"prefix": prefix, "except": name, "path": path}
            case Many(steps=steps):
                found[parameter] = {"steps": list(steps), "path": path}
    return json.dumps(found)
