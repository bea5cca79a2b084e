"""The server that is measured: one of our own, or one that was given."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chancy.embedded import PostgresServer
from chancy.embedded.binaries import find_programs, server_account
from chancy.errors import ConfigurationError

#: As a server in production would be, but for the memory; the rest is Postgres's own default.
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "1GB"}
VERSION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it is.

    :param programs: the directory with ``pgbench``, if there is one.
    :param pid: of the postmaster, if it is known.
    """

    dsn: str
    given: bool
    programs: Path | None
    pid: int | None


@contextmanager
def server(dsn: str | None) -> Generator[Server]:
    """The server of this DSN, or a private one that ends with the block."""
    if dsn is not None:
        yield Server(dsn=dsn, given=True, programs=_programs(), pid=None)
        return
    with PostgresServer(version=VERSION, settings=SETTINGS) as own:
        yield Server(dsn=own.dsn(), given=False, programs=own.bin_path, pid=own.pid)


def _programs() -> Path | None:
    found = shutil.which("pgbench")
    if found is not None:
        return Path(found).parent
    try:
        return find_programs(VERSION, server_account(), given=None)
    except ConfigurationError:
        return None
