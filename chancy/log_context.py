"""Where a line of the log comes from: the worker, and what it works on where that is logged.

Nothing is changed for loggers and handlers of others: a handler, or a logger, that is to know it is
given a `LogContext`, and ``chancy worker`` gives its own one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Origin:
    """What lines say that are logged while something is worked on.

    :param worker: its id now: one that was declared dead goes on under another.
    :param about: what is worked on, by the names that the lines show.
    """

    worker: Callable[[], object]
    about: Mapping[str, str | int] = field(default_factory=dict[str, str | int])

    def narrowed(self, **about: str | int) -> Origin:
        """The same, and more."""
        return replace(self, about={**self.about, **about})


#: Of what is worked on here: tasks and ``asyncio.to_thread`` take it along, other threads do not.
ORIGIN: ContextVar[Origin] = ContextVar("chancy_origin")


def origin_here() -> Origin:
    """That of what runs now; where none was bound, one that says ``unknown`` of the worker."""
    return ORIGIN.get(None) or Origin(lambda: "unknown")


class LogContext(logging.Filter):
    """Lets every record through, and says in its attributes where it comes from.

    Those are ``worker``, and of a processor of streams ``executor``, ``stream``, ``processor`` and
    ``partition``; a record that has one of its own keeps that. Add it to a handler, since the
    filters of a logger do not see what its children log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        origin = ORIGIN.get(None)
        if origin is not None:
            attributes = vars(record)
            for name, value in origin.about.items():
                attributes.setdefault(name, value)
            attributes.setdefault("worker", str(origin.worker()))
        return True
