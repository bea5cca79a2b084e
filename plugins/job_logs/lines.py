"""The lines that jobs log: collected in a worker, and read back."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from chancy.plugin.runtime import Application, Runtime
from chancy.plugin.tables import PluginSql, PluginTables, utc
from chancy.serialization.sealed import key_of, redacted, stored_json
from chancy.text import storable

SQL = PluginSql("chancy.plugins.job_logs", "the logs of jobs")
#: The bytes of a job's lines above which no more are stored, and the bytes that a line counts in
#: addition to its text.
MAX_JOB = 1_000_000
LINE_BYTES = 32
#: The maximum bytes of buffered lines of served workers, and of other workers; the maximum
#: characters of a line.
_MAX_HELD, _MAX_EARLY = 8_000_000, 256_000
_MAX_LINE = 16_000
#: Jobs whose bytes a worker counts. The rest is counted when lines are stored.
_MAX_JOBS = 10_000
#: Lines that one statement stores, reads or removes.
STEP = 1_000
_REMOVED = 10_000
_FIRST = UUID(int=0)
#: The logger of `JobContext.log`, and the level to which buffers have lowered it, if any.
_LINES = logging.getLogger("chancy.job")
_lowered: set[int] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line that a job has logged.

    :param number: orders the lines of a job.
    :param at: when it was logged, by the clock of the worker, in UTC.
    :param attempt: the attempt that logged it.
    :param level: as in `logging`.
    :param last: whether the job has reached its limit: its later lines were dropped.
    """

    number: int
    at: datetime
    attempt: int
    level: int
    text: str
    last: bool

    @property
    def level_name(self) -> str:
        return logging.getLevelName(self.level)


class HeldLine(NamedTuple):
    """A line that is not stored yet."""

    job_id: UUID
    at: float
    attempt: int
    level: int
    text: str
    size: int
    worker_id: UUID | None = None
    func: str = ""


class LineBuffer(logging.Handler):
    """Buffers the lines that jobs of this process log until they are stored.

    If the buffer is full, further lines are dropped and counted; one job cannot fill it. For
    workers whose service has not started yet, it holds a few lines.
    """

    def __init__(self) -> None:
        super().__init__()
        # Served workers. The id of one changes when it was declared dead.
        self._workers: list[Runtime] = []
        self._early: deque[HeldLine] = deque()
        self._early_bytes = 0
        self._lines: deque[HeldLine] = deque()
        self._bytes = 0
        self._by_job: OrderedDict[UUID, int] = OrderedDict()
        self._dropped = 0
        self._guard = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            job_id = UUID(str(getattr(record, "job_id", "")))
            attempt = int(getattr(record, "attempt", 1))
            worker_id: UUID | None = getattr(record, "worker_id", None)
        except (TypeError, ValueError):
            return  # not a line of a job
        try:
            text = storable(record.getMessage(), _MAX_LINE)
        except Exception:
            self.handleError(record)
            return
        level = min(max(record.levelno, 0), 1_000)
        func = str(getattr(record, "func", ""))
        line = HeldLine(job_id, record.created, attempt, level, text, _size(text), worker_id, func)
        with self._guard:
            if (worker := self._worker_of(line)) is not None:
                self._add(line, worker)
            else:
                self._add_early(line)

    def _worker_of(self, line: HeldLine) -> Runtime | None:
        workers = (worker for worker in self._workers if worker.worker_id == line.worker_id)
        return next(workers, None)

    def _add_early(self, line: HeldLine) -> None:
        self._early.append(line)
        self._early_bytes += line.size
        while self._early_bytes > _MAX_EARLY:
            self._early_bytes -= self._early.popleft().size

    def _add(self, line: HeldLine, worker: Runtime) -> None:
        text = worker.encode_line(line.func, line.text)
        line = line._replace(text=text, size=_size(text))
        used = self._by_job.pop(line.job_id, 0)
        self._by_job[line.job_id] = used + line.size
        if len(self._by_job) > _MAX_JOBS:
            self._by_job.popitem(last=False)
        if used >= MAX_JOB:
            return
        if self._bytes + line.size > _MAX_HELD:
            self._dropped += 1
            return
        self._bytes += line.size
        self._lines.append(line)

    def serve(self, worker: Runtime) -> None:
        """Buffer the lines of this worker, including those that its first jobs have logged."""
        with self._guard:
            self._workers.append(worker)
            early, self._early, self._early_bytes = self._early, deque(), 0
            for line in early:
                if line.worker_id == worker.worker_id:
                    self._add(line, worker)

    def leave(self, worker: Runtime) -> None:
        """Stop buffering the lines of this worker."""
        with self._guard:
            self._workers.remove(worker)

    def take(self) -> Sequence[HeldLine]:
        """Remove up to `STEP` lines, in the order in which they were logged."""
        with self._guard:
            taken = list(islice(self._lines, STEP))
            for line in taken:
                self._lines.popleft()
                self._bytes -= line.size
            return taken

    def give_back(self, lines: Sequence[HeldLine]) -> None:
        """Put lines back that could not be stored."""
        with self._guard:
            self._lines.extendleft(reversed(lines))
            self._bytes += sum(line.size for line in lines)

    def take_dropped(self) -> int:
        """The number of lines dropped since the last call."""
        with self._guard:
            dropped, self._dropped = self._dropped, 0
            return dropped


def _size(text: str) -> int:
    return len(text.encode()) + LINE_BYTES


def attach(buffer: LineBuffer) -> None:
    """Pass the lines that jobs log, from the level of a buffer on, to it."""
    _LINES.addHandler(buffer)
    _lower_level()


def detach(buffer: LineBuffer) -> None:
    """Stop passing lines to a buffer."""
    _LINES.removeHandler(buffer)
    _lower_level()


def _lower_level() -> None:
    """Set the logger to the lowest level of the buffers, unless its own is lower."""
    if _LINES.level in _lowered:
        _LINES.setLevel(logging.NOTSET)
    _lowered.clear()
    levels = [one.level for one in _LINES.handlers if isinstance(one, LineBuffer)]
    if levels and not _LINES.isEnabledFor(min(levels)):
        _LINES.setLevel(min(levels))
        _lowered.add(min(levels))


async def store(tables: PluginTables, lines: Sequence[HeldLine]) -> None:
    """Store lines, up to the limit of each job.

    :raises BrokerError: the lines may not have been stored.
    """
    columns = list(zip(*lines, strict=True))[:5]
    await tables.fetch("add", *map(list, columns), MAX_JOB)


async def read(tables: PluginTables, id: UUID, after: int, limit: int) -> Sequence[LogLine]:
    """The lines of a job with numbers above ``after``, in order, as stored."""
    return list(map(_line, await tables.fetch("read", id, after, limit)))


async def read_last(tables: PluginTables, id: UUID, limit: int) -> Sequence[LogLine]:
    """The last lines of a job, in order, as they are stored."""
    return list(map(_line, reversed(await tables.fetch("read_last", id, limit))))


def _line(row: Sequence[Any]) -> LogLine:
    number, at, attempt, level, total, text = row
    last = total >= MAX_JOB
    return LogLine(number=number, at=utc(at), attempt=attempt, level=level, text=text, last=last)


def plain(chancy: Application, lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Decode stored lines.

    :raises UnreadablePayload: a line is encrypted with a key that this process does not have.
    """
    return [replace(line, text=chancy.decode_line(line.text)) for line in lines]


def shown(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Lines to display, with a placeholder for encrypted ones."""
    return [replace(line, text=_shown(line.text)) for line in lines]


def _shown(text: str) -> str:
    value = stored_json(text)
    return text if key_of(value) is None else str(redacted(value))


async def prune_step(tables: PluginTables, after: UUID | None) -> UUID | None:
    """Remove lines of jobs that are no longer stored, of the next jobs. Returns where to continue;
    None at the end."""
    [(last, removed)] = await tables.fetch("prune", after or _FIRST, _REMOVED)
    return after or _FIRST if removed >= _REMOVED else last
