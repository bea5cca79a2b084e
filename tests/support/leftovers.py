"""Fails a test that leaves something running: asyncio tasks or processes."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

#: A busy machine takes seconds to end a process.
_GRACE_SECONDS = 10.0
#: Tasks that were cancelled need turns of the loop, and little time.
_TASK_GRACE_SECONDS = 2.0
_LISTED = Path(f"/proc/self/task/{os.getpid()}/children").exists()
# Processes that serve the whole interpreter once it has used multiprocessing.
_LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Ids of processes that serve the whole test run, as do those that they start.
lasting: set[int] = set()


def _children() -> dict[int, str]:
    found: dict[int, str] = {}
    for pid in _below(os.getpid()):
        if pid in lasting:
            continue
        try:
            child = psutil.Process(pid)
            command = " ".join(child.cmdline()) or child.name()
            ours = any(x in command for x in _LASTING)
            if child.status() != psutil.STATUS_ZOMBIE and not ours:
                found[pid] = command
        except psutil.NoSuchProcess:
            continue
    return found


def _below(pid: int) -> Iterator[int]:
    """The descendants of a process, as listed by Linux.

    psutil scans all processes of the machine, which took 5 ms for each test.
    """
    if not _LISTED:
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        return
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        # The thread or process may have ended meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, thread.read_text().split()):
                yield child
                if child not in lasting:
                    yield from _below(child)


@pytest.fixture
async def tasks_left_behind() -> AsyncIterator[None]:
    """For async tests: fails the test if a task is still running after its other fixtures."""
    before = asyncio.all_tasks()
    yield
    deadline = time.monotonic() + _TASK_GRACE_SECONDS
    current = asyncio.current_task()
    while left := {t for t in asyncio.all_tasks() - before if t is not current and not t.done()}:
        if time.monotonic() > deadline:
            pytest.fail(f"tasks are still running: {sorted(map(repr, left))}")
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test if it leaves processes. An autouse fixture: set up first, torn down last."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("tasks_left_behind")
    before = _children()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while left := {pid: name for pid, name in _children().items() if pid not in before}:
        if time.monotonic() > deadline:
            _kill(left)
            pytest.fail(f"processes were still running: {left}")
        time.sleep(0.005)


def _kill(pids: Iterable[int]) -> None:
    """Kill processes, so that they do not fail a later test."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.kill()
            process.wait(_GRACE_SECONDS)
