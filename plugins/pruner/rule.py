"""`Prune`, the rule for deleting finished jobs before their day is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, cast

from chancy.checks import check_number, check_period
from chancy.errors import ConfigurationError
from chancy.plugin.patterns import check_pattern
from chancy.states import State
from chancy.text import shown

#: The maximum number of jobs of a queue that a rule may keep, and the maximum age.
MAX_KEPT = 10_000_000
MAX_AGE = timedelta(days=3650)

FinalState = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """A rule that deletes finished jobs before their day is dropped. All conditions must match.

    :param state: a final state, or its name.
    :param queue: a name or a pattern: ``*`` matches any characters, ``?`` exactly one.
    :param func: the path of a function, or a pattern of paths: ``shop.jobs.*``.
    :param older_than: minimum time since the job finished, by the server's clock; up to ten years.
    :param keep_last: the number of jobs to keep in each queue: the last finished ones among the
        jobs that match the other conditions; up to 10,000,000.
    :raises ConfigurationError: neither ``older_than`` nor ``keep_last`` is given, or a value is
        not valid.
    """

    # Unknown keys in a settings file are errors: ignoring one would make a rule match too much.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    state: State | FinalState | None = None
    queue: str | None = None
    func: str | None = None
    older_than: timedelta | None = None
    keep_last: int | None = None

    def __post_init__(self) -> None:
        if self.state is not None:
            object.__setattr__(self, "state", _final(self.state))
        for name in ("queue", "func"):
            if getattr(self, name) is not None:
                check_pattern(getattr(self, name), f"Prune: {name}")
        if self.older_than is None and self.keep_last is None:
            raise ConfigurationError(
                "Prune: pass older_than or keep_last: without them the rule would keep no job"
            )
        if self.older_than is not None:
            check_period(self.older_than, "Prune: older_than", 0, MAX_AGE)
        if self.keep_last is not None:
            check_number(self.keep_last, "Prune: keep_last", 0, MAX_KEPT)

    @property
    def state_number(self) -> int | None:
        """The number of the state in the tables."""
        return None if self.state is None else int(cast(State, self.state))

    def __str__(self) -> str:
        conditions = {
            "state": self.state,
            "queue": self.queue,
            "func": self.func,
            "older_than": self.older_than,
            "keep_last": self.keep_last,
        }
        return " ".join(
            f"{name}={value}" for name, value in conditions.items() if value is not None
        )


def _final(state: object) -> State:
    try:
        found = State.parse(state) if isinstance(state, str) else State(cast(int, state))
    except ValueError:
        found = State.PENDING
    if not found.final:
        names = ", ".join(state.label for state in State if state.final)
        raise ConfigurationError(
            f"Prune: state={shown(state)} must be a state of finished jobs ({names}); unfinished "
            "jobs are never pruned"
        )
    return found
