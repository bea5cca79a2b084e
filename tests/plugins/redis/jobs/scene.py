"""What happens before, at and after the death of a process: an application, its jobs, and the
sums over them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import redis

from chancy import Chancy, Job, State, Worker
from chancy.plugins.leadership import ImmediateLeadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisBroker, RedisPlugin, RedisSettings
from chancy.plugins.redis.keys import shard_tag
from chancy.plugins.retry import Retries
from chancy.queue.queue import DEFAULT_BROKER
from tests.plugins.redis.jobs.errand_fleet import entries, rows
from tests.plugins.redis.jobs.errands import QUEUE, errand
from tests.plugins.redis.relay.moving import plane
from tests.support.redis_commands import command_sync
from tests.support.waiting import eventually

#: Jobs of a scene: two that are to run at once, of which the first one fails, and one later. Not
#: more: one that has crashed is run in a process of its own, which takes half a second.
NUMBERS = range(3)
DELAYS_S: Mapping[int, float] = {2: 0.2}
#: A worker is taken for dead after this silence: longer than a busy machine holds one up.
HEARTBEAT_S, TIMEOUT_S = 0.1, 1.2
#: What a dead process has taken from Postgres is given to another soon.
LEASE_S = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """An application, as each process of it makes it.

    :param alone: whether Redis has its queues and workers, too, and there is no Postgres.
    """

    dsn: str
    url: str
    prefix: str
    book: str
    alone: bool = False

    @property
    def tag(self) -> str:
        return shard_tag(self.prefix)

    @property
    def settings(self) -> RedisSettings:
        return RedisSettings(url=self.url, prefix=self.prefix)

    def id(self, number: int) -> UUID:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{self.prefix}/{number}")

    def job(self, number: int, delay_s: float | None = None) -> Job[int]:
        made = errand.job(book=self.book, number=number).with_id(self.id(number))
        return made if delay_s is None else made.with_delay(timedelta(seconds=delay_s))

    @asynccontextmanager
    async def application(self) -> AsyncGenerator[Chancy]:
        plugins = [ImmediateLeadership(), Recovery(sweep_s=0.1), Retries()]
        if self.alone:
            queue = replace(QUEUE, broker=DEFAULT_BROKER, broker_options={"history": "none"})
            broker = RedisBroker(self.settings)
            made = Chancy(queues=[queue], plugins=plugins, no_default_plugins=True, broker=broker)
        else:
            beside = RedisPlugin(url=self.url, prefix=self.prefix)
            all_of_them = [beside, *plugins]
            made = Chancy(
                self.dsn, queues=[QUEUE], plugins=all_of_them, no_default_plugins=True, pool_size=3
            )
        async with made:
            yield made


async def redis_of(chancy: Chancy) -> RedisBroker:
    """The broker that has the jobs."""
    return chancy.broker if isinstance(chancy.broker, RedisBroker) else await plane(chancy)


@contextmanager
def looking(scene: Scene) -> Generator[Look]:
    with closing(redis.Redis.from_url(scene.url, protocol=2)) as client:
        yield Look(client, scene.tag)


class Look:
    """What is in Redis."""

    def __init__(self, client: redis.Redis, tag: str) -> None:
        self._client = client
        self._tag = tag

    def __call__(self, *names: str) -> int:
        """How many members some keys have together."""
        return sum(self._members(f"{self._tag}:{name}".encode()) for name in names)

    def keys(self) -> Counter[str]:
        """Members of the keys that stay until somebody deletes them, by their names without ids."""
        found: Counter[str] = Counter()
        for raw in self._client.scan_iter(f"{self._tag}:*", count=1_000):
            if command_sync(self._client, "PTTL", raw) == -1:
                name = raw[len(self._tag) + 1 :].split(b":")[0].decode()
                found[name] += self._members(raw)
        return found

    def _members(self, key: bytes) -> int:
        kind = command_sync(self._client, "TYPE", key).decode()
        word = {"zset": "ZCARD", "set": "SCARD", "hash": "HLEN", "string": "EXISTS"}.get(kind)
        return int(command_sync(self._client, word, key)) if word else 0

    def counter(self, field: str) -> int:
        """How many jobs there are, as they are counted."""
        return int(command_sync(self._client, "HGET", f"{self._tag}:n", field) or 0)

    def check_counters(self) -> None:
        """Check that as many jobs are counted as the lists have."""
        counted: Counter[bytes] = Counter()
        for field, number in command_sync(self._client, "HGETALL", f"{self._tag}:n").items():
            counted[field[:1]] += int(number)
        listed = {
            state: sum(map(self._members, self._client.scan_iter(f"{self._tag}:{name}")))
            for state, name in ((b"p", "r:*"), (b"s", "due"), (b"r", "w:*"))
        }
        assert {state: counted[state] for state in listed} == listed

    def set_counter(self, field: str, number: int) -> None:
        command_sync(self._client, "HSET", f"{self._tag}:n", field, number)

    def record(self, id: UUID) -> bytes:
        return bytes(command_sync(self._client, "GET", f"{self._tag}:j:".encode() + id.bytes))

    def set_aside(self, id: UUID) -> None:
        """Take a scheduled job out of its list, as a worker does that cannot read its record."""
        command_sync(self._client, "ZREM", f"{self._tag}:due", id.bytes)
        command_sync(self._client, "ZADD", f"{self._tag}:unreadable", 0, id.bytes)

    def delete(self, *names: str) -> None:
        command_sync(self._client, "DEL", *(f"{self._tag}:{name}" for name in names))


async def finished(scene: Scene, chancy: Chancy, look: Look) -> bool:
    """Whether nothing waits or runs, on the way to Redis neither, and the history is written."""
    if look("n", "due", f"r:{QUEUE.name}", "archive"):
        return False
    return scene.alone or await rows(chancy, "jobs") == 0


async def go_on(scene: Scene, chancy: Chancy, look: Look) -> None:
    """Have a healthy worker do what there is, until it is the only one and nothing is left."""

    async def over() -> bool:
        assert look("beats") == 1, look.keys()
        assert look("holders") <= 1, look.keys()
        assert await finished(scene, chancy, look), look.keys()
        return True

    async with Worker(chancy, heartbeat_s=HEARTBEAT_S, heartbeat_timeout_s=TIMEOUT_S):
        await eventually(over, timeout=40.0)


async def check_ends(
    scene: Scene, chancy: Chancy, numbers: Iterable[int], end: State | None
) -> None:
    """Each of these jobs has one end, crashed once at most, and ran again only if it had; of others
    that ran nothing is left.

    :param end: of all of them; None: each tenth fails, the others succeed.
    """
    wanted = {number: scene.id(number) for number in numbers}
    found = await chancy.get_jobs(list(wanted.values()))
    assert len(found) == len(wanted)
    runs = entries(Path(scene.book))
    jobs = {number: found[id] for number, id in wanted.items()}
    for number, one in jobs.items():
        by_itself = State.SUCCEEDED if number % 10 else State.FAILED
        assert one.state is (end or by_itself), one
        least, most = (0, 0) if end is State.CANCELLED else (1, 1 + one.crashes)
        assert least <= runs[number] <= most, f"{number} ran {runs[number]} times: {one}"
        assert one.crashes <= 1, one  # the scene may have a dead worker of its own
    gone = [scene.id(number) for number in runs.keys() - jobs.keys()]
    assert not await chancy.get_jobs(gone)
