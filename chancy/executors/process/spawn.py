"""Start and supervision of the process behind an executor process handle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from chancy.executors.process.connection import ParentConnection
from chancy.executors.process.exit_status import describe_exit, exit_descriptor
from chancy.executors.process.protocol import Frame
from chancy.executors.process.settings import ChildKind

#: Seconds that the process has to exit after its connection is closed, before it is killed.
_EXIT_S = 0.2
_POLL_S = 0.005

#: The path is set before any chancy module is imported, so an executor process finds the modules of
#: the worker, however that was started. There is no main script that could be imported again.
_BOOTSTRAP = (
    "import sys; fd, calls, parent, kind, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from chancy.executors.process.child.main import main; "
    "main(int(fd), int(calls), int(parent), kind)"
)


class ChildSpawn:
    """An operating system process, and the connection to it.

    :param received: called with the frames of each read.
    :param ended: called once the process has exited and all of its frames have been received, with
        a description of how it ended.
    """

    def __init__(
        self, received: Callable[[list[Frame]], None], ended: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._ended = ended
        self._how: str | None = None
        self._closed_at: float | None = None
        self._exit_s = _EXIT_S
        self._reaped = False
        #: Whether it accepts calls: it has not been killed, and its connection is open.
        self.able = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, kind: ChildKind, sys_path: Sequence[str], calls: int, *shared: int) -> None:
        """Start the process.

        :param calls: descriptor of its end of the channel.
        :param shared: further descriptors that it inherits.
        :raises OSError: the system cannot start it.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(kind, sys_path, theirs.fileno(), calls, *shared)
            except BaseException:
                ours.close()
                raise
        self.able = True
        self._connection = ParentConnection(ours, self._received, self._connection_ended)
        self._sentinel = exit_descriptor(self._process.pid)
        if self._sentinel is not None:
            self._loop.add_reader(self._sentinel, self._process_ended)

    def send(self, frame: bytes) -> None:
        self._connection.send(frame)

    def signal(self, signum: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signum)

    def kill(self, how: str | None = None) -> None:
        """Kill the process. ``how`` is reported instead of the signal."""
        self.able = False
        if self._process.returncode is None:
            self._how = self._how or how
            self._process.kill()

    def close(self, grace_s: float, how: str | None = None) -> None:
        """Ask an idle process to exit; it is killed if it takes longer than ``grace_s``."""
        self._exit_s = grace_s
        self._how = self._how or how
        self._connection.close()
        self._connection_ended(None)

    def _connection_ended(self, error: Exception | None) -> None:
        self.able = False
        if self._closed_at is None:
            self._closed_at = self._loop.time()
            if error is not None:
                self.kill(f"was killed because its connection was corrupted: {error}")
            self._check()

    def _process_ended(self) -> None:
        if self._process.poll() is not None:
            self.able = False
            # Does not wait for the end of the connection: a forked process may keep it open.
            self._connection.read_out()
            self._finish()

    def _check(self) -> None:
        """Make sure that the process exits and is reaped after its connection has ended."""
        if self._reaped or self._closed_at is None:
            return
        if self._process.poll() is not None:
            self._finish()
            return
        if self._loop.time() > self._closed_at + self._exit_s:
            self.kill("closed its connection")
        self._loop.call_later(_POLL_S, self._check)

    def _finish(self) -> None:
        if self._reaped:
            return
        self._reaped = True
        if self._sentinel is not None:
            self._loop.remove_reader(self._sentinel)
            os.close(self._sentinel)
        self._ended(self._how or describe_exit(self._process.returncode))


def _spawn(
    kind: ChildKind, sys_path: Sequence[str], fd: int, calls: int, *shared: int
) -> subprocess.Popen[bytes]:
    """Start the process, with SIGINT and SIGTERM blocked until it can handle them."""
    numbers = map(str, (fd, calls, os.getpid()))
    arguments = [*numbers, json.dumps(asdict(kind)), *sys_path]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, *_flags(), "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[fd, calls, *shared],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _flags() -> list[str]:
    """Interpreter options that an executor process shares with this process."""
    flags = [f"-W{option}" for option in sys.warnoptions]
    if sys.flags.optimize:
        flags.append("-" + "O" * sys.flags.optimize)
    if sys.flags.dont_write_bytecode:
        flags.append("-B")
    if sys.flags.isolated:
        flags.append("-I")
    if sys.flags.dev_mode:
        flags += ["-X", "dev"]
    return flags
