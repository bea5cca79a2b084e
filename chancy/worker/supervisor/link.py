"""The line between a worker process and its supervisor, as the worker has it.

Two things go over it. The worker says who it is and what it serves, again and again, which shows
that its interpreter runs. And the kernel closes the line when either end dies, even by
``kill -9``: a worker whose supervisor is gone ends in good order. PR_SET_PDEATHSIG would need
Linux and is cleared by a change of user.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from uuid import UUID

#: The variable that holds the number of the line's descriptor.
LINE = "CHANCY_SUPERVISOR_LINE"
#: The longest time between two words, in seconds.
WORD_EVERY_S = 1.0
#: Bytes of one word, at most. More than 10,000 queues do not fit.
MAX_WORD = 2**20


class WorkerReport(NamedTuple):
    """What a worker says of itself. It holds the DSN, and is not to be logged.

    :param worker: its id; None before it has registered and after it has left.
    :param dsn: where it is registered, so that somebody else can beat for it; None if nobody can.
    :param heartbeat_s: seconds between its beats.
    """

    worker: UUID | None = None
    dsn: str | None = None
    schema: str = ""
    heartbeat_s: float = 0.0
    queues: tuple[str, ...] = ()
    broken: Mapping[str, str] = {}

    @property
    def every_s(self) -> float:
        """Seconds between two words."""
        return min(WORD_EVERY_S, self.heartbeat_s / 2) or WORD_EVERY_S

    def encode(self) -> bytes:
        data = self._asdict()
        data["worker"] = None if self.worker is None else str(self.worker)
        return json.dumps(data).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> WorkerReport:
        """Raises ValueError, TypeError or KeyError for what is no word."""
        data: dict[str, Any] = json.loads(line)
        return cls(
            worker=None if data["worker"] is None else UUID(data["worker"]),
            dsn=None if data["dsn"] is None else str(data["dsn"]),
            schema=str(data["schema"]),
            heartbeat_s=float(data["heartbeat_s"]),
            queues=tuple(map(str, data["queues"])),
            broken={str(name): str(why) for name, why in data["broken"].items()},
        )


class SupervisorLink:
    """A worker's end of the line. A thread speaks, and listens for the supervisor's end.

    :param grace_s: seconds that this process has to end once the supervisor is gone.
    :param dsn: with ``schema``, where the supervisor is to beat for this worker.
    """

    def __init__(
        self, line: socket.socket, *, grace_s: float, dsn: str | None = None, schema: str = ""
    ) -> None:
        line.setblocking(False)
        self._line = line
        self._grace_s = grace_s
        self._word = WorkerReport(None, dsn, schema)
        self._unsent = b""
        self._speaking = threading.Lock()
        threading.Thread(target=self._run, name="chancy supervisor line", daemon=True).start()

    @classmethod
    def take(cls, *, grace_s: float, dsn: str | None = None, schema: str = "") -> Self | None:
        """The line that this process was started with; None if nobody supervises it."""
        number = os.environ.pop(LINE, "")
        if not number.isdigit():
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)), grace_s=grace_s, dsn=dsn, schema=schema)

    def serves(
        self, worker: UUID, heartbeat_s: float, queues: tuple[str, ...], broken: Mapping[str, str]
    ) -> None:
        """Tell the supervisor who this worker is now, and what it serves."""
        self._word = self._word._replace(
            worker=worker, heartbeat_s=heartbeat_s, queues=queues, broken=broken
        )
        self._speak()

    def left(self) -> None:
        """Tell the supervisor that this worker has gone in good order."""
        self._word = self._word._replace(worker=None, queues=(), broken={})
        self._speak()

    def _speak(self) -> None:
        """Say the word. A supervisor that does not listen (stopped, say) misses some."""
        with self._speaking:
            word = self._word.encode()
            if not self._unsent and len(word) <= MAX_WORD:
                self._unsent = word
            try:
                self._unsent = self._unsent[self._line.send(self._unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                self._unsent = b""  # the end of the line is noticed by the thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        while True:
            if not poll.poll(self._word.every_s * 1000):
                self._speak()
                continue
            try:
                if not self._line.recv(4096):
                    break
            except BlockingIOError:
                continue
            except OSError:
                break
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace_s)
        os._exit(1)
