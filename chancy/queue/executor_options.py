"""The options of a queue's executor: one class for each executor."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, assert_never, get_args

from chancy.checks import check_function_path
from chancy.errors import ConfigurationError
from chancy.text import shown

ExecutorName = Literal["process", "thread", "async"]
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of a ``process`` queue, which runs jobs in child processes.

    :param jobs_per_child: coroutine jobs that one child runs at a time in its event loop. Plain
        functions always run one at a time. If the child is killed to stop one job, the others are
        released without counting an attempt; if the child crashes, each of them counts a crash.
    :param max_jobs: a child is replaced after this many jobs; None: never.
    :param max_memory_bytes: a child is replaced when it holds more resident memory than this
        after a job; None: never.
    :param initializer: path of a function without arguments, ``package.module.function``, that
        each child calls before its first job.
    :param grace_s: seconds that a job has to clean up after its time limit or a cancel; then its
        child is killed.
    """

    jobs_per_child: int = 1
    max_jobs: int | None = None
    max_memory_bytes: int | None = None
    initializer: str | None = None
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        _check_whole("jobs_per_child", self.jobs_per_child, 1, 10_000)
        if self.max_jobs is not None:
            _check_whole("max_jobs", self.max_jobs, 1, 2**53)
        if self.max_memory_bytes is not None:
            _check_whole("max_memory_bytes", self.max_memory_bytes, 32 * 2**20, 2**62)
        if self.initializer is not None:
            check_function_path(self.initializer)
        _check_seconds("grace_s", self.grace_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadOptions:
    """Options of a ``thread`` queue, which runs jobs in threads of the worker.

    :param cooperative: the functions check ``current_job().cancelled`` and return when it is set,
        so they may have a time limit. A thread cannot be stopped from outside.
    """

    cooperative: bool = False

    def __post_init__(self) -> None:
        cooperative: object = self.cooperative
        if not isinstance(cooperative, bool):
            raise ConfigurationError(f"cooperative={shown(cooperative)} must be True or False")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions:
    """Options of an ``async`` queue, which runs jobs in the worker's event loop.

    :param grace_s: seconds that a coroutine may take to end after it was cancelled. Then it is
        abandoned: its attempt ends, the coroutine keeps running, and a warning is logged.
    """

    grace_s: float = 5.0

    def __post_init__(self) -> None:
        _check_seconds("grace_s", self.grace_s)


Options = ProcessOptions | ThreadOptions | AsyncOptions


def default_options(executor: ExecutorName) -> Options:
    """Return the default options of an executor."""
    match executor:
        case "process":
            return ProcessOptions()
        case "thread":
            return ThreadOptions()
        case "async":
            return AsyncOptions()
        case _:
            assert_never(executor)


def check_options(options: object, executor: ExecutorName, where: str) -> None:
    """Raise `ConfigurationError` unless the options have the class of the executor."""
    expected = type(default_options(executor))
    if not isinstance(options, expected):
        raise ConfigurationError(
            f"{where}: the executor {executor} takes {expected.__name__}, not {shown(options)}"
        )


def encode_options(options: Options | None) -> str | None:
    """Return the options that differ from the defaults, as the JSON string that is stored."""
    if options is None:
        return None
    values = asdict(options)
    return json.dumps(
        {
            field.name: values[field.name]
            for field in fields(options)
            if values[field.name] != field.default
        }
    )


def decode_options(text: str | None, executor: ExecutorName) -> Options | None:
    """Return the options of a row; raises `ConfigurationError` if the executor rejects them."""
    if text is None:
        return None
    try:
        stored: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the options are not JSON: {error}") from None
    if not isinstance(stored, dict):
        raise ConfigurationError(f"the options are not a JSON object: {shown(stored)}")
    cls = type(default_options(executor))
    try:
        return cls(**stored)
    except TypeError:
        names = ", ".join(field.name for field in fields(cls))
        raise ConfigurationError(
            f"the executor {executor} has the options {names}, not {', '.join(map(shown, stored))}"
        ) from None


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(
            f"{name}={shown(value)} must be a whole number from {low:,} to {high:,}"
        )


def _check_seconds(name: str, value: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # The range check also rejects NaN, and works for an int of any size.
    if not good or not 0 <= value <= 3_600:  # type: ignore[operator]
        raise ConfigurationError(f"{name}={shown(value)} must be from 0 to 3,600 seconds")
