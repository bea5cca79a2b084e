"""Relay of log records from executor processes to the worker.

A record is sent as data: name of the logger, level, text. Records are cut and their number per job
is limited, so no job can overload its executor process or the worker with its log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from chancy.attempt.claim import Claim
from chancy.log_context import UnlockedHandler
from chancy.text import storable

#: Maximum length of a relayed record, in characters.
MAX_RECORD = 16_000
#: Maximum number of relayed records, and of their characters, for each job. The number of dropped
#: records is logged at its end.
MAX_RECORDS = 1_000
MAX_CHARACTERS = 1_000_000
#: Maximum number of logger names. Loggers are never freed, so jobs must not create more.
MAX_NAMES = 1_000

#: Handles a record of a job: its claim, its level and its encoded body.
RelayRecord = Callable[[Claim | None, int, bytes], None]

_fallback = logging.getLogger("chancy.job")


def log_levels() -> tuple[int, int]:
    """The lowest levels of records that this process logs: of all, and of ``chancy.job``."""
    return logging.getLogger().getEffectiveLevel(), _fallback.getEffectiveLevel()


class ChildLogHandler(UnlockedHandler):
    """The handler of the root logger in an executor process.

    :param send: sends a level and a body to the worker; returns False if that is not possible, and
        the record then goes to stderr.
    """

    def __init__(self, send: Callable[[int, bytes], bool]) -> None:
        super().__init__()
        self._send = send
        self._records = 0
        self._characters = 0
        self._dropped = 0
        self._formatter = logging.Formatter()

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
        if not self._send(record.levelno, _body(record.name, text)) and logging.lastResort:
            logging.lastResort.handle(record)

    def end(self) -> None:
        """Log how many records of the ended job were dropped, and reset the counters."""
        if not self._records:
            return
        dropped, self._dropped = self._dropped, 0
        self._records = self._characters = 0
        if dropped:
            text = f"{dropped:,} more records of this job were dropped"
            self._send(logging.WARNING, _body(_fallback.name, text))


def _body(name: str, text: str) -> bytes:
    return storable(name, 200).encode() + b"\0" + text.encode()


class LogRelay:
    """Logs records of executor processes in the worker."""

    def __init__(self) -> None:
        self._loggers: dict[str, logging.Logger] = {}

    def relay(self, claim: Claim | None, level: int, body: bytes) -> None:
        """Log a record under its original logger name. Never raises."""
        name, _, text = body.decode(errors="replace").partition("\0")
        logger = self._loggers.get(name)
        if logger is None:
            logger = _fallback
            if len(self._loggers) < MAX_NAMES:
                logger = self._loggers[name] = logging.getLogger(name)
        if logger.isEnabledFor(level):
            extra: dict[str, object] = {}
            if claim is not None:
                extra = {
                    "job_id": str(claim.id),
                    "func": claim.func,
                    "attempt": claim.attempt,
                    "worker_id": claim.worker_id,
                }
            # Filters may raise anything, which must not end the executor process.
            with contextlib.suppress(Exception):
                logger.log(level, "%s", text, extra=extra)
