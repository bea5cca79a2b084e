"""Finds encrypted payloads of unfinished work, and encrypts them again with another key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from chancy.checks import check_number
from chancy.errors import UnreadablePayload
from chancy.plugin.runtime import Application
from chancy.plugin.tables import PluginSql
from chancy.plugins.encryption.keyring import Keyring
from chancy.serialization.sealed import key_of, opened, redaction

SQL = PluginSql("chancy.plugins.encryption", "encrypted jobs")

#: The most rows, and about the most bytes, of one batch.
BATCH, MAX_BATCH, _MAX_BYTES = 500, 10_000, 8 * 1024 * 1024
_FIRST = UUID(int=0), ""


class _Payload(NamedTuple):
    id: UUID
    name: str
    payloads: str


@dataclass(slots=True, kw_only=True)
class RotationCounts:
    """What a rotation has found and done.

    :param rows: rows that were read.
    :param keys: rows that had a payload of a key, by table and key.
    :param old: rows that had a payload of another key than the first one.
    :param changed: rows that are encrypted with the first key now.
    :param busy: rows that were in use; those that are still there are found by another rotation.
    :param unreadable: rows with a payload that could not be decrypted, by key.
    """

    rows: int = 0
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    old: int = 0
    changed: int = 0
    busy: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)


class Rotation:
    """A pass over what is stored encrypted in Postgres.

    Unfinished jobs, and the `payload_tables` of the plugins of the application. Finished jobs are
    left as they are, and so are jobs in other brokers. A running job has its arguments already;
    they are needed again if it is retried.

    :param batch: the most rows that are read and changed at a time, 1 to 10,000.
    :raises ConfigurationError: the broker has no SQL tables, or ``batch`` is out of range.
    """

    def __init__(self, chancy: Application, keyring: Keyring, *, batch: int = BATCH) -> None:
        check_number(batch, "batch", 1, MAX_BATCH)
        broker = chancy.broker
        #: The statements of each table, by its name.
        self.tables = {"jobs": SQL.on(broker)}
        self.tables |= {table: sql.on(broker) for table, sql in chancy.payload_tables}
        self._keyring = keyring
        self._batch = batch

    async def run(
        self,
        *,
        dry_run: bool = False,
        progress: Callable[[RotationCounts], None] | None = None,
    ) -> RotationCounts:
        """Encrypt with the first key what another one has encrypted; with ``dry_run``, count only.

        Each batch is a transaction. Safe to interrupt, to repeat, and to run beside workers.
        """
        counts = RotationCounts()
        for table in self.tables:
            async for size, rows in self._pages(table):
                counts.rows += size
                await self._rotate(table, rows, counts, dry_run=dry_run)
                if progress is not None:
                    progress(counts)
        return counts

    async def _pages(self, table: str) -> AsyncIterator[tuple[int, list[_Payload]]]:
        """The number of rows that were read, and those of them with encrypted payloads."""
        id, name = _FIRST
        while True:
            found = await self.tables[table].fetch(
                f"{table}_page", id, name, self._batch, _MAX_BYTES
            )
            if not found:
                return
            yield len(found), [_Payload(*row) for row in found if row[2] is not None]
            id, name, _ = found[-1]

    async def _rotate(
        self, table: str, rows: Sequence[_Payload], counts: RotationCounts, *, dry_run: bool
    ) -> None:
        changes: list[tuple[_Payload, str]] = []
        for row in rows:
            value = json.loads(row.payloads)
            keys: set[str] = set()
            bad: set[str] = set()
            again = self._again(value, keys, bad)
            counts.keys.update((table, key) for key in keys)
            counts.unreadable.update(bad)
            counts.old += bool(keys - {self._keyring.current})
            if keys - bad - {self._keyring.current}:
                changes.append((row, json.dumps(again)))
        if dry_run or not changes:
            return
        ((done,),) = await self.tables[table].fetch(
            f"{table}_swap",
            [row.id for row, _ in changes],
            [row.name for row, _ in changes],
            [row.payloads for row, _ in changes],
            [text for _, text in changes],
        )
        counts.changed += done
        counts.busy += len(changes) - done

    def _again(self, value: Any, keys: set[str], bad: set[str]) -> Any:
        """A copy of a JSON value with all ciphertexts made by the first key, where possible.

        :param keys: takes the ids of the keys that are found.
        :param bad: takes those of ciphertexts that cannot be decrypted.
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
        """A failure whose message names the key that it is encrypted with now."""
        match old, new:
            case {"args": [was], "message": str(message)}, {"args": [now]}:
                before, after = key_of(was), key_of(now)
                if before is not None and after is not None and message == redaction(before):
                    return {**new, "message": redaction(after)}
            case _:
                pass
        return new
