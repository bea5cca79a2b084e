"""Which finished jobs are not kept for as long as the others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, cast

from chancy.errors import ConfigurationError
from chancy.plugin.patterns import check_pattern
from chancy.states import State
from chancy.text import shown

#: The most jobs that a rule may keep of a queue, and the longest time.
MAX_KEPT = 10_000_000
MAX_AGE = timedelta(days=3650)

FinalState = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Removes finished jobs before their day is dropped. Every condition that is given must hold.

    :param state: a final state, or its name.
    :param queue: a name or a pattern: ``*`` stands for any characters, ``?`` for one.
    :param func: the path of a function, or a pattern of paths: ``shop.jobs.*``.
    :param older_than: time since the job finished, by the clock of the server; up to ten years.
    :param keep_last: those that finished last stay, so many of each queue, counted among the jobs
        that the other conditions mean; up to 10,000,000.
    :raises ConfigurationError: neither ``older_than`` nor ``keep_last`` is given, or a value that
        cannot be.
    """

    # A name that is misspelled in a file must not make a rule that means more than it should.
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
                "Prune: give older_than or keep_last: without them nothing says which jobs stay"
            )
        age: object = self.older_than
        if age is not None and not (isinstance(age, timedelta) and timedelta() <= age <= MAX_AGE):
            raise ConfigurationError(
                f"Prune: older_than={shown(age)} must be a timedelta, 0 to {MAX_AGE.days:,} days"
            )
        kept: object = self.keep_last
        if kept is not None and (
            isinstance(kept, bool) or not isinstance(kept, int) or not 0 <= kept <= MAX_KEPT
        ):
            raise ConfigurationError(
                f"Prune: keep_last={shown(kept)} must be a whole number from 0 to {MAX_KEPT:,}"
            )

    @property
    def state_number(self) -> int | None:
        """The state as the tables have it."""
        return None if self.state is None else int(cast(State, self.state))

    def __str__(self) -> str:
        given = {
            "state": self.state,
            "queue": self.queue,
            "func": self.func,
            "older_than": self.older_than,
            "keep_last": self.keep_last,
        }
        return " ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def _final(state: object) -> State:
    try:
        found = State.parse(state) if isinstance(state, str) else State(cast(int, state))
    except ValueError:
        found = State.PENDING
    if not found.final:
        names = ", ".join(one.label for one in State if one.final)
        raise ConfigurationError(
            f"Prune: state={shown(state)} is no state of a finished job: {names}. Unfinished jobs "
            "are never pruned"
        )
    return found
