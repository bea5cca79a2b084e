"""Starts steps in pieces, where a settlement has enabled too many to start itself."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from chancy.clock import Clock
from chancy.errors import BrokerError, StatementFailed
from chancy.plugin.tables import PluginTables
from chancy.plugin.tracking.groups import concerns_some
from chancy.plugins.workflow.outcomes import refusal_failure

logger = logging.getLogger("chancy.workflows")

#: Steps of one piece. A settlement starts up to this many steps of a workflow itself, and eight
#: times as many in all. Of 10,000 steps, the first start 70 ms earlier than by one statement that
#: starts them all.
PIECE = 1_000
#: Pieces that one call starts at most: all of the largest workflow.
MOST_PIECES = 50
#: Seconds between attempts to start pieces whose transaction may not be committed yet. After the
#: last attempt, the pieces are left to the sweep.
_PAUSES_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0)


class Starts:
    """Starts the pieces that settlements of this process, or the sweep, have found.

    Each piece is started in a transaction of its own, which deletes its row: if the process dies
    before that, another one starts the piece.
    """

    #: Steps of a workflow that a settlement starts itself.
    most = PIECE

    def __init__(self) -> None:
        self._left = 0
        self._wakes: set[asyncio.Event] = set()

    def add(self, pieces: int) -> None:
        """Report pieces that a transaction about to commit has left, or that the sweep has found (a
        lower bound)."""
        self._left += pieces
        for wake in self._wakes:
            wake.set()

    async def serve(self, tables: PluginTables, clock: Clock) -> None:
        """Start reported pieces, until cancelled."""
        wake = asyncio.Event()
        self._wakes.add(wake)
        if self._left:  # a job may end before the service of its worker starts
            wake.set()
        try:
            while True:
                await wake.wait()
                wake.clear()
                try:
                    await self._start_left(tables, clock)
                except BrokerError as error:
                    logger.warning("workflow_starts_postponed error=%s", error)
                if not wake.is_set():  # pieces not found by now were started by other processes
                    self._left = 0
        finally:
            self._wakes.discard(wake)

    async def _start_left(self, tables: PluginTables, clock: Clock) -> None:
        for pause_s in _PAUSES_S:
            full = True
            while full:
                started = await start_pieces(tables)
                self._left = max(self._left - started, 0)
                full = started == MOST_PIECES
            if not self._left:
                return
            await clock.sleep(pause_s)


async def start_pieces(tables: PluginTables) -> int:
    """Start pieces, up to `MOST_PIECES`, and return how many. A step that the server refuses to
    start fails.

    :raises BrokerError: the server is unavailable.
    """
    started = 0
    while started < MOST_PIECES:
        try:
            ((found,),) = await tables.fetch("proceed")
        except StatementFailed as error:
            if error.retryable:
                raise
            # A step that fails may enable others, in pieces that did not exist before.
            found = await _start_parts(tables)
        if not found:
            return started
        started += int(found)
    return MOST_PIECES


async def _start_parts(tables: PluginTables) -> int:
    """Start pieces one by one, as one of them holds a step that the server refuses to start."""
    pieces = await tables.fetch("pieces", MOST_PIECES)
    started = 0
    for id, piece, names in pieces:
        try:
            await _start_part(tables, id, piece, names)
            started += 1
        except StatementFailed as error:
            if not concerns_some(error):
                raise
            logger.error("workflow_piece_refused workflow=%s error=%s", id, error)
    return started


async def _start_part(tables: PluginTables, id: UUID, piece: UUID, names: list[str]) -> None:
    try:
        await tables.fetch("part", id, piece, names, None)
    except StatementFailed as error:
        if error.retryable:
            raise
        if len(names) > 1:
            middle = len(names) // 2
            await _start_part(tables, id, piece, names[:middle])
            await _start_part(tables, id, piece, names[middle:])
            return
        logger.error("workflow_step_refused workflow=%s step=%s error=%s", id, names[0], error)
        await tables.fetch("part", id, piece, names, refusal_failure(error))
