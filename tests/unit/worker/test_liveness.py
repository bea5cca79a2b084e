"""Whether a process works, judged from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from chancy.worker.supervisor import liveness as vitals
from chancy.worker.supervisor.liveness import Liveness, LivenessStatus
from tests.support.presence import present
from tests.support.waiting import eventually_sync


@pytest.mark.parametrize(
    ("state", "used", "passed_s", "silent", "finding"),
    [
        ("S", {}, 5.0, False, LivenessStatus.WORKS),
        ("R", {}, 5.0, False, LivenessStatus.WORKS),
        ("T", {1: 1.0}, 5.0, False, LivenessStatus.STOPPED),
        ("t", {}, 5.0, True, LivenessStatus.STOPPED),
        ("Z", {}, 5.0, False, LivenessStatus.GONE),
        ("R", {1: 0.0, 2: 1.0}, 5.0, True, LivenessStatus.BUSY),
        ("R", {2: 0.3}, 5.0, True, LivenessStatus.BUSY),
        # Ten threads that wait for the lock, each at 1.2 %.
        ("S", dict.fromkeys(range(10), 0.06), 5.0, True, LivenessStatus.STUCK),
        ("S", dict.fromkeys(range(10), 0.01), 0.5, True, None),
        ("R", {1: 0.04}, 0.2, True, LivenessStatus.BUSY),
        ("S", {}, 5.0, True, LivenessStatus.STUCK),
    ],
)
def test_findings(
    state: str,
    used: dict[int, float],
    passed_s: float,
    silent: bool,
    finding: LivenessStatus | None,
) -> None:
    before = Liveness("S", {1: 100.0})
    now = Liveness(state, {thread: before.cpu_s.get(thread, 0) + s for thread, s in used.items()})
    assert vitals.judge(now, before, passed_s=passed_s, silent=silent) is finding


def test_without_proc_only_words_count() -> None:
    assert vitals.judge(None, None, passed_s=5, silent=False) is LivenessStatus.WORKS
    assert vitals.judge(None, None, passed_s=5, silent=True) is LivenessStatus.STUCK


def test_the_supervisor_sends_heartbeats_for_live_workers() -> None:
    assert [one for one in LivenessStatus if one.lives] == [
        LivenessStatus.WORKS,
        LivenessStatus.BUSY,
    ]


def test_a_process_is_read() -> None:
    program = "import sys; sys.stdin.readline()\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            eventually_sync(lambda: _state(process.pid) == "T")
            os.kill(process.pid, signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            before = present(vitals.read(process.pid))
            eventually_sync(lambda: _used(process.pid) > sum(before.cpu_s.values()) + 0.1)
        finally:
            process.kill()
        eventually_sync(lambda: _state(process.pid) == "Z")
    assert vitals.read(process.pid) is None


def _state(pid: int) -> str:
    found = vitals.read(pid)
    return "" if found is None else found.state


def _used(pid: int) -> float:
    found = vitals.read(pid)
    return 0.0 if found is None else sum(found.cpu_s.values())
