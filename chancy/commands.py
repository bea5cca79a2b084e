"""What commands have in common, those of the command line and those of plugins. Needs click."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from chancy.attempt import storable

_LONGEST = 20_000
#: The exit code when the answer is no.
NO = 1

#: ``--json``, for the parameter ``json_``.
as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")


def complain(message: str) -> None:
    """One error on stderr. Whatever is quoted in it cannot speak to the terminal."""
    click.echo(f"chancy: {storable(message, _LONGEST)}", err=True)


def refuse(message: str) -> NoReturn:
    """End with the answer no."""
    complain(message)
    sys.exit(NO)
