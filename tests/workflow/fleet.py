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

#: What all chance of a run comes from: ``CHANCY_TEST_SEED`` of a run that failed gives it again.
SEED = int(os.environ.get("CHANCY_TEST_SEED", time.time_ns() % 1_000_000))


class Fleet:
    """Workers of which one is killed or frozen now and then.

    :param module: the program of a worker.
    :param servers: what it is called with.
    """

    def __init__(
        self, module: str, servers: Sequence[str], size: int, chance: random.Random
    ) -> None:
        self._command = [sys.executable, "-m", module, *servers]
        self._chance = chance
        self.alive = [self._begin() for _ in range(size)]
        self.killed = self.frozen = 0
        self.began = time.monotonic()

    def _begin(self) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(self._command, stdout=quiet, stderr=quiet)

    async def harm(self, until: float) -> None:
        """Kill or freeze until then; frozen ones for longer than they may be silent."""
        while time.monotonic() < until:
            await asyncio.sleep(self._chance.uniform(0.4, 1.4))
            one = self._chance.choice(self.alive)
            if self._chance.random() < 0.6:
                one.kill()
                one.wait()
                self.alive[self.alive.index(one)] = self._begin()
                self.killed += 1
            else:
                one.send_signal(signal.SIGSTOP)
                await asyncio.sleep(self._chance.uniform(0.2, 3.0))
                one.send_signal(signal.SIGCONT)
                self.frozen += 1

    def stop(self) -> None:
        for one in self.alive:
            one.kill()
            one.wait()
