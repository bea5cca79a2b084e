"""The limits of a queue and the options of its executor and broker, for commands and as text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from chancy.cli import output
from chancy.job.limits import Limit, LimitType, encode_limits
from chancy.queue.executor_options import ExecutorName, Options, decode_options, encode_options
from chancy.queue.queue import DEFAULT_BROKER

_MIB = 2**20
_OPTIONS = (
    click.option(
        "--time-limit", type=float, metavar="S", help="Seconds that one attempt may take."
    ),
    click.option(
        "--memory-limit", type=int, metavar="MIB", help="process: memory of one attempt, in MiB."
    ),
    click.option(
        "--jobs-per-child", type=int, metavar="N", help="process: coroutine jobs of one child."
    ),
    click.option(
        "--max-jobs", type=int, metavar="N", help="process: a new child after so many jobs."
    ),
    click.option(
        "--max-memory", type=int, metavar="MIB", help="process: a new child above so many MiB."
    ),
    click.option("--initializer", metavar="PATH", help="process: each child calls it first."),
    click.option(
        "--grace", type=float, metavar="S", help="process, async: seconds to clean up in."
    ),
    click.option("--cooperative", is_flag=True, help="thread: its functions heed current_job()."),
)


def bounded(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; hand the command ``limits`` and ``options``, which needs ``executor``.

    :raises ConfigurationError: a value that cannot be, or an option of another executor.
    """

    @functools.wraps(function)
    def command(
        *args: Any,
        executor: ExecutorName,
        time_limit: float | None,
        memory_limit: int | None,
        jobs_per_child: int | None,
        max_jobs: int | None,
        max_memory: int | None,
        initializer: str | None,
        grace: float | None,
        cooperative: bool,
        **kwargs: Any,
    ) -> None:
        limits: list[Limit] = []
        if time_limit is not None:
            limits.append(Limit.time(time_limit))
        if memory_limit is not None:
            limits.append(Limit.memory(memory_limit * _MIB))
        given = {
            "jobs_per_child": jobs_per_child,
            "max_jobs": max_jobs,
            "max_memory_bytes": None if max_memory is None else max_memory * _MIB,
            "initializer": initializer,
            "grace_s": grace,
            "cooperative": cooperative or None,
        }
        named = {name: value for name, value in given.items() if value is not None}
        options = decode_options(json.dumps(named), executor) if named else None
        function(*args, executor=executor, limits=tuple(limits), options=options, **kwargs)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def placed(function: Callable[..., None]) -> Callable[..., None]:
    """Add what names the broker of a queue; hand the command ``broker`` and ``broker_options``."""

    @functools.wraps(function)
    def command(*args: Any, given: tuple[str, ...], **kwargs: Any) -> None:
        function(*args, broker_options=dict(map(_named, given)), **kwargs)

    option = click.option(
        "--broker-option",
        "given",
        multiple=True,
        metavar="KEY=VALUE",
        help="For that broker; a value may be JSON; again for more.",
    )
    return click.option(
        "--broker",
        default=DEFAULT_BROKER,
        show_default=True,
        metavar="NAME",
        help="Where the jobs live; others are supplied by plugins.",
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
    """As JSON, by type: ``{"time_s": 30}``."""
    found: dict[str, Any] = json.loads(encode_limits(limits) or "{}")
    return found


def plain_options(options: Options | None) -> dict[str, Any]:
    """As JSON: what differs from the defaults of the executor."""
    found: dict[str, Any] = json.loads(encode_options(options) or "{}")
    return found


def shown_limits(limits: tuple[Limit, ...]) -> str | None:
    """For a cell of a table: ``30 s, 512 MiB``."""
    return ", ".join(map(_shown, limits)) or None


def _shown(limit: Limit) -> str:
    if limit.type is LimitType.TIME:
        return f"{limit.value:g} s"
    return f"{limit.value / _MIB:,.10g} MiB"


def shown_options(options: Options | None) -> str | None:
    """For a cell of a table: ``max_jobs=100 grace_s=1``."""
    given = plain_options(options).items()
    return " ".join(f"{name}={output.cell(value)}" for name, value in given) or None
