"""How an attempt ends, and the meta stored while it runs.

Named tuples, because one is made for every job that runs: a frozen dataclass of this size takes
three times as long to make (1.6 µs against 0.5 µs).
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from chancy.attempt.failure import Failure
from chancy.states import State


class Settlement(NamedTuple):
    """How an attempt ends: the only instruction a broker takes for a running job.

    :param state: what the job becomes; one of ``TRANSITIONS[State.RUNNING]``.
    :param delay_s: seconds from now, by the database's clock, until a SCHEDULED job is due.
    :param run_at: the moment it is due, instead of a delay.
    :param failure: appended to the job's errors.
    :param result: JSON text.
    :param refund: the attempt does not count: `attempt` goes down by one.
    :param crashed: `crashes` goes up by one.
    :param meta: JSON text of keys to be put over the job's meta.
    """

    id: UUID
    lease: UUID
    state: State
    delay_s: float | None = None
    run_at: datetime | None = None
    failure: Failure | None = None
    result: str | None = None
    refund: bool = False
    crashed: bool = False
    meta: str | None = None


class Note(NamedTuple):
    """What is stored with a job while it runs.

    :param meta: JSON text of keys to be put over the job's meta.
    """

    id: UUID
    lease: UUID
    meta: str
