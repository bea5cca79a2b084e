"""The partitions that a policy has halted in this worker, as Redis is told for people to see."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition

logger = logging.getLogger("chancy.redis.streams")

#: What the process exits with when a policy has ended it.
HALTED = 5
#: Seconds until Redis is told again when it was away.
_AGAIN_S = 1.0


class Exit:
    """The end of the process that a policy asks for, of all processors in it.

    :ivar code: what the process is to exit with.
    """

    code = 0

    def ask(self, *, ending: bool) -> None:
        """Let the process end in good order, as SIGTERM does; once: a second one ends it at once.

        :param ending: it ends already.
        """
        if not self.code and not ending:
            logger.critical("process_ends exit_code=%d: a policy asks for it", HALTED)
            os.kill(os.getpid(), signal.SIGTERM)
        self.code = HALTED


class Halts:
    """What is halted here. Only this worker decides by it; what Redis knows is for commands."""

    def __init__(self, ownership: Ownership, leave: Exit) -> None:
        self._exit = leave
        self._ownership = ownership
        self.numbers: set[int] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def add(self, lane: OwnedPartition[Any], *, leave: bool, ending: bool) -> None:
        """A lane is halted, by what its ``halted`` says.

        :param leave: the process is to end.
        :param ending: it ends already.
        """
        self.numbers.add(lane.number)
        self._tell(lane)
        if leave:
            self._exit.ask(ending=ending)

    def drop(self, lane: OwnedPartition[Any]) -> None:
        """A lane is given up: its next owner begins."""
        self.numbers.discard(lane.number)

    def lift(
        self, lanes: Mapping[int, OwnedPartition[Any]], only: Collection[int] | None
    ) -> Sequence[OwnedPartition[Any]]:
        """Those that go on now.

        :param only: of these numbers; None: all.
        """
        lifted = []
        for number in sorted(self.numbers if only is None else self.numbers & set(only)):
            self.numbers.discard(number)
            lane = lanes.get(number)
            if lane is not None and not lane.over:
                lifted.append(lane)
                self._tell(lane)
        return lifted

    def _tell(self, lane: OwnedPartition[Any]) -> None:
        task = asyncio.create_task(self._say(lane), name=f"halt {lane.number}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _say(self, lane: OwnedPartition[Any]) -> None:
        """Until Redis knows what holds, which may have changed on the way."""
        while not lane.over:
            halted = lane.number in self.numbers
            try:
                await self._ownership.halt(lane, lane.halted if halted else "")
            except BrokerError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if halted == (lane.number in self.numbers):
                return
