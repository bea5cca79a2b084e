"""A worker process, as the supervisor has it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from chancy.worker.supervisor.link import LINE, MAX_WORD, WorkerReport

logger = logging.getLogger("chancy.supervisor")

#: Seconds between the end of the process and the end of its line, whose last words still count.
#: A process that a job has forked may keep the line open.
_PARTING_S = 0.1
#: Seconds between looks for the end of a process where the system does not tell it.
_LOOK_S = 0.05


class WorkerProcess(asyncio.Protocol):
    """One life of a worker process: started, listened to, and watched until it is gone.

    It is in a session of its own, so that Ctrl-C in a terminal reaches it only by the supervisor.

    :param heard: is called with each word of it.
    """

    def __init__(self, number: int, heard: Callable[[WorkerProcess, WorkerReport], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._said = b""
        self._transport: asyncio.BaseTransport | None = None
        self._pidfd: int | None = None
        self._ended = False
        self.number = number
        #: Its last word.
        self.word = WorkerReport()
        self.started_at = self._loop.time()
        #: Its exit code, minus the signal if one killed it.
        self.gone: asyncio.Future[int] = self._loop.create_future()

    async def start(self, command: Sequence[str]) -> None:
        """Start the process. Raises OSError if the system cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(command, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._pidfd = _pidfd(self._process.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._look)
        else:
            self._loop.call_soon(self._look)
        await self._loop.create_unix_connection(lambda: self, sock=ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def uptime_s(self) -> float:
        return self._loop.time() - self.started_at

    def signal(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            self._process.send_signal(how)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *words, self._said = (self._said + data).split(b"\n")
        if len(self._said) > MAX_WORD:
            self._said = b""
        for line in words:
            try:
                word = WorkerReport.decode(line)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # a job wrote to the line, which it has no business with
            self._heard(self, word)
            self.word = word

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended:
            self._part()

    def _look(self) -> None:
        """See whether the process has ended."""
        if self._pidfd is not None:
            # Not reaped yet: its number is nobody else's before its group has ended.
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        elif self._process.poll() is None:
            self._loop.call_later(_LOOK_S, self._look)
            return
        self._ended = True
        if self._transport is None or self._transport.is_closing():
            self._part()
        else:
            self._loop.call_later(_PARTING_S, self._part)

    def _part(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self.gone.done():
            return
        if self.word.worker is not None:
            self._end_group()
        self.gone.set_result(self._process.wait())

    def _end_group(self) -> None:
        """Kill what the worker has left behind, before others run its jobs: a child that changed
        its user gets no signal of the worker's death, and does not notice it while its job holds
        the interpreter's lock; programs that jobs have started notice nothing."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _spawn(command: Sequence[str], line: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(line,),
        start_new_session=True,
        env={**os.environ, LINE: str(line)},
    )


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _pidfd(pid: int) -> int | None:
    """A descriptor that says at once when a process ends; None where the system has none."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(pid)
    return None
