"""Unique rules: which jobs are duplicates, for how long, and how a duplicate push is handled.

The key of a rule is hashed here and by the SQL function ``unique_key``. The input of the hash must
not change: jobs pushed by an earlier release would no longer be recognised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, get_args

from chancy.checks import check_choice, check_period
from chancy.errors import ConfigurationError, InvalidArguments
from chancy.serialization.sealed import FORMAT
from chancy.text import shown

Scope = Literal["function", "queue", "global"]
Until = Literal["finished", "started"]
OnConflict = Literal["skip", "replace", "raise"]

#: The maximum characters of a key.
MAX_KEY = 255
#: The maximum period, debounce and cap: ten years.
LONGEST = timedelta(days=3_660)


class UniqueKey(NamedTuple):
    """A unique rule applied to one job, as passed to a broker.

    :param key: 32 bytes, equal for duplicates.
    :param until_claim: whether the key is released when the job is claimed, instead of when it
        finishes.
    :param period_s: the key is held for at least this many seconds after the push.
    :param cap_s: with ``replace``, the job is due at most this many seconds after the first push.
    """

    key: bytes
    on_conflict: OnConflict = "skip"
    until_claim: bool = False
    period_s: float | None = None
    cap_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """A unique rule: at most one job per key, even if many processes push at the same time.

    Two jobs are duplicates if they have the same key in the same scope.

    :param key: a string of 1 to 255 characters, instead of arguments.
    :param by: names of the arguments whose values make up the key; None: all arguments. They are
        compared in their stored form, and the job must have each of them.
    :param scope: ``function`` compares the jobs of one function, ``queue`` those of one queue,
        ``global`` all jobs.
    :param until: how long a job holds the key. ``finished``: while it waits or runs, including
        retries. ``started``: until it is claimed; a push while it runs creates another job. The
        default is ``finished``, or ``started`` with ``debounce``.
    :param period: the key is held for at least this long after a stored push, by the clock of the
        database, even if the job finishes earlier.
    :param on_conflict: ``skip``: the push returns the existing job. ``replace``: the existing job
        takes over arguments, run-at, priority, expiry and hold of this push if it waits, and is
        left as it is if it runs. ``raise``: the push raises `DuplicateJob`.
    :param debounce: the job runs this long after the last push, with the arguments of that push.
    :param cap: the job is due at most this long after the first push. Required with ``debounce``,
        because a constant stream of pushes would delay the job forever.
    :raises ConfigurationError: a value is invalid, or two values cannot be combined.
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
        check_choice(self.scope, "Unique: scope", get_args(Scope))
        check_choice(self.on_conflict, "Unique: on_conflict", get_args(OnConflict))
        if self.until is not None:
            check_choice(self.until, "Unique: until", get_args(Until))
        for name in ("period", "debounce", "cap"):
            if getattr(self, name) is not None:
                check_period(getattr(self, name), f"Unique: {name}", 1e-6, LONGEST)
        if self.key is not None:
            _check_key(self.key)
        if self.by is not None:
            object.__setattr__(self, "by", _names(self.by))
        if self.key is not None and self.by is not None:
            raise ConfigurationError("Unique: pass key= or by=, not both")
        self._check_together()

    def _check_together(self) -> None:
        if self.scope != "function" and (self.on_conflict == "replace" or self.debounce):
            raise ConfigurationError(
                f"Unique: scope={self.scope!r} compares jobs of several functions, and a job "
                "cannot take over the arguments of another function: use scope='function' with "
                "on_conflict='replace' or debounce="
            )
        if self.debounce is None:
            if self.cap is not None:
                raise ConfigurationError("Unique: cap= has no effect without debounce=")
            return
        if self.cap is None or self.cap < self.debounce:
            raise ConfigurationError(
                f"Unique: debounce={self.debounce} needs a cap= that is not shorter: a constant "
                "stream of pushes would delay the job forever"
            )
        if self.on_conflict != "skip" or self.period is not None or self.until == "finished":
            raise ConfigurationError(
                "Unique: debounce= already replaces the waiting job and holds the key until it "
                "starts: leave out on_conflict=, period= and until='finished'"
            )

    def of(self, func: str, queue: str, arguments: str) -> UniqueKey:
        """Return the key of one job.

        :param arguments: the job's arguments, as the JSON string that is stored.
        :raises InvalidArguments: ``by`` names an argument that the job does not have.
        """
        import hashlib  # its OpenSSL takes 2.5 ms of the start of an executor process

        within = {"function": func, "queue": queue, "global": ""}[self.scope]
        if self.key is not None:
            text = f"{self.scope}\n{within}\nkey\n{self.key}"
        else:
            text = f"{self.scope}\n{within}\narguments\n{self._canonical(func, arguments)}"
        return UniqueKey(
            hashlib.sha256(text.encode()).digest(),
            "replace" if self.debounce else self.on_conflict,
            self.until == "started" or self.debounce is not None,
            None if self.period is None else self.period.total_seconds(),
            None if self.cap is None else self.cap.total_seconds(),
        )

    def _canonical(self, func: str, arguments: str) -> str:
        """The compared arguments as JSON, the same string for equal values of any version."""
        values: dict[str, Any] = json.loads(arguments)
        # The version is not compared. Encrypted arguments have the same key, without a version.
        match values.get(FORMAT):
            case {"version": _}:
                del values[FORMAT]
            case _:
                pass
        if self.by is not None:
            missing = [name for name in self.by if name not in values]
            if missing:
                raise InvalidArguments(
                    f"{func}: Unique(by={self.by!r}) needs the argument {missing[0]!r}, which the "
                    f"job does not have (it has {', '.join(values) or 'none'}): pass it even if "
                    "the function has a default"
                )
            values = {name: values[name] for name in self.by}
        return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _check_key(key: object) -> None:
    if not (isinstance(key, str) and 1 <= len(key) <= MAX_KEY and "\x00" not in key):
        raise ConfigurationError(
            f"Unique: key={shown(key)} must be a string of 1 to {MAX_KEY} characters without NUL"
        )
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"Unique: key={shown(key)} has an unpaired surrogate, which cannot be encoded"
        ) from None


def _names(by: object) -> tuple[str, ...]:
    given: Iterable[object] = by if isinstance(by, tuple | list | set | frozenset) else (None,)
    names = [name for name in given if isinstance(name, str) and name]
    if len(names) < len(tuple(given)):
        raise ConfigurationError(
            f"Unique: by={shown(by)} must be names of arguments, such as ('to', 'day')"
        )
    return tuple(sorted(set(names)))
