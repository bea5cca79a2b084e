"""Lua scripts of the package: run by their digest, and sent again if the server lacks them."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

#: The type of a key or argument of a script.
Value = str | bytes | int | float

_INCLUDE = re.compile(r"^--@include ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script: its text, and the digest by which servers cache it.

    :ivar declared: whether it uses no keys but those that it is given, so that it may run on the
        server to which its keys are being moved.
    """

    name: str
    text: str
    declared: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # The server's own cache key; not used for security.
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script with its keys and arguments. All keys must share one hash tag."""

    script: str
    keys: Sequence[Value]
    args: Sequence[Value] = ()


@functools.cache
def scripts(package: str) -> Mapping[str, Script]:
    """The scripts of a package, such as ``jobs``, each as ``PACKAGE.NAME``.

    A line ``--@include NAME`` is replaced with that file. Names that begin with an underscore are
    only for inclusion.
    """
    folder = resources.files(f"chancy.plugins.redis.{package}") / "lua"
    texts = {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".lua")
    }
    return {
        f"{package}.{name}": Script(
            name, _INCLUDE.sub(lambda match: texts[match[1]], text), package == "streams"
        )
        for name, text in texts.items()
        if not name.startswith("_")
    }


@functools.cache
def script_of(name: str) -> Script:
    """The script ``PACKAGE.NAME``."""
    return scripts(name.partition(".")[0])[name]
