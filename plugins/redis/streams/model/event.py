"""An event: one entry of a partition's log, as passed to a processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

R = TypeVar("R")


class Event(Generic[R]):
    """One entry of a log. `record` decodes its record.

    :ivar partition: the number of its partition.
    :ivar xid: the id of the entry in Redis, such as ``1700000000000-0``.
    :ivar fields: name, value, name, value … as stored.
    :ivar group: the name of the processor.
    :ivar recovering: whether the event was delivered to a former owner of the partition, which may
        have processed it.
    """

    __slots__ = ("_decode", "fields", "group", "partition", "recovering", "xid")

    def __init__(
        self,
        partition: int,
        xid: str,
        fields: Sequence[bytes],
        recovering: bool,
        decode: Callable[[Sequence[bytes]], R],
        group: str = "",
    ) -> None:
        self.partition = partition
        self.xid = xid
        self.fields = fields
        self.recovering = recovering
        self._decode = decode
        self.group = group

    @property
    def data(self) -> Mapping[bytes, bytes]:
        """The stored fields by name."""
        return dict(zip(self.fields[::2], self.fields[1::2], strict=True))

    def record(self) -> R:
        """Decode the record.

        :raises Exception: whatever the codec raises.
        """
        return self._decode(self.fields)

    def __repr__(self) -> str:
        return f"Event({self.xid} of partition {self.partition})"
