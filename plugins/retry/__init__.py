"""Retry: failed attempts are run again, later and later."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Lost, MemoryExceeded, Outcome, Raised, TimedOut
from chancy.attempt.settlement import Settlement
from chancy.errors import ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.plugins.retry.policy import (
    KEY,
    MAX_DELAY_S,
    Constant,
    Exponential,
    Fennel,
    Jitter,
    Linear,
    Never,
    Policy,
    is_seconds,
    policy_from,
)
from chancy.states import State
from chancy.text import shown

__all__ = [
    "Constant",
    "Custom",
    "Exponential",
    "Fennel",
    "Jitter",
    "Linear",
    "Never",
    "Policy",
    "Retries",
    "Rule",
]

logger = logging.getLogger("chancy.retry")

#: A policy as a function: seconds until the next attempt, or None for no other. Sync, called in
#: the worker's event loop. What is below 0 counts as 0, what is over a year as a year.
Custom = Callable[[Claim, Outcome], float | None]

#: Failures that come again however often the job is run.
_HOPELESS = (
    "chancy.errors.InvalidArguments",
    "chancy.errors.InvalidResult",
    "chancy.errors.UnknownFunction",
    "chancy.errors.UnsupportedLimit",
)

DEFAULT = Exponential()


@dataclass(frozen=True, slots=True)
class Rule:
    """How attempts that failed with one type of error are retried.

    :param error: an exception class, or the name of one as failures have it,
        ``module.QualifiedName``. It stands for its subclasses too, unless they have rules of
        their own. ``chancy.TimedOut`` and ``chancy.MemoryExceeded`` stand for the limits.
    :raises ConfigurationError: something else.
    """

    error: str | type[BaseException]
    policy: Policy | Custom

    def __post_init__(self) -> None:
        error: object = self.error
        if isinstance(error, type) and issubclass(error, BaseException):
            pass
        elif not isinstance(error, str) or "." not in error.strip("."):
            raise ConfigurationError(
                f"{shown(error)} is not the type of an error: write the class, or its name with "
                "the module, such as 'builtins.ValueError'"
            )
        _check_policy(self.policy)

    @property
    def name(self) -> str:
        """The name of the type, as failures have it."""
        if isinstance(self.error, str):
            return self.error
        return f"{self.error.__module__}.{self.error.__qualname__}"


class Retries(Plugin):
    """Runs a failed job again until its ``max_attempts`` are used up.

    What decides on the delay: the rule for the type of the error; without one, the policy that
    the job brought along in ``meta["retry"]``; without that, the policy given here.

    A job that said itself when it is to be run again is left to that: by ``raise chancy.Retry(…)``
    while it has attempts left, and by ``return chancy.Snooze(…)``, which is no failure.

    :param policy: for whatever has no other. A job waits 1 to 2 seconds after its first attempt,
        then twice as long each time, up to an hour.
    :param rules: at most one for a type. The one nearest to the error's own type counts.
    :param crashes_cost_attempts: whether an attempt whose worker or child died is used up like one
        that failed. The job is run again at once, until it has no more of them. Without it such
        an attempt costs nothing, and the third death is the last.
    :raises ConfigurationError: two rules for one type, or something that is no policy.
    """

    def __init__(
        self,
        policy: Policy | Custom = DEFAULT,
        *,
        rules: Iterable[Rule] = (),
        crashes_cost_attempts: bool = False,
    ) -> None:
        self.policy = _check_policy(policy)
        self.crashes_cost_attempts = crashes_cost_attempts
        self.rules = tuple(rules)
        self._by_name: dict[str, Policy | Custom] = {}
        for rule in self.rules:
            if rule.name in self._by_name:
                raise ConfigurationError(f"there are two rules for {rule.name}: pass one of them")
            self._by_name[rule.name] = rule.policy
        self._by_name = {**dict.fromkeys(_HOPELESS, Never()), **self._by_name}

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.retry"

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        if self.crashes_cost_attempts and isinstance(outcome, Lost):
            return _charged(claim, outcome, verdict)
        if verdict.state is not State.FAILED or claim.attempt >= claim.max_attempts:
            return verdict
        match outcome:
            case Raised() | TimedOut() | MemoryExceeded():
                types = verdict.failure.types if verdict.failure else ()
                delay_s = self._delay_s(claim, outcome, types)
            case _:
                return verdict
        if delay_s is None:
            return verdict
        return verdict._replace(state=State.SCHEDULED, delay_s=delay_s)

    def _delay_s(self, claim: Claim, outcome: Outcome, types: tuple[str, ...]) -> float | None:
        policy = self._policy(claim, types)
        if isinstance(policy, Policy):
            return policy.after(claim.attempt)
        try:
            delay_s = policy(claim, outcome)
            if delay_s is None:
                return None
            if not is_seconds(delay_s):
                raise ValueError(f"{shown(delay_s)} is not a number of seconds, nor None")
        except Exception:
            logger.exception("retry_policy_failed job=%s policy=%r", claim.id, policy)
            return DEFAULT.after(claim.attempt)
        return min(max(float(delay_s), 0.0), MAX_DELAY_S)

    def _policy(self, claim: Claim, types: tuple[str, ...]) -> Policy | Custom:
        for name in types:
            if name in self._by_name:
                return self._by_name[name]
        try:
            meta: Any = json.loads(claim.meta) if claim.meta else {}
            return policy_from(meta[KEY]) if KEY in meta else self.policy
        except (ConfigurationError, ValueError, TypeError, RecursionError) as error:
            logger.error("retry_policy_unreadable job=%s error=%s", claim.id, error)
            return self.policy


def _charged(claim: Claim, outcome: Lost, verdict: Settlement) -> Settlement:
    """The verdict on a death that uses up an attempt. The crash is counted too: the next attempt
    runs alone."""
    over = claim.attempt >= claim.max_attempts
    ending = "it fails for good" if over else "it is run again"
    about = f"crash in attempt {claim.attempt} of {claim.max_attempts}: {outcome.why}; {ending}"
    failure = Failure.named("chancy.Lost", about)
    host = verdict.failure.host if verdict.failure else None
    return verdict._replace(
        state=State.FAILED if over else State.PENDING,
        failure=replace(failure, host=host),
        refund=False,
    )


def _check_policy(policy: Policy | Custom) -> Policy | Custom:
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, type) or not callable(policy) or inspect.iscoroutinefunction(policy):
        raise ConfigurationError(
            f"{shown(policy)} is no retry policy: pass Constant(…), Linear(…), Exponential(…), "
            "Fennel(), Never(), or a plain function of claim and outcome"
        )
    return policy
