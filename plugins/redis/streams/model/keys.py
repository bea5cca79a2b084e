"""The Redis keys of streams. Keys used by one script share a hash tag, so a cluster slot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of a stream.

    :param prefix: the plugin's prefix, before each key.
    """

    prefix: str
    stream: str

    @property
    def meta(self) -> str:
        """Hash: partition count, hasher, codec and version."""
        return f"{{{self.prefix}st:{self.stream}}}:meta"

    def log(self, partition: int) -> str:
        """Stream: the entries of a partition, with one consumer group for each processor."""
        return f"{self._of(partition)}:log"

    def stat(self, partition: int) -> str:
        """Hash: counters of a partition such as ``dropped``, and the ``term`` of its last relay."""
        return f"{self._of(partition)}:stat"

    def relayed(self, partition: int) -> str:
        """Sorted set: appended outbox rows that may still be in Postgres, by position."""
        return f"{self._of(partition)}:relayed"

    def own(self, partition: int, processor: str) -> str:
        """Hash: owner, until (ms on the server's clock), epoch."""
        return f"{self._of(partition)}:own:{processor}"

    def park(self, partition: int, processor: str) -> str:
        """Hash: why the partition is parked for a processor; absent if it is not."""
        return f"{self._of(partition)}:park:{processor}"

    def dead(self, partition: int, processor: str) -> str:
        """Stream: the dead letters of a processor."""
        return f"{self._of(partition)}:dead:{processor}"

    def members(self, processor: str) -> str:
        """Sorted set: the members of the group, by the end of their lease in ms."""
        return f"{self._group(processor)}:members"

    def plan(self, processor: str) -> str:
        """Hash: version, members in join order, and the member of each partition."""
        return f"{self._group(processor)}:plan"

    def ctl(self, processor: str) -> str:
        """Stream: notifications between the members."""
        return f"{self._group(processor)}:ctl"

    def _of(self, partition: int) -> str:
        return f"{{{self.prefix}st:{self.stream}:{partition}}}"

    def _group(self, processor: str) -> str:
        return f"{{{self.prefix}st:{self.stream}:{processor}}}"
