"""What a processor logs in the process of its partition, said again in the worker.

It crosses by a pipe of its own, as data: name of the logger, level, text. While the worker reads
slower than is logged, who logs waits: nothing is kept but what fits into the pipe.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from chancy.log_context import ORIGIN, Origin, origin_here
from chancy.text import storable

#: Characters that cross of a record.
MAX_RECORD = 16_000
#: Names of loggers that are kept: a logger is never given up again, so a child must not make more.
MAX_NAMES = 1_000

_fallback = logging.getLogger("chancy.redis.streams")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a child needs to log as the worker does.

    :param connection: to the `PartitionLogRelay`.
    :param level: of the root logger.
    :param worker: its id; with ``about`` the `Origin` of the child, for handlers of its own.
    """

    connection: Connection
    level: int
    worker: str
    about: Mapping[str, str | int]

    def install(self) -> None:
        """Log by the worker from now on, in this process."""
        ORIGIN.set(Origin(lambda: self.worker, self.about))
        recorder = PartitionLogHandler(self.connection)
        os.register_at_fork(after_in_child=self.connection.close)
        root = logging.getLogger()
        root.setLevel(self.level)
        root.addHandler(recorder)


class PartitionLogHandler(logging.Handler):
    """The handler of a child's root logger. What cannot be sent goes to stderr, from warnings on.

    From any thread. Copies that the processor has made by forking send nothing: the pipe is not
    theirs.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._sender = 0
        self._formatter = logging.Formatter()

    def createLock(self) -> None:  # noqa: N802  the name it has in logging
        """None: a signal may interrupt who holds it, and log."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = storable(self._formatter.format(record), MAX_RECORD)
        except Exception:
            self.handleError(record)
            return
        sent = self._send((record.levelno, storable(record.name, 200), text))
        if not sent and logging.lastResort and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)

    def _send(self, what: tuple[int, str, str]) -> bool:
        me = threading.get_ident()
        if self._sender == me or os.getpid() != self._pid:
            return False
        with self._sending:
            self._sender = me
            try:
                self._connection.send(what)
            except OSError:
                return False
            finally:
                self._sender = 0
        return True


class PartitionLogRelay:
    """Logs in the worker what a child has recorded, from the context that it was made in.

    :ivar theirs: the child's end; close it here once the child has it.
    """

    def __init__(self) -> None:
        self._connection, self.theirs = Pipe(duplex=False)
        self._loggers: dict[str, logging.Logger] = {}
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._receive,),
            name="chancy stream echo",
            daemon=True,
        )

    @property
    def log_settings(self) -> LogSettings:
        """For the child."""
        origin = origin_here()
        level = logging.getLogger().level
        return LogSettings(self.theirs, level, str(origin.worker()), origin.about)

    def start(self) -> None:
        """Listen to the child, which has been started."""
        self.theirs.close()
        self._thread.start()

    def join(self, patience_s: float) -> None:
        """Wait until all is said of a child that has ended, at most so long."""
        self._thread.join(patience_s)

    def _receive(self) -> None:
        with self._connection:
            while True:
                try:
                    level, name, text = self._connection.recv()
                except (EOFError, OSError):
                    return
                # Whatever a filter or a handler does: a child that nobody hears would stand still.
                with contextlib.suppress(Exception):
                    self._log(level, name, text)

    def _log(self, level: int, name: str, text: str) -> None:
        logger = self._loggers.get(name)
        if logger is None:
            logger = _fallback
            if len(self._loggers) < MAX_NAMES:
                logger = self._loggers[name] = logging.getLogger(name)
        if logger.isEnabledFor(level):
            # Where in the child it was logged does not cross.
            logger.handle(logger.makeRecord(logger.name, level, "", 0, "%s", (text,), None))
