"""What every queue must be able to do to be measured."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tally import DIRECTORY, Tally

_tally = Tally()


def ran(number: int) -> None:
    """Count a job. Called in the first line of each peer's job."""
    _tally.note(number)


class Peer(ABC):
    """The roles of one queue. Each process has one role.

    :param dsn: a URI with the database.
    :param settings: those of `benchmarks.systems.System`.
    """

    #: Whether the process ends by itself when its role has ended.
    orderly = False
    #: Whether its worker brings a loop, or needs none: `work_apart` runs instead of `work`.
    own_loop = False
    #: Pushes at a time, where many jobs are pushed without a bulk call.
    lanes = 1

    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        self.dsn = dsn
        self.settings = settings

    @abstractmethod
    async def set_up(self) -> None:
        """Make the tables in an empty database."""

    @abstractmethod
    async def open(self, sessions: int) -> None:
        """Make ready to push, with so many pushes at a time."""

    @abstractmethod
    async def push(self, number: int) -> None:
        """One job. It is committed when this returns."""

    @abstractmethod
    async def work(self) -> None:
        """Run jobs for ever; call `ready` when it begins."""

    def work_apart(self) -> None:
        """`work` without a loop around it."""
        raise NotImplementedError

    async def push_many(self, numbers: Sequence[int]) -> None:
        """Many jobs. Without a call for that, several pushes at a time."""
        left = iter(numbers)

        async def lane() -> None:
            for number in left:
                await self.push(number)

        await asyncio.gather(*(lane() for _ in range(self.lanes)))

    async def push_chain(self, steps: int) -> int:
        """A workflow of jobs that run one after the other, if it has workflows; how many."""
        raise NotImplementedError

    async def push_fan(self, steps: int) -> int:
        """A workflow of jobs that all run between a first and a last one; how many it has."""
        raise NotImplementedError

    def end(self) -> None:
        """End the worker, whose jobs are all settled: at once."""
        os._exit(0)

    def ready(self) -> None:
        """Tell the benchmark that the worker is up."""
        Path(os.environ[DIRECTORY], "ready").touch()
