"""Helpers for commands, of the command line and of plugins. Needs click."""

from __future__ import annotations

import math
import sys
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
