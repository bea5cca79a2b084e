"""Retry policies: the delay after each failed attempt.

A policy of a job is stored as JSON in ``meta["retry"]``, from which the worker reads it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from enum import StrEnum
from typing import Any

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.text import shown

#: The longest delay, in seconds: a year.
MAX_DELAY_S = 365 * 86_400.0
#: The key of the policy in the meta of a job.
KEY = "retry"

_MAX_FACTOR = 1e6
_WEEK_S = 7 * 86_400.0


class Jitter(StrEnum):
    """The random part of a delay, which spreads the retries of jobs that failed together."""

    #: None: exactly the delay.
    NONE = "none"
    #: Between half of the delay and the full delay.
    EQUAL = "equal"
    #: Between 0 and the full delay.
    FULL = "full"

    def drawn(self, delay_s: float) -> float:
        match self:
            case Jitter.NONE:
                return delay_s
            case Jitter.EQUAL:
                return random.uniform(delay_s / 2, delay_s)
            case Jitter.FULL:
                return random.uniform(0.0, delay_s)


class _Stored:
    """The JSON form of a policy, shared by all of them."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        stored: dict[str, Any] = {"policy": _NAMES[type(self)]}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            stored[field.name] = str(value) if isinstance(value, Jitter) else value
        return stored

    def meta(self) -> dict[str, Any]:
        """Meta for ``@job(meta=…)`` and ``with_meta(**…)`` that selects this policy for the job."""
        return {KEY: self.as_json()}


@dataclass(frozen=True, slots=True)
class Constant(_Stored):
    """The same delay after every attempt."""

    delay_s: float
    _: KW_ONLY
    jitter: Jitter = Jitter.NONE

    def __post_init__(self) -> None:
        _check(self, delay_s=(0, MAX_DELAY_S))

    def after(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        return self.jitter.drawn(self.delay_s)


@dataclass(frozen=True, slots=True)
class Linear(_Stored):
    """A delay that grows by ``step_s`` with each attempt, up to ``cap_s``."""

    step_s: float
    _: KW_ONLY
    cap_s: float = 3600.0
    jitter: Jitter = Jitter.EQUAL

    def __post_init__(self) -> None:
        _check(self, step_s=(0, MAX_DELAY_S), cap_s=(0, MAX_DELAY_S))

    def after(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        return self.jitter.drawn(min(self.cap_s, self.step_s * attempt))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_Stored):
    """A delay of ``base_s · factor^(n - 1)`` after attempt n, up to ``cap_s``.

    The default jitter is "equal jitter" (Brooker, "Exponential Backoff And Jitter", 2015).
    """

    base_s: float = 2.0
    factor: float = 2.0
    cap_s: float = 3600.0
    jitter: Jitter = Jitter.EQUAL

    def __post_init__(self) -> None:
        _check(self, base_s=(0, MAX_DELAY_S), factor=(1, _MAX_FACTOR), cap_s=(0, MAX_DELAY_S))

    def after(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        try:
            grown = self.base_s * float(self.factor) ** (attempt - 1)
        except OverflowError:
            grown = MAX_DELAY_S if self.base_s else 0.0
        return self.jitter.drawn(min(self.cap_s, grown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fennel(_Stored):
    """The delays of fennel: random whole seconds from ``6^(n + 1) / 3`` to twice ``6^(n + 1)``.

    After attempt n, up to ``cap_s``: 12 to 71 s, 72 to 431 s, 7 to 43 minutes, 43
    minutes to 4 hours, 4 to 26 hours, 1 to 6 days, and then a week.
    """

    cap_s: float = _WEEK_S

    def __post_init__(self) -> None:
        _check(self, cap_s=(0, MAX_DELAY_S))

    def after(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        # After twelve attempts the shortest delay is over MAX_DELAY_S.
        scale = 6 ** (min(attempt, 12) + 1)
        return float(min(math.floor(self.cap_s), random.randrange(scale // 3, 2 * scale)))


@dataclass(frozen=True, slots=True)
class Never(_Stored):
    """No retry: the job fails for good at the first failure."""

    def after(self, attempt: int) -> None:
        return None


Policy = Constant | Linear | Exponential | Fennel | Never

_TYPES: dict[str, type[Policy]] = {
    "constant": Constant,
    "linear": Linear,
    "exponential": Exponential,
    "fennel": Fennel,
    "never": Never,
}
_NAMES: dict[type, str] = {kind: name for name, kind in _TYPES.items()}


def policy_from(stored: object) -> Policy:
    """The policy that ``as_json`` wrote, or that somebody wrote in this form.

    :raises ConfigurationError: ``stored`` is not a policy, or has a key that the policy lacks.
    """
    name = stored.get("policy") if isinstance(stored, Mapping) else None
    if not isinstance(stored, Mapping) or not isinstance(name, str) or name not in _TYPES:
        raise ConfigurationError(
            f"{shown(stored)} is not a retry policy: pass a mapping whose key 'policy' is one of "
            f"{', '.join(_TYPES)}, such as {{'policy': 'constant', 'delay_s': 5}}"
        )
    values = {key: value for key, value in stored.items() if key != "policy"}
    settings = {one.name: one.default is MISSING for one in fields(_TYPES[name])}
    check_keys(f"retry policy {name!r}", values, settings)
    return _TYPES[name](**values)


def check_keys(what: str, given: Mapping[object, object], settings: Mapping[str, bool]) -> None:
    """Raise `ConfigurationError` unless the keys are settings, and the required ones are there.

    :param settings: for each whether it is required.
    """
    accepted = f"it takes {', '.join(settings) or 'no settings'}"
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
    jitter = getattr(policy, "jitter", Jitter.NONE)
    if jitter not in list(Jitter):
        raise ConfigurationError(
            f"{name}: jitter={shown(jitter)} must be one of {', '.join(Jitter)}"
        )
    if not isinstance(jitter, Jitter):  # as it comes from JSON
        object.__setattr__(policy, "jitter", Jitter(jitter))
