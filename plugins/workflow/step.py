"""Descriptions of steps. Nothing here is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, IntEnum
from typing import Any, Final, Literal

from chancy.errors import PushError
from chancy.job.definition import Job
from chancy.plugins.workflow.payload import encoded
from chancy.plugins.workflow.sources import NO_SOURCES, Many, One, Source, sources_of
from chancy.text import shown

#: The maximum wait for a signal, in seconds: a thousand years, as for `run_at`.
MAX_WAIT_S = 365_000 * 86_400.0


class Unset(Enum):
    """The type of `MISSING`, the default of parameters for which None is a value."""

    MISSING = 0


MISSING: Final = Unset.MISSING
OnTimeout = Literal["fail", "cancel"]


class OnFailure(IntEnum):
    """What happens to a workflow when a step has failed for good."""

    #: The workflow fails once the steps that already have jobs have ended. No other step starts.
    FAIL = 0
    #: The step counts as done, with None as its result.
    IGNORE = 1
    #: Completed steps are undone: see ``undo`` of `Workflow.add`.
    COMPENSATE = 2


Policy = OnFailure | Literal["fail", "ignore", "compensate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.

    :param job: None for a step that waits for a signal.
    :param after: names of the steps that it waits for.
    :param wait: the timeout of its signal; None: it waits forever.
    :param gives: the type of its signal's payload; None if not declared.
    """

    name: str
    job: Job[Any] | None
    after: tuple[str, ...] = ()
    on_failure: OnFailure = OnFailure.FAIL
    undo: Job[Any] | None = None
    wait: Wait | None = None
    gives: Any = None

    @property
    def sources(self) -> Mapping[str, Source]:
        """The placeholders among its arguments, by parameter."""
        return NO_SOURCES if self.job is None else sources_of(self.job)


@dataclass(frozen=True, slots=True)
class Wait:
    """The timeout of a signal, and its effect: by default, the step fails.

    :param cancels: whether it cancels the workflow.
    :param default: JSON text, the result of the step; None: there is none.
    """

    timeout_s: float
    cancels: bool = False
    default: str | None = None


def wait_of(
    name: str, timeout_s: object, default: object, on_timeout: object, gives: Any = None
) -> Wait | None:
    """Validate the timeout of `Workflow.wait_for`; None: wait forever. Raises `PushError`."""
    if isinstance(timeout_s, timedelta):
        timeout_s = timeout_s.total_seconds()
    if on_timeout not in ("fail", "cancel"):
        raise PushError(f"step {name!r}: on_timeout={shown(on_timeout)} must be 'fail' or 'cancel'")
    if timeout_s is None:
        if default is not MISSING or on_timeout != "fail":
            raise PushError(f"step {name!r} waits for ever: pass timeout_s, too")
        return None
    if (
        not isinstance(timeout_s, int | float)
        or isinstance(timeout_s, bool)
        or not 0 < timeout_s <= MAX_WAIT_S
    ):
        raise PushError(
            f"step {name!r}: timeout_s={shown(timeout_s)} must be over 0 and at most "
            f"{MAX_WAIT_S:,.0f} seconds"
        )
    if on_timeout == "cancel":
        if default is not MISSING:
            raise PushError(f"step {name!r}: pass a default or on_timeout='cancel', not both")
        return Wait(float(timeout_s), cancels=True)
    if default is MISSING:
        return Wait(float(timeout_s))
    text = encoded(default, f"the default of step {name!r}", gives)
    return Wait(float(timeout_s), default=text)


def policy_of(policy: object, name: str) -> OnFailure:
    if isinstance(policy, OnFailure):
        return policy
    if isinstance(policy, str) and policy.upper() in OnFailure.__members__:
        return OnFailure[policy.upper()]
    raise PushError(
        f"step {name!r}: on_failure={shown(policy)} must be 'fail', 'ignore' or 'compensate'"
    )


def renamed(step: Step, prefix: str, known: set[str], before: tuple[str, ...]) -> Step:
    """A step of an included workflow, with the names of its steps prefixed."""

    def new(name: str) -> str:
        return f"{prefix}/{name}" if name in known else name

    def job_of(job: Job[Any] | None) -> Job[Any] | None:
        if job is None:
            return None
        changed: dict[str, Source] = {}
        for parameter, source in sources_of(job).items():
            match source:
                case One(step=str(name), path=path):
                    changed[parameter] = One(new(name), path)
                case Many(prefix=str(own)):
                    changed[parameter] = replace(source, prefix=f"{prefix}/{own}")
                case Many(steps=steps, path=path):
                    changed[parameter] = Many(tuple(map(new, steps)), None, path)
                case One():
                    pass
        return job.with_arguments(**changed)

    return replace(
        step,
        name=new(step.name),
        after=(*map(new, step.after), *before),
        job=job_of(step.job),
        undo=job_of(step.undo),
    )
