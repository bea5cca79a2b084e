"""What jobs log in a child, said again in the worker.

It crosses as data: name of the logger, level, text. Whatever a job logs, and however much, the
child and the worker stay well: a record is cut, and a job has so many of them and no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from chancy.attempt.claim import Claim
from chancy.text import storable

#: Of each record so many characters cross.
MAX_RECORD = 16_000
#: Of each job so many records, and characters of them, cross. How many did not is said at its end.
MAX_RECORDS = 1_000
MAX_CHARACTERS = 1_000_000
#: Names of loggers that are kept: a logger is never given up again, so a job must not make more.
MAX_NAMES = 1_000

_fallback = logging.getLogger("chancy.job")


class ChildLogHandler(logging.Handler):
    """The handler of a child's root logger.

    :param say: sends a level and a body to the parent; False if that cannot be done, and what is
        recorded goes to stderr.
    """

    def __init__(self, say: Callable[[int, bytes], bool]) -> None:
        super().__init__()
        self._say = say
        self._records = 0
        self._characters = 0
        self._dropped = 0
        self._formatter = logging.Formatter()

    def createLock(self) -> None:  # noqa: N802  the name it has in logging
        """None: `say` has one, and a signal may interrupt a job that holds it."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._records >= MAX_RECORDS or self._characters >= MAX_CHARACTERS:
            self._dropped += 1
            return
        try:
            text = storable(self._formatter.format(record), MAX_RECORD)
        except Exception:
            self.handleError(record)
            return
        self._records += 1
        self._characters += len(text)
        if not self._say(record.levelno, _body(record.name, text)) and logging.lastResort:
            logging.lastResort.handle(record)

    def end(self) -> None:
        """A job has ended: say how much of its log was dropped, and start counting anew."""
        if not self._records:
            return
        dropped, self._dropped = self._dropped, 0
        self._records = self._characters = 0
        if dropped:
            text = f"{dropped:,} more records of this job were dropped"
            self._say(logging.WARNING, _body(_fallback.name, text))


def _body(name: str, text: str) -> bytes:
    return storable(name, 200).encode() + b"\0" + text.encode()


class LogRelay:
    """Logs in the worker what a child has recorded."""

    def __init__(self) -> None:
        self._loggers: dict[str, logging.Logger] = {}

    def say(self, claim: Claim | None, level: int, body: bytes) -> None:
        """Log a record under the name it had. Never raises."""
        name, _, text = body.decode(errors="replace").partition("\0")
        logger = self._loggers.get(name)
        if logger is None:
            logger = _fallback
            if len(self._loggers) < MAX_NAMES:
                logger = self._loggers[name] = logging.getLogger(name)
        if logger.isEnabledFor(level):
            extra: dict[str, object] = {}
            if claim is not None:
                extra = {"job_id": str(claim.id), "func": claim.func, "attempt": claim.attempt}
            logger.log(level, "%s", text, extra=extra)
