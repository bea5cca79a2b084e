"""Rules of a queue, on all workers together: how many of its jobs run at a time, how many start in
a period, and in which order. A plugin enforces them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from chancy.checks import check_choice, check_number, check_period
from chancy.errors import ConfigurationError
from chancy.text import shown

#: The maximum rules of a queue, and the maximum characters of the path of a partition key.
MAX_RULES, _MAX_PATH = 10, 200
#: The maximum limit, rate and burst.
_MAX_JOBS = 1_000_000
_PATH = re.compile(r"[^.\s][^.]*(\.[^.]+)*\Z")
#: A string that JSON in Postgres can hold.
_STORABLE = re.compile(r"[^\x00\ud800-\udfff]*\Z")


@dataclass(frozen=True, slots=True)
class GlobalConcurrency:
    """At most ``limit`` jobs run at a time on all workers together.

    :param limit: 1 to 1,000,000.
    :param by: the partition key; the limit then applies to each of its values. A path into the
        arguments (``"order.customer"``), ``"func"``, or ``"key"``: the ``meta["limits"]["key"]`` of
        the job. None: the limit applies to the queue as a whole.
    """

    limit: int
    by: str | None = None

    def __post_init__(self) -> None:
        check_number(self.limit, "GlobalConcurrency: limit", 1, _MAX_JOBS)
        _check_by(self.by, "GlobalConcurrency")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most ``burst`` jobs start at once, and ``allowed`` in each period after that.

    In a window of w seconds at most ``burst + w * allowed / per`` jobs start, by the clock of the
    database.

    :param allowed: 1 to 1,000,000.
    :param per: the period: seconds or a timedelta, from a millisecond to a year.
    :param burst: 1 to 1,000,000; default: ``allowed``.
    :param by: see `GlobalConcurrency`.
    """

    allowed: int
    per: timedelta | float = 1.0
    burst: int | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        check_number(self.allowed, "RateLimit: allowed", 1, _MAX_JOBS)
        if isinstance(self.per, timedelta):
            check_period(self.per, "RateLimit: per", 0.001, timedelta(days=365))
        else:
            check_number(self.per, "RateLimit: per", 0.001, 31_536_000, whole=False, unit="seconds")
        if self.burst is not None:
            check_number(self.burst, "RateLimit: burst", 1, _MAX_JOBS)
        _check_by(self.by, "RateLimit")
        # As it is stored, so that a declared rule equals its stored one.
        object.__setattr__(self, "per", self.per_s)
        object.__setattr__(self, "burst", self.allowed if self.burst is None else self.burst)

    @property
    def per_s(self) -> float:
        """The period in seconds."""
        return self.per.total_seconds() if isinstance(self.per, timedelta) else float(self.per)


@dataclass(frozen=True, slots=True)
class FairShare:
    """The values of a partition key take turns of two jobs, however many jobs each value has.

    :param by: see `GlobalConcurrency`.
    :param weights: by value, 1 to 1,000: a value with 3 starts six jobs in its turn; default: 1.
    """

    by: str
    weights: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)

    def __post_init__(self) -> None:
        _check_by(self.by, "FairShare", required=True)
        if not isinstance(self.weights, Mapping) or len(self.weights) > 10_000:
            raise ConfigurationError(
                f"FairShare: weights={shown(self.weights)} must be a dict of at most 10,000 values"
            )
        for value, weight in self.weights.items():
            if not isinstance(value, str) or not _STORABLE.match(value):
                raise ConfigurationError(
                    f"FairShare: weights: {shown(value)} must be a string, the value of the key"
                )
            check_number(weight, f"FairShare: the weight of {shown(value)}", 1, 1_000)


@dataclass(frozen=True, slots=True)
class Sequential:
    """The jobs of each value of a partition key run one after the other, by priority and then in
    push order.

    A job that has not started yet is overtaken while it is on hold or delayed. Once a job has
    started, the others of its value also wait for its retries.

    :param by: see `GlobalConcurrency`.
    :param on_failure: what happens once a job has failed for good. ``"skip"``: the next one starts.
        ``"block"``: the others of its value wait until it is replayed or skipped.
    """

    by: str
    on_failure: Literal["skip", "block"] = "skip"

    def __post_init__(self) -> None:
        _check_by(self.by, "Sequential", required=True)
        check_choice(self.on_failure, "Sequential: on_failure", ("skip", "block"))


@dataclass(frozen=True, slots=True)
class UnknownRules:
    """Rules of a queue that this release cannot read, because a later release or a manual statement
    wrote them. The queue is broken here, so that no worker violates them.

    :param stored: the JSON value of all rules.
    """

    stored: Any
    by: None = None

    def __str__(self) -> str:
        return "rules that this release cannot read"


KnownRule = GlobalConcurrency | RateLimit | FairShare | Sequential
Rule = KnownRule | UnknownRules
#: The names of the rules as stored.
_NAMES: dict[type[KnownRule], Literal["concurrency", "rate", "fair", "sequential"]] = {
    GlobalConcurrency: "concurrency",
    RateLimit: "rate",
    FairShare: "fair",
    Sequential: "sequential",
}


def _check_by(by: object, where: str, *, required: bool = False) -> None:
    if by is None and not required:
        return
    if (
        not isinstance(by, str)
        or len(by) > _MAX_PATH
        or not (_PATH.match(by) and _STORABLE.match(by))
    ):
        raise ConfigurationError(
            f"{where}: by={shown(by)} must be a path into the arguments, such as 'tenant_id' or "
            "'order.customer', or 'func' or 'key'"
        )


def check_rules(values: object, where: str) -> tuple[Rule, ...]:
    """Return rules as a tuple.

    :raises ConfigurationError: an item is not a rule, there are too many, or two contradict each
        other.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise ConfigurationError(f"{where}: rules must be a list of rules, not {shown(values)}")
    rules = tuple(values)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(
                f"{where}: {shown(rule)} is not a rule: use GlobalConcurrency, RateLimit, "
                "FairShare or Sequential"
            )
    if len(rules) > MAX_RULES:
        raise ConfigurationError(f"{where}: {len(rules)} rules: a queue takes at most {MAX_RULES}")
    same = [(type(rule), rule.by) for rule in rules]
    for kind, by in same:
        if same.count((kind, by)) > 1:
            raise ConfigurationError(f"{where}: there are two rules {kind.__name__} by {by!r}")
    for kind in (FairShare, Sequential):
        if sum(isinstance(rule, kind) for rule in rules) > 1:
            raise ConfigurationError(f"{where}: a queue takes one rule {kind.__name__}")
    return rules


def encode_rules(rules: tuple[Rule, ...]) -> str | None:
    """Return rules as the JSON string that is stored; None if there are none."""
    return json.dumps(plain_rules(rules)) if rules else None


def plain_rules(rules: tuple[Rule, ...]) -> Any:
    """Return rules as a list of JSON values; `UnknownRules` as they are stored."""
    if rules and isinstance(rules[0], UnknownRules):
        return rules[0].stored
    return [_encoded(rule) for rule in rules if not isinstance(rule, UnknownRules)]


def _encoded(rule: KnownRule) -> dict[str, Any]:
    stored: dict[str, Any] = {"rule": _NAMES[type(rule)], "by": rule.by}
    match rule:
        case GlobalConcurrency(limit=limit):
            stored["limit"] = limit
        case RateLimit(allowed=allowed, burst=burst):
            stored |= {"allowed": allowed, "per_s": rule.per_s, "burst": burst}
        case FairShare(weights=weights):
            stored["weights"] = dict(weights)
        case Sequential(on_failure=on_failure):
            stored["on_failure"] = on_failure
    return stored


def decode_rules(text: str | None) -> tuple[Rule, ...]:
    """Return the rules of a row; as `UnknownRules` if one of them is invalid."""
    stored: Any = text
    try:
        stored = json.loads(text) if text else []
        if isinstance(stored, list):
            return check_rules([_decoded(rule) for rule in stored], "the rules")
    except (ConfigurationError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return (UnknownRules(stored),)


def _decoded(stored: dict[str, Any]) -> Rule:
    by: Any = stored.get("by")
    match stored["rule"]:
        case "concurrency":
            return GlobalConcurrency(stored["limit"], by)
        case "rate":
            return RateLimit(stored["allowed"], stored["per_s"], stored["burst"], by)
        case "fair":
            return FairShare(by, stored.get("weights") or {})
        case "sequential":
            return Sequential(by, stored.get("on_failure", "skip"))
        case other:
            raise ConfigurationError(f"there is no rule {shown(other)}")
