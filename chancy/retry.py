"""Retry policies: the number of attempts, and the delay after each failed one.

`chancy.job` and ``with_retry`` store the policy of a job as JSON in ``meta["retry"]``, from which
the worker reads it. A process that only pushes needs no other module.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, Literal

from chancy.checks import check_choice, check_number
from chancy.errors import ConfigurationError
from chancy.text import shown

__all__ = [
    "Constant",
    "Exponential",
    "Fennel",
    "Jitter",
    "Linear",
    "Policy",
    "PolicyChoice",
    "Polynomial",
]

#: The maximum delay, in seconds: a year.
MAX_DELAY_S = 365 * 86_400.0
#: The key of the policy in the meta of a job.
KEY = "retry"

#: The key, in the value stored under `KEY`, of policies by the type of the error.
ERRORS = "errors"

_MAX_FACTOR = 1e6
_MAX_POWER = 10
_MAX_ATTEMPTS = 10_000
#: The maximum number of error types of one job.
_MAX_ERRORS = 100
_WEEK_S = 7 * 86_400.0


class Jitter(StrEnum):
    """The random part of a delay, which spreads the retries of jobs that failed together."""

    #: None: exactly the delay.
    NONE = "none"
    #: Between half of the delay and the full delay.
    EQUAL = "equal"
    #: Between 0 and the full delay.
    FULL = "full"
    #: Between half of the delay and one and a half times the delay.
    AROUND = "around"

    def drawn(self, delay_s: float) -> float:
        match self:
            case Jitter.NONE:
                return delay_s
            case Jitter.EQUAL:
                return random.uniform(delay_s / 2, delay_s)
            case Jitter.FULL:
                return random.uniform(0.0, delay_s)
            case Jitter.AROUND:
                return random.uniform(delay_s / 2, delay_s * 1.5)


class _Delaying:
    """The JSON form of a policy, and the bounds on its attempts and delays."""

    __slots__ = ()

    max_attempts: int | None

    def as_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"policy": _NAMES[type(self)]}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name != "max_attempts" or value is not None:
                stored[field.name] = str(value) if isinstance(value, Jitter) else value
        return stored

    def after(self, attempt: int) -> float | None:
        """Seconds to wait after this attempt, counted from 1; None: there is no further attempt."""
        if self.max_attempts is not None and attempt >= self.max_attempts:
            return None
        return min(float(getattr(self, "cap_s", MAX_DELAY_S)), self._drawn_s(attempt))

    def _drawn_s(self, attempt: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(_Delaying):
    """The same delay after every attempt."""

    delay_s: float
    _: KW_ONLY
    jitter: Jitter = Jitter.NONE
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _check(self, delay_s=(0, MAX_DELAY_S))

    def _drawn_s(self, attempt: int) -> float:
        return self.jitter.drawn(self.delay_s)


@dataclass(frozen=True, slots=True)
class Linear(_Delaying):
    """A delay that grows by ``step_s`` with each attempt, up to ``cap_s``."""

    step_s: float
    _: KW_ONLY
    cap_s: float = 3600.0
    jitter: Jitter = Jitter.EQUAL
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _check(self, step_s=(0, MAX_DELAY_S), cap_s=(0, MAX_DELAY_S))

    def _drawn_s(self, attempt: int) -> float:
        return self.jitter.drawn(min(self.cap_s, self.step_s * attempt))


@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial(_Delaying):
    """A delay of ``base_s · n^power`` after attempt n, up to ``cap_s``.

    By default n⁴ seconds, give or take a half: 1 s, 16 s, 81 s, 4 minutes, 10 minutes after the
    first five attempts, and 20 days in all with 25 attempts.
    """

    base_s: float = 1.0
    power: float = 4.0
    cap_s: float = _WEEK_S
    jitter: Jitter = Jitter.AROUND
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _check(self, base_s=(0, MAX_DELAY_S), power=(0, _MAX_POWER), cap_s=(0, MAX_DELAY_S))

    def _drawn_s(self, attempt: int) -> float:
        return self.jitter.drawn(min(self.cap_s, self.base_s * float(attempt) ** self.power))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_Delaying):
    """A delay of ``base_s · factor^(n - 1)`` after attempt n, up to ``cap_s``.

    The default jitter is "equal jitter" (Brooker, "Exponential Backoff And Jitter", 2015).
    """

    base_s: float = 2.0
    factor: float = 2.0
    cap_s: float = 3600.0
    jitter: Jitter = Jitter.EQUAL
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _check(self, base_s=(0, MAX_DELAY_S), factor=(1, _MAX_FACTOR), cap_s=(0, MAX_DELAY_S))

    def _drawn_s(self, attempt: int) -> float:
        try:
            grown = self.base_s * float(self.factor) ** (attempt - 1)
        except OverflowError:
            grown = MAX_DELAY_S if self.base_s else 0.0
        return self.jitter.drawn(min(self.cap_s, grown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fennel(_Delaying):
    """The delays of fennel: random whole seconds from ``6^(n + 1) / 3`` to twice ``6^(n + 1)``.

    After attempt n, up to ``cap_s``: 12 to 71 s, 72 to 431 s, 7 to 43 minutes, 43
    minutes to 4 hours, 4 to 26 hours, 1 to 6 days, and then a week.
    """

    cap_s: float = _WEEK_S
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _check(self, cap_s=(0, MAX_DELAY_S))

    def _drawn_s(self, attempt: int) -> float:
        # After twelve attempts the shortest delay is over MAX_DELAY_S.
        scale = 6 ** (min(attempt, 12) + 1)
        return float(min(math.floor(self.cap_s), random.randrange(scale // 3, 2 * scale)))


Policy = Constant | Linear | Polynomial | Exponential | Fennel
#: A policy, or False: the job fails for good at the first failure.
PolicyOrFalse = Policy | Literal[False]
#: One policy for all errors, or policies by the type of the error: an exception class or its name
#: with the module. The policy of the class closest to the error's own type applies.
PolicyChoice = PolicyOrFalse | Mapping[type[BaseException] | str, PolicyOrFalse]

_TYPES: dict[str, type[Policy]] = {
    "constant": Constant,
    "linear": Linear,
    "polynomial": Polynomial,
    "exponential": Exponential,
    "fennel": Fennel,
}
_NAMES: dict[type, str] = {kind: name for name, kind in _TYPES.items()}


def policy_from(stored: object) -> PolicyOrFalse:
    """The policy that ``as_json`` wrote, or that was written manually in this form; or False.

    :raises ConfigurationError: ``stored`` is not a policy, or has a key that the policy lacks.
    """
    if stored is False:
        return False
    name = stored.get("policy") if isinstance(stored, Mapping) else None
    if not isinstance(stored, Mapping) or not isinstance(name, str) or name not in _TYPES:
        raise ConfigurationError(
            f"{shown(stored)} is not a retry policy: pass a mapping whose key 'policy' is one of "
            f"{', '.join(_TYPES)}, such as {{'policy': 'constant', 'delay_s': 5}}, or False for "
            "no retry"
        )
    values = {key: value for key, value in stored.items() if key != "policy"}
    settings = {one.name: one.default is MISSING for one in fields(_TYPES[name])}
    check_keys(f"retry policy {name!r}", values, settings)
    return _TYPES[name](**values)


def error_name(error: object) -> str:
    """The name of an exception type, as failures record it: with its module.

    :raises ConfigurationError: ``error`` is neither an exception class nor such a name.
    """
    if isinstance(error, type) and issubclass(error, BaseException):
        return f"{error.__module__}.{error.__qualname__}"
    if not isinstance(error, str) or "." not in error.strip("."):
        raise ConfigurationError(
            f"{shown(error)} is not an exception type: pass the class, or its name with the "
            "module, such as 'builtins.ValueError'"
        )
    return error


def chosen(choice: object, max_attempts: int) -> tuple[Any, int]:
    """The value that a job with this choice stores under `KEY`, and the attempts that it may have.

    :param max_attempts: the attempts of a job whose policy sets none.
    :raises ConfigurationError: ``choice`` is neither a policy nor a mapping of errors to policies.
    """
    if choice is False:
        return False, max_attempts
    if isinstance(choice, Policy):
        return choice.as_json(), choice.max_attempts or max_attempts
    if not isinstance(choice, Mapping) or not choice or len(choice) > _MAX_ERRORS:
        raise ConfigurationError(
            f"retry={shown(choice)} is not a retry policy: pass one of chancy.retry, such as "
            f"Exponential(max_attempts=20), False for no retry, or a dict of 1 to {_MAX_ERRORS} "
            "exception types with a policy or False each"
        )
    by_name: dict[str, Any] = {}
    for error, policy in choice.items():
        name = error_name(error)
        if policy is False:
            by_name[name] = False
        elif isinstance(policy, Policy):
            by_name[name] = policy.as_json()
            max_attempts = max(max_attempts, policy.max_attempts or 0)
        else:
            raise ConfigurationError(
                f"retry: {shown(policy)}, for {name}, is not a retry policy: pass one of "
                "chancy.retry, such as Constant(5), or False for no retry"
            )
    return {ERRORS: by_name}, max_attempts


def choice_from(stored: object) -> PolicyOrFalse | dict[str, PolicyOrFalse]:
    """The policy, or the policies by the name of the error type, that `chosen` wrote.

    :raises ConfigurationError: ``stored`` is neither.
    """
    by_name = stored.get(ERRORS) if isinstance(stored, Mapping) else None
    if not isinstance(by_name, Mapping):
        return policy_from(stored)
    return {str(name): policy_from(policy) for name, policy in by_name.items()}


def check_keys(what: str, given: Mapping[object, object], settings: Mapping[str, bool]) -> None:
    """Raise `ConfigurationError` unless the keys are settings, and no required one is missing.

    :param settings: whether each setting is required.
    """
    accepted = f"it takes {', '.join(settings)}"
    for key in given:
        if key not in settings:
            raise ConfigurationError(f"{what} has no setting {shown(key)}: {accepted}")
    for key, required in settings.items():
        if required and key not in given:
            raise ConfigurationError(f"{what} needs the setting {key!r}: {accepted}")


def is_seconds(value: object) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(policy: Policy, **bounds: tuple[float, float]) -> None:
    name = type(policy).__name__
    for field, (low, high) in bounds.items():
        check_number(getattr(policy, field), f"{name}: {field}", low, high, whole=False)
    if policy.max_attempts is not None:
        check_number(policy.max_attempts, f"{name}: max_attempts", 1, _MAX_ATTEMPTS)
    if not isinstance(policy, Fennel):
        jitter = check_choice(policy.jitter, f"{name}: jitter", Jitter)  # a string from JSON
        object.__setattr__(policy, "jitter", jitter)
