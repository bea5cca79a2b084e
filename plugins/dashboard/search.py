"""Searches for jobs, as typed: ``state:failed queue:mail arg.user_id:42``. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from chancy.plugins.dashboard.redaction import Masked
from chancy.states import State

#: The most characters, and qualifiers of one kind.
_LONGEST, _MOST = 500, 10
_AGE = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

#: The qualifiers, with an example each.
QUALIFIERS: Mapping[str, str] = {
    "state:": "state:failed, state:pending,scheduled",
    "queue:": "queue:mail",
    "func:": "func:send, a part of the path",
    "id:": "id:0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11",
    "arg.": "arg.user_id:42, arg.order.customer:ann",
    "meta.": "meta.cron.entry:nightly",
    "error:": 'error:"timed out", in the type or the message',
    "worker:": "worker:ID",
    "since:": "since:30m, since:2h, since:7d: finished or pushed since",
}


class SearchError(ValueError):
    """A search that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What jobs must match; all conditions hold.

    :param args: values of arguments by path; compared as text.
    :param since_s: seconds since the job finished, or was pushed if it has not finished.
    """

    states: frozenset[State] = frozenset()
    queue: str | None = None
    func: str | None = None
    id: UUID | None = None
    worker: UUID | None = None
    args: Mapping[str, str] = field(default_factory=dict[str, str])
    meta: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str | None = None
    since_s: float | None = None

    @property
    def by_content(self) -> bool:
        """Whether rows must be read to see whether they match."""
        return bool(
            self.func or self.worker or self.args or self.meta or self.error or self.since_s
        )


def parse(text: str, masked: Masked) -> Search:
    """Read a search. A word without a qualifier is an id, or a part of a function's path.

    :raises SearchError: it cannot be read, or asks for a masked value.
    """
    if len(text) > _LONGEST:
        raise SearchError(f"a search has at most {_LONGEST} characters")
    try:
        words = shlex.split(text)
    except ValueError:
        raise SearchError("a quotation mark is not closed") from None
    values: dict[str, object] = {}
    args: dict[str, str] = {}
    meta: dict[str, str] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            name, value = _bare(word)
        if not value:
            raise SearchError(f"{name}: has no value")
        if name.startswith(("arg.", "meta.")):
            kind, _, path = name.partition(".")
            _check_path(path, masked)
            paths = args if kind == "arg" else meta
            twice = path in paths
            paths[path] = value
        else:
            found = _value(name, value)
            twice = bool(values.keys() & found.keys())
            values |= found
        if twice:  # a search that drops one would match more jobs, and so would its actions
            raise SearchError(f"{name} is given twice")
    if max(len(args), len(meta)) > _MOST:
        raise SearchError(f"a search has at most {_MOST} conditions on arguments")
    return Search(**values, args=args, meta=meta)  # type: ignore[arg-type]


def _bare(word: str) -> tuple[str, str]:
    try:
        UUID(word)
    except ValueError:
        return "func", word
    return "id", word


def _check_path(path: str, masked: Masked) -> None:
    if not path:
        raise SearchError("arg. and meta. need a name: arg.user_id:42")
    # The answer to such a search would tell the value.
    if any(masked(part) for part in path.split(".")):
        raise SearchError(f"{path} is masked, and cannot be searched for")


def _value(name: str, value: str) -> dict[str, object]:
    match name:
        case "state":
            try:
                states = frozenset(State.parse(one) for one in value.split(",") if one)
            except ValueError as error:
                raise SearchError(str(error)) from None
            if not states:
                raise SearchError("state: has no value")
            return {"states": states}
        case "queue" | "func" | "error":
            return {name: value}
        case "id" | "worker":
            try:
                return {name: UUID(value)}
            except ValueError:
                raise SearchError(f"{value!r} is not an id") from None
        case "since":
            found = _AGE.fullmatch(value)
            if not found:
                raise SearchError(f"{value!r} is not an age such as 30m, 2h or 7d")
            return {"since_s": float(found[1]) * _UNITS[found[2]]}
        case "tag":
            raise SearchError(
                "jobs have no tags: push them with meta, and search for meta.NAME:VALUE"
            )
        case _:
            known = " ".join(QUALIFIERS)
            raise SearchError(f"there is no qualifier {name!r}; there are {known}")


def with_states(text: str, states: Sequence[State]) -> str:
    """A search with other states."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    rest = [shlex.quote(word) for word in words if not word.startswith("state:")]
    chosen = [f"state:{','.join(state.label for state in states)}"] if states else []
    return " ".join([*chosen, *rest])
