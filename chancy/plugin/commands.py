"""Helpers for commands, of the command line and of plugins. Needs click."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import timedelta
from typing import Any, NoReturn

import click

from chancy.text import storable

_LONGEST = 20_000
#: The exit code of a negative result.
NO = 1

#: The maximum number of seconds of an option: three centuries, which every calendar can hold.
_MOST_S = 1e10

#: ``--json``, for the parameter ``json_``.
as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")


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


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw]?)")


class Age(click.ParamType[timedelta]):
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
