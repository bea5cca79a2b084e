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

    def request(self, *, ending: bool) -> None:
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
        self._reporting: set[asyncio.Task[None]] = set()

    def add(self, partition: OwnedPartition[Any], *, leave: bool, ending: bool) -> None:
        """A partition is halted, by what its ``halted`` says.

        :param leave: the process is to end.
        :param ending: it ends already.
        """
        self.numbers.add(partition.number)
        self._report(partition)
        if leave:
            self._exit.request(ending=ending)

    def drop(self, partition: OwnedPartition[Any]) -> None:
        """A partition is given up: its next owner begins."""
        self.numbers.discard(partition.number)

    def lift(
        self, partitions: Mapping[int, OwnedPartition[Any]], only: Collection[int] | None
    ) -> Sequence[OwnedPartition[Any]]:
        """Those that go on now.

        :param only: of these numbers; None: all.
        """
        lifted = []
        for number in sorted(self.numbers if only is None else self.numbers & set(only)):
            self.numbers.discard(number)
            partition = partitions.get(number)
            if partition is not None and not partition.over:
                lifted.append(partition)
                self._report(partition)
        return lifted

    def _report(self, partition: OwnedPartition[Any]) -> None:
        task = asyncio.create_task(
            self._report_until_current(partition), name=f"halt {partition.number}"
        )
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _report_until_current(self, partition: OwnedPartition[Any]) -> None:
        """Until Redis knows what holds, which may have changed on the way."""
        while not partition.over:
            halted = partition.number in self.numbers
            try:
                await self._ownership.halt(partition, partition.halted if halted else "")
            except BrokerError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if halted == (partition.number in self.numbers):
                return
