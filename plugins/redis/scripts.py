"""Lua scripts: files of the package, run by their digest, and sent again where they are missing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from chancy.plugins.redis.client import Client, command_sync

#: What a script takes as key or argument.
Value = str | bytes | int | float

_INCLUDE = re.compile(r"^--@include ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script: what it says, and the digest by which a server that has it knows it."""

    name: str
    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # The server's own name for it, no protection of anything.
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)

    def run_sync(self, client: Client, keys: Sequence[Value], args: Sequence[Value] = ()) -> Any:
        """Run it; raises the errors of the client. All keys must share one hash tag."""
        try:
            return command_sync(client, "EVALSHA", self.digest, len(keys), *keys, *args)
        except NoScriptError:
            # EVAL leaves it there too. A server that was restarted or promoted has none.
            return command_sync(client, "EVAL", self.text, len(keys), *keys, *args)


@dataclass(frozen=True, slots=True)
class Call:
    """One script with its keys and arguments, to be sent along with others."""

    script: Script
    keys: Sequence[Value]
    args: Sequence[Value] = ()


def run_all_sync(client: Client, calls: Sequence[Call]) -> list[Any]:
    """Run scripts in one round trip for each node; gives the answers in the order of the calls.

    An error takes the place of its answer. Each script is atomic, all of them together are not.
    Where a server misses scripts, those that it refused run after the others.
    """
    # That of a cluster is no transaction, and has no word for it.
    clustered = isinstance(client, RedisCluster)
    pipeline: Any = client.pipeline() if clustered else client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(
            "EVALSHA", call.script.digest, len(call.keys), *call.keys, *call.args
        )
    answers: list[Any] = pipeline.execute(raise_on_error=False)
    for at, answer in enumerate(answers):
        if isinstance(answer, NoScriptError):
            call = calls[at]
            try:
                answers[at] = call.script.run_sync(client, call.keys, call.args)
            except Exception as error:
                answers[at] = error
    return answers


def load_folder(folder: Traversable) -> Mapping[str, Script]:
    """Every ``NAME.lua`` of a folder, by name.

    A line ``--@include NAME`` stands for the text of that file of the folder. What begins with an
    underscore is only there to be included.
    """
    texts = {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".lua")
    }
    return {
        name: Script(name, _INCLUDE.sub(lambda match: texts[match[1]], text))
        for name, text in texts.items()
        if not name.startswith("_")
    }
