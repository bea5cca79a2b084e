"""What plugins share that keep tables in Postgres: statements, times and records as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum, IntEnum
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple, overload
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.postgres.statements import load
from chancy.serialization.sealed import redacted


@overload
def utc(at: datetime) -> datetime: ...
@overload
def utc(at: None) -> None: ...
@overload
def utc(at: datetime | None) -> datetime | None: ...
def utc(at: datetime | None) -> datetime | None:
    """A timestamp of a row, which has no time zone, as an aware datetime."""
    return None if at is None else at.replace(tzinfo=UTC)


def facts(record: Any) -> dict[str, Any]:
    """A record, which is a dataclass, as JSON. Times in ISO 8601. Encrypted payloads are replaced
    by a word."""
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case IntEnum():
            return value.name.lower()
        case Enum():
            return value.value
        case UUID():
            return str(value)
        case tuple() | list() | dict():
            return redacted(value)
        case _:
            return value


class PayloadTable(NamedTuple):
    """A table of a plugin with payloads that a codec has encoded; see `Plugin.payload_tables`.

    :param sql: the statements of the plugin: ``TABLE_page`` and ``TABLE_swap``.
    """

    table: str
    sql: PluginSql


class PluginSql:
    """The statements in the folder ``sql`` of a plugin's package.

    :param package: the name of the package.
    :param rows: what the tables hold, in the plural, for the error about other brokers.
    """

    def __init__(self, package: str, rows: str) -> None:
        self._package = package
        self._rows = rows
        #: The text of a statement, by its name and the schema.
        self.statement = lru_cache(maxsize=64)(self._load)

    def _load(self, name: str, schema: str) -> str:
        return load(resources.files(self._package) / "sql", name, schema)

    def on(self, broker: Broker | SqlStore) -> PluginTables:
        """The tables in the database of a broker.

        :raises ConfigurationError: the broker has no SQL tables.
        """
        if not isinstance(broker, SqlStore):
            raise ConfigurationError(
                f"{self._rows} are kept in Postgres, and {type(broker).__name__} does not offer "
                "SQL statements: use an application on Postgres"
            )
        return PluginTables(broker, self)


class PluginTables:
    """The tables of a plugin in one database."""

    def __init__(self, store: SqlStore, sql: PluginSql) -> None:
        self.store = store
        self.schema = store.schema
        self._sql = sql

    async def fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        """Run the statement of this name.

        :raises BrokerError: the server is unavailable, or rejects the statement.
        """
        return await self.store.fetch(self._sql.statement(name, self.schema), *parameters)
