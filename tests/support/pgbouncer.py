"""PgBouncer in front of a server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually_sync

_CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
server_login_retry = 1
"""


@contextmanager
def pgbouncer(
    server_port: int, folder: Path, *, size: int, mode: str = "transaction"
) -> Generator[int]:
    """The port of a PgBouncer.

    :param folder: an empty folder that other users can access.
    :param size: its sessions with the server.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.fail("this test needs the program pgbouncer (apt-get install pgbouncer)")
    port = free_port()
    file = folder / "pgbouncer.ini"
    values = {"server_port": server_port, "port": port, "size": size, "mode": mode}
    file.write_text(_CONFIGURATION.format(**values))
    file.chmod(0o644)
    # It refuses to run as root.
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with subprocess.Popen([program, "-q", *user, str(file)]) as process:
        try:
            eventually_sync(lambda: _answers(port))
            yield port
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
