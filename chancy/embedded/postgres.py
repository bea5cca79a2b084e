"""A private Postgres server, from a wheel or from the programs of the machine."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from chancy.embedded import cluster
from chancy.embedded.binaries import Account, find_programs, server_account
from chancy.embedded.ports import free_port
from chancy.errors import ConfigurationError

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_PORT_TRIES = 8
#: What the server says while processes of one that was killed have not all ended.
_HELD, _LEAVE_SECONDS = "pre-existing shared memory block", 10.0


class PostgresServer:
    """A Postgres server that belongs to this process and ends with it, even by ``kill -9``.

    It listens on 127.0.0.1 alone, on a port that stays the same over restarts, and lets
    everybody on this machine in without a password: keep nothing in it that matters. Usable
    by many processes at once, each with a server of its own; one object is for one thread.

    :param directory: where the data is. Made and filled at the first start, kept at the end,
        found again by the next start. None stands for a temporary one that is removed.
    :param version: 16 or 18, which the wheel of ``chancy[embedded]`` brings; not looked at
        if ``bin_path`` is given.
    :param port: a port of your choice; None chooses a free one at the first start.
    :param settings: server settings as in postgresql.conf, for example
        ``{"fsync": "off"}``. ``alter system`` still overrides them.
    :param bin_path: the directory of other programs, such as ``/usr/lib/postgresql/15/bin``.
    :param temporary_in: where a temporary directory is made, for example ``/dev/shm``; None is
        the system's place.
    :raises ConfigurationError: if the programs are missing or cannot be reached.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        version: int = 16,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        bin_path: str | Path | None = None,
        temporary_in: str | Path | None = None,
    ) -> None:
        self._given_directory = None if directory is None else Path(directory)
        self._temporary_in = temporary_in
        self._directory: Path | None = None
        self._given_port = port
        self._port = port
        self._settings = dict(settings or {})
        self._account: Account | None = server_account()
        self.bin_path: Path = find_programs(
            version, self._account, given=None if bin_path is None else Path(bin_path)
        )
        self._watchdog: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the data is. A temporary directory exists from the first start on."""
        if self._directory is None:
            raise RuntimeError("the server was not started: it has no directory yet")
        return self._directory

    @property
    def log(self) -> Path:
        """The file with the server's messages, of all starts, below the data directory."""
        return self.directory / "server.log"

    @property
    def port(self) -> int:
        """The TCP port. It is chosen at the first start."""
        if self._port is None:
            raise RuntimeError("the server was not started: it has no port yet")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the postmaster.

        :raises RuntimeError: if the server does not run.
        """
        if self._pid is None or not self.running:
            raise RuntimeError("the server does not run")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the server runs now; False also after a crash."""
        return self._watchdog is not None and self._watchdog.poll() is None

    def dsn(self, database: str = "postgres") -> str:
        """A DSN for the superuser. It stays right over restarts."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Does nothing if it runs.

        Processes of one that was killed in the same directory have ten seconds to end.

        :raises ConfigurationError: if it does not come up; the message holds the end of its log.
        """
        if self.running:
            return
        self._release()
        atexit.register(self._at_exit)
        try:
            self._prepare()
            tries, until = _PORT_TRIES, time.monotonic() + _LEAVE_SECONDS
            while True:
                chosen = self._port is None
                self._port = self._port or free_port()
                if self._launch():
                    return
                said = self._log_tail()
                if chosen and tries > 1 and "could not bind" in said:
                    # Somebody took the port between our look and the server's bind.
                    tries, self._port = tries - 1, None
                elif _HELD in said and time.monotonic() < until:
                    time.sleep(0.1)  # nobody tells of the end of processes that are not ours
                else:
                    break
            raise ConfigurationError(
                f"Postgres in {self.directory} did not start:\n{self._log_tail()}"
            )
        except BaseException:  # an interrupt must not leave a server behind either
            self.close()
            raise

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end. Does nothing if it does not run.

        The data, even in a temporary directory, stays until `close`, so `start` can follow.

        :param mode: ``smart`` waits for clients to leave, ``fast`` ends their sessions,
            ``immediate`` is a crash: the next start recovers from the log. A server that has
            not ended after 30 seconds is stopped the immediate way.
        """
        if self._watchdog is None:
            return
        for step in (_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL):
            if self._watchdog.poll() is None and self._pid is not None:
                try:
                    os.kill(self._pid, step)
                except ProcessLookupError:
                    step = signal.SIGKILL  # it ended just now; the watchdog is about to
            try:
                self._watchdog.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            break
        self._release()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start, with the same port and data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove a temporary directory. Safe to call twice."""
        temporary = self._given_directory is None
        # What is about to be thrown away need not be written to disk first.
        self.stop("immediate" if temporary else "fast")
        if temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if self._owner == os.getpid():  # a forked child inherits the handler, not the server
            self.close()

    def _release(self) -> None:
        """Let go of a watchdog that has ended."""
        if self._watchdog is not None:
            for stream in (self._watchdog.stdin, self._watchdog.stdout):
                if stream is not None:
                    stream.close()
            self._watchdog.wait()
        self._watchdog = None
        self._pid = None

    def _prepare(self) -> None:
        """Make the data directory and fill it, unless that has been done."""
        if self._directory is None:
            if self._given_directory is None:
                self._directory = Path(
                    tempfile.mkdtemp(prefix="chancy-data-", dir=self._temporary_in)
                )
            else:
                self._directory = self._given_directory.resolve()
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        cluster.prepare(
            self._directory, programs=self.bin_path, account=self._account, settings=self._settings
        )

    def _launch(self) -> bool:
        """Start the watchdog with the server; whether it came to accept connections."""
        command = [str(self.bin_path / "postgres"), "-D", str(self.directory), "-k", ""]
        command += ["-h", "127.0.0.1", "-p", str(self._port)]
        orders = {
            "parent": os.getpid(),
            "user": (self._account.uid, self._account.gid) if self._account else None,
            "log": str(self.log),
            "command": command,
            "environment": cluster.environment(),
            "remove": str(self.directory) if self._given_directory is None else None,
        }
        program = str(Path(__file__).with_name("watchdog.py"))
        self._watchdog = subprocess.Popen(
            # -I -S: neither the caller's directory nor site-packages matter to it.
            [sys.executable, "-I", "-S", program, json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches every process of the terminal's group; the server is stopped by us.
            start_new_session=True,
        )
        assert self._watchdog.stdout is not None
        first = self._watchdog.stdout.readline()
        if first:
            self._pid = int(first)
            deadline = time.monotonic() + _START_SECONDS
            while self._watchdog.poll() is None and time.monotonic() < deadline:
                if self._ready():
                    return True
                time.sleep(0.005)
            self.stop("immediate")
        self._release()
        return False

    def _ready(self) -> bool:
        try:
            lines = (self.directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self._pid) and lines[7].strip() == "ready"

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        except FileNotFoundError:
            return "(it left no log)"
