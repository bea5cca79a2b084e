"""Rules of uniqueness: which jobs are the same one, for how long, and what then becomes of a push.

The key of a rule is hashed here and in the function ``unique_key`` of the schema: what it is made
of must stay as it is, or the jobs of a release before would not be recognised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, get_args

from chancy.errors import ConfigurationError, InvalidArguments
from chancy.text import shown

Scope = Literal["function", "queue", "global"]
Until = Literal["finished", "started"]
OnConflict = Literal["skip", "replace", "raise"]

#: The longest key, in characters.
MAX_KEY = 255
#: The longest period, debounce and cap: ten years.
LONGEST = timedelta(days=3_660)


class UniqueKey(NamedTuple):
    """A rule applied to one job: what a broker is given.

    :param key: 32 bytes that are equal for the same job.
    :param until_claim: the claim of the job gives the key back, instead of its end.
    :param period_s: the key is held for so many seconds from the push on, in any case.
    :param cap_s: with ``replace``: due so many seconds after the first push at the latest.
    """

    key: bytes
    on_conflict: OnConflict = "skip"
    until_claim: bool = False
    period_s: float | None = None
    cap_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """At most one job of a key, however many push at one moment.

    Two jobs are the same if they have the same key in the same scope.

    :param key: a text of 1 to 255 characters, instead of arguments.
    :param by: names of the arguments whose values are the key; None: of all. They are compared
        as they are stored, and must be given.
    :param scope: ``function``: jobs of one function are compared; ``queue``: those of one queue;
        ``global``: all.
    :param until: what counts as there. ``finished``: a job that waits or runs, retries included.
        ``started``: one that has not been claimed yet; a push while it runs is a job of its own.
        Without a word ``finished``, and ``started`` with ``debounce``.
    :param period: the key is held for at least so long after a push that was stored, by the clock
        of the database, even if the job finishes before.
    :param on_conflict: ``skip``: the push gives the job that is there. ``replace``: that takes over
        arguments, run-at and priority of this push if it waits, and is left if it runs.
        ``raise``: `DuplicateJob`.
    :param debounce: the job runs so long after the last push, with the arguments of that one.
    :param cap: and so long after the first one at the latest. Asked for with ``debounce``, since
        a constant stream of pushes would put the job off for ever.
    :raises ConfigurationError: a value that cannot be, or two that do not go together.
    """

    key: str | None = None
    by: tuple[str, ...] | None = None
    scope: Scope = "function"
    until: Until | None = None
    period: timedelta | None = None
    on_conflict: OnConflict = "skip"
    debounce: timedelta | None = None
    cap: timedelta | None = None

    def __post_init__(self) -> None:
        _check_choice("scope", self.scope, get_args(Scope))
        _check_choice("on_conflict", self.on_conflict, get_args(OnConflict))
        if self.until is not None:
            _check_choice("until", self.until, get_args(Until))
        for name in ("period", "debounce", "cap"):
            _check_time(name, getattr(self, name))
        if self.key is not None:
            _check_key(self.key)
        if self.by is not None:
            object.__setattr__(self, "by", _names(self.by))
        if self.key is not None and self.by is not None:
            raise ConfigurationError("Unique: give key= or by=, not both")
        self._check_together()

    def _check_together(self) -> None:
        if self.scope != "function" and (self.on_conflict == "replace" or self.debounce):
            raise ConfigurationError(
                f"Unique: scope={self.scope!r} compares jobs of several functions, and one cannot "
                "take over the arguments of another: use scope='function' to replace or debounce"
            )
        if self.debounce is None:
            if self.cap is not None:
                raise ConfigurationError("Unique: cap= says how long debounce= may put a job off")
            return
        if self.cap is None or self.cap < self.debounce:
            raise ConfigurationError(
                f"Unique: debounce={self.debounce} needs a cap= that is not shorter: a constant "
                "stream of pushes would put the job off for ever"
            )
        if self.on_conflict != "skip" or self.period is not None or self.until == "finished":
            raise ConfigurationError(
                "Unique: debounce= says what becomes of a second push, and holds the key until the "
                "job starts: leave out on_conflict=, period= and until='finished'"
            )

    def of(self, func: str, queue: str, arguments: str) -> UniqueKey:
        """The key of one job.

        :param arguments: the JSON text that is stored.
        :raises InvalidArguments: ``by`` names an argument that the job does not have.
        """
        spans = {"function": func, "queue": queue, "global": ""}[self.scope]
        if self.key is not None:
            text = f"{self.scope}\n{spans}\nkey\n{self.key}"
        else:
            text = f"{self.scope}\n{spans}\narguments\n{self._chosen(func, arguments)}"
        return UniqueKey(
            hashlib.sha256(text.encode()).digest(),
            "replace" if self.debounce else self.on_conflict,
            self.until == "started" or self.debounce is not None,
            None if self.period is None else self.period.total_seconds(),
            None if self.cap is None else self.cap.total_seconds(),
        )

    def _chosen(self, func: str, arguments: str) -> str:
        """The arguments that count, in one form for equal values."""
        values: Mapping[str, Any] = json.loads(arguments)
        if self.by is not None:
            missing = [name for name in self.by if name not in values]
            if missing:
                raise InvalidArguments(
                    f"{func}: Unique(by={self.by!r}) needs the argument {missing[0]!r}, which the "
                    f"job does not have (it has {', '.join(values) or 'none'}): pass it, also "
                    "where the function has a default"
                )
            values = {name: values[name] for name in self.by}
        return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(
            f"Unique: {name}={shown(value)} must be one of {', '.join(map(repr, allowed))}"
        )


def _check_time(name: str, value: object) -> None:
    if value is not None and not (isinstance(value, timedelta) and timedelta() < value <= LONGEST):
        raise ConfigurationError(
            f"Unique: {name}={shown(value)} must be a timedelta over 0, of {LONGEST.days:,} days "
            "at most"
        )


def _check_key(key: object) -> None:
    if not (isinstance(key, str) and 1 <= len(key) <= MAX_KEY and "\x00" not in key):
        raise ConfigurationError(
            f"Unique: key={shown(key)} must be a text of 1 to {MAX_KEY} characters without NUL"
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"Unique: key={shown(key)} has half of a surrogate pair, which is not text"
        ) from None


def _names(by: object) -> tuple[str, ...]:
    given: Iterable[object] = by if isinstance(by, tuple | list | set | frozenset) else (None,)
    names = [name for name in given if isinstance(name, str) and name]
    if len(names) < len(tuple(given)):
        raise ConfigurationError(
            f"Unique: by={shown(by)} must be names of arguments, such as ('to', 'day')"
        )
    return tuple(sorted(set(names)))
