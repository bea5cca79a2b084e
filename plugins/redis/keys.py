"""Key names: a prefix, and a hash tag that keeps related keys on one cluster node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chancy.errors import ConfigurationError
from chancy.text import shown


def shard_tag(prefix: str) -> str:
    """The start of every key of jobs.

    A cluster hashes only the part in braces, so one script may use any keys that share a tag.

    :param prefix: prefix of every key, from `RedisSettings`.
    """
    return f"{{{prefix}jobs:0}}"


_TAG = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class ServiceKeys:
    """The keys of the services of one plugin. On a cluster all of them share a hash tag.

    :param waiting: list of ids that wait for a worker; pushed on the left, taken from the right.
    :param ended: list of ids that have ended and wait for their cleanup.
    :param known: set of ids that run or are stopped, and of those kept after their end.
    :param hashes: prefix of the hash of each service and of the channel of its events.
    """

    waiting: str
    ended: str
    known: str
    hashes: str

    @property
    def script_keys(self) -> tuple[str, str, str]:
        """The keys that every script receives."""
        return self.waiting, self.ended, self.known

    @property
    def control(self) -> str:
        """Stream of ids that were queued or have a new command, which workers read immediately."""
        return f"{self.waiting}:control"

    @property
    def leases(self) -> str:
        """Sorted set of running ids by the end of their lease, in milliseconds."""
        return f"{self.waiting}:leases"

    def of(self, id: str) -> str:
        """The hash of a service."""
        return f"{self.hashes}{id}"


def own_keys(prefix: str) -> ServiceKeys:
    """The service keys of a plugin with this key prefix."""
    tag = f"{{{prefix}services}}:"
    return ServiceKeys(f"{tag}new", f"{tag}end", f"{tag}known", f"{tag}service-")


def named_keys(
    *, waiting: str, ended: str, known: str, hashes: str, clustered: bool = False
) -> ServiceKeys:
    """Service keys with custom names.

    :param clustered: prepend ``{services}`` to each, unless they already share a hash tag.
    :raises ConfigurationError: two names are equal.
    """
    names = (waiting, ended, known, hashes)
    if len(set(names)) != len(names):
        raise ConfigurationError(f"the keys of services must differ: {shown(list(names))}")
    tags = {found[1] if (found := _TAG.search(name)) else "" for name in names}
    if clustered and (len(tags) != 1 or "" in tags):
        waiting, ended, known, hashes = (f"{{services}}{name}" for name in names)
    return ServiceKeys(waiting, ended, known, hashes)
