"""Finds encrypted payloads of unfinished work, and encrypts them again with another key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from uuid import UUID

from chancy.checks import check_number
from chancy.errors import UnreadablePayload
from chancy.plugin.runtime import Application
from chancy.plugin.tables import PayloadTable, PluginSql
from chancy.plugins.encryption.keyring import Keyring
from chancy.serialization.sealed import key_of, opened, redaction

SQL = PluginSql("chancy.plugins.encryption", "encrypted jobs")

#: The maximum number of rows, and approximately the maximum bytes, of one batch.
BATCH, MAX_BATCH, _MAX_BYTES = 500, 10_000, 8 * 1024 * 1024
_FIRST_NAMES = {"text": "", "smallint": "-32768"}
_JOBS = PayloadTable(table="jobs", id="id", payloads=["arguments", "errors", "meta.checkpoints"])


class _Payload(NamedTuple):
    id: UUID
    name: str
    payloads: str


@dataclass(slots=True, kw_only=True)
class RotationCounts:
    """The results of a rotation.

    :param rows: rows that were read.
    :param keys: rows with a payload encrypted by a key, by table and key.
    :param old: rows with a payload encrypted by another key than the first one.
    :param changed: rows that are encrypted with the first key now.
    :param busy: rows that were in use; run another rotation for those that still exist.
    :param unreadable: rows with a payload that could not be decrypted, by key.
    """

    rows: int = 0
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    old: int = 0
    changed: int = 0
    busy: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)


def statement_of(table: PayloadTable, name: Literal["page", "swap"], schema: str) -> str:
    """The statement ``payloads_page`` or ``payloads_swap`` for one table."""
    key = [  # of the primary key: the column, where a page begins, and what a swap looks for
        (column, after, wanted)
        for column, after, wanted in (
            (table.id, "$1::uuid", "w.id"),
            (table.name, f"$2::text::{table.name_type}", f"w.name::{table.name_type}"),
        )
        if column is not None
    ]
    paths = [path.partition(".")[::2] for path in table.payloads]
    put_in = {
        "table": table.table,
        "id": f"t.{table.id}" if table.id else "$1::uuid",
        "name": f"t.{table.name}::text" if table.name else "$2::text",
        "key": ", ".join(f"t.{column}" for column, _, _ in key),
        "after": ", ".join(after for _, after, _ in key),
        "wanted": ", ".join(wanted for _, _, wanted in key),
        "locked": ", ".join(f"l.{column}" for column, _, _ in key),
        "columns": ", ".join(f"t.{column}" for column, _ in paths),
        "size": " + ".join(f"coalesce(pg_column_size(t.{column}), 0)" for column, _ in paths),
        "payloads": ", ".join(
            f"'{column}', t.{column}" + (f" -> '{inner}'" if inner else "")
            for column, inner in paths
        ),
        "changes": ", ".join(_change(column, inner) for column, inner in paths),
    }
    statement = SQL.statement(f"payloads_{name}", schema)
    for placeholder, value in put_in.items():
        statement = statement.replace("{" + placeholder + "}", value)
    return statement


def _change(column: str, inner: str) -> str:
    """The new value of a column. A missing payload stays missing."""
    new = f"nullif(l.payloads -> '{column}', 'null')"
    if inner:  # jsonb_set returns null for a null, and keeps what stands beside the payload
        new = f"jsonb_set(t.{column}, array['{inner}'], {new})"
    return f"{column} = coalesce({new}, t.{column})"


class Rotation:
    """A pass over encrypted data in Postgres.

    It covers unfinished jobs, and the `payload_tables` of the plugins of the application, but not
    finished jobs and jobs in other brokers. A running job already has its arguments, but needs them
    again if it is retried.

    :param batch: the maximum number of rows that are read and changed at a time, 1 to 10,000.
    :raises ConfigurationError: the broker has no SQL tables, or ``batch`` is out of range.
    """

    def __init__(self, chancy: Application, keyring: Keyring, *, batch: int = BATCH) -> None:
        check_number(batch, "batch", 1, MAX_BATCH)
        self.tables = (_JOBS, *chancy.payload_tables)
        self.store = SQL.on(chancy.broker).store
        self._keyring = keyring
        self._batch = batch

    async def run(
        self,
        *,
        dry_run: bool = False,
        progress: Callable[[RotationCounts], None] | None = None,
    ) -> RotationCounts:
        """Encrypt payloads of other keys with the first key; with ``dry_run``, only count them.

        Each batch is a transaction. Safe to interrupt, to repeat, and to run while workers run.
        """
        counts = RotationCounts()
        for table in self.tables:
            async for size, rows in self._pages(table):
                counts.rows += size
                await self._rotate(table, rows, counts, dry_run=dry_run)
                if progress is not None:
                    progress(counts)
        return counts

    async def _pages(self, table: PayloadTable) -> AsyncIterator[tuple[int, list[_Payload]]]:
        """The number of rows that were read, and the rows among them with encrypted payloads."""
        statement = statement_of(table, "page", self.store.schema)
        id, name = UUID(int=0), _FIRST_NAMES[table.name_type]
        while True:
            found = await self.store.fetch(statement, id, name, self._batch, _MAX_BYTES)
            if not found:
                return
            yield len(found), [_Payload(*row) for row in found if row[2] is not None]
            id, name, _ = found[-1]

    async def _rotate(
        self,
        table: PayloadTable,
        rows: Sequence[_Payload],
        counts: RotationCounts,
        *,
        dry_run: bool,
    ) -> None:
        changes: list[tuple[_Payload, str]] = []
        for row in rows:
            value = json.loads(row.payloads)
            keys: set[str] = set()
            bad: set[str] = set()
            again = self._again(value, keys, bad)
            counts.keys.update((table.table, key) for key in keys)
            counts.unreadable.update(bad)
            counts.old += bool(keys - {self._keyring.current})
            if keys - bad - {self._keyring.current}:
                changes.append((row, json.dumps(again)))
        if dry_run or not changes:
            return
        ((done,),) = await self.store.fetch(
            statement_of(table, "swap", self.store.schema),
            [row.id for row, _ in changes],
            [row.name for row, _ in changes],
            [row.payloads for row, _ in changes],
            [text for _, text in changes],
        )
        counts.changed += done
        counts.busy += len(changes) - done

    def _again(self, value: Any, keys: set[str], bad: set[str]) -> Any:
        """A copy of a JSON value with all ciphertexts encrypted by the first key, where possible.

        :param keys: receives the ids of the keys that are found.
        :param bad: receives the key ids of ciphertexts that cannot be decrypted.
        """
        if isinstance(value, list):
            return [self._again(item, keys, bad) for item in value]
        if not isinstance(value, dict):
            return value
        found = opened(value)
        if found is None:
            return self._with_message(
                value, {name: self._again(item, keys, bad) for name, item in value.items()}
            )
        key, data, rest = found
        keys.add(key)
        more = self._again(rest, keys, bad) if rest else {}
        if key == self._keyring.current:
            return {**value, **more}
        try:
            plain = self._keyring.decrypt(key, data, "a payload is")
        except UnreadablePayload:
            bad.add(key)
            return {**value, **more}
        return {**json.loads(self._keyring.encrypt(plain)), **more}

    def _with_message(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """A failure whose message names the key with which it is now encrypted."""
        match old, new:
            case {"args": [was], "message": str(message)}, {"args": [now]}:
                before, after = key_of(was), key_of(now)
                if before is not None and after is not None and message == redaction(before):
                    return {**new, "message": redaction(after)}
            case _:
                pass
        return new
