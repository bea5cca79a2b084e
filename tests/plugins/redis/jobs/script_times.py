"""How long scripts hold up a server, whatever else the machine does meanwhile."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import redis

from chancy.plugins.redis.transport.scripts import Value
from chancy.plugins.redis.transport.shard import ShardClient
from tests.support.redis_commands import command_sync, scripts_of
from tests.support.redis_fixtures import RedisServer

logger = logging.getLogger(__name__)

#: No script holds up all others for longer, in microseconds, where the measure takes its time.
MOST_US = 5_000
#: Always the same: what it takes longer at times is not its own doing, and where it always takes
#: longer, all scripts do.
_MEASURE_US = 1_000
_MEASURE = "local n = 0 for i = 1, 60000 do n = n + i end return n"
_EACH = 8


@dataclass
class ScriptTimes:
    """The runs of one client that is alone with its server.

    The server counts how long it was busy with scripts, also while the system had it wait for a
    processor; its list of slow commands would name those of a script, too, which makes a script
    twice as long. The kernel tells how much of a processor the server had from before a call until
    after its answer, so with reading it and answering. A script took neither more than the one nor
    than the other.
    """

    server: RedisServer
    client: redis.Redis
    runs: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: The values that each run was given, and the commands that it executed.
    work: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    measures: list[float] = field(default_factory=list[float])

    def cpu_us(self) -> float:
        stat = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/schedstat")
        return int(stat.read_text().split()[0]) / 1_000 if stat.exists() else float("inf")

    def counted(self) -> tuple[int, int, int]:
        """How many scripts the server has run, how many microseconds that took, and how many
        commands it has executed."""
        told: Any = self.client.info("commandstats")
        found = [told[key] for key in ("cmdstat_eval", "cmdstat_evalsha") if key in told]
        commands = sum(one["calls"] for name, one in told.items() if name != "cmdstat_info")
        return sum(one["calls"] for one in found), sum(one["usec"] for one in found), commands

    def took_us(self) -> Mapping[str, Sequence[float]]:
        """The runs of each script, the shortest first."""
        return {name: sorted(all_us) for name, all_us in self.runs.items()}

    def check(self, *, interrupted: float = 0.001) -> Mapping[str, Sequence[float]]:
        """Assert that none of them took long; gives `took_us`.

        On a machine on which the measure takes longer than its time, so may they. Each may take
        longer by as much as one did at the most that is always the same, and never
        twice as long: a machine that is noisier than that fails this, and is told from a slow
        script by the noise in the message.

        :param interrupted: the share of the runs of a script that may have been interrupted.
        """
        found = self.took_us()
        usual_us = median(self.measures)
        noise_us = max(self.measures) - usual_us
        most_us = MOST_US * max(1.0, usual_us / _MEASURE_US)
        told = "%d measures of usually %.0f us, up to %.0f us longer"
        logger.info(told, len(self.measures), usual_us, noise_us)
        for name, all_us in sorted(found.items()):
            middle, most = all_us[len(all_us) // 2], all_us[len(all_us) * 99 // 100]
            about = "%s: %d runs, median %.0f, 99 of 100 %.0f, longest %.0f us"
            logger.info(about, name, len(all_us), middle, most, all_us[-1])
        slow: dict[str, Sequence[float]] = {}
        for name, all_us in found.items():
            over = [one for one in all_us if one > most_us + min(noise_us, most_us)]
            # One of several may always have been interrupted.
            allowed = max(1.0 if len(all_us) > 2 else 0.0, len(all_us) * interrupted)
            if len(over) > allowed:
                slow[name] = over
        late = f"the same script took up to {noise_us:.0f} us longer at times"
        assert not slow, f"{slow}: more than {most_us:.0f} us each; {late}"
        return found


@contextmanager
def timed(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Generator[ScriptTimes]:
    """Note how long scripts take, of which one runs after the other."""
    run = ShardClient.run

    async def noted(self: ShardClient, name: str, *args: Value) -> Any:
        calls, before_us, commands = times.counted()
        began_us = times.cpu_us()
        try:
            return await run(self, name, *args)
        finally:
            cpu_us = times.cpu_us() - began_us
            now, after_us, executed = times.counted()
            assert now == calls + 1, "one at a time, or it is not known which took how long"
            times.work[name].append(len(args) + executed - commands)
            times.runs[name].append(min(after_us - before_us, cpu_us))
            if sum(map(len, times.runs.values())) % _EACH == 1:
                began_us = times.cpu_us()
                await self.command("EVAL", _MEASURE, 0)
                times.measures.append(times.cpu_us() - began_us)

    with closing(server.client()) as client, monkeypatch.context() as patched:
        for script in scripts_of("jobs").values():
            command_sync(client, "SCRIPT LOAD", script.text)
        times = ScriptTimes(server, client)
        patched.setattr(ShardClient, "run", noted)
        yield times
