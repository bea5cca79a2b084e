"""The names of keys: a prefix, and a hash tag that keeps what belongs together on one node."""

from __future__ import annotations

from dataclasses import dataclass


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
