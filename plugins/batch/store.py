"""SQL statements of the batch plugin."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.postgres.statements import load


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """The text of a statement in the folder ``sql``."""
    return load(resources.files("chancy.plugins.batch") / "sql", name, schema)


def store_of(broker: Broker) -> SqlStore:
    """The broker, checked to run SQL statements.

    :raises ConfigurationError: the broker has no SQL tables.
    """
    if not isinstance(broker, SqlStore):
        raise ConfigurationError(
            f"batches are kept in Postgres, and {type(broker).__name__} does not run SQL "
            "statements: use an application on Postgres"
        )
    return broker
