"""How the commands of cron answer."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from chancy.names import shown

#: The exit code when the answer is no.
NO = 1

as_json = click.option("--json", "json_", is_flag=True, help="Print JSON for a script.")


def complain(message: str) -> None:
    """One error on stderr. What is quoted in it is a repr, which cannot speak to the terminal."""
    click.echo(f"chancy: {message}", err=True)


def refuse(message: str) -> NoReturn:
    """End with the answer no."""
    complain(message)
    sys.exit(NO)


def unknown(name: str) -> NoReturn:
    """End because there is no such entry."""
    refuse(f"there is no cron entry {shown(name)}")
