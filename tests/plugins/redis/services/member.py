"""A worker of services in a process, to signal and to kill: ``python -m … URL OPTIONS``.

OPTIONS is JSON: ``cluster``, ``local``: the name of a local service, ``notes``: the url of another
server for what the services say, ``skew_s``: how wrong the clock of the process is, and terms.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from functools import partial
from typing import Any

from chancy.plugins.redis.services import standalone as alone
from tests.plugins.redis.services.shop import connect_notes, declare, note


def main() -> None:
    url, options = sys.argv[1], json.loads(sys.argv[2])
    cluster, local = options.pop("cluster", False), options.pop("local", None)
    skew_s, right = options.pop("skew_s", 0.0), time.time
    time.time = lambda: right() + skew_s
    elsewhere = options.pop("notes", None)
    connect_notes(elsewhere or url, cluster=cluster and elsewhere is None)
    services = declare(url, cluster=cluster, **options)
    if local:
        services.start_local(local)
    for name in ("exceptions", "exceptions too"):
        services.on_exception(partial(_note_error, name))
    note("members", str(os.getpid()))
    alone.run(services)
    services.close()


def _note_error(name: str, error: BaseException) -> None:
    note(name, repr(error))


@contextlib.contextmanager
def member(url: str, **options: Any) -> Generator[subprocess.Popen[bytes]]:
    """Such a process, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.plugins.redis.services.member", url, json.dumps(options)]
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
