"""How the executor of a queue works: one class of options for each."""

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
    """The children of a ``process`` queue.

    :param jobs_per_child: coroutine jobs that one child runs at a time in its event loop; plain
        functions run one at a time whatever it says. If the child has to be killed to stop one
        of them, the others go back at no cost; if it dies by itself, each counts a crash.
    :param max_jobs: a child is replaced after so many jobs; None: it is not.
    :param max_memory_bytes: a child is replaced when it holds more resident memory than this
        after a job; None: it is not.
    :param initializer: path of a function without arguments, ``package.module.function``, that
        each child calls before its first job.
    :param grace_s: seconds that a job has for its own cleaning up once it was told to stop, by its
        time limit or by a cancel; then its child is killed.
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
    """The threads of a ``thread`` queue.

    :param cooperative: the functions look at ``current_job().cancelled`` and return when it is
        set, so that they may have a time limit. A thread cannot be stopped from outside.
    """

    cooperative: bool = False

    def __post_init__(self) -> None:
        cooperative: object = self.cooperative
        if not isinstance(cooperative, bool):
            raise ConfigurationError(f"cooperative={shown(cooperative)} must be True or False")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions:
    """The coroutines of an ``async`` queue.

    :param grace_s: seconds that a coroutine may take to end after it was cancelled. Then it is
        abandoned: its attempt ends, it goes on unwatched, and that is logged.
    """

    grace_s: float = 5.0

    def __post_init__(self) -> None:
        _check_seconds("grace_s", self.grace_s)


Options = ProcessOptions | ThreadOptions | AsyncOptions


def default_options(executor: ExecutorName) -> Options:
    """The options of an executor for which none are given."""
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
    """Raise `ConfigurationError` unless the options are those of the executor."""
    wanted = type(default_options(executor))
    if not isinstance(options, wanted):
        raise ConfigurationError(
            f"{where}: the executor {executor} takes {wanted.__name__}, not {shown(options)}"
        )


def encode_options(options: Options | None) -> str | None:
    """The options as the JSON text that is stored: what differs from the defaults."""
    if options is None:
        return None
    given = asdict(options)
    return json.dumps(
        {one.name: given[one.name] for one in fields(options) if given[one.name] != one.default}
    )


def decode_options(text: str | None, executor: ExecutorName) -> Options | None:
    """The options of a row. Raises `ConfigurationError` for what the executor does not take."""
    if text is None:
        return None
    try:
        stored: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the options are not JSON: {error}") from None
    if not isinstance(stored, dict):
        raise ConfigurationError(f"the options are not an object: {shown(stored)}")
    cls = type(default_options(executor))
    try:
        return cls(**stored)
    except TypeError:
        names = ", ".join(one.name for one in fields(cls))
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
    # NaN is not in the range either, and an int of any size can be asked.
    if not good or not 0 <= value <= 3_600:  # type: ignore[operator]
        raise ConfigurationError(f"{name}={shown(value)} must be from 0 to 3,600 seconds")
