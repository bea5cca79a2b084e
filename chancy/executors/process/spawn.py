"""The program of a child: started, listened to, and watched until it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

from chancy.executors.process.connection import ParentConnection
from chancy.executors.process.protocol import Frame
from chancy.executors.process.terms import ChildSettings

#: Seconds between the end of the line and the end of the process, before it is killed.
_PARTING_S = 0.2
_LOOK_S = 0.005

#: The path is set before anything of ours is imported, so a child finds what the parent finds,
#: however that was started. There is no main script, so nothing can import it again.
_BOOTSTRAP = (
    "import sys; line, parent, terms, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from chancy.executors.process.child.main import main; main(int(line), int(parent), terms)"
)


class ChildSpawn:
    """The process of a child, and the line to it.

    :param received: takes the frames that came together.
    :param ended: called once it is gone and everything that it said has been received: with how
        it ended.
    """

    def __init__(
        self, received: Callable[[list[Frame]], None], ended: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._ended = ended
        self._how: str | None = None
        self._line_ended_at: float | None = None
        self._parting_s = _PARTING_S
        self._over = False
        #: Whether it can be given anything: nobody has ended it, and it has not ended its line.
        self.able = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, terms: ChildSettings, sys_path: Sequence[str]) -> None:
        """Start it. Raises OSError if the system has no room for it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(theirs.fileno(), terms, sys_path)
            except BaseException:
                ours.close()
                raise
        self.able = True
        self._line = ParentConnection(ours, self._received, self._line_ended)
        self._sentinel = _sentinel(self._process.pid)
        if self._sentinel is not None:
            self._loop.add_reader(self._sentinel, self._process_ended)

    def tell(self, frame: bytes) -> None:
        """Say something to it."""
        self._line.tell(frame)

    def signal(self, signum: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signum)

    def kill(self, how: str | None = None) -> None:
        """End it at once. ``how`` is reported instead of the signal."""
        self.able = False
        if self._process.returncode is None:
            self._how = self._how or how
            self._process.kill()

    def hang_up(self, grace_s: float, how: str | None = None) -> None:
        """Ask it to end, now that it is idle; it is killed if it takes longer than this."""
        self._parting_s = grace_s
        self._how = self._how or how
        self._line.close()
        self._line_ended(None)

    def _line_ended(self, error: Exception | None) -> None:
        self.able = False
        if self._line_ended_at is None:
            self._line_ended_at = self._loop.time()
            if error is not None:
                self.kill(f"was killed because its line was written to: {error}")
            self._look()

    def _process_ended(self) -> None:
        if self._process.poll() is not None:
            self.able = False
            # Not to the end of the line: a process that it forked may hold that open.
            self._line.read_out()
            self._part()

    def _look(self) -> None:
        """See to it, after the line has ended, that the process ends and is reaped."""
        if self._over or self._line_ended_at is None:
            return
        if self._process.poll() is not None:
            self._part()
            return
        if self._loop.time() > self._line_ended_at + self._parting_s:
            self.kill("closed its line")
        self._loop.call_later(_LOOK_S, self._look)

    def _part(self) -> None:
        if self._over:
            return
        self._over = True
        if self._sentinel is not None:
            self._loop.remove_reader(self._sentinel)
            os.close(self._sentinel)
        self._ended(self._how or _ending(self._process.returncode))


def _spawn(line: int, terms: ChildSettings, sys_path: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the program, with SIGINT and SIGTERM blocked until it can handle them."""
    arguments = [str(line), str(os.getpid()), json.dumps(asdict(terms)), *sys_path]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, *_flags(), "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(line, terms.calls),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _flags() -> list[str]:
    """Options of the interpreter that a child shares with this process."""
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


def _sentinel(pid: int) -> int | None:
    """A descriptor that says at once when a process ends; None where the system has none.

    The line says it, too, unless a process that the job has forked keeps it open.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(pid)
    return None


def _ending(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None or returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (by the system if memory ran out)" if -returncode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
