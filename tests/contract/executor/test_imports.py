"""The import of a job's module comes before the job and its time limit."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from chancy.attempt.outcome import Outcome, Raised, Returned
from chancy.errors import ImportTimeout
from chancy.executors import imports
from chancy.executors.base import Executor
from chancy.executors.batches import BatchedExecutor
from chancy.executors.cluster.executor import ClusterExecutor
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.job.limits import Limit, encode_limits
from chancy.job.registry import Registry
from chancy.queue.executor_options import (
    AsyncOptions,
    DaskOptions,
    ExecutorOptions,
    ProcessOptions,
    ThreadOptions,
)
from tests.contract.executor.calls import DEADLINE_S, claim_with, end_of
from tests.contract.executor.test_cluster_executor import ThreadCluster
from tests.support.waiting import eventually

SLOW = """
import asyncio, os, time

{wait}


async def work() -> int:
    await asyncio.sleep(0)
    return 1
"""
OPTIONS: dict[str, ExecutorOptions] = {
    "async": AsyncOptions(grace_s=0.0),
    "thread": ThreadOptions(cooperative=True),
    "process": ProcessOptions(grace_s=0.0),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that is not written yet, and how the names of several begin."""
    name = f"slow_{uuid4().hex}"
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for found in [found for found in sys.modules if found.startswith(name)]:
        del sys.modules[found]


def write(folder: Path, module: str, wait: str) -> None:
    (folder / f"{module}.py").write_text(SLOW.format(wait=wait))


#: A condition that is true in executor processes.
BELOW = f"if os.getpid() != {os.getpid()}"


@asynccontextmanager
async def running(name: str, options: ExecutorOptions) -> AsyncGenerator[Executor]:
    find = Registry(allow=["slow_*"]).find
    made = make_executor(name, ExecutorSetup(concurrency=1, find=find, options=options))
    made = BatchedExecutor(made, find, 1_000)  # as in a worker
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def run(it: Executor, module: str, limit_s: float | None = None) -> Outcome:
    claim = claim_with(f"{module}.work", "{}")
    if limit_s is not None:
        claim = claim._replace(limits=encode_limits((Limit.time(limit_s),)))
    return await end_of(asyncio.create_task(it.run(claim)))


async def test_the_time_limit_starts_after_the_import(module: str, tmp_path: Path) -> None:
    """In all executors at once, since the jobs have the time that they take on a busy machine."""

    async def import_and_run(name: str) -> Outcome:
        slow = f"{module}_{name}"
        write(tmp_path, slow, f"{BELOW if name == 'process' else 'if True'}: time.sleep(3.2)")
        async with running(name, OPTIONS[name]) as it:
            return await run(it, slow, 3.0)

    for outcome in await asyncio.gather(*map(import_and_run, OPTIONS)):
        assert isinstance(outcome, Returned), outcome


async def test_an_import_in_the_worker_has_a_limit_and_does_not_block_the_loop(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.executors.imports.IMPORT_S", 0.2)
    until = tmp_path / "until"
    write(tmp_path, module, f"while not os.path.exists({str(until)!r}): time.sleep(0.002)")
    async with running(name, OPTIONS[name]) as it:
        try:
            outcome = await run(it, module)
        finally:
            until.touch()
        assert isinstance(outcome, Raised), outcome
        assert outcome.failure.is_a("chancy.errors.ImportTimeout")
        assert f"the module {module} took longer than 0.2 s to import" in outcome.failure.message
        monkeypatch.setattr("chancy.executors.imports.IMPORT_S", DEADLINE_S)
        assert isinstance(await run(it, module), Returned), "the import went on"


async def test_an_import_in_an_executor_process_has_a_limit(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.executors.process.child_handle.IMPORT_S", 0.5)
    write(tmp_path, module, f"{BELOW}: time.sleep(60)")
    async with running("process", OPTIONS["process"]) as it:
        outcome = await run(it, module)
    assert isinstance(outcome, Raised), outcome
    assert outcome.failure.is_a("chancy.errors.ImportTimeout")


async def test_an_import_that_fails_is_reported(name: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise TimeoutError('no licence')")
    async with running(name, OPTIONS[name]) as it:
        outcome = await run(it, module)
    assert isinstance(outcome, Raised), outcome
    assert outcome.failure.is_a("chancy.errors.UnknownFunction")
    assert "no licence" in outcome.failure.message


@pytest.mark.parametrize("name", [*OPTIONS, "dask"])
async def test_a_consumer_that_is_torn_down_does_not_wait_for_an_import(name: str) -> None:
    begun, ended = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def find(path: str) -> Callable[..., Any]:
        loop.call_soon_threadsafe(begun.set)
        ended.wait()
        raise AssertionError("nothing is to run")

    options = OPTIONS.get(name, DaskOptions())
    setup = ExecutorSetup(concurrency=1, find=find, options=options)
    dask = name == "dask"
    it = ClusterExecutor(setup, ThreadCluster()) if dask else make_executor(name, setup)
    await it.start()
    try:
        consumer = asyncio.create_task(it.run(claim_with("no_such_module.work", "{}")))
        await begun.wait()
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await end_of(consumer)
    finally:
        ended.set()
        await it.stop()


async def test_imports_that_hang_occupy_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "IMPORT_S", 0.05)
    monkeypatch.setattr(imports, "MOST", 2)
    ended = threading.Event()
    found = list[str]()

    def find(path: str) -> Callable[..., Any]:
        found.append(path)
        ended.wait()
        return find

    def has_begun(threads: int) -> bool:
        return len(found) == threads

    try:
        begun = {"no_a.work": 1, "no_a.more": 1, "no_b.work": 2, "no_c.work": 2}
        for path, threads in begun.items():
            loads = [imports.load(path, find) for _ in range(5)]
            ends = await asyncio.gather(*loads, return_exceptions=True)
            assert all(isinstance(end, ImportTimeout) for end in ends), ends
            await eventually(partial(has_begun, threads))
        assert found == ["no_a.work", "no_b.work"]
    finally:
        ended.set()
    monkeypatch.setattr(imports, "IMPORT_S", DEADLINE_S)
    await imports.load("no_c.work", find)
    assert found[2:] == ["no_c.work"]
