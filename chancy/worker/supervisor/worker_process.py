"""A worker process, from the side of the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

from chancy.executors.process.exit_status import exit_descriptor
from chancy.worker.supervisor.link import LINK_VARIABLE, MAX_REPORT, NUMBER_VARIABLE, WorkerReport

logger = logging.getLogger("chancy.supervisor")

#: Seconds to wait after the exit of the process for its link to close, since its last reports still
#: count. A process that a job has forked may keep the link open.
_DRAIN_S = 0.1
#: Seconds between polls for the exit of a process on systems without pidfd.
_POLL_S = 0.05


class WorkerProcess(asyncio.Protocol):
    """One run of a worker process: started, and watched until it has exited.

    It runs in its own session, so that Ctrl-C in a terminal reaches it only through the supervisor.

    :param on_report: called with each report that it sends.
    """

    def __init__(
        self, number: int, on_report: Callable[[WorkerProcess, WorkerReport], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_report = on_report
        self._buffer = b""
        self._transport: asyncio.BaseTransport | None = None
        self._pidfd: int | None = None
        self._has_exited = False
        self.number = number
        #: The latest report.
        self.report = WorkerReport()
        self._reported_at = self.started_at = self._loop.time()
        #: Exit code of the process; minus the signal number if a signal killed it.
        self.exited: asyncio.Future[int] = self._loop.create_future()

    async def start(self, command: Sequence[str]) -> None:
        """Start the process.

        :raises OSError: the system cannot start it.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(command, theirs.fileno(), self.number)
            except BaseException:
                ours.close()
                raise
        self._pidfd = exit_descriptor(self._process.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._check)
        else:
            self._loop.call_soon(self._check)
        await self._loop.create_unix_connection(lambda: self, sock=ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def uptime_s(self) -> float:
        return self._loop.time() - self.started_at

    @property
    def blocked_s(self) -> float:
        """Seconds for which its event loop has been blocked; 0 unless it is registered."""
        return self.report.blocked_after(self._loop.time() - self._reported_at)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just exited
            self._process.send_signal(number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_REPORT:
            self._buffer = b""
        for line in lines:
            try:
                report = WorkerReport.decode(line)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # a job wrote to the link, which is not its own
            self._on_report(self, report)
            self.report, self._reported_at = report, self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_exited:
            self._finish()

    def _check(self) -> None:
        """Check whether the process has exited."""
        if self._pidfd is not None:
            # It is not reaped yet, so its pid is not reused before its group is killed.
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        elif self._process.poll() is None:
            self._loop.call_later(_POLL_S, self._check)
            return
        self._has_exited = True
        if self._transport is None or self._transport.is_closing():
            self._finish()
        else:
            self._loop.call_later(_DRAIN_S, self._finish)

    def _finish(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self.exited.done():
            return
        if self.report.worker is not None:
            self._kill_group()
        self.exited.set_result(self._process.wait())

    def _kill_group(self) -> None:
        """Kill the processes that the worker has left behind, before its jobs run elsewhere.

        An executor process that changed its user gets no signal when the worker dies, and does not
        notice the death while its job holds the interpreter's lock. Programs that jobs have started
        never notice it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _spawn(command: Sequence[str], link_fd: int, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(link_fd,),
        start_new_session=True,
        env={**os.environ, LINK_VARIABLE: str(link_fd), NUMBER_VARIABLE: str(number)},
    )
