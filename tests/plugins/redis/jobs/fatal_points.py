"""The place at which a process of a test kills itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.jobs.workers import RedisHeartbeat
from chancy.plugins.redis.transport.scripts import Value
from chancy.plugins.redis.transport.shard import ShardClient
from tests.support.redis_commands import scripts_of

#: Around each call.
Call = Callable[[], AbstractContextManager[None]]


def die() -> None:
    """Nothing of this process is run after it: no handler, no `finally`."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str) -> None:
    """Kill this process at a call of a script.

    ``claim:before:2``: before the second call is sent. ``claim:after:2``: after Redis has run it
    and before this process gets the reply.
    """
    name, moment, number = where.split(":")
    left = int(number)

    @contextmanager
    def call() -> Generator[None]:
        nonlocal left
        left -= 1
        mine = left == 0
        if mine and moment == "before":
            die()
        yield
        if mine:
            die()

    assert name in scripts_of("jobs")
    if name == "recover":
        lose_a_claim()
    arm_link(name, call)
    arm_threads(name, call)


def replace(kind: type, name: str, method: Callable[..., object]) -> None:
    """For all objects of a class and until the process dies: whoever makes them is not asked."""
    setattr(kind, name, method)


def arm_link(name: str, call: Call) -> None:
    """Nearly all of them are run there."""
    run = ShardClient.run

    async def fatal(self: ShardClient, script: str, *args: Value) -> object:
        if script != name:
            return await run(self, script, *args)
        with call():
            return await run(self, script, *args)

    replace(ShardClient, "run", fatal)


def arm_threads(name: str, call: Call) -> None:
    """Beats are sent by threads, for all workers of the process."""
    beat = RedisHeartbeat.beat

    def fatal(self: RedisHeartbeat, blocked_s: float = 0.0) -> bool:
        with call():
            return beat(self, blocked_s)

    if name == "beat":
        replace(RedisHeartbeat, "beat", fatal)


def lose_a_claim() -> None:
    """Have the answer of the first claim that gives jobs be lost."""
    run, lost = ShardClient.run, False

    async def lose(self: ShardClient, script: str, *args: Value) -> object:
        nonlocal lost
        answer = await run(self, script, *args)
        if script == "claim" and not lost and isinstance(answer, list) and len(answer) > 3:
            lost = True
            raise BrokerUnavailable("the answer was lost")
        return answer

    replace(ShardClient, "run", lose)
