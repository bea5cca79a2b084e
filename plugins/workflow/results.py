"""Checks the types of results against the parameters that take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chancy.errors import PushError
from chancy.job.definition import DECORATED, Job
from chancy.job.registry import Registry
from chancy.plugins.workflow.fit import fits, items_of, kinds, part_of
from chancy.plugins.workflow.sources import Many, One, Source
from chancy.plugins.workflow.step import OnFailure, Step
from chancy.serialization.annotations import Annotations
from chancy.serialization.signature import Signature
from chancy.text import shown


class ResultTypes:
    """The annotations of the functions of one workflow."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._annotations: dict[str, Annotations] = {}
        self._passed: set[tuple[object, ...]] = set()

    def of(self, func: str) -> Annotations:
        """The annotations of a function. Raises `PushError` unless it can be imported here."""
        found = self._annotations.get(func)
        if found is None:
            self._registry.check(func)
            function = DECORATED.get(func) or self._registry.find(func)
            found = self._annotations[func] = Annotations.of(function)
        return found

    def signature(self, func: str) -> Signature:
        """The signature of a function. Raises `PushError` unless it can be imported here."""
        return self._registry.signature(func)

    def check(
        self, job: Job[Any], parameter: str, source: Source, steps: Mapping[str, Step]
    ) -> None:
        """Raise `PushError` if a parameter cannot take the result its placeholder stands for."""
        annotations = self.of(job.func)
        wanted: Any = None
        for known in annotations.parameters:
            if known.name == parameter:
                wanted = known.annotation
                break
        else:
            if annotations.rest is None:
                raise PushError(f"{job.func} has no parameter {parameter!r}")
            wanted = annotations.rest.annotation
        if isinstance(source, One):
            self._check_one(job.func, parameter, wanted, source, source.step, steps)
            return
        whole = wanted
        wanted = items_of(whole)
        if wanted is None:
            if not fits(list, whole) and kinds(whole) != frozenset({"array"}):
                raise PushError(
                    f"parameter {parameter!r} of {job.func} is {_text(whole)}, and Each is a list"
                )
            wanted = Any
        for name in source.steps:
            self._check_one(job.func, parameter, wanted, source, name, steps)

    def _check_one(
        self,
        func: str,
        parameter: str,
        wanted: Any,
        source: Source,
        name: str | None,
        steps: Mapping[str, Step],
    ) -> None:
        step = steps.get(name or "")
        if step is None or (step.job is None and step.gives is None):
            return  # a step that exists already, or a signal without a declared type
        ignored = step.on_failure is OnFailure.IGNORE
        origin = f"signal {name!r}" if step.job is None else step.job.func
        case = (func, parameter, origin, source.path, ignored)
        if case in self._passed:
            return
        returned = step.gives if step.job is None else self.of(step.job.func).result.annotation
        try:
            part = part_of(returned, source.path)
        except LookupError as error:
            raise PushError(
                f"parameter {parameter!r}: step {name!r} returns {_text(returned)}: {error.args[0]}"
            ) from None
        if ignored and not fits(type(None), wanted):
            raise PushError(
                f"parameter {parameter!r} of {func} is {_text(wanted)}, and step {name!r} returns "
                "None when its failure is ignored: let the parameter take None"
            )
        if not fits(part, wanted):
            kind = "a list of " if isinstance(source, Many) else ""
            raise PushError(
                f"parameter {parameter!r} of {func} is {kind}{_text(wanted)}, and step {name!r} "
                f"({origin}) returns {_text(part)}"
            )
        self._passed.add(case)


def _text(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else shown(annotation)
