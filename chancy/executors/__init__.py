"""What runs claims: the worker's loop (async), its threads (thread), or children (process)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import assert_never

from chancy.codec import DEFAULT_MAX_PAYLOAD
from chancy.executors.base import Executor, FindFunction
from chancy.queue import ExecutorName


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


def executor(
    name: ExecutorName,
    *,
    concurrency: int | None = None,
    find: FindFunction,
    max_payload: int = DEFAULT_MAX_PAYLOAD,
    sys_path: Sequence[str] | None = None,
) -> Executor:
    """Make an executor; it is to be started before it runs anything.

    :param concurrency: jobs at a time; None takes `default_concurrency`.
    :param find: looks up the function of a claim; raises `UnknownFunction`.
    :param max_payload: bytes that an encoded result may have.
    :param sys_path: where children of the process executor look for modules; None takes this
        process's ``sys.path`` as it is when they are started.
    """
    concurrency = default_concurrency(name) if concurrency is None else concurrency
    match name:
        case "process":
            from chancy.executors.process import ProcessExecutor

            return ProcessExecutor(
                concurrency=concurrency, find=find, max_payload=max_payload, sys_path=sys_path
            )
        case "thread":
            from chancy.executors.thread import ThreadExecutor

            return ThreadExecutor(concurrency=concurrency, find=find, max_payload=max_payload)
        case "async":
            from chancy.executors.aio import AsyncExecutor

            return AsyncExecutor(concurrency=concurrency, find=find, max_payload=max_payload)
        case _:
            assert_never(name)
