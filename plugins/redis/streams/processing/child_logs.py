"""Log records of a processor in its child process, logged again in the worker.

They are sent as data (logger name, level, text) through a separate pipe. If the worker reads more
slowly than the child logs, the child blocks: nothing is buffered except in the pipe.
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

#: Maximum characters of a record that are sent.
MAX_RECORD = 16_000
#: Maximum logger names of one child: loggers are never freed, so a child must not create more.
MAX_NAMES = 1_000

_fallback = logging.getLogger("chancy.redis.streams")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The settings by which a child logs through the worker.

    :param connection: the connection to the `PartitionLogRelay`.
    :param level: the level of the root logger.
    :param worker: the id of the worker; with ``about`` the `Origin` of the child.
    """

    connection: Connection
    level: int
    worker: str
    about: Mapping[str, str | int]

    def install(self) -> None:
        """Send the log records of this process to the worker from now on."""
        ORIGIN.set(Origin(lambda: self.worker, self.about))
        recorder = PartitionLogHandler(self.connection)
        os.register_at_fork(after_in_child=self.connection.close)
        root = logging.getLogger()
        root.setLevel(self.level)
        root.addHandler(recorder)


class PartitionLogHandler(logging.Handler):
    """The handler of a child's root logger. Records that cannot be sent go to stderr from WARNING.

    Thread-safe. Processes that the processor forks send nothing: the pipe belongs to the child.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._sender = 0
        self._formatter = logging.Formatter()

    def createLock(self) -> None:  # noqa: N802  the name it has in logging
        """Use no lock: a signal handler that logs could interrupt the thread that holds it."""
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
    """Logs the records of a child in the worker, in the context in which the relay was created.

    :ivar theirs: the child's end of the pipe; closed here once the child has it.
    """

    def __init__(self) -> None:
        self._connection, self.theirs = Pipe(duplex=False)
        self._loggers: dict[str, logging.Logger] = {}
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._receive,),
            name="chancy stream logs",
            daemon=True,
        )

    @property
    def log_settings(self) -> LogSettings:
        """The settings to pass to the child."""
        origin = origin_here()
        level = logging.getLogger().level
        return LogSettings(self.theirs, level, str(origin.worker()), origin.about)

    def start(self) -> None:
        """Start reading from the child, which must be running."""
        self.theirs.close()
        self._thread.start()

    def join(self, patience_s: float) -> None:
        """Wait until all records of an ended child are logged, at most ``patience_s`` seconds."""
        self._thread.join(patience_s)

    def _receive(self) -> None:
        with self._connection:
            while True:
                try:
                    level, name, text = self._connection.recv()
                except (EOFError, OSError):
                    return
                # Filters and handlers may raise anything; without a reader, the child would block.
                with contextlib.suppress(Exception):
                    self._log(level, name, text)

    def _log(self, level: int, name: str, text: str) -> None:
        logger = self._loggers.get(name)
        if logger is None:
            logger = _fallback
            if len(self._loggers) < MAX_NAMES:
                logger = self._loggers[name] = logging.getLogger(name)
        if logger.isEnabledFor(level):
            # The file and line in the child are not sent.
            logger.handle(logger.makeRecord(logger.name, level, "", 0, "%s", (text,), None))
