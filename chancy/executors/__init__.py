"""What runs claims: the worker's loop (async), its threads (thread), or children (process)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict, assert_never

from chancy.executors.base import NO_CALLBACKS, AttemptCallbacks, Executor, FindFunction
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


def default_concurrency(name: ExecutorName) -> int:
    """How many jobs of a queue one worker runs at a time unless the queue says it."""
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
    """Cores that this process may use, which in a container can be fewer than there are."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except (AttributeError, OSError):
        return os.cpu_count() or 1


class _Terms(TypedDict):
    concurrency: int
    find: FindFunction
    max_payload: int
    limits: Limits
    ties: AttemptCallbacks


def executor(
    name: ExecutorName,
    *,
    concurrency: int | None = None,
    find: FindFunction,
    max_payload: int = DEFAULT_MAX_PAYLOAD,
    sys_path: Sequence[str] | None = None,
    options: Options | None = None,
    limits: Limits = NO_LIMITS,
    ties: AttemptCallbacks = NO_CALLBACKS,
) -> Executor:
    """Make an executor; it is to be started before it runs anything.

    :param concurrency: jobs at a time; None takes `default_concurrency`.
    :param find: looks up the function of a claim; raises `UnknownFunction`.
    :param max_payload: bytes that an encoded result may have.
    :param sys_path: where children of the process executor look for modules; None takes this
        process's ``sys.path`` as it is when they are started.
    :param options: those of this executor; None takes the defaults.
    :param limits: of claims that have none of their own.
    :param ties: who takes what running jobs say.
    """
    concurrency = default_concurrency(name) if concurrency is None else concurrency
    options = options or default_options(name)
    terms: _Terms = {
        "concurrency": concurrency,
        "find": find,
        "max_payload": max_payload,
        "limits": limits,
        "ties": ties,
    }
    match options:
        case ProcessOptions():
            from chancy.executors.process.executor import ProcessExecutor

            return ProcessExecutor(**terms, options=options, sys_path=sys_path)
        case ThreadOptions():
            from chancy.executors.thread.executor import ThreadExecutor

            return ThreadExecutor(**terms, options=options)
        case AsyncOptions():
            from chancy.executors.coroutine.executor import AsyncExecutor

            return AsyncExecutor(**terms, options=options)
        case _:
            assert_never(options)
