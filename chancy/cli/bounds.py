"""The limits and the executor and broker options of a queue, as command options and as text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from chancy.cli import output
from chancy.job.limits import Limit, LimitType, encode_limits
from chancy.queue.executor_kind import decode_options
from chancy.queue.executor_options import ExecutorOptions, encode_options
from chancy.queue.queue import DEFAULT_BROKER

_MIB = 2**20
#: The parameters of commands that become the executor options of a queue.
OPTIONS = ("max_jobs", "max_memory", "initializer", "grace", "weight", "cooperative")
_OPTIONS = (
    click.option(
        "--time-limit", type=float, metavar="S", help="The maximum seconds of one attempt."
    ),
    click.option(
        "--memory-limit",
        type=int,
        metavar="MIB",
        help="process: the maximum memory of one attempt, in MiB.",
    ),
    click.option(
        "--max-jobs", type=int, metavar="N", help="process: replace a child after N jobs."
    ),
    click.option(
        "--max-memory",
        type=int,
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

    The command needs the parameter ``executor``.

    :raises ConfigurationError: a value is invalid, or an option belongs to another executor.
    """

    @functools.wraps(function)
    def command(
        *args: Any,
        executor: str,
        time_limit: float | None,
        memory_limit: int | None,
        max_jobs: int | None,
        max_memory: int | None,
        initializer: str | None,
        grace: float | None,
        weight: int | None,
        cooperative: bool,
        **kwargs: Any,
    ) -> None:
        limits: list[Limit] = []
        if time_limit is not None:
            limits.append(Limit.time(time_limit))
        if memory_limit is not None:
            limits.append(Limit.memory(memory_limit * _MIB))
        given = {
            "max_jobs": max_jobs,
            "max_memory_bytes": None if max_memory is None else max_memory * _MIB,
            "initializer": initializer,
            "grace_s": grace,
            "weight": weight,
            "cooperative": cooperative or None,
        }
        named = {name: value for name, value in given.items() if value is not None}
        options = decode_options(json.dumps(named), executor) if named else None
        function(*args, executor=executor, limits=tuple(limits), options=options, **kwargs)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def placed(function: Callable[..., None]) -> Callable[..., None]:
    """Add the broker options; pass ``broker`` and ``broker_options`` to the command."""

    @functools.wraps(function)
    def command(*args: Any, given: tuple[str, ...], **kwargs: Any) -> None:
        function(*args, broker_options=dict(map(_named, given)), **kwargs)

    option = click.option(
        "--broker-option",
        "given",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of that broker; VALUE may be JSON. Repeatable.",
    )
    return click.option(
        "--broker",
        default=DEFAULT_BROKER,
        show_default=True,
        metavar="NAME",
        help="The broker that stores the jobs; plugins supply others.",
    )(option(command))


def _named(given: str) -> tuple[str, Any]:
    key, equals, value = given.partition("=")
    if not equals:
        raise click.BadParameter(f"{given!r} is not KEY=VALUE", param_hint="--broker-option")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def plain_limits(limits: tuple[Limit, ...]) -> dict[str, Any]:
    """The limits as JSON, by type: ``{"time_s": 30}``."""
    found: dict[str, Any] = json.loads(encode_limits(limits) or "{}")
    return found


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
