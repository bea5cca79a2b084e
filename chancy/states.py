"""The states of a job and the transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class LabelledEnum(IntEnum):
    """An enum whose members are shown in lower case."""

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """The name in lower case, as shown by pages, logs and the command line."""
        return self.name.lower()


class State(LabelledEnum):
    """The state of a job. The tables store its number."""

    #: Due: the next claim of its queue may take it.
    PENDING = 0
    #: A worker holds its lease.
    RUNNING = 1
    #: Waits until it is due, after a delay, a retry or a snooze.
    SCHEDULED = 2
    #: Waits for a worker that knows its function, or until a plugin releases it, for example for a
    #: concurrency slot.
    HELD = 3
    #: Ran to completion. Final.
    SUCCEEDED = 4
    #: Failed for good. Final.
    FAILED = 5
    #: Cancelled; set once a running attempt has stopped. Final.
    CANCELLED = 6

    @property
    def final(self) -> bool:
        """Whether the job is finished: its row has moved to ``finished_jobs``."""
        return self >= State.SUCCEEDED

    @classmethod
    def parse(cls, label: str) -> State:
        """Return the state with this label; raises `ValueError` that lists the valid labels."""
        try:
            return cls[label.upper()]
        except KeyError:
            labels = ", ".join(state.label for state in cls)
            raise ValueError(f"{label!r} is not a state: one of {labels}") from None


#: States that are not final, those of them in which no worker has the job, and the final ones.
UNFINISHED = frozenset(state for state in State if not state.final)
WAITING = UNFINISHED - {State.RUNNING}
FINISHED = frozenset(State) - UNFINISHED

#: The states that each state may change to. ``None`` stands for a job that does not exist yet.
TRANSITIONS: Mapping[State | None, frozenset[State]] = MappingProxyType(
    {
        None: frozenset({State.PENDING, State.SCHEDULED, State.HELD}),
        State.SCHEDULED: frozenset({State.PENDING, State.HELD, State.CANCELLED}),
        State.HELD: frozenset({State.PENDING, State.RUNNING, State.SCHEDULED, State.CANCELLED}),
        State.PENDING: frozenset({State.RUNNING, State.SCHEDULED, State.HELD, State.CANCELLED}),
        State.RUNNING: frozenset(
            {
                State.SUCCEEDED,
                State.FAILED,
                State.CANCELLED,
                State.SCHEDULED,
                State.PENDING,
                State.HELD,
            }
        ),
        State.SUCCEEDED: frozenset(),
        State.FAILED: frozenset({State.PENDING}),
        State.CANCELLED: frozenset({State.PENDING}),
    }
)
