"""Helpers for commands, of the command line and of plugins. Needs click."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

import click
from click.shell_completion import CompletionItem

from chancy.errors import InvalidArguments
from chancy.text import shown, storable

_LONGEST = 20_000
#: The longest value that a hint repeats.
_REPEATED = 70
#: The exit code of a negative result.
NO = 1

#: The maximum number of seconds of an option: three centuries, which every calendar can hold.
_MOST_S = 1e10

#: ``--json``, for the parameter ``json_``.
as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")


#: In the ``meta`` of a click context: an `Offer`, of the application that the command line selects.
OFFER = "chancy.offer"

if TYPE_CHECKING:
    from chancy.job.definition import Job
    from chancy.plugin.runtime import Application

    #: The newest ids, each with a description.
    Newest = Callable[[Application], Awaitable[Iterable[tuple[UUID, str]]]]
    Offer = Callable[[click.Context, click.Parameter, str, Newest], list[CompletionItem]]


class Id(click.types.UUIDParameterType):
    """An argument type: an id, which the shell completes, without output or errors meanwhile.

    :param newest: reads the ids; it may take 3 seconds, including the connection.
    """

    def __init__(self, newest: Newest) -> None:
        self._newest = newest

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        offer: Offer | None = ctx.meta.get(OFFER)
        return [] if offer is None else offer(ctx, param, incomplete, self._newest)


def complain(message: str) -> None:
    """Print an error to stderr, without control characters."""
    click.echo(f"chancy: {storable(message, _LONGEST)}", err=True)


def refuse(message: str) -> NoReturn:
    """Print an error and exit with `NO`."""
    complain(message)
    sys.exit(NO)


class Seconds(click.FloatRange):
    """An option type: a number of seconds, from ``least`` to 10,000,000,000."""

    name = "seconds"

    def __init__(self, least: float = 0.0) -> None:
        super().__init__(least)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found) or found > _MOST_S:
            self.fail(f"{found:g} is not a number of seconds, up to {_MOST_S:,.0f}", param, ctx)
        return found


def read_json(text: str, option: str) -> Any:
    """Parse the value of an option that takes JSON; raises `InvalidArguments` if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        # A value that begins like this is not meant as a string; a long one is not repeated.
        is_string = text[:1] not in ("{", "[", '"')
        quoted = json.dumps(text) if len(text) <= _REPEATED else '"…"'
        hint = f"; a string needs quotes inside the shell's: '{quoted}'"
        raise InvalidArguments(
            f"{option}: {shown(text)} is not JSON ({error}){hint if is_string else ''}"
        ) from None


def read_arguments(given: Iterable[str]) -> dict[str, Any]:
    """The values of an option ``--arg NAME=JSON``, by name."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--arg {shown(text)} must look like NAME=JSON")
        found[name] = read_json(value, f"--arg {name}")
    return found


def with_settings(
    job: Job, *, queue: str | None, priority: int | None, max_attempts: int | None
) -> Job:
    """Return a job with the settings of options; None leaves a setting unchanged."""
    given: dict[str, Any] = {"queue": queue, "priority": priority, "max_attempts": max_attempts}
    return replace(job, **{name: value for name, value in given.items() if value is not None})


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw]?)")


# Not generic before click 8.4.
class Age(click.ParamType):  # type: ignore[type-arg]
    """An option type: an age as a number of seconds, or as a number with a unit."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not an age like 90s, 15m, 2h, 7d or 4w", param, ctx)
        try:
            return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        except OverflowError:
            self.fail(f"{value!r} is too long ago", param, ctx)


def _conditions(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for value in values:
        path, equals, text = value.partition("=")
        if not path or not equals:
            raise click.BadParameter(f"{value!r} is not PATH=VALUE, as in tenant_id=42", ctx, param)
        if path in found:
            raise click.BadParameter(f"{path} is given twice", ctx, param)
        try:
            found[path] = json.loads(text)
        except (ValueError, RecursionError):
            found[path] = text
    return found or None


#: ``--where PATH=VALUE``, as a dict for `chancy.job.where.containing`; None if it is not given.
where_option = click.option(
    "--where",
    multiple=True,
    metavar="PATH=VALUE",
    callback=_conditions,
    help="Only with this argument: tenant_id=42, to.city=Oslo. Repeatable.",
)
