"""What ``chancy redis doctor`` looks at: whether a server is set as jobs need it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from chancy.errors import BrokerError, StatementFailed
from chancy.plugins.redis.maintenance.repair import Repair
from chancy.plugins.redis.maintenance.upkeep import facts
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.shard_client import ShardClient, linked

#: The oldest servers that are tested.
_REDIS, _VALKEY = (6, 2), (7, 2)
_SLOTS = 16_384
#: Seconds that the clocks of Redis and of this machine may differ: times in the history are by
#: that of Redis.
_MOST_OFFSET_S = 2.0
#: Of the memory, and of the connections, that a server allows.
_NEARLY = 0.8
#: Seconds of a round trip; a job takes about four.
_SLOW_S = 0.005
_TRIPS = 21
_MEND_URL = "give the plugin a url with the user, the password and the database that it has"
#: Seconds that a replica may be behind.
_MOST_LAG_S = 10


class Finding(NamedTuple):
    """One line: what was looked at, what is there, and what to do about it.

    :param todo: empty: nothing.
    """

    about: str
    found: str
    todo: str = ""

    @property
    def ok(self) -> bool:
        return not self.todo

    def as_json(self) -> dict[str, object]:
        return {"about": self.about, "ok": self.ok, "found": self.found, "todo": self.todo}


async def examine(settings: RedisSettings) -> list[Finding]:
    """Look at the server of the jobs. One that is away is a finding, too."""
    try:
        async with linked(settings) as client:
            await client.open()
            info = facts(await client.command("INFO", "ALL"))
            told = await _configuration(client)
            found = [_version(info), *_persistence(info, told), *_memory(info)]
            found += [*_replication(info, told), *await _cluster(settings, client, info)]
            found += [*_clients(info), *await _clock(client)]
            return [*found, await _scripts(client), await _lists(client)]
    except BrokerError as error:
        away = not isinstance(error, StatementFailed)
        todo = "start the server, or give the plugin its url" if away else _MEND_URL
        return [Finding("reached", f"{settings.shown_url}: {error}", todo)]


async def _configuration(client: ShardClient) -> Mapping[str, str]:
    """What the server tells of its configuration; hosted ones often tell nothing."""
    told: dict[str, str] = {}
    for name in ("appendfsync", "min-replicas-to-write", "maxclients"):
        try:
            pair = await client.command("CONFIG", "GET", name)
        except StatementFailed:
            return {}
        told |= {
            key.decode(): value.decode() for key, value in zip(pair[::2], pair[1::2], strict=True)
        }
    return told


def _version(info: Mapping[str, str]) -> Finding:
    valkey = info.get("valkey_version")
    name, text, least = ("Redis", info.get("redis_version", "0"), _REDIS)
    if valkey:
        name, text, least = "Valkey", valkey, _VALKEY
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    wanted = ".".join(map(str, least))
    todo = "" if numbers >= least else f"take {name} {wanted} or newer"
    return Finding("version", f"{name} {text}", todo)


def _persistence(info: Mapping[str, str], told: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("aof_enabled") == "0":
        yield Finding(
            "appendonly",
            "no: what was pushed since the last snapshot is lost with the server",
            "set appendonly yes",
        )
    else:
        mode = told.get("appendfsync", "unknown")
        lost = {
            "always": "a power cut loses nothing",
            "everysec": "a power cut loses the last second or so",
            "no": "a power cut loses what the system has not written",
        }.get(mode, "the server does not tell how often it writes")
        yield Finding(
            "appendonly",
            f"yes, appendfsync {mode}: {lost}",
            "set appendfsync everysec, or always" if mode == "no" else "",
        )
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            yield Finding("disk", f"{name}={info[name]}", "see its log: is the disk full?")


def _memory(info: Mapping[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    most, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
    if policy != "noeviction":
        full = "when it is full it drops jobs in silence" if most else "once maxmemory is set"
        yield Finding("maxmemory-policy", f"{policy}: {full}", "set maxmemory-policy noeviction")
    else:
        yield Finding("maxmemory-policy", "noeviction")
    if int(info.get("evicted_keys", "0")):
        yield Finding(
            "evicted", f"{info['evicted_keys']} keys were dropped", "jobs may be among them"
        )
    share = f"{used / 1e6:,.0f} MB" + (f" of {most / 1e6:,.0f} MB" if most else ", without a limit")
    todo = "give it more memory, or keep fewer finished jobs" if used > most * _NEARLY else ""
    yield Finding("memory", share, todo if most else "")


def _replication(info: Mapping[str, str], told: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield Finding(
            "role", "replica: it takes no jobs", "name the primary, or its service, in the url"
        )
        return
    replicas = [value for name, value in info.items() if name.startswith("slave") and "=" in value]
    if not replicas:
        yield Finding("replication", "no replica")
        return
    lags = [
        int(part.partition("=")[2])
        for one in replicas
        for part in one.split(",")
        if part.startswith("lag=") and part[4:].isdecimal()
    ]
    late = max(lags, default=0)
    waits = told.get("min-replicas-to-write", "0") != "0"
    yield Finding(
        "replication",
        f"{len(replicas)} replicas, up to {late} s behind; a failover loses what they have not got"
        + ("" if waits else ", and pushes go on without them"),
        "see why a replica does not follow" if late > _MOST_LAG_S else "",
    )


async def _cluster(
    settings: RedisSettings, client: ShardClient, info: Mapping[str, str]
) -> list[Finding]:
    if info.get("cluster_enabled") != "1":
        todo = "leave out cluster=True" if settings.cluster else ""
        return [Finding("cluster", "no", todo)]
    if not settings.cluster:
        return [Finding("cluster", "the server is a node of one", "give the plugin cluster=True")]
    told = facts(await client.command("CLUSTER", "INFO"))
    covered = int(told.get("cluster_slots_ok", "0"))
    state = f"{told.get('cluster_state')}, {covered} of {_SLOTS} slots"
    well = told.get("cluster_state") == "ok" and covered == _SLOTS
    return [Finding("cluster", state, "" if well else "see by CLUSTER SHARDS who is missing")]


def _clients(info: Mapping[str, str]) -> Iterator[Finding]:
    now, most = int(info.get("connected_clients", "0")), int(info.get("maxclients", "0"))
    if most:
        todo = "raise maxclients, or lower max_connections" if now > most * _NEARLY else ""
        yield Finding("connections", f"{now} of {most}", todo)


async def _clock(client: ShardClient) -> list[Finding]:
    """The shortest of some round trips tells the most of the clock."""
    trips: list[tuple[float, float]] = []
    for _ in range(_TRIPS):
        began, at = time.perf_counter(), time.time()
        seconds, micros = await client.command("TIME")
        took_s = time.perf_counter() - began
        trips.append((took_s, int(seconds) + int(micros) / 1e6 - at - took_s / 2))
    offset_s = min(trips)[1]
    trip_s = statistics.median(took_s for took_s, _ in trips)
    return [
        Finding(
            "clock",
            f"{abs(offset_s):.3f} s {'ahead of' if offset_s > 0 else 'behind'} this machine",
            "set both clocks by NTP" if abs(offset_s) > _MOST_OFFSET_S else "",
        ),
        Finding(
            "round trip",
            f"{trip_s * 1000:.2f} ms",
            "have workers nearer to it" if trip_s > _SLOW_S else "",
        ),
    ]


async def _lists(client: ShardClient) -> Finding:
    try:
        astray = await Repair(client).astray()
    except StatementFailed as error:
        return Finding("lists of jobs", str(error), "allow this user EVAL and EVALSHA")
    if not any(astray):
        return Finding("lists of jobs", "as the counters say")
    names = ("pending", "scheduled", "running")
    off = ", ".join(f"{count} {name}" for count, name in zip(astray, names, strict=True) if count)
    return Finding(
        "lists of jobs",
        f"{off} more or fewer than were counted: somebody has deleted keys",
        "let a worker run: it puts back within a minute what has a record",
    )


async def _scripts(client: ShardClient) -> Finding:
    try:
        await client.command("EVAL", "return redis.call('PUBLISH', KEYS[1], '')", 1, client.tag)
    except StatementFailed as error:
        return Finding("scripts", str(error), "allow this user EVAL, EVALSHA and PUBLISH")
    return Finding("scripts", "may be run")
