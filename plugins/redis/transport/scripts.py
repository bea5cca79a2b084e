"""Lua scripts of the package: run by their digest, and sent again if the server lacks them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, TryAgainError

from chancy.plugins.redis.transport.clients import Client, command_sync

#: The type of a key or argument of a script.
Value = str | bytes | int | float

#: Errors of a server that has not run a script: it lacks the script or the keys.
_NOT_RUN = (NoScriptError, MovedError, AskError, TryAgainError)
_INCLUDE = re.compile(r"^--@include ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script: its text, and the digest by which servers cache it."""

    name: str
    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        # The server's own cache key; not used for security.
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)

    def run_sync(self, client: Client, keys: Sequence[Value], args: Sequence[Value] = ()) -> Any:
        """Run the script. Raises the errors of the client. All keys must share one hash tag."""
        try:
            return command_sync(client, "EVALSHA", self.digest, len(keys), *keys, *args)
        except NoScriptError:
            # EVAL caches the script, too. A restarted or promoted server has an empty cache.
            return command_sync(client, "EVAL", self.text, len(keys), *keys, *args)


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script with its keys and arguments, to be sent together with others."""

    script: Script
    keys: Sequence[Value]
    args: Sequence[Value] = ()


def run_all_sync(client: Client, calls: Sequence[ScriptCall]) -> list[Any]:
    """Run scripts in one round trip per node; returns the replies in the order of the calls.

    An error takes the place of its reply. Each script is atomic; all of them together are not.
    Scripts that a server has not run, because it lacks the script or the keys, run after the
    others. A script that may have run is never sent again, unlike with a cluster client's pipeline.
    """
    answers: list[Any] = [None] * len(calls)
    for server, places in _servers(client, calls):
        pipeline: Any = server.pipeline(transaction=False)
        for at in places:
            call = calls[at]
            pipeline.execute_command(
                "EVALSHA", call.script.digest, len(call.keys), *call.keys, *call.args
            )
        try:
            found = pipeline.execute(raise_on_error=False)
        except RedisError as error:
            if server is client:
                raise
            found = [error] * len(places)
        for at, answer in zip(places, found, strict=True):
            answers[at] = answer
    for at, answer in enumerate(answers):
        if isinstance(answer, _NOT_RUN):
            call = calls[at]
            try:
                answers[at] = call.script.run_sync(client, call.keys, call.args)
            except Exception as error:
                answers[at] = error
    return answers


def _servers(client: Client, calls: Sequence[ScriptCall]) -> list[tuple[Any, list[int]]]:
    """The servers that have the keys of the calls, each with the indexes of its calls."""
    if not isinstance(client, RedisCluster):
        return [(client, [*range(len(calls))])]
    cluster: Any = client
    places: dict[Any, list[int]] = {}
    for at, call in enumerate(calls):
        places.setdefault(cluster.get_node_from_key(call.keys[0]), []).append(at)
    return [(cluster.get_redis_connection(node), indexes) for node, indexes in places.items()]


def load_folder(folder: Traversable) -> Mapping[str, Script]:
    """The scripts ``NAME.lua`` of a folder by name.

    A line ``--@include NAME`` is replaced with that file. Names that begin with an underscore are
    only for inclusion.
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
