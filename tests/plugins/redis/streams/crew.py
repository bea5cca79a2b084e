"""Worker processes of a stream, and what they have done."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.plugins.redis.streams.fleet import Order
from tests.plugins.redis.streams.member import PARTITIONS, declare, noted
from tests.plugins.redis.streams.orders import pending
from tests.support.waiting import eventually

KEYS = 24
Line = tuple[str, int, int]


def check_order(partition: int, lines: Sequence[Line]) -> None:
    """Redelivered events are in order, and no run has an event twice."""
    first: dict[int, list[int]] = defaultdict(list)
    by_run: dict[tuple[str, int], list[int]] = defaultdict(list)
    for run, key, seq in lines:
        if seq not in first[key]:
            first[key].append(seq)
        by_run[run, key].append(seq)
    for key, seqs in first.items():
        assert seqs == sorted(seqs), f"key {key} of partition {partition}"
    for (run, key), seqs in by_run.items():
        assert seqs == sorted(set(seqs)), f"run {run}, key {key} of partition {partition}"


async def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    for process in processes:
        try:
            await asyncio.to_thread(process.wait, 10)
        finally:
            process.kill()


class Crew:
    """Processes of `member`.

    :param module: another one that does the same.
    :param options: of the processor, instead of those of `member`.
    """

    def __init__(
        self, url: str, *, cluster: bool = False, module: str = "member", **options: Any
    ) -> None:
        self.url = url
        self._module = f"tests.plugins.redis.streams.{module}"
        self._arguments = [url, "1" if cluster else "0", json.dumps(options)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.streams = declare(url, cluster=cluster, **options)
        (self.orders,) = self.streams.streams
        self.sent = 0
        self._sending = asyncio.Lock()

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", self._module, *self._arguments])
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.processes.remove(process)
        process.kill()
        process.wait()

    async def send(self, count: int) -> None:
        async with self._sending:
            numbers = range(self.sent, self.sent + count)
            await self.orders.send(*(Order(key=number % KEYS, seq=number) for number in numbers))
            self.sent += count

    async def lines(self) -> dict[int, list[Line]]:
        """Run, key and number of each processed event, by partition and in order."""
        found: dict[int, list[Line]] = {}
        for partition in range(PARTITIONS):
            texts: Any = await self.streams.link.command("LRANGE", noted(partition), 0, -1)
            parts = [text.decode().split() for text in texts]
            found[partition] = [(run, int(key), int(seq)) for run, key, seq, _ in parts]
        return found

    async def recovered(self) -> list[list[int]]:
        """The numbers of each run that were said to have been another's, of all partitions.

        They are the first ones of the run.
        """
        found = []
        for partition in range(PARTITIONS):
            texts: Any = await self.streams.link.command("LRANGE", noted(partition), 0, -1)
            lines = [text.decode().split() for text in texts]
            for run in {line[0] for line in lines}:
                flagged = [(int(line[2]), line[3] == "1") for line in lines if line[0] == run]
                first = [seq for seq, again in flagged if again]
                assert flagged[: len(first)] == [(seq, True) for seq in first], flagged
                found.append(first)
        return found

    async def complete(self) -> bool:
        lines = await self.lines()
        return {seq for some in lines.values() for _, _, seq in some} == set(range(self.sent))

    async def keep_busy(self, count: int) -> None:
        """Send, and wait until some of it is worked on, and the most of it is not: the workers
        would keep up with the sender if they did not stand still meanwhile."""

        async def done() -> int:
            return sum(len(some) for some in (await self.lines()).values())

        before = await done()
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)
        await self.send(count)
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

        async def begun() -> bool:
            return await done() > before + count // 10

        await eventually(begun)

    async def nothing_pending(self) -> bool:
        return not any([await pending(self.orders, number) for number in range(PARTITIONS)])

    async def owners(self) -> list[str]:
        """The owner of each owned partition, as Redis has it."""
        found = []
        for partition in range(PARTITIONS):
            own = self.orders.keys.own(partition, "handle")
            owner: Any = await self.streams.link.command("HGET", own, "owner")
            if owner:
                found.append(owner.decode())
        return found

    async def share(self, workers: int) -> bool:
        """Whether this many workers own equal numbers of partitions."""
        owners = await self.owners()
        counts = {owners.count(one) for one in owners}
        return (len(owners), len(set(owners)), counts) == (
            PARTITIONS,
            workers,
            {PARTITIONS // workers},
        )

    async def close(self) -> None:
        await end(self.processes)
        await self.streams.link.close()
