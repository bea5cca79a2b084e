"""Logging of the programs to stderr. The library itself installs no handler."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

from chancy.log_context import LogContext
from chancy.text import storable

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

_LONGEST = 50_000
#: The JSON keys of extra record attributes: of jobs (see `JobContext.log`), of their attempts (see
#: `chancy.attempt.logs`), and of processors of streams (see `chancy.log_context`).
_ATTEMPT = ("queue", "max_attempts", "duration_s", "next_at", "why", "error")
_PLACE = ("worker", "executor", "stream", "processor", "partition")
_SHOWN = {"event": "event", "job_id": "job"} | {
    name: name for name in ("func", "attempt", *_ATTEMPT, *_PLACE)
}


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text, without control characters that jobs wrote."""

    def format(self, record: logging.LogRecord) -> str:
        return storable(super().format(record), _LONGEST)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name of its base
        """The line without its traceback, with the job or the partition of the record added."""
        text = super().formatMessage(record)
        job = getattr(record, "job_id", None)
        if job is not None:
            return text if f" job={job}" in text else f"{text} job={job}"
        found = vars(record)
        if {"stream", "processor", "partition"} <= found.keys() and " partition=" not in text:
            text += f" processor={found['stream']}/{found['processor']}"
            text += f" partition={found['partition']}"
        return text


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object a line.

    Its keys are ``at`` (ISO 8601, UTC), ``level``, ``logger``, ``pid``, ``message``, ``trace``.
    Records of a job also have ``job``, ``func``, ``attempt``; those of its attempts also ``event``,
    ``queue``, ``max_attempts``, ``duration_s``, ``error``, ``why``, ``next_at``. Records of streams
    and their processors also have ``worker``, ``executor``, ``stream``, ``processor``,
    ``partition``.
    """

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        for name, shown in _SHOWN.items():
            if hasattr(record, name):
                found[shown] = getattr(record, name)
        if record.exc_text:
            found["trace"] = record.exc_text
        elif record.exc_info:
            found["trace"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def install(level: str, format_: Format) -> None:
    """Log records of this level and above to stderr, replacing all root handlers."""
    handler = logging.StreamHandler()
    handler.addFilter(LogContext())
    handler.setFormatter(
        JsonFormatter()
        if format_ == "json"
        else TextFormatter("%(asctime)s %(process)d %(levelname)-7s %(name)s %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
