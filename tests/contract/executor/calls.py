"""How the tests of the executors call them. Without pytest, for `executor_scripts`."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Returned
from chancy.executors.base import AttemptCallbacks, Executor, Report, StoreMeta, no_report, no_store
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.job.limits import NO_LIMITS, Limit, Limits, encode_limits
from chancy.job.registry import Registry
from chancy.queue.executor_kind import executor_kind
from chancy.queue.executor_options import ExecutorOptions
from tests.contract.executor import checkpoint_jobs as executor_checkpoints
from tests.contract.executor import context_jobs as executor_asks
from tests.contract.executor import control_jobs as executor_answers
from tests.contract.executor import jobs as executor_jobs
from tests.contract.executor import peril_jobs as executor_perils
from tests.contract.executor import process_jobs
from tests.support.clusters import CLUSTERS, cluster_options
from tests.support.waiting import eventually

JOBS = executor_jobs.__name__
_MODULES = (
    executor_answers,
    executor_asks,
    executor_perils,
    executor_checkpoints,
    process_jobs,
    executor_jobs,
)
MAX_PAYLOAD = 100_000
#: Seconds within which anything here happens, on a busy machine.
DEADLINE_S = 30.0


def find(path: str) -> Callable[..., Any]:
    return Registry(allow=[f"{module.__name__}.*" for module in _MODULES]).find(path)


def claim_of(function: str, **arguments: object) -> Claim:
    """A claim of a function of one of the modules of jobs."""
    path = f"{JOBS}.{function}"
    for module in _MODULES:
        if getattr(getattr(module, function, None), "__module__", None) == module.__name__:
            path = f"{module.__name__}.{function}"
    return claim_with(path, json.dumps(arguments))


def claim_with(path: str, arguments: str | None) -> Claim:
    return Claim(uuid4(), uuid4(), uuid4(), "default", path, arguments, 1, 3, 0, 0, 0, None)


def limited(claim: Claim, *limits: Limit) -> Claim:
    return claim._replace(limits=encode_limits(limits))


@asynccontextmanager
async def started(
    name: str,
    concurrency: int = 1,
    options: ExecutorOptions | None = None,
    limits: Limits = NO_LIMITS,
    report: Report = no_report,
    keep: StoreMeta = no_store,
    plain_errors: bool = True,
) -> AsyncGenerator[Executor]:
    if options is None:
        options = cluster_options(name) if name in CLUSTERS else executor_kind(name).options()
    setup = ExecutorSetup(
        concurrency=concurrency,
        find=find,
        max_payload=MAX_PAYLOAD,
        options=options,
        limits=limits,
        callbacks=AttemptCallbacks(report=report, store=keep, plain_errors=plain_errors),
    )
    made = make_executor(name, setup)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def run(it: Executor, function: str, **arguments: object) -> Outcome:
    async with asyncio.timeout(DEADLINE_S):
        return await it.run(claim_of(function, **arguments))


async def result(it: Executor, function: str, **arguments: object) -> Any:
    outcome = await run(it, function, **arguments)
    assert isinstance(outcome, Returned), outcome
    assert 0 <= outcome.elapsed_s < DEADLINE_S
    return None if outcome.result is None else json.loads(outcome.result)


async def end_of(running: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(DEADLINE_S):
        return await running


class Place:
    """Files by which a job and its test tell each other where they are."""

    def __init__(self, folder: Path) -> None:
        self.started = folder / "started"
        self.until = folder / "until"
        self.stopped = folder / "stopped"
        self.other = folder / "other"

    def waiting(self, function: str = "wait_for_file_async") -> Claim:
        """A claim of a function that takes some of these files."""
        module, _, name = claim_of(function).func.rpartition(".")
        takes = inspect.signature(getattr(sys.modules[module], name)).parameters
        return claim_of(function, **{file: str(getattr(self, file)) for file in takes})

    async def has_started(self) -> str:
        await eventually(self.started.exists)
        return self.started.read_text()
