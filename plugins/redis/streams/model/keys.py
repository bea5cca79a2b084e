"""The keys of streams. What one script touches shares a hash tag, and so a slot of a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of a stream.

    :param prefix: that of the plugin, before each key.
    """

    prefix: str
    stream: str

    @property
    def meta(self) -> str:
        """Hash: partition count, hasher, codec and version."""
        return f"{{{self.prefix}st:{self.stream}}}:meta"

    def log(self, partition: int) -> str:
        """Stream: the entries of a partition, with one group for each processor."""
        return f"{self._of(partition)}:log"

    def stat(self, partition: int) -> str:
        """Hash: counters of a partition, such as ``dropped``; ``term`` of its last relay."""
        return f"{self._of(partition)}:stat"

    def relayed(self, partition: int) -> str:
        """Sorted set: rows of the outbox that were appended and may be there still, by position."""
        return f"{self._of(partition)}:relayed"

    def own(self, partition: int, processor: str) -> str:
        """Hash: owner, until (ms on the server's clock), epoch."""
        return f"{self._of(partition)}:own:{processor}"

    def park(self, partition: int, processor: str) -> str:
        """Hash: why the partition is parked for a processor; missing if it is not."""
        return f"{self._of(partition)}:park:{processor}"

    def dead(self, partition: int, processor: str) -> str:
        """Stream: entries that a processor gave up."""
        return f"{self._of(partition)}:dead:{processor}"

    def members(self, processor: str) -> str:
        """Sorted set: the workers that have joined, by the end of their lease in ms."""
        return f"{self._group(processor)}:members"

    def plan(self, processor: str) -> str:
        """Hash: version, order of the members, and the member of each partition."""
        return f"{self._group(processor)}:plan"

    def ctl(self, processor: str) -> str:
        """Stream: what members tell each other."""
        return f"{self._group(processor)}:ctl"

    def _of(self, partition: int) -> str:
        return f"{{{self.prefix}st:{self.stream}:{partition}}}"

    def _group(self, processor: str) -> str:
        return f"{{{self.prefix}st:{self.stream}:{processor}}}"
