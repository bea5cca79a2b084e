"""Shared code of plugins with tables in Postgres: statements, times and records as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum, IntEnum
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.checks import check_choice, check_instances
from chancy.errors import ConfigurationError
from chancy.postgres.statements import load
from chancy.serialization.sealed import redacted
from chancy.text import shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PATH = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})?")


@overload
def utc(at: datetime) -> datetime: ...
@overload
def utc(at: None) -> None: ...
@overload
def utc(at: datetime | None) -> datetime | None: ...
def utc(at: datetime | None) -> datetime | None:
    """Convert a timestamp of a row, which has no time zone, to an aware datetime."""
    return None if at is None else at.replace(tzinfo=UTC)


def from_row(kind: type[T], row: Sequence[Any], **read: Callable[[Any], Any]) -> T:
    """Create a dataclass from a row with a column for each field, in their order.

    :param read: by field, a function that converts the column. Other timestamps become aware.
    """
    names = (field.name for field in fields(kind))
    return kind(
        **{
            name: read[name](value) if name in read else _aware(value)
            for name, value in zip(names, row, strict=True)
        }
    )


def _aware(value: Any) -> Any:
    return utc(value) if isinstance(value, datetime) else value


def facts(record: Any) -> dict[str, Any]:
    """A record, which is a dataclass, as JSON values. Times are in ISO 8601, and encrypted payloads
    are replaced by a word."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadTable:
    """A table of a plugin with payloads that a codec has encoded; see `Plugin.payload_tables`.

    Its primary key is `id`, `name`, or both in this order. Names are of lower-case letters, digits
    and underscores.

    :param payloads: the columns of type jsonb with payloads; ``column.key`` for a payload below one
        key of a column that also holds other data.
    :param id: the column of the primary key of type uuid.
    :param name: the other column of the primary key.
    :param name_type: the type of this column.
    :raises ConfigurationError: a name is invalid, there is no key, or a column is named twice.
    """

    table: str
    payloads: Sequence[str]
    id: str | None = None
    name: str | None = None
    name_type: Literal["text", "smallint"] = "text"

    def __post_init__(self) -> None:
        check_choice(self.name_type, "name_type", ("text", "smallint"))
        key = [column for column in (self.id, self.name) if column is not None]
        paths = check_instances(self.payloads, str, "payloads", "pass a list of columns")
        wrong = [name for name in (self.table, *key) if not _NAME.fullmatch(name)]
        wrong += [path for path in paths if not _PATH.fullmatch(path)]
        if wrong:
            raise ConfigurationError(
                f"payload table {shown(self.table)}: {shown(wrong[0])} is not a valid name: use 1 "
                "to 63 of the characters a-z 0-9 _, not starting with a digit"
            )
        if not key:
            raise ConfigurationError(f"payload table {self.table!r}: name a column of its key")
        if not paths or len({path.partition(".")[0] for path in paths}) < len(paths):
            raise ConfigurationError(
                f"payload table {self.table!r}: name its payloads, each in a column of its own"
            )


class PluginSql:
    """The statements in the folder ``sql`` of a plugin's package.

    :param package: the name of the package.
    :param rows: the rows of the tables, as a plural, for the error about other brokers.
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
        """Run the statement with this name.

        :raises BrokerError: the server is unavailable, or rejects the statement.
        """
        return await self.store.fetch(self._sql.statement(name, self.schema), *parameters)
