"""Stores the starts of jobs that have crashed before, a few at a time."""

from __future__ import annotations

import asyncio
from collections import deque

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released
from chancy.attempt.start import start_of
from chancy.errors import StatementFailed
from chancy.executors.base import StoreMeta

#: Seconds between two groups of starts. A job that kills its process in this time takes only the
#: jobs along that have started before it, not those after it.
PAUSE_S = 0.005
#: Waiting jobs start in about this many groups: one by one up to this number, more at a time beyond
#: it, so that a thousand of them do not take seconds.
GROUPS = 64
#: Seconds after which further starts no longer wait for one that is not stored, for example because
#: another transaction has locked the row of its job. They wait for one of `MOST_LATE` such starts:
#: after an outage of the store, all of them would start together.
LATE_S = 1.0
MOST_LATE = 8

#: Result: None when the job may start, an outcome if it must not.
Turn = asyncio.Future[Outcome | None]


class StartRecorder:
    """Lets jobs start once their start is stored, in order.

    :param store: merges keys into the meta of a running job.
    """

    def __init__(self, store: StoreMeta, *, pause_s: float = PAUSE_S) -> None:
        self._store = store
        self._pause_s = pause_s
        self._waiting: deque[tuple[Claim, Turn]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._recording: set[asyncio.Task[None]] = set()

    def add(self, claim: Claim, turn: Turn) -> None:
        """Store the start of a claim, and then set the result of its turn."""
        self._waiting.append((claim, turn))
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="chancy starts")

    async def stop(self) -> None:
        """Stop storing starts. Called when no turn is awaited."""
        tasks = [*self._recording, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self) -> None:
        try:
            while self._waiting:
                if len(self._recording) >= MOST_LATE:
                    await asyncio.wait(self._recording, return_when=asyncio.FIRST_COMPLETED)
                    continue
                size = min(len(self._waiting), 1 + (len(self._waiting) - 1) // GROUPS)
                group = [self._start(*self._waiting.popleft()) for _ in range(size)]
                await asyncio.wait(group, timeout=LATE_S)
                await asyncio.sleep(self._pause_s)
        finally:
            self._task = None

    def _start(self, claim: Claim, turn: Turn) -> asyncio.Task[None]:
        task = asyncio.create_task(self._record(claim, turn), name="chancy start")
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)
        return task

    async def _record(self, claim: Claim, turn: Turn) -> None:
        if turn.done():
            return
        outcome: Outcome | None = None
        try:
            await self._store(claim, start_of(claim))
        except StatementFailed:
            pass  # the store would refuse it again, and the job would never run
        except Exception as error:
            outcome = Released(f"its start was not stored: {error}")
        if not turn.done():
            turn.set_result(outcome)
