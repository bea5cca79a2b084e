"""What settlements let go and left to be started: many steps at once, in pieces."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.clock import Clock
from chancy.errors import BrokerError, StatementFailed
from chancy.plugins.workflow.ends import refused
from chancy.plugins.workflow.store import statement

logger = logging.getLogger("chancy.workflows")

#: Steps of one piece. A settlement that lets more of a workflow go starts as many of it itself, and
#: eight times as many in all. Of 10,000 the first begin 70 ms earlier than by one statement that
#: starts all.
PIECE = 1_000
#: Pieces that one call starts: all of the largest workflow.
MOST_PIECES = 50
#: Seconds between looks at what was left in a transaction that may not be committed yet. After the
#: last one it is left to the sweep.
_LADDER_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0)


class Starts:
    """Starts pieces as soon as they are left in this process, and for the sweep.

    Each is started in a transaction of its own, in which its row goes: who dies before it leaves
    it to the others.
    """

    #: How many of a workflow a settlement starts itself.
    most = PIECE

    def __init__(self) -> None:
        self._left = 0
        self._wakes: set[asyncio.Event] = set()

    def add(self, pieces: int) -> None:
        """So many were left, in a transaction that is about to be committed; or found, there may be
        more."""
        self._left += pieces
        for wake in self._wakes:
            wake.set()

    async def serve(self, store: SqlStore, clock: Clock) -> None:
        """Start what is left in this process, until cancelled."""
        wake = asyncio.Event()
        self._wakes.add(wake)
        if self._left:  # a job may end before the service of its worker begins
            wake.set()
        try:
            while True:
                await wake.wait()
                wake.clear()
                try:
                    await self._climb(store, clock)
                except BrokerError as error:
                    logger.warning("workflow_starts_postponed error=%s", error)
                if not wake.is_set():  # what is not found by now was started by others
                    self._left = 0
        finally:
            self._wakes.discard(wake)

    async def _climb(self, store: SqlStore, clock: Clock) -> None:
        for pause_s in _LADDER_S:
            full = True
            while full:
                started = await start_pieces(store)
                self._left = max(self._left - started, 0)
                full = started == MOST_PIECES
            if not self._left:
                return
            await clock.sleep(pause_s)


async def start_pieces(store: SqlStore) -> int:
    """Start what is left, up to the pieces of one turn; gives how many. A step that the server
    refuses fails.

    :raises BrokerError: the server is away.
    """
    started = 0
    while started < MOST_PIECES:
        try:
            ((found,),) = await store.fetch(statement("proceed", store.schema))
        except StatementFailed as error:
            if error.retryable:
                raise
            # What fails by it may let others begin, in pieces that were not there before.
            found = await _start_parts(store)
        if not found:
            return started
        started += int(found)
    return MOST_PIECES


async def _start_parts(store: SqlStore) -> int:
    """The same, where one of them holds a step that the server refuses to start."""
    pieces = await store.fetch(statement("pieces", store.schema), MOST_PIECES)
    started = 0
    for id, piece, names in pieces:
        try:
            await _start_part(store, id, piece, names)
            started += 1
        except StatementFailed as error:
            if error.retryable:
                raise
            logger.error("workflow_piece_refused workflow=%s error=%s", id, error)
    return started


async def _start_part(store: SqlStore, id: UUID, piece: UUID, names: list[str]) -> None:
    sql = statement("part", store.schema)
    try:
        await store.fetch(sql, id, piece, names, None)
    except StatementFailed as error:
        if error.retryable:
            raise
        if len(names) > 1:
            middle = len(names) // 2
            await _start_part(store, id, piece, names[:middle])
            await _start_part(store, id, piece, names[middle:])
            return
        logger.error("workflow_step_refused workflow=%s step=%s error=%s", id, names[0], error)
        await store.fetch(sql, id, piece, names, refused(error))
