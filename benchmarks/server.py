"""The measured server: a private one, or an existing one."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chancy.embedded import PostgresServer
from chancy.embedded.binaries import find_programs, server_account
from chancy.errors import ConfigurationError

#: Durable as in production; everything except the memory, and room for the sessions of 32 workers,
#: is a default of Postgres.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_connections": "300",
}
VERSION = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address of the server.

    :param given: whether it is an existing server.
    :param programs: the directory with ``pgbench``, if there is one.
    :param pid: the process id of the postmaster, if known.
    """

    dsn: str
    given: bool
    programs: Path | None
    pid: int | None


@contextmanager
def server(dsn: str | None) -> Generator[Server]:
    """The server of this DSN, or a private one that is stopped at the end of the block."""
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
