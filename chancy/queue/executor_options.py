"""The options of a queue's executor: one class for each executor."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, assert_never, get_args

from chancy.checks import check_flag, check_function_path, check_number
from chancy.errors import ConfigurationError
from chancy.text import shown

ExecutorName = Literal["process", "thread", "async"]
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options of a ``process`` queue, which runs jobs in child processes, one at a time in each.

    :param max_jobs: a child is replaced after this many jobs; None: never.
    :param max_memory_bytes: a child is replaced when it holds more resident memory than this
        after a job; None: never.
    :param initializer: path of a function without arguments, ``package.module.function``, that
        each child calls before its first job.
    :param grace_s: seconds that a job has to clean up after its time limit or a cancel; then its
        child is killed.
    """

    max_jobs: int | None = None
    max_memory_bytes: int | None = None
    initializer: str | None = None
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_jobs is not None:
            check_number(self.max_jobs, "max_jobs", 1, 2**53)
        if self.max_memory_bytes is not None:
            check_number(self.max_memory_bytes, "max_memory_bytes", 32 * 2**20, 2**62)
        if self.initializer is not None:
            check_function_path(self.initializer)
        check_number(self.grace_s, "grace_s", 0, 3_600, whole=False, unit="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadOptions:
    """Options of a ``thread`` queue, which runs jobs in threads of the worker.

    :param cooperative: the functions check ``current_job().cancelled`` and return when it is set,
        so they may have a time limit. A thread cannot be stopped from outside.
    """

    cooperative: bool = False

    def __post_init__(self) -> None:
        check_flag(self.cooperative, "cooperative")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions:
    """Options of an ``async`` queue, which runs jobs in the worker's event loop.

    :param grace_s: seconds that a coroutine may take to end after it was cancelled. Then it is
        abandoned: its attempt ends, the coroutine keeps running, and a warning is logged.
    """

    grace_s: float = 5.0

    def __post_init__(self) -> None:
        check_number(self.grace_s, "grace_s", 0, 3_600, whole=False, unit="seconds")


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
