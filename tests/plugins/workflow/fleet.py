"""Worker processes that are killed and frozen at random moments."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

#: The seed of a run; ``CHANCY_TEST_SEED`` repeats a failed one.
SEED = int(os.environ.get("CHANCY_TEST_SEED", time.time_ns() % 1_000_000))


class Fleet:
    """Worker processes, one of which is killed or frozen now and then.

    :param module: the program of a worker.
    :param servers: what it is called with.
    :param long: a third of the freezes are for over 5 s: others declare who is frozen dead, and do
        its jobs before it wakes.
    """

    def __init__(
        self,
        module: str,
        servers: Sequence[str],
        size: int,
        chance: random.Random,
        *,
        long: bool = False,
    ) -> None:
        self._command = [sys.executable, "-m", module, *servers]
        self._chance = chance
        self.alive = [self._begin() for _ in range(size)]
        self.killed = self.frozen = 0
        self._long = long
        self._still: set[int] = set()
        self.began = time.monotonic()

    def _begin(self) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(self._command, stdout=quiet, stderr=quiet)

    async def harm(self, until: float) -> None:
        """Kill or freeze workers until then, and until both have happened; frozen ones for longer
        than the heartbeat timeout."""
        async with asyncio.TaskGroup() as frozen:
            while (going := time.monotonic() < until) or not (self.killed and self.frozen):
                await asyncio.sleep(self._chance.uniform(0.4, 1.4))
                one = self._chance.choice(self.alive)
                if self._chance.random() < 0.6 if going else not self.killed:
                    one.kill()
                    one.wait()
                    self.alive[self.alive.index(one)] = self._begin()
                    self.killed += 1
                elif self._long and self._chance.random() < 0.33:
                    frozen.create_task(self._freeze(one, self._chance.uniform(5.2, 7.0)))
                else:
                    await self._freeze(one, self._chance.uniform(0.2, 3.0))

    async def _freeze(self, one: subprocess.Popen[bytes], for_s: float) -> None:
        if one.pid in self._still:
            return
        self._still.add(one.pid)
        self.frozen += 1
        one.send_signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        one.send_signal(signal.SIGCONT)  # nothing if it was killed meanwhile
        self._still.discard(one.pid)

    def stop(self) -> None:
        for one in self.alive:
            one.kill()
            one.wait()
