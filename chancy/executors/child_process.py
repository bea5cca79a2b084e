"""A child of the process executor, as the parent has it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from chancy.attempt import Failure, Lost, Outcome, Raised, Returned
from chancy.executors.frames import (
    CALL,
    RAISED,
    READY,
    RETURNED,
    RETURNED_NONE,
    Feed,
    Frame,
    GarbledFrame,
)

#: The path is set before anything of ours is imported, so a child finds what the parent finds,
#: however that was started. There is no main script, so nothing can import it again.
_BOOTSTRAP = (
    "import sys; fd, parent, limit, *sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from chancy.executors.child import main; main(int(fd), int(parent), int(limit))"
)
#: Seconds between the end of the line and the end of the process, before it is killed.
_PARTING_S = 0.2
_LOOK_S = 0.005


class Attempt:
    """A call on its way through the executor.

    ``given`` is what it ends as once it was interrupted.
    """

    __slots__ = ("_call", "began", "child", "future", "given")

    def __init__(self, path: str, arguments: str | None, future: asyncio.Future[Outcome]) -> None:
        self._call = Frame(CALL, 0.0, path.encode(), (arguments or "").encode()).packed()
        self.future = future
        self.began = perf_counter()
        self.child: ChildProcess | None = None
        self.given: Outcome | None = None

    def hand_to(self, child: ChildProcess) -> None:
        self.child = child
        child.take(self, self._call)

    def end(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Owner(Protocol):
    """Who a child tells how it is."""

    def free(self, child: ChildProcess) -> None:
        """It is ready for a call."""

    def going(self, child: ChildProcess) -> None:
        """It can take no more calls."""

    def bounced(self, attempt: Attempt) -> None:
        """It died without having read this call."""


class ChildProcess(asyncio.Protocol):
    """One child: started, called once at a time, and watched until it is gone.

    :param number: names it in messages; its replacement has the same.
    """

    def __init__(self, number: int, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = number
        self._owner = owner
        self._feed = Feed()
        self._attempt: Attempt | None = None
        self._transport: asyncio.Transport | None = None
        self._line_ended_at: float | None = None
        self._parting_s = _PARTING_S
        self._unread = False
        self._killed = False
        self._why_killed: str | None = None
        #: Whether the child got as far as being ready; known when it is, or when it is gone.
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        #: How the process ended.
        self.gone: asyncio.Future[str] = self._loop.create_future()

    async def start(self, max_payload: int, sys_path: Sequence[str]) -> None:
        """Start the process. Raises OSError if the system has no room for it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(theirs.fileno(), max_payload, sys_path)
            except BaseException:
                ours.close()
                raise
        self._pidfd = _pidfd(self._process.pid)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._process_ended)
        await self._loop.create_unix_connection(lambda: self, sock=ours)

    def __str__(self) -> str:
        return f"child {self._number} (pid {self._process.pid})"

    def take(self, attempt: Attempt, call: bytes) -> None:
        """Run an attempt. It ends with an outcome, whatever becomes of the child."""
        self._attempt = attempt
        if self._transport is not None:
            self._transport.write(call)

    def kill(self, why: str | None = None) -> None:
        """End the process at once. ``why`` is reported instead of the signal."""
        if self._process.returncode is None:
            self._killed = True
            self._why_killed = self._why_killed or why
            self._process.kill()

    def hang_up(self, grace_s: float) -> None:
        """Ask an idle child to end; kill it if it takes longer than this."""
        self._parting_s = grace_s
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._feed.frames(data):
                self._receive(frame)
        except Exception as error:
            self.kill(f"was killed because its line was written to: {error}")

    def _receive(self, frame: Frame) -> None:
        if frame.kind == READY and not self.ready.done():
            self.ready.set_result(True)
        else:
            outcome = _outcome(frame)
            attempt, self._attempt = self._attempt, None
            if attempt is None:
                raise GarbledFrame("an answer without a call")
            attempt.end(outcome)
        if not self._killed:
            self._owner.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._line_ended_at = self._loop.time()
        # A stream socket that is closed with unread data in it resets the connection.
        self._unread = isinstance(exc, ConnectionResetError | BrokenPipeError)
        self._owner.going(self)
        self._look()

    def _process_ended(self) -> None:
        self._close_pidfd()
        if self._line_ended_at is None and self._process.poll() is not None:
            # Its last words may still be on the line; a process that it forked may hold it open.
            self._loop.call_later(_PARTING_S, self._end_line)
        else:
            self._look()

    def _end_line(self) -> None:
        if self._line_ended_at is None and self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """See to it, after the line has ended, that the process ends and is reaped."""
        if self.gone.done() or self._line_ended_at is None:
            return
        if self._process.poll() is not None:
            self._part()
            return
        if self._loop.time() > self._line_ended_at + self._parting_s:
            self.kill("closed its line")
        self._loop.call_later(_LOOK_S, self._look)

    def _part(self) -> None:
        self._close_pidfd()
        how = self._why_killed or _ending(self._process.returncode)
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            if attempt.given is not None:
                attempt.end(attempt.given)
            elif self._unread:
                self._owner.bounced(attempt)
            else:
                attempt.end(Lost(f"{self} {how}", perf_counter() - attempt.began))
        if not self.ready.done():
            self.ready.set_result(False)
        self.gone.set_result(how)

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _outcome(frame: Frame) -> Outcome:
    match frame.kind:
        case k if k == RETURNED_NONE:
            return Returned(None, frame.elapsed_s)
        case k if k == RETURNED:
            return Returned(frame.head.decode(), frame.elapsed_s)
        case k if k == RAISED:
            return Raised(Failure.from_json(json.loads(frame.head)), frame.elapsed_s)
        case kind:
            raise GarbledFrame(f"a child does not say {kind!r}")


def _spawn(fd: int, max_payload: int, sys_path: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the program of a child, with SIGINT and SIGTERM blocked until it can handle them."""
    arguments = [str(fd), str(os.getpid()), str(max_payload), *sys_path]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, *_flags(), "-c", _BOOTSTRAP, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(fd,),
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


def _pidfd(pid: int) -> int | None:
    """A descriptor that says at once when a process ends; None where the system has none.

    The line says it, too, unless a process that the job has forked keeps it open.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox
            return os.pidfd_open(pid)
    return None


def _ending(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"exited with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = " (by the system if memory ran out)" if -returncode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
