"""Leadership as a plugin's service sees it: what one worker does, so that not all do it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from chancy.clock import Clock


class LeaderGate(Protocol):
    """Whether this worker leads. A service waits, and then acts in short steps:

    .. code-block:: python

        while True:
            await runtime.leader.wait()
            while runtime.leader.leading:
                await self.step(runtime)

    A leader may be frozen for any time between the question and what it does then, and go on
    when another leads. So two at once must do no harm; a statement that would do some asks the
    database by ``chancy.leads(worker_id, term)``.
    """

    @property
    def leading(self) -> bool:
        """Whether this worker leads now. Asks nobody, so it can be asked before each step."""
        ...

    @property
    def term(self) -> int | None:
        """The number of the term, None while another leads. Each change of the leader begins a
        higher one; 0 if all workers lead."""
        ...

    async def wait(self) -> int:
        """Wait until this worker leads; returns the term."""
        ...

    def vacant(self) -> None:
        """Called by the worker when it hears that the leader has left. May do nothing."""
        ...


class Unelected:
    """The gate where nobody elects a leader: every worker leads, in term 0."""

    leading = True
    term = 0

    async def wait(self) -> int:
        return 0

    def vacant(self) -> None:
        """Nobody leaves."""


async def elected(leader: LeaderGate, clock: Clock, timeout_s: float) -> bool:
    """Wait until this worker leads, at most so long. Returns whether it does.

    For what the leader does often, and the others rarely, so that it is done without any leader.
    """
    if leader.leading:
        return True
    leads = asyncio.Event()
    waiting = asyncio.create_task(leader.wait())
    waiting.add_done_callback(lambda _: leads.set())
    try:
        await clock.wait(leads, timeout_s)
    finally:
        waiting.cancel()
    return leader.leading
