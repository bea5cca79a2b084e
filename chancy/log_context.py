"""The context of log records: the worker, and the stream or partition that it processes; and the
base of handlers that send records to another process.

No existing logger or handler is changed: add a `LogContext` to a handler to get these attributes.
``chancy worker`` adds one to its own handler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Origin:
    """The attributes of log records written in one context.

    :param worker: returns the worker's current id. A worker that was declared dead continues under
        a new id.
    :param about: further attributes by name, such as ``stream``.
    """

    worker: Callable[[], object]
    about: Mapping[str, str | int] = field(default_factory=dict[str, str | int])

    def narrowed(self, **about: str | int) -> Origin:
        """Return a copy with further attributes."""
        return replace(self, about={**self.about, **about})


#: The origin of the current context. Tasks and ``asyncio.to_thread`` inherit it, other threads do
#: not.
ORIGIN: ContextVar[Origin] = ContextVar("chancy_origin")


def origin_here() -> Origin:
    """Return the origin of the current context; if none is set, one with the worker ``unknown``."""
    return ORIGIN.get(None) or Origin(lambda: "unknown")


class LogContext(logging.Filter):
    """A logging filter that passes every record and adds attributes to it.

    It adds ``worker``, and for a stream processor ``executor``, ``stream``, ``processor`` and
    ``partition``. An attribute that the record already has is left as it is. Add it to a handler:
    filters of a logger do not see the records of its child loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        origin = ORIGIN.get(None)
        if origin is not None:
            attributes = vars(record)
            for name, value in origin.about.items():
                attributes.setdefault(name, value)
            attributes.setdefault("worker", str(origin.worker()))
        return True


class UnlockedHandler(logging.Handler):
    """A handler that holds no lock while it logs: a signal may interrupt the thread that holds it.

    Its subclasses serialize what they write themselves.
    """

    def handle(self, record: logging.LogRecord) -> bool:
        passed: object = self.filter(record)
        if isinstance(passed, logging.LogRecord):  # a filter may replace it, from Python 3.12 on
            record = passed
        if passed:
            self.emit(record)
        return bool(passed)


@contextmanager
def keeping_loggers() -> Generator[None]:
    """Enable the loggers of chancy again that are disabled meanwhile. For imports of an
    application: by default, `logging.config.dictConfig` disables all loggers that exist."""
    disabled = {logger for logger in _loggers() if logger.disabled}
    try:
        yield
    finally:
        # Also those that the import has created: an application imports most of them.
        for logger in _loggers():
            if logger not in disabled:
                logger.disabled = False


def _loggers() -> list[logging.Logger]:
    """The loggers of chancy that exist."""
    return [
        logger
        for name, logger in logging.root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger) and f"{name}.".startswith("chancy.")
    ]
