"""The database drivers, asyncpg and psycopg, behind one protocol."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from chancy.errors import ConfigurationError
from chancy.postgres.drivers.base import Driver

Name: TypeAlias = Literal["asyncpg", "psycopg"]

# Measured with benchmarks/drivers.py through these sessions over direct TCP connections, both
# drivers alternating on one loop. Postgres 16.14, Python 3.11.7, asyncpg 0.32.0, psycopg 3.3.9
# (C). asyncpg over psycopg, medians of four runs of five rounds; more is better for asyncpg
# in calls and rows a second, less is better in milliseconds:
#
#                                         asyncio    uvloop
#   select 1                                 1.0       0.95
#   select with three parameters             1.1       1.0
#   insert of 5,000 rows by unnest           2.0       1.7
#   read of 500 rows of six columns          1.5       1.4
#   update of 500 rows, returning            1.3       1.3
#   notify to payload, median                0.85      0.75
#   notify to payload, 99th percentile       0.8       0.7
#
# A worker spends its time on batches, hence asyncpg. Behind a pooler psycopg is always used.
DEFAULT: Final[Name] = "asyncpg"


def driver(name: Name = DEFAULT) -> Driver:
    """The driver of this name. Its library is imported on this call.

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
