"""What commands have in common, those of the command line and those of plugins. Needs click."""

from __future__ import annotations

import math
import sys
from typing import Any, NoReturn

import click

from chancy.text import storable

_LONGEST = 20_000
#: The exit code when the answer is no.
NO = 1

#: The most seconds that an option takes: three centuries, within any calendar.
_MOST_S = 1e10

#: ``--json``, for the parameter ``json_``.
as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")


def complain(message: str) -> None:
    """One error on stderr. Whatever is quoted in it cannot speak to the terminal."""
    click.echo(f"chancy: {storable(message, _LONGEST)}", err=True)


def refuse(message: str) -> NoReturn:
    """End with the answer no."""
    complain(message)
    sys.exit(NO)


class Seconds(click.FloatRange):
    """A number of seconds, from ``least`` to so many that a calendar still has them."""

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
