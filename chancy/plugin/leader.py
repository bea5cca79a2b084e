"""Leadership, as passed to a plugin's service: one worker leads and does work for all."""

from __future__ import annotations

from typing import Protocol

from chancy.clock import Clock, run_briefly


class LeaderGate(Protocol):
    """The leadership of a worker. A service waits for it, and then works in short steps:

    .. code-block:: python

        while True:
            await runtime.leader.wait()
            while runtime.leader.leading:
                await self.step(runtime)

    A leader may be frozen for any time between the check of ``leading`` and the step, and continue
    while another worker leads. So steps must be safe to run concurrently. A statement that is not
    must check ``chancy.leads(worker_id, term)`` in the database.
    """

    @property
    def leading(self) -> bool:
        """Whether this worker leads now. It needs no I/O, so check it before each step."""
        ...

    @property
    def term(self) -> int | None:
        """The number of the term; None while another worker leads, 0 if all workers lead.

        Each change of the leader starts a higher term.
        """
        ...

    async def wait(self) -> int:
        """Wait until this worker leads, and return the term."""
        ...

    def vacant(self) -> None:
        """Called when the leader has left, or may have while no notifications arrived.

        May do nothing.
        """
        ...


class Unelected:
    """The leadership without a plugin that elects a leader: every worker leads, in term 0."""

    leading = True
    term = 0

    async def wait(self) -> int:
        return 0

    def vacant(self) -> None:
        """Do nothing: no leader can leave."""


async def elected(leader: LeaderGate, clock: Clock, timeout_s: float) -> bool:
    """Wait up to ``timeout_s`` seconds until this worker leads, and return whether it does.

    Use it for work that the leader does often and other workers do rarely, so that the work
    continues while there is no leader.
    """
    if not leader.leading:
        await run_briefly(leader.wait(), clock, timeout_s)
    return leader.leading
