"""Runs one server, and stops it when the parent process dies.

This file is run by its path in a separate process, without importing chancy; its stdin is a pipe
that the parent holds open. The death of the parent is detected in two ways: the pipe reports end
of file at once, and the parent's pid is checked every 0.5 s, because a forked child of the parent
may keep the pipe open. PR_SET_PDEATHSIG does not suffice: it fires when the *thread* that started
the server ends, and a change of user clears it.

The argument is one JSON object: ``parent`` (pid), ``user`` (uid and gid, or null), ``log``
(path), ``command``, ``environment``, ``remove`` (a directory to delete once the parent has
died, or null). The first line of its output is the pid of the server.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TypedDict

_CHECK_INTERVAL_S = 0.5


class WatchdogOptions(TypedDict):
    """The options from the parent; see above."""

    parent: int
    user: tuple[int, int] | None
    log: str
    command: Sequence[str]
    environment: Mapping[str, str]
    remove: str | None


def watch(options: WatchdogOptions) -> int:
    """Run the server until it ends or the parent dies, and return its exit code."""
    wakeup, wakeup_write = os.pipe()
    for end in (wakeup, wakeup_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    terminated = False

    def terminate(*_: object) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, terminate)
    uid, gid = options["user"] or (None, None)
    # The server's user could make a symbolic link that leads a root process to another file.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(options["log"], flags, 0o666), "ab") as log:
        server = subprocess.Popen(
            options["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(options["environment"]),
            cwd="/",
            user=uid,
            group=gid,
            extra_groups=[] if gid is not None else None,
        )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin, wakeup], [], [], _CHECK_INTERVAL_S)
        if wakeup in readable:
            os.read(wakeup, 1024)
        orphaned = sys.stdin in readable or os.getppid() != options["parent"]
        if orphaned or terminated:
            _stop(server, quick=options["remove"] is not None)
            if orphaned and options["remove"] is not None:
                shutil.rmtree(options["remove"], ignore_errors=True)
    return server.returncode


def _stop(server: subprocess.Popen[bytes], *, quick: bool) -> None:
    """Stop the server. On SIGINT Postgres writes its buffers first, on SIGQUIT it does not."""
    signals = (signal.SIGQUIT,) if quick else (signal.SIGINT, signal.SIGQUIT)
    for signal_ in signals:
        server.send_signal(signal_)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()


if __name__ == "__main__":
    sys.exit(watch(json.loads(sys.argv[1])) != 0)
