"""The two database drivers, behind one protocol."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from chancy.errors import ConfigurationError
from chancy.postgres.drivers.base import Driver

Name: TypeAlias = Literal["asyncpg", "psycopg"]

DEFAULT: Final[Name] = "asyncpg"


def driver(name: Name = DEFAULT) -> Driver:
    """The driver of this name. Its library is imported here, not before.

    :raises ConfigurationError: there is no such driver.
    """
    match name:
        case "asyncpg":
            from chancy.postgres.drivers.asyncpg import AsyncpgDriver

            return AsyncpgDriver()
        case "psycopg":
            from chancy.postgres.drivers.psycopg import PsycopgDriver

            return PsycopgDriver()
        case _:
            raise ConfigurationError(f'there is no driver {name!r}; use "asyncpg" or "psycopg"')
