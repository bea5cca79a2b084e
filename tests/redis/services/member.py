"""A worker of services in a process, to signal and to kill: ``python -m … URL OPTIONS``.

OPTIONS is JSON: ``cluster``, ``local``: the name of a local service, and terms.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import Any

from chancy.plugins.redis.services import alone
from tests.redis.services.shop import connect_notes, declare, note


def main() -> None:
    url, options = sys.argv[1], json.loads(sys.argv[2])
    cluster, local = options.pop("cluster", False), options.pop("local", None)
    connect_notes(url, cluster=cluster)
    services = declare(url, cluster=cluster, **options)
    if local:
        services.start_local(local)
    services.on_exception(lambda error: note("exceptions", repr(error)))
    note("members", str(os.getpid()))
    alone.run(services)
    services.close()


@contextlib.contextmanager
def member(url: str, **options: Any) -> Generator[subprocess.Popen[bytes]]:
    """Such a process; it is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.redis.services.member", url, json.dumps(options)]
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
