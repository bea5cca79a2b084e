"""The executor processes of a worker, which its process queues share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from chancy.executors.process.group import ChildGroup, ChildKind


class ChildPool:
    """Bounds the number of executor processes of all kinds together.

    Every kind in use has at least one, so that no kind waits for another one to end its jobs: with
    more kinds than the bound, there are as many executor processes as kinds.

    :param most: maximum number of executor processes; None: ``cores``, or the greatest concurrency
        of a queue if that is more.
    """

    def __init__(self, most: int | None, cores: int = 1) -> None:
        self._most = most
        self._cores = cores
        self._groups: dict[ChildKind, ChildGroup] = {}
        #: Numbers of the executor processes, which identify them in messages.
        self.numbers: Iterator[int] = itertools.count(1)

    @property
    def most(self) -> int:
        """Maximum number of executor processes."""
        if self._most is not None:
            return self._most
        return max([self._cores, *(group.greatest for group in self._groups.values())])

    def group(self, kind: ChildKind) -> ChildGroup:
        """The executor processes of a kind."""
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = ChildGroup(kind, self)
        return group

    def remove(self, kind: ChildKind) -> None:
        """Forget the group of a kind without queues."""
        del self._groups[kind]

    @property
    def free(self) -> int:
        """Number of executor processes that may be started."""
        return max(0, self.most - sum(group.size for group in self._groups.values()))

    def may_grow(self, group: ChildGroup) -> bool:
        """Whether a group may start one more executor process now. An idle one of another kind may
        be stopped for it."""
        if self.free:
            return True
        others: Sequence[ChildGroup] = [each for each in self._groups.values() if each is not group]
        return any(other.evict(at_once=not group.size) for other in others) or not group.size
