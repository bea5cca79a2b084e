"""The names of keys: a prefix, and a hash tag that keeps related keys on one node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chancy.errors import ConfigurationError
from chancy.text import shown


@dataclass(frozen=True, slots=True)
class Keys:
    """Makes the names of keys.

    :param prefix: of every key; of `RedisSettings`.
    """

    prefix: str

    def tag(self, name: str, shard: int = 0) -> str:
        """What begins every key of one shard: ``{prefix name:shard}``.

        A cluster hashes only what is in braces: scripts may take any keys that share a tag.
        """
        return f"{{{self.prefix}{name}:{shard}}}"

    def plain(self, name: str) -> str:
        """A key that no script takes together with others."""
        return f"{self.prefix}{name}"


_TAG = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class ServiceKeys:
    """The keys of one kind of services. On a cluster all of them share a hash tag.

    :param waiting: list: ids that wait for a worker; pushed on the left, taken from the right.
    :param ended: list: ids that have ended and wait to be cleaned up after.
    :param known: set: ids that run or are stopped, and those that are kept after their end.
    :param hashes: what the hash of each service begins with, and the channel of its events.
    """

    waiting: str
    ended: str
    known: str
    hashes: str

    @property
    def given(self) -> tuple[str, str, str]:
        """What every script is given."""
        return self.waiting, self.ended, self.known

    @property
    def rung(self) -> str:
        """List: ids that a worker has moved while it waited, on their way to be taken."""
        return f"{self.waiting}:rung"

    @property
    def control(self) -> str:
        """Stream: ids of which something is wanted, for their owners to look at once."""
        return f"{self.waiting}:control"

    @property
    def leases(self) -> str:
        """Sorted set: ids that run, by the end of their lease in ms."""
        return f"{self.waiting}:leases"

    def of(self, id: str) -> str:
        """The hash of a service."""
        return f"{self.hashes}{id}"


def own_keys(prefix: str) -> ServiceKeys:
    """Those of the services of a plugin whose keys begin with a prefix."""
    tag = f"{{{prefix}services}}:"
    return ServiceKeys(f"{tag}new", f"{tag}end", f"{tag}known", f"{tag}service-")


def named_keys(
    *, waiting: str, ended: str, known: str, hashes: str, clustered: bool = False
) -> ServiceKeys:
    """Those of other names.

    :param clustered: put ``{services}`` before each, unless they share a hash tag.
    :raises ConfigurationError: two are the same.
    """
    names = (waiting, ended, known, hashes)
    if len(set(names)) != len(names):
        raise ConfigurationError(f"the keys of services must differ: {shown(list(names))}")
    tags = {found[1] if (found := _TAG.search(name)) else "" for name in names}
    if clustered and (len(tags) != 1 or "" in tags):
        waiting, ended, known, hashes = (f"{{services}}{name}" for name in names)
    return ServiceKeys(waiting, ended, known, hashes)
