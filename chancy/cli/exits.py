"""What commands exit with, and how they say why."""

from __future__ import annotations

import click

from chancy.attempt import storable
from chancy.errors import BrokerUnavailable, ChancyError, SchemaMismatch, WaitTimeout

#: The answer is no.
NO = 1
#: Usage or configuration.
USAGE = 2
#: The tables are missing, or of another version.
TABLES = 3
#: The database cannot be reached.
AWAY = 4


def code_of(error: BaseException) -> int | None:
    """The exit code of an error; None if it is a fault in the program."""
    match error:
        case SchemaMismatch():
            return TABLES
        case BrokerUnavailable():
            return AWAY
        case WaitTimeout():
            return NO
        case ChancyError():
            return USAGE
        case _:
            return None


def complain(message: str) -> None:
    """One error on stderr. Whatever is quoted in it cannot speak to the terminal."""
    click.echo(f"chancy: {storable(message, 20_000)}", err=True)
