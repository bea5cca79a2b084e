"""Runs one server and sees that it never outlives the process that asked for it.

Run by its path in a process of its own, without chancy being imported; its input is a pipe
that the parent holds open. The parent's death is noticed twice over: the pipe reports an end
of file at once, and the parent's id is looked at every while, because a forked child of the
parent may keep the pipe open. PR_SET_PDEATHSIG would not do: it fires when the *thread* that
started the server ends, and a change of user clears it.

Arguments, as one JSON object: ``parent`` (pid), ``user`` (uid and gid, or null), ``log``
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

_GLANCE_SECONDS = 0.5


class WatchdogOptions(TypedDict):
    """What the parent asks for."""

    parent: int
    user: tuple[int, int] | None
    log: str
    command: Sequence[str]
    environment: Mapping[str, str]
    remove: str | None


def watch(orders: WatchdogOptions) -> int:
    """Run the server until it ends by itself or the parent is gone. Gives its exit code."""
    wakeup, bell = os.pipe()
    for end in (wakeup, bell):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    terminated = False

    def terminate(*_: object) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, terminate)
    uid, gid = orders["user"] or (None, None)
    with open(orders["log"], "ab") as log:
        server = subprocess.Popen(
            orders["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(orders["environment"]),
            cwd="/",
            user=uid,
            group=gid,
            extra_groups=[] if gid is not None else None,
        )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    while server.poll() is None:
        readable, _, _ = select.select([sys.stdin, wakeup], [], [], _GLANCE_SECONDS)
        if wakeup in readable:
            os.read(wakeup, 1024)
        orphaned = sys.stdin in readable or os.getppid() != orders["parent"]
        if orphaned or terminated:
            _end(server, quick=orders["remove"] is not None)
            if orphaned and orders["remove"] is not None:
                shutil.rmtree(orders["remove"], ignore_errors=True)
    return server.returncode


def _end(server: subprocess.Popen[bytes], *, quick: bool) -> None:
    """SIGINT lets Postgres write its buffers first, SIGQUIT does not."""
    ladder = (signal.SIGQUIT,) if quick else (signal.SIGINT, signal.SIGQUIT)
    for step in ladder:
        server.send_signal(step)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()


if __name__ == "__main__":
    sys.exit(watch(json.loads(sys.argv[1])) != 0)
