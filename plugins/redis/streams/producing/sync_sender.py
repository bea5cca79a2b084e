"""Sends records from threads, without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from chancy.plugins.redis.streams.model.schema import check, definition_call, shape_of
from chancy.plugins.redis.streams.model.target import Target
from chancy.plugins.redis.streams.producing.backpressure import Backpressure, SendWait
from chancy.plugins.redis.streams.producing.batch import (
    BatchBuilder,
    Part,
    SendBatch,
    collect_replies,
    full_error,
    single_batch,
)
from chancy.plugins.redis.streams.producing.sender import PATIENCE_S, Progress
from chancy.plugins.redis.transport.script_client import SyncScriptClient

R = TypeVar("R")


class SyncSender(Generic[R]):
    """`Sender` for threads."""

    def __init__(
        self, stream: Target[R], link: SyncScriptClient, backpressure: Backpressure
    ) -> None:
        self._stream = stream
        self._backpressure = backpressure
        self._link = link
        self._agreed = False

    def send(
        self,
        records: Sequence[R],
        ids: Sequence[str] | None = None,
        *,
        timeout_s: float = PATIENCE_S,
    ) -> list[str]:
        """`Sender.send` for threads."""
        batch = single_batch(self._stream, records, ids)
        found = [""] * batch.count
        self._flush(batch, found, timeout_s)
        return found

    def send_many(
        self,
        records: Iterable[R],
        *,
        timeout_s: float = PATIENCE_S,
        progress: Progress | None = None,
    ) -> int:
        """`Sender.send_many` for threads."""
        sent = 0
        builder = BatchBuilder(self._stream)
        try:
            for record in records:
                batch = builder.add(record)
                if batch is not None:
                    sent += self._flush(batch, [], timeout_s)
                    if progress is not None:
                        progress(sent)
            sent += self._flush(builder.rest(), [], timeout_s)
        except Exception as error:
            with suppress(Exception):  # the first error is the more useful one
                sent += self._flush(builder.rest(), [], timeout_s)
            error.add_note(f"{sent:,} records were sent")
            raise
        if progress is not None:
            progress(sent)
        return sent

    def _flush(self, batch: SendBatch[R], ids: list[str], timeout_s: float) -> int:
        if not batch.count:
            return 0
        parts = batch.parts()
        if not self._agreed:
            self._agree()
        woken = threading.Event()
        with SendWait(self._backpressure, timeout_s, woken.set) as wait:
            wait.join(self._attempt(batch, wait.free(parts), ids))
            while wait.parts:
                if wait.left_s <= 0:
                    raise full_error(self._stream, wait.parts, wait.refused, timeout_s)
                woken.wait(wait.pause_s())
                woken.clear()
                first = wait.first()
                wait.leave(first, but=self._attempt(batch, first, ids))
        return batch.count

    def _attempt(self, batch: SendBatch[R], parts: Sequence[Part], ids: list[str]) -> list[Part]:
        """Send parts; return those that found no room."""
        calls = [batch.call(part) for part in parts]
        return collect_replies(parts, self._link.call_many(calls), ids) if calls else []

    def _agree(self) -> None:
        shape = shape_of(self._stream)
        (kept,) = self._link.call_many([definition_call(shape)])
        if isinstance(kept, Exception):
            raise kept
        check(shape, kept)
        self._agreed = True
