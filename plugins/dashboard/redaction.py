"""Values of jobs as trees that can be shown: bounded, and masked by name. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from chancy.checks import check_instances
from chancy.errors import ConfigurationError
from chancy.serialization.sealed import key_of, redaction

#: Patterns of names whose values are masked, in lower case: ``*`` stands for any characters.
MASKED = (
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*secret*",
    "*token*",
    "*api_key*",
    "*apikey*",
    "*api-key*",
    "*access_key*",
    "*private_key*",
    "*credential*",
    "*authorization*",
    "*cookie*",
    "*card_number*",
    "*cvv*",
    "*iban*",
    "*dsn*",
)
#: What stands for a masked value.
MASK = "••••••••"
#: The most nodes of a tree, levels, and characters of a string.
_NODES, _DEPTH, _CHARACTERS = 1_000, 20, 4_000


class Masked:
    """Whether the value of a name is masked.

    :param names: patterns, compared without case; or a function of the name.
    """

    def __init__(self, names: Iterable[str] | Callable[[str], bool]) -> None:
        self._asks = names if callable(names) else None
        if isinstance(names, str):
            raise ConfigurationError(f"masked={names!r} is a string: pass a list of patterns")
        given = () if callable(names) else check_instances(names, str, "masked", "pass patterns")
        self._patterns = tuple(pattern.lower() for pattern in given)

    def __call__(self, name: str) -> bool:
        if self._asks is not None:
            return bool(self._asks(name))
        lower = name.lower()
        return any(fnmatchcase(lower, pattern) for pattern in self._patterns)

    def copy(self, value: Any, depth: int = 0) -> Any:
        """A copy of a JSON value with the values of masked names replaced."""
        if depth > _DEPTH:
            return "…"
        if (key := key_of(value)) is not None:
            return redaction(key)
        if isinstance(value, Mapping):
            return {
                key: MASK if self(str(key)) else self.copy(below, depth + 1)
                for key, below in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.copy(below, depth + 1) for below in value]
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A value in a tree.

    :param kind: ``object``, ``array``, ``string``, ``number``, ``constant``, ``masked`` or ``cut``.
    :param text: the value, or the number of values below.
    """

    name: str
    kind: str
    text: str
    below: Sequence[TreeNode] = ()


def tree(value: Any, masked: Masked) -> TreeNode:
    """A JSON value as a tree, cut to a size that a page can show."""
    return _node("", value, masked, 0, iter(range(_NODES)))


def _node(name: str, value: Any, masked: Masked, depth: int, budget: Iterator[int]) -> TreeNode:
    if name and masked(name):
        return TreeNode(name=name, kind="masked", text=MASK)
    if (encrypted_by := key_of({name: value})) is not None:
        return TreeNode(name=name, kind="masked", text=redaction(encrypted_by))
    if isinstance(value, Mapping | list | tuple):
        if depth >= _DEPTH:
            return TreeNode(name=name, kind="cut", text="nested too deeply to be shown")
        kind = "object" if isinstance(value, Mapping) else "array"
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        below: list[TreeNode] = []
        for key, item in pairs:
            if next(budget, None) is None:
                left = f"{len(value) - len(below):,} more"
                below.append(TreeNode(name="…", kind="cut", text=left))
                break
            below.append(_node(str(key), item, masked, depth + 1, budget))
        return TreeNode(name=name, kind=kind, text=f"{len(value):,}", below=below)
    if isinstance(value, str):
        return TreeNode(name=name, kind="string", text=_cut(value))
    kind = "constant" if value is None or isinstance(value, bool) else "number"
    return TreeNode(name=name, kind=kind, text=_cut(json.dumps(value)))


def _cut(text: str) -> str:
    if len(text) <= _CHARACTERS:
        return text
    return f"{text[:_CHARACTERS]}… ({len(text):,} characters)"


def line(text: str | None, masked: Masked) -> str:
    """The arguments of a job, as stored, in one line for a list."""
    if text is None:
        return "…"
    try:
        found = json.loads(text)
    except ValueError:
        return "…"
    if not isinstance(found, dict):
        return ""
    if (key := key_of(found)) is not None:
        return redaction(key)
    shown = masked.copy(found)
    return ", ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in shown.items()
    )[:200]
