"""A primary with hot standbys, to be promoted, cut off and joined again, each behind a proxy.

Clients reach a server by its proxy `Node.way`, a standby its primary by `Node.feed`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg import sql

from chancy.embedded import PostgresServer
from tests.support.postgres_fixtures import OwnServer
from tests.support.proxy import Proxy
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

HERE = "127.0.0.1"


def copied(primary: PostgresServer, folder: Path, port: int, name: str) -> PostgresServer:
    """A hot standby of a server, which it reaches by a port. It is not started yet."""
    data = folder / name
    shutil.rmtree(data, ignore_errors=True)
    program = [str(primary.bin_path / "pg_basebackup"), "-U", "postgres", "-h", HERE]
    program += ["-p", str(primary.port), "-D", str(data), "--checkpoint=fast"]
    subprocess.run(program, check=True, capture_output=True)
    (data / "standby.signal").touch()
    owner = primary.directory.stat()
    for path in (data, *data.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    feed = f"host={HERE} port={port} user=postgres application_name={name}"
    # By default it waits 5 s before it connects again.
    settings = {"primary_conninfo": feed, "wal_retrieve_retry_interval": "100ms"}
    return PostgresServer(data, settings=settings, bin_path=primary.bin_path)


def ask_server(server: PostgresServer, question: str) -> object:
    """The first value of the answer of a server, past its proxy."""
    found = ask(server.dsn(), question)
    return found[0][0] if found else None


@dataclass(slots=True)
class Node:
    """A server, the way of its clients, and that to its primary if it is a standby."""

    name: str
    server: PostgresServer
    way: Proxy
    feed: Proxy | None = None

    def isolate(self) -> None:
        """Cut it off from clients and from its primary."""
        for proxy in (self.way, self.feed):
            if proxy is not None:
                proxy.refuse()
                proxy.cut()


class ReplicatedPostgres:
    """A primary and its standbys.

    :param primary: a running server; it is not closed with this object.
    """

    def __init__(self, primary: PostgresServer) -> None:
        self._stack = ExitStack()
        self._folder = Path(
            self._stack.enter_context(TemporaryDirectory(prefix="chancy-standbys-"))
        )
        self._folder.chmod(0o755)
        self.primary = Node("primary", primary, self._proxy(primary.port))
        self.nodes = {"primary": self.primary}
        self._joined = 0

    def _proxy(self, port: int) -> Proxy:
        return self._stack.enter_context(Proxy(HERE, port))

    def add(self, name: str, *, synchronous: bool = False) -> Node:
        """Start a standby of the primary, and wait until it streams."""
        feed = self._proxy(self.primary.server.port)
        server = copied(self.primary.server, self._folder, feed.port, name)
        self._stack.callback(server.close)
        server.start()
        node = self.nodes[name] = Node(name, server, self._proxy(server.port), feed)
        # Not before: a standby has a copy of the settings of its primary.
        if synchronous:
            self.require(name)
        streams = (
            f"select 1 from pg_stat_replication where application_name = '{name}'"
            f" and state = 'streaming' and sync_state = '{'sync' if synchronous else 'async'}'"
        )
        eventually_sync(lambda: ask_server(self.primary.server, streams))
        return node

    def require(self, name: str) -> None:
        """Let commits of the primary wait for a standby; an empty name: for none."""
        change = sql.SQL("alter system set synchronous_standby_names = {}").format(name)
        with psycopg.connect(self.primary.server.dsn(), autocommit=True) as session:
            session.execute(change)
            session.execute("select pg_reload_conf()")

    def promote(self, node: Node) -> None:
        """Make a standby the primary. The old one is left as it is."""
        if node.feed is not None:
            # A standby is not promoted while it waits for an answer of its primary.
            node.feed.refuse()
            node.feed.cut()
        ask_server(node.server, "select pg_promote()")
        self.primary = node

    def rejoin(self, name: str, *, synchronous: bool = False) -> Node:
        """Replace an old primary or standby by a new copy of the primary, at its old way."""
        old = self.nodes.pop(name)
        directory = old.server.directory
        old.server.close()
        shutil.rmtree(directory, ignore_errors=True)  # a temporary one is gone already
        self._joined += 1
        node = self.add(f"again{self._joined}", synchronous=synchronous)
        node.way.close()
        node.way, old.way.target = old.way, (HERE, node.server.port)
        node.way.heal()
        return node

    @property
    def dsn(self) -> str:
        """All of them: the one that takes writes is used."""
        places = ",".join(f"{HERE}:{node.way.port}" for node in self.nodes.values())
        return (
            f"postgresql://postgres@{places}/postgres"
            "?target_session_attrs=read-write&sslmode=disable&connect_timeout=2"
        )

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def replicated(own_server: OwnServer) -> Iterator[ReplicatedPostgres]:
    """A migrated primary without standbys; `ReplicatedPostgres.add` adds them."""
    made = ReplicatedPostgres(own_server())
    yield made
    made.close()
