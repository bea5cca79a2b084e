"""The kinds of executors that a queue can name: those of chancy, and installed third-party ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from chancy.checks import check_instance
from chancy.errors import ConfigurationError
from chancy.job.limits import LimitType
from chancy.queue.executor_options import (
    AsyncOptions,
    DaskOptions,
    ExecutorOptions,
    ProcessOptions,
    RayOptions,
    ThreadOptions,
)
from chancy.text import choices, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The entry point group of third-party executors: ``name = "package.module:KIND"``.
GROUP = "chancy.executors"

#: Returns why an executor with these options cannot enforce a limit of a type; None if it can.
Unsupported = Callable[[LimitType, ExecutorOptions | None], str | None]


def every_limit(limit: LimitType, options: ExecutorOptions | None) -> str | None:
    """For an executor that enforces all limits."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKind:
    """An executor that queues can name.

    :param options: the class of its options.
    :param factory: ``module:attribute`` of a class or function that takes an
        `chancy.executors.setup.ExecutorSetup` and returns an `Executor`. Only workers import it.
    :param concurrency: returns the default number of jobs of a queue that one worker runs at a
        time.
    :param unsupported: returns why it cannot enforce a limit, or None. It has no default, because a
        limit that nothing enforces must not be accepted. `every_limit` accepts all limits.
    :param in_worker: whether jobs run in the process of the worker. If a job kills that process,
        its next attempts run in a separate process.
    """

    options: type[ExecutorOptions]
    factory: str
    concurrency: Callable[[], int]
    unsupported: Unsupported
    in_worker: bool = False


def cores() -> int:
    """The number of cores that this process may use; in a container, maybe not all of the
    machine."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _no_memory(executor: str) -> str:
    return (
        f"the jobs of a queue with the executor {executor} share the memory of the worker, "
        "so they take no memory limit: use the executor process"
    )


def _of_thread(limit: LimitType, options: ExecutorOptions | None) -> str | None:
    if limit is LimitType.MEMORY:
        return _no_memory("thread")
    if isinstance(options, ThreadOptions) and options.cooperative:
        return None
    return (
        "a thread cannot be stopped, so a thread queue takes no time limit: use the "
        "executor process or async, or functions that check current_job().cancelled and "
        "ThreadOptions(cooperative=True)"
    )


def _of_async(limit: LimitType, options: ExecutorOptions | None) -> str | None:
    return _no_memory("async") if limit is LimitType.MEMORY else None


_KINDS = {
    "process": ExecutorKind(
        options=ProcessOptions,
        factory="chancy.executors.process.executor:ProcessExecutor",
        concurrency=cores,
        unsupported=every_limit,
    ),
    "thread": ExecutorKind(
        options=ThreadOptions,
        factory="chancy.executors.thread.executor:ThreadExecutor",
        concurrency=lambda: 16,
        unsupported=_of_thread,
        in_worker=True,
    ),
    "async": ExecutorKind(
        options=AsyncOptions,
        factory="chancy.executors.coroutine.executor:AsyncExecutor",
        concurrency=lambda: 256,
        unsupported=_of_async,
        in_worker=True,
    ),
    "dask": ExecutorKind(
        options=DaskOptions,
        factory="chancy.executors.cluster.on_dask:dask_executor",
        concurrency=lambda: 256,
        unsupported=every_limit,
    ),
    "ray": ExecutorKind(
        options=RayOptions,
        factory="chancy.executors.cluster.on_ray:ray_executor",
        concurrency=lambda: 256,
        unsupported=every_limit,
    ),
}
#: The executors that need no additional distribution.
EXECUTORS = ("process", "thread", "async")


@cache
def _installed() -> dict[str, EntryPoint]:
    # Not at the top: an executor process needs no entry points, and this import takes a sixth of
    # its start.
    from importlib import metadata

    return {point.name: point for point in metadata.entry_points(group=GROUP)}


@cache
def _loaded(name: str) -> ExecutorKind:
    point = _installed()[name]
    try:
        kind = point.load()
    except Exception as error:
        raise ConfigurationError(
            f"the executor {name!r} ({point.value}) cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return check_instance(kind, ExecutorKind, f"the executor {name!r}", f"see {point.value}")


def is_known(name: str) -> bool:
    """Whether an executor of this name is installed."""
    return name in _KINDS or name in _installed()


def executor_kind(name: str) -> ExecutorKind:
    """The kind of executor of this name.

    :raises ConfigurationError: there is none with this name, or it cannot be imported.
    """
    if name in _KINDS:
        return _KINDS[name]
    if name in _installed():
        return _loaded(name)
    names = [*_KINDS, *sorted(_installed())]
    raise ConfigurationError(
        f"there is no executor {shown(name)} here: {choices(name, names, 'Installed executors')}; "
        "install the distribution that supplies another one"
    )


def check_options(options: object, executor: str, where: str) -> None:
    """Raise `ConfigurationError` unless the options have the class of the executor."""
    expected = executor_kind(executor).options
    if not isinstance(options, expected):
        raise ConfigurationError(
            f"{where}: the executor {executor} takes {expected.__name__}, not {shown(options)}"
        )


def decode_options(text: str | None, executor: str) -> ExecutorOptions | None:
    """Return the options of a row; raises `ConfigurationError` if the executor rejects them."""
    if text is None:
        return None
    try:
        stored: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the options are not JSON: {error}") from None
    if not isinstance(stored, dict):
        raise ConfigurationError(f"the options are not a JSON object: {shown(stored)}")
    kind = executor_kind(executor).options
    try:
        return kind(**stored)
    except TypeError:
        names = ", ".join(field.name for field in fields(kind))
        raise ConfigurationError(
            f"the executor {executor} has the options {names}, not {', '.join(map(shown, stored))}"
        ) from None


def unsupported(limit: LimitType, executor: str, options: ExecutorOptions | None) -> str | None:
    """Return why an executor cannot enforce a limit of this type; None if it can, or if the
    executor is not installed here."""
    return executor_kind(executor).unsupported(limit, options) if is_known(executor) else None
