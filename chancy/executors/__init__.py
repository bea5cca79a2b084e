"""Executors run claims: in the worker's event loop (async), in threads, or in processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, assert_never

from chancy.executors.base import NO_CALLBACKS, AttemptCallbacks, Executor, FindFunction
from chancy.executors.process.settings import JobEnvironment
from chancy.job.limits import NO_LIMITS, Limits
from chancy.queue.executor_options import (
    AsyncOptions,
    ExecutorName,
    Options,
    ProcessOptions,
    ThreadOptions,
    default_options,
)
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD

if TYPE_CHECKING:
    from chancy.executors.process.pool import ChildPool


def default_concurrency(name: ExecutorName) -> int:
    """Number of jobs of a queue that one worker runs at a time, unless the queue sets it."""
    match name:
        case "process":
            return _cores()
        case "thread":
            return 16
        case "async":
            return 256
        case _:
            assert_never(name)


def _cores() -> int:
    """Cores that this process may use. In a container that can be fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except (AttributeError, OSError):
        return os.cpu_count() or 1


class _Arguments(TypedDict):
    concurrency: int
    find: FindFunction
    max_payload: int
    limits: Limits
    callbacks: AttemptCallbacks


def executor(
    name: ExecutorName,
    *,
    concurrency: int | None = None,
    find: FindFunction,
    max_payload: int = DEFAULT_MAX_PAYLOAD,
    sys_path: Sequence[str] | None = None,
    options: Options | None = None,
    limits: Limits = NO_LIMITS,
    callbacks: AttemptCallbacks = NO_CALLBACKS,
    environment: JobEnvironment | None = None,
    pool: ChildPool | None = None,
) -> Executor:
    """Create an executor. Start it before it runs anything.

    :param concurrency: jobs at a time; None takes `default_concurrency`.
    :param find: looks up the function of a claim; raises `UnknownFunction`.
    :param max_payload: maximum size of an encoded result in bytes.
    :param sys_path: module search path of executor processes; None takes this process's
        ``sys.path`` when the executor starts.
    :param options: options of this executor; None takes the defaults.
    :param limits: limits of claims that have none of their own.
    :param callbacks: called for reports of running jobs.
    :param environment: surroundings of the jobs in executor processes; None for plain jobs.
    :param pool: executor processes to share with other queues; None: its own.
    """
    concurrency = default_concurrency(name) if concurrency is None else concurrency
    options = options or default_options(name)
    arguments: _Arguments = {
        "concurrency": concurrency,
        "find": find,
        "max_payload": max_payload,
        "limits": limits,
        "callbacks": callbacks,
    }
    match options:
        case ProcessOptions():
            from chancy.executors.process.executor import ProcessExecutor

            return ProcessExecutor(
                **arguments,
                options=options,
                sys_path=sys_path,
                environment=environment,
                pool=pool,
            )
        case ThreadOptions():
            from chancy.executors.thread.executor import ThreadExecutor

            return ThreadExecutor(**arguments, options=options)
        case AsyncOptions():
            from chancy.executors.coroutine.executor import AsyncExecutor

            return AsyncExecutor(**arguments, options=options)
        case _:
            assert_never(options)
