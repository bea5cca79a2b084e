"""A private Postgres server, with programs from a wheel or from the machine."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from chancy.embedded.binaries import Account, closed_part, find_programs, server_account
from chancy.errors import ConfigurationError

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
#: The file of settings in a data directory.
_SETTINGS = "embedded.conf"
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_PORT_TRIES = 8
#: The server's message while processes of a killed server still run, and seconds to wait for them.
_HELD, _LEAVE_SECONDS = "pre-existing shared memory block", 10.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which no process listens now.

    It is below the range for outgoing connections (32768 and up on Linux, 49152 elsewhere). From
    inside that range, a client that keeps trying to reach a stopped server can be assigned the
    server's own port and connect to itself.
    """
    while True:
        port = random.randint(15000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class PostgresServer:
    """A Postgres server that belongs to this process and stops with it, even after ``kill -9``.

    It listens on 127.0.0.1 only, on a port that stays the same over restarts, and accepts every
    local user without a password: store nothing important in it. Several processes may each have
    their own server; one object is for one thread.

    :param directory: the data directory. Created at the first start, kept at the end, and reused
        by the next start. None is a temporary directory that is removed.
    :param version: 16 or 18, which the wheel of ``chancy-queue[embedded]`` contains; ignored with
        ``bin_path``.
    :param port: the port; None chooses a free one at the first start.
    :param settings: server settings as in postgresql.conf, for example
        ``{"fsync": "off"}``. ``alter system`` still overrides them.
    :param bin_path: the directory of other programs, such as ``/usr/lib/postgresql/15/bin``.
    :param temporary_in: the parent of a temporary directory, for example ``/dev/shm``; None is
        the system's default.
    :raises ConfigurationError: the programs are missing or not accessible.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The data directory. A temporary one exists from the first start on."""
        if self._directory is None:
            raise RuntimeError("the server has no directory before its first start")
        return self._directory

    @property
    def log(self) -> Path:
        """The log file of the server, of all starts, in the data directory."""
        return self.directory / "server.log"

    @property
    def port(self) -> int:
        """The TCP port, chosen at the first start."""
        if self._port is None:
            raise RuntimeError("the server has no port before its first start")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the postmaster.

        :raises RuntimeError: the server is not running.
        """
        if self._pid is None or not self.running:
            raise RuntimeError("the server is not running")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the server is running; False after a crash."""
        return self._watchdog is not None and self._watchdog.poll() is None

    def dsn(self, database: str = "postgres") -> str:
        """A DSN for the superuser, valid over restarts."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Does nothing if it is running.

        Processes of a server that was killed in the same directory have ten seconds to end.

        :raises ConfigurationError: it does not start; the message has the end of its log.
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
                log = self._log_tail()
                if chosen and tries > 1 and "could not bind" in log:
                    # Another process took the port between the check and the server's bind.
                    tries, self._port = tries - 1, None
                elif _HELD in log and time.monotonic() < until:
                    time.sleep(0.1)  # the end of foreign processes cannot be awaited
                else:
                    break
            raise ConfigurationError(
                f"Postgres in {self.directory} did not start:\n{self._log_tail()}"
            )
        except BaseException:  # also after an interrupt no server may be left running
            self.close()
            raise

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait until it has ended. Does nothing if it is not running.

        The data is kept until `close`, even in a temporary directory, so `start` can follow.

        :param mode: ``smart`` waits for clients to disconnect, ``fast`` ends their sessions,
            ``immediate`` is a crash: the next start recovers from the log. A server that has
            not ended after 30 seconds is stopped with ``immediate``.
        """
        if self._watchdog is None:
            return
        for step in (_SIGNALS[mode], signal.SIGQUIT, signal.SIGKILL):
            if self._watchdog.poll() is None and self._pid is not None:
                try:
                    os.kill(self._pid, step)
                except ProcessLookupError:
                    step = signal.SIGKILL  # it has just ended; the watchdog ends next
            try:
                self._watchdog.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            break
        self._release()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start the server, with the same port and data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove its directory if it is temporary. Safe to call twice."""
        temporary = self._given_directory is None
        # Data that is removed next need not be written to disk first.
        self.stop("immediate" if temporary else "fast")
        if temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if self._owner == os.getpid():  # a forked child inherits the handler but not the server
            self.close()

    def _release(self) -> None:
        """Reap a watchdog that has ended."""
        if self._watchdog is not None:
            for stream in (self._watchdog.stdin, self._watchdog.stdout):
                if stream is not None:
                    stream.close()
            self._watchdog.wait()
        self._watchdog = None
        self._pid = None

    def _prepare(self) -> None:
        """Create the data directory and its cluster, unless they exist."""
        if self._directory is None:
            if self._given_directory is None:
                self._directory = Path(
                    tempfile.mkdtemp(prefix="chancy-data-", dir=self._temporary_in)
                )
            else:
                self._directory = self._given_directory.resolve()
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prepare_directory(
            self._directory, programs=self.bin_path, account=self._account, settings=self._settings
        )

    def _launch(self) -> bool:
        """Start the watchdog with the server; returns whether the server accepts connections."""
        command = [str(self.bin_path / "postgres"), "-D", str(self.directory)]
        if "unix_socket_directories" not in self._settings:
            command += ["-k", ""]
        command += ["-h", "127.0.0.1", "-p", str(self._port)]
        options = {
            "parent": os.getpid(),
            "user": (self._account.uid, self._account.gid) if self._account else None,
            "log": str(self.log),
            "command": command,
            "environment": environment(),
            "remove": str(self.directory) if self._given_directory is None else None,
        }
        program = str(Path(__file__).with_name("watchdog.py"))
        self._watchdog = subprocess.Popen(
            # -I -S: independent of the current directory and of site-packages.
            [sys.executable, "-I", "-S", program, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches every process of the terminal's group; this object stops the server.
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
            with open(self.log, errors="replace", opener=_without_links) as log:
                return "\n".join(log.read().splitlines()[-15:])
        except OSError as error:
            return f"(no log: {error})"


def _prepare_directory(
    directory: Path, *, programs: Path, account: Account | None, settings: Mapping[str, str]
) -> None:
    """Create a cluster in an empty directory, or reuse the one it holds, and write the settings.

    :raises ConfigurationError: the directory holds anything else, or the account cannot enter it.
    """
    fresh = not (directory / "PG_VERSION").exists()
    if fresh and any(directory.iterdir()):
        raise ConfigurationError(
            f"{directory} holds files that are not a Postgres database: "
            "pass an empty directory or one that does not exist yet"
        )
    if account is not None:
        if directory.stat().st_uid != account.uid:
            os.chown(directory, account.uid, account.gid)
        if (closed := closed_part(directory, account)) is not None:
            raise ConfigurationError(
                f"the user {account.name!r}, which runs Postgres for root, cannot enter "
                f"{closed}; run `chmod o+x {closed}` or choose a directory below "
                f"{tempfile.gettempdir()}"
            )
    if fresh:
        _initialise(directory, programs, account)
    lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
    file = directory / _SETTINGS
    file.unlink(missing_ok=True)
    with open(file, "x", opener=_without_links) as new:
        new.write("".join(lines))
        os.fchmod(new.fileno(), 0o644)  # readable for the server's user, whatever the umask is


def _without_links(path: str, flags: int) -> int:
    """Open a file of the directory, but not through a symbolic link: the server's user could make
    one that leads a root process to other files."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def environment() -> dict[str, str]:
    """The environment of the programs, without the locale, time zone and PG* variables of the
    machine."""
    return {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}


def _initialise(directory: Path, programs: Path, account: Account | None) -> None:
    options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres"]
    done = subprocess.run(
        [str(programs / "initdb"), *options, "-D", str(directory)],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
        env=environment(),
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise ConfigurationError(f"initdb failed in {directory}:\n{done.stdout}{done.stderr}")
    with open(directory / "postgresql.conf", "a", opener=_without_links) as file:
        file.write(f"include_if_exists = '{_SETTINGS}'\n")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
