"""The link between a worker process and its supervisor, from the side of the worker.

It has two uses. The worker repeatedly reports its id and its queues, which shows that its
interpreter runs. And the kernel closes the link when either end dies, even by ``kill -9``: a worker
whose supervisor is gone shuts down gracefully. PR_SET_PDEATHSIG would need Linux, and a change of
user clears it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self
from uuid import UUID

#: Environment variable with the number of the link's descriptor.
LINK_VARIABLE = "CHANCY_SUPERVISOR_LINE"
#: The number of a worker process among those of its supervisor, from 1.
NUMBER_VARIABLE = "CHANCY_WORKER_NUMBER"
#: Maximum time between two reports, in seconds.
REPORT_EVERY_S = 1.0
#: Maximum size of a report in bytes. More than 10,000 queues do not fit.
MAX_REPORT = 2**20


class WorkerReport(NamedTuple):
    """A worker's report on itself. It contains the DSN, so do not log it.

    :param worker: its id; None before it has registered and after it has unregistered.
    :param dsn: database in which it is registered, for the heartbeats of the supervisor; None if
        the supervisor cannot send any.
    :param heartbeat_s: seconds between its heartbeats.
    :param blocked_s: seconds for which its event loop has been blocked.
    """

    worker: UUID | None = None
    dsn: str | None = None
    schema: str = ""
    heartbeat_s: float = 0.0
    blocked_s: float = 0.0
    queues: tuple[str, ...] = ()
    broken: Mapping[str, str] = {}

    @property
    def every_s(self) -> float:
        """Seconds between two reports."""
        return min(REPORT_EVERY_S, self.heartbeat_s / 2) or REPORT_EVERY_S

    def blocked_after(self, age_s: float) -> float:
        """Seconds for which the event loop has been blocked, if this is the last report, of this
        age: a worker whose interpreter does not run sends none."""
        if self.worker is None:
            return 0.0
        return age_s if age_s > 3 * self.every_s else self.blocked_s

    def encode(self) -> bytes:
        data = self._asdict()
        data["worker"] = None if self.worker is None else str(self.worker)
        return json.dumps(data).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> WorkerReport:
        """Decode a report.

        :raises ValueError: the line is not a report; likewise TypeError or KeyError.
        """
        data: dict[str, Any] = json.loads(line)
        return cls(
            worker=None if data["worker"] is None else UUID(data["worker"]),
            dsn=None if data["dsn"] is None else str(data["dsn"]),
            schema=str(data["schema"]),
            heartbeat_s=float(data["heartbeat_s"]),
            blocked_s=float(data["blocked_s"]),
            queues=tuple(map(str, data["queues"])),
            broken={str(name): str(why) for name, why in data["broken"].items()},
        )


class SupervisorLink:
    """A worker's end of the link. A thread sends reports, and shuts this process down when the
    supervisor is gone.

    :param grace_s: seconds that this process has to exit once the supervisor is gone.
    :param dsn: with ``schema``, the database for the supervisor's heartbeats.
    """

    def __init__(
        self, connection: socket.socket, *, grace_s: float, dsn: str | None = None, schema: str = ""
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._grace_s = grace_s
        #: Returns the seconds for which the worker's event loop has been blocked.
        self.blocked_s: Callable[[], float] = float
        self._report = WorkerReport(None, dsn, schema)
        self._unsent = b""
        self._send_lock = threading.Lock()
        threading.Thread(target=self._run, name="chancy supervisor link", daemon=True).start()

    @classmethod
    def take(cls, *, grace_s: float, dsn: str | None = None, schema: str = "") -> Self | None:
        """The link that this process was started with; None if it has no supervisor."""
        number = os.environ.pop(LINK_VARIABLE, "")
        if not number.isdigit():
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)), grace_s=grace_s, dsn=dsn, schema=schema)

    def report_serving(
        self, worker: UUID, heartbeat_s: float, queues: tuple[str, ...], broken: Mapping[str, str]
    ) -> None:
        """Report the worker's current id and its queues."""
        self._report = self._report._replace(
            worker=worker, heartbeat_s=heartbeat_s, queues=queues, broken=broken
        )
        self._send()

    def report_left(self) -> None:
        """Report that this worker has unregistered."""
        self._report = self._report._replace(worker=None, queues=(), broken={})
        self._send()

    def _send(self) -> None:
        """Send the report. A supervisor that does not read, such as a stopped one, misses some."""
        with self._send_lock:
            report = self._report._replace(blocked_s=self.blocked_s()).encode()
            if not self._unsent and len(report) <= MAX_REPORT:
                self._unsent = report
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                self._unsent = b""  # the thread notices that the link is closed

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        while True:
            if not poll.poll(self._report.every_s * 1000):
                self._send()
                continue
            try:
                if not self._socket.recv(4096):
                    break
            except BlockingIOError:
                continue
            except OSError:
                break
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace_s)
        os._exit(1)
