"""Retry: failed jobs run again after a delay that a policy computes."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Lost, MemoryExceeded, Outcome, Raised, TimedOut
from chancy.attempt.settlement import Settlement
from chancy.checks import check_flag, check_instances
from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.retry import (
    KEY,
    MAX_DELAY_S,
    Policy,
    PolicyOrFalse,
    Polynomial,
    check_keys,
    choice_from,
    error_name,
    is_seconds,
    policy_from,
)
from chancy.states import State
from chancy.text import shown

__all__ = ["Custom", "Retries", "Rule"]

logger = logging.getLogger("chancy.retry")

#: A policy as a function: returns seconds until the next attempt, or None for no retry. Sync,
#: called in the worker's event loop. A result below 0 counts as 0, one over a year as a year.
Custom = Callable[[Claim, Outcome], float | None]

# Reading an attribute of an enumeration takes 0.1 µs, and this runs for every outcome.
_FAILED = State.FAILED
#: Errors that no retry can fix.
_PERMANENT = (
    "chancy.errors.InvalidArguments",
    "chancy.errors.InvalidCheckpoint",
    "chancy.errors.InvalidResult",
    "chancy.errors.PayloadTooLarge",
    "chancy.errors.UnknownFunction",
    "chancy.errors.UnreadablePayload",
    "chancy.errors.UnsupportedLimit",
)
#: A base class of every exception group.
_GROUP = error_name(BaseExceptionGroup)

#: The types that a rule for any error covers.
_BASES = (error_name(Exception), error_name(BaseException))

DEFAULT = Polynomial()


@dataclass(frozen=True, slots=True)
class _FromFile:
    """Makes pydantic read a value of a settings file with our own function.

    By default, pydantic reads any mapping as the first policy that has no required field.
    """

    read: Callable[[object], object]

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.read)


def _read_policy(given: object) -> Any:
    return policy_from(given) if isinstance(given, Mapping | str) else given


def _read_rule(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    check_keys("a rule", given, {"error": True, "policy": True})
    return Rule(given["error"], _check_policy(_read_policy(given["policy"])))


@dataclass(frozen=True, slots=True)
class Rule:
    """The retry policy for one type of error.

    :param error: an exception class, or its name as failures record it, ``module.QualifiedName``.
        It also covers its subclasses, unless they have their own rules. ``chancy.TimedOut`` and
        ``chancy.MemoryExceeded`` cover the time and memory limits, and so does `Exception`.
    :param policy: False: no retry.
    :raises ConfigurationError: ``error`` is not an exception type, or ``policy`` is not a policy.
    """

    error: str | type[BaseException]
    policy: PolicyOrFalse | Custom

    def __post_init__(self) -> None:
        error_name(self.error)
        _check_policy(self.policy)

    @property
    def name(self) -> str:
        """The name of the exception type, as failures record it."""
        return error_name(self.error)


class Retries(Plugin):
    """Runs a failed job again until its ``max_attempts`` are used up.

    The delay comes from the policy of the job, ``@job(retry=…)``; without one, from the rule for
    the type of the error; without that, from ``policy``. `chancy.errors.InvalidArguments` and other
    errors that no retry can fix are not retried unless a rule names them.

    Control results are not changed: ``raise chancy.Retry(…)`` sets its own delay while the job has
    attempts left, and ``return chancy.Snooze(…)`` is not a failure.

    :param policy: the default policy; False: no retry. By default, a job waits n⁴ seconds after
        attempt n, give or take a half: with 25 attempts, the default, about three weeks in all.
    :param rules: at most one for each type. The rule closest to the error's own type applies.
    :param crashes_cost_attempts: whether an attempt whose worker or executor process died counts
        like a failed one. The job runs again at once while it has attempts left. Without this
        setting, such an attempt does not count, and the job fails at the third crash.
    :raises ConfigurationError: two rules have the same type, or a setting is invalid.
    """

    def __init__(
        self,
        policy: Annotated[PolicyOrFalse | Custom, _FromFile(_read_policy)] = DEFAULT,
        *,
        rules: Sequence[Annotated[Rule, _FromFile(_read_rule)]] = (),
        crashes_cost_attempts: bool = False,
    ) -> None:
        self.policy: PolicyOrFalse | Custom = _check_policy(policy)
        self.crashes_cost_attempts = check_flag(crashes_cost_attempts, "crashes_cost_attempts")
        self.rules = tuple(check_instances(rules, Rule, "rules", "pass a list of Rule(…)"))
        self._by_name: dict[str, PolicyOrFalse | Custom] = {}
        for rule in self.rules:
            if rule.name in self._by_name:
                raise ConfigurationError(
                    f"two rules have the error type {rule.name}: pass only one"
                )
            self._by_name[rule.name] = rule.policy

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.retry"

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        if self.crashes_cost_attempts and isinstance(outcome, Lost):
            return _charged(claim, outcome, decision)
        if decision.state is not _FAILED or claim.attempt >= claim.max_attempts:
            return decision
        if not isinstance(outcome, Raised | TimedOut | MemoryExceeded):
            return decision
        types = decision.failure.types if decision.failure else ()
        if not isinstance(outcome, Raised):  # limits raise nothing, and have no base class
            types = (*types, *_BASES)
        delay_s = self._delay_s(claim, outcome, types)
        if delay_s is None:
            return decision
        return decision._replace(state=State.SCHEDULED, delay_s=delay_s)

    def _delay_s(self, claim: Claim, outcome: Outcome, types: tuple[str, ...]) -> float | None:
        policy = self._policy(claim, types)
        if policy is False:
            return None
        if isinstance(policy, Policy):
            return policy.after(claim.attempt)
        try:
            delay_s = policy(claim, outcome)
            if delay_s is None:
                return None
            if not is_seconds(delay_s):
                raise ValueError(f"{shown(delay_s)} must be a number of seconds or None")
        except (Exception, SystemExit):
            logger.exception("retry_policy_failed job=%s policy=%r", claim.id, policy)
            return DEFAULT.after(claim.attempt)
        return min(max(float(delay_s), 0.0), MAX_DELAY_S)

    def _policy(self, claim: Claim, types: tuple[str, ...]) -> PolicyOrFalse | Custom:
        """The most specific policy: of the job, then of the error, then of the application."""
        own = _own_policy(claim)
        if _GROUP in types:  # one permanent error is enough, wherever it is in the group
            named = {*self._by_name, *(own if isinstance(own, dict) else ())}
            if any(name in _PERMANENT and name not in named for name in types):
                return False
        if isinstance(own, dict):
            nearest = next((name for name in types if name in own or name in _PERMANENT), None)
            if nearest in own:
                return own[nearest]
            own = None
        known = (name for name in types if name in self._by_name or name in _PERMANENT)
        nearest = next(known, None)
        rule = self._by_name.get(nearest) if nearest else None
        if nearest and rule is None:
            return False
        if own is not None:
            return own
        return self.policy if rule is None else rule


def _own_policy(claim: Claim) -> PolicyOrFalse | dict[str, PolicyOrFalse] | None:
    """The policy in the meta of the job, or its policies by the name of the error type; None if
    there is none, or it cannot be read."""
    try:
        meta: Any = json.loads(claim.meta) if claim.meta else {}
        return choice_from(meta[KEY]) if KEY in meta else None
    except (ConfigurationError, ValueError, TypeError, RecursionError) as error:
        logger.error("retry_policy_unreadable job=%s error=%s", claim.id, error)
        return None


def _charged(claim: Claim, outcome: Lost, decision: Settlement) -> Settlement:
    """The decision on a crash that uses up an attempt.

    The crash is counted, too, so the next attempt runs alone.
    """
    exhausted = claim.attempt >= claim.max_attempts
    consequence = "no attempts left" if exhausted else "the job runs again"
    message = (
        f"crash in attempt {claim.attempt} of {claim.max_attempts}: {outcome.why}; {consequence}"
    )
    failure = Failure.named("chancy.Lost", message)
    host = decision.failure.host if decision.failure else None
    return decision._replace(
        state=State.FAILED if exhausted else State.PENDING,
        failure=replace(failure, host=host),
        refund=False,
    )


def _check_policy(policy: PolicyOrFalse | Custom) -> PolicyOrFalse | Custom:
    if policy is False or isinstance(policy, Policy):
        return policy
    if isinstance(policy, type) or not callable(policy) or inspect.iscoroutinefunction(policy):
        raise ConfigurationError(
            f"{shown(policy)} is not a retry policy: pass Constant(…), Linear(…), Polynomial(…), "
            "Exponential(…), Fennel(), False, or a sync function of claim and outcome"
        )
    return policy
