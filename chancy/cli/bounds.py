"""The limits and the executor options of a queue, as command options and as text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from chancy.cli import output
from chancy.job.limits import Limit, LimitType
from chancy.queue.executor_kind import decode_options
from chancy.queue.executor_options import ExecutorOptions, encode_options

_MIB = 2**20
#: The parameters of commands that become the executor options of a queue.
OPTIONS = ("max_jobs", "max_memory_bytes", "initializer", "grace_s", "weight", "cooperative")


def _in_bytes(_: click.Context, __: click.Parameter, mib: int | None) -> int | None:
    return None if mib is None else mib * _MIB


_OPTIONS = (
    click.option(
        "--time-limit", type=float, metavar="S", help="The maximum seconds of one attempt."
    ),
    click.option(
        "--memory-limit",
        type=int,
        callback=_in_bytes,
        metavar="MIB",
        help="process: the maximum memory of one attempt, in MiB.",
    ),
    click.option(
        "--max-jobs", type=int, metavar="N", help="process: replace a child after N jobs."
    ),
    click.option(
        "--max-memory",
        "max_memory_bytes",
        type=int,
        callback=_in_bytes,
        metavar="MIB",
        help="process: replace a child that holds more than MIB after a job.",
    ),
    click.option(
        "--initializer",
        metavar="PATH",
        help="process: a function each child calls before its first job.",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=float,
        metavar="S",
        help="process, async: seconds a job has to clean up when it is stopped.",
    ),
    click.option(
        "--weight",
        type=int,
        metavar="N",
        help="process: the share of the queue when several wait for the same children.",
    ),
    click.option(
        "--cooperative",
        is_flag=True,
        help="thread: the functions check current_job().cancelled.",
    ),
)


def bounded(function: Callable[..., None]) -> Callable[..., None]:
    """Add the limit and executor options; pass ``limits`` and ``options`` to the command.

    The options are a dict of those that are given, for `options_of`.
    """

    @functools.wraps(function)
    def command(
        *args: Any, time_limit: float | None, memory_limit: int | None, **kwargs: Any
    ) -> None:
        limits: list[Limit] = []
        if time_limit is not None:
            limits.append(Limit.time(time_limit))
        if memory_limit is not None:
            limits.append(Limit.memory(memory_limit))
        given = {name: kwargs.pop(name) for name in OPTIONS}
        named = {n: value for n, value in given.items() if value is not None and value is not False}
        function(*args, limits=tuple(limits), options=named, **kwargs)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def options_of(given: Mapping[str, Any], executor: str) -> ExecutorOptions | None:
    """The options of an executor; None if none is given.

    :raises ConfigurationError: a value is invalid, or an option belongs to another executor.
    """
    return decode_options(json.dumps(given), executor) if given else None


def plain_options(options: ExecutorOptions | None) -> dict[str, Any]:
    """The options that differ from the defaults of the executor, as JSON."""
    found: dict[str, Any] = json.loads(encode_options(options) or "{}")
    return found


def shown_limits(limits: tuple[Limit, ...]) -> str | None:
    """The limits as a table cell: ``30 s, 512 MiB``."""
    return ", ".join(map(_shown, limits)) or None


def _shown(limit: Limit) -> str:
    if limit.type is LimitType.TIME:
        return f"{limit.value:g} s"
    return f"{limit.value / _MIB:,.10g} MiB"


def shown_options(options: ExecutorOptions | None) -> str | None:
    """The options as a table cell: ``max_jobs=100 grace_s=1``."""
    given = plain_options(options).items()
    return " ".join(f"{name}={output.cell(value)}" for name, value in given) or None
