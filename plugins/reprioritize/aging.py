"""The rule by which waiting jobs gain priority."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from chancy.errors import ConfigurationError
from chancy.plugin.patterns import check_pattern
from chancy.text import shown

LOWEST, HIGHEST = -100, 100
MIN_PERIOD = timedelta(seconds=1)
MAX_PERIOD = timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aging:
    """Pending jobs gain ``by`` for each full period since they became due, up to a priority.

    A job becomes due when it is pushed, or at its ``run_at`` if that is later: time spent waiting
    for a delay or a retry does not count. A priority is never lowered.

    :param every: the period, 1 second to ten years.
    :param by: priority gained in each period, 1 to 200.
    :param up_to: the highest priority that the rule sets, -99 to 100.
    :param queue: a name or a pattern: ``*`` matches any characters, ``?`` exactly one.
    :param func: the path of a function, or a pattern of paths: ``shop.jobs.*``.
    :raises ConfigurationError: a value is out of range, or a pattern is not valid.
    """

    # Unknown keys in a settings file are errors: ignoring one would make a rule match too much.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    every: timedelta
    by: int = 1
    up_to: int = HIGHEST
    queue: str | None = None
    func: str | None = None

    def __post_init__(self) -> None:
        every: object = self.every
        if not (isinstance(every, timedelta) and MIN_PERIOD <= every <= MAX_PERIOD):
            raise ConfigurationError(
                f"Aging: every={shown(every)} must be a timedelta, 1 second to "
                f"{MAX_PERIOD.days:,} days"
            )
        _check_whole("by", self.by, 1, HIGHEST - LOWEST)
        _check_whole("up_to", self.up_to, LOWEST + 1, HIGHEST)
        for name in ("queue", "func"):
            if getattr(self, name) is not None:
                check_pattern(getattr(self, name), f"Aging: {name}")


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(
            f"Aging: {name}={shown(value)} must be a whole number from {low} to {high}"
        )
