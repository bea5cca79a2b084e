"""`ForkLock`: a lock that is free in a forked process."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet


class ForkLock:
    """A reentrant lock that is free in a forked process.

    A thread of the parent may hold it at the fork. The child does not have that thread, so nothing
    would release it there.
    """

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Replace it by a free one: its holder is in another process."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks: WeakSet[ForkLock] = WeakSet()


def _renew_all() -> None:
    for lock in tuple(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
