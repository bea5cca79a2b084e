"""Fails a test that leaves something running: asyncio tasks or processes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest

_GRACE_SECONDS = 1.0
# These serve the whole interpreter once it has used multiprocessing.
_LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Ids of processes that serve the whole run, whichever test first asked for them.
lasting: set[int] = set()


def _children() -> dict[int, str]:
    found: dict[int, str] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline()) or child.name()
            ours = child.pid in lasting or any(x in command for x in _LASTING)
            if child.status() != psutil.STATUS_ZOMBIE and not ours:
                found[child.pid] = command
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture
async def tasks_left_behind() -> AsyncIterator[None]:
    """For async tests: every task of the test has ended once its other fixtures are done."""
    before = asyncio.all_tasks()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    current = asyncio.current_task()
    while left := {t for t in asyncio.all_tasks() - before if t is not current and not t.done()}:
        if time.monotonic() > deadline:
            pytest.fail(f"tasks are still running: {sorted(map(repr, left))}")
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare before and after. Being automatic, it is set up first and torn down last."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("tasks_left_behind")
    before = _children()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while left := {pid: name for pid, name in _children().items() if pid not in before}:
        if time.monotonic() > deadline:
            pytest.fail(f"processes are still running: {left}")
        time.sleep(0.005)
