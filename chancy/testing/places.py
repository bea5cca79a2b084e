"""Where a job stands among those of a store in memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from chancy.broker.values import Holder, Place
from chancy.states import State

if TYPE_CHECKING:
    from chancy.testing.store import Row

#: Running jobs that are named, at most.
_HOLDERS = 5


def place_of(row: Row, rows: Iterable[Row], now: datetime) -> Place:
    """The place of a row that has not ended.

    :param rows: all that have not.
    """
    beside = [one for one in rows if one.pushed.queue == row.pushed.queue]
    order = (-row.pushed.priority, row.position)
    ahead = [
        one
        for one in beside
        if one.state is State.PENDING and (-one.pushed.priority, one.position) < order
    ]
    running = sorted(
        (one for one in beside if one.state is State.RUNNING),
        key=lambda one: (one.claimed_at or now, one.pushed.id),
    )
    due, pending = row.run_at or row.pushed_at, row.state is State.PENDING
    return Place(
        ahead=len(ahead) if pending else 0,
        running=len(running),
        due_s=0.0 if row.run_at is None else (row.run_at - now).total_seconds(),
        claimed_s=_claimed_s(row, now),
        waited_s=(now - max(row.pushed_at, min(due, now))).total_seconds(),
        holders=[
            Holder(one.pushed.id, one.pushed.func, one.worker_id, _claimed_s(one, now))
            for one in (running[:_HOLDERS] if pending else ())
        ],
    )


def _claimed_s(row: Row, now: datetime) -> float:
    return 0.0 if row.claimed_at is None else (now - row.claimed_at).total_seconds()
