"""The checks of ``chancy redis doctor``: whether a server is configured as jobs need it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping

from redis.exceptions import AuthenticationError, NoPermissionError

from chancy.errors import BrokerError, StatementFailed
from chancy.plugin.finding import Finding, Severity
from chancy.plugins.redis.maintenance.unreadable import UnreadableRecords
from chancy.plugins.redis.maintenance.upkeep import facts
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.shard import ShardClient, linked
from chancy.plugins.redis.transport.translation import access_refused

#: The oldest tested versions.
_REDIS, _VALKEY = (6, 2), (7, 2)
_SLOTS = 16_384
#: Most seconds between the clocks of Redis and of this machine: times in the history come from the
#: clock of Redis.
_MOST_OFFSET_S = 2.0
#: The fraction of the allowed memory or connections above which a server is nearly full.
_NEARLY = 0.8
#: Seconds of a slow round trip; a job takes about four round trips.
_SLOW_S = 0.005
_TRIPS = 21
_FIX_URL = "correct the user, the password and the database in the url of the plugin"
_FIX_ACL = 'correct the ACL of this user: see "Privileges" in the guide on Redis'
#: What the scripts of jobs do, with a key that is gone afterwards in any case.
_SCRIPT = """redis.call('SET', KEYS[1], '', 'PX', 1000)
redis.call('DEL', KEYS[1])
return redis.call('PUBLISH', KEYS[1], '')"""
#: Errors of a primary that has too few replicas, or cannot write its disk.
_NO_WRITES = ("NOREPLICAS", "MISCONF")
#: Unreadable records that are listed.
_SHOWN = 10
#: Most seconds that a replica may lag.
_MOST_LAG_S = 10


async def examine(settings: RedisSettings) -> list[Finding]:
    """Check the server of the jobs. An unavailable server is a finding, too."""
    try:
        async with linked(settings) as client:
            found = [*await _server(settings, client), *await _clock(client)]
            return [*found, await _scripts(client), await _records(client)]
    except BrokerError as error:
        if not isinstance(error, StatementFailed):
            todo = "start the server, or fix the url of the plugin"
        elif access_refused(error) and not isinstance(error.__cause__, AuthenticationError):
            todo = _FIX_ACL
        else:
            todo = _FIX_URL
        return [Finding("reached", f"{settings.shown_url}: {error}", todo, Severity.ERROR)]


async def _server(settings: RedisSettings, client: ShardClient) -> list[Finding]:
    """What the server reports of itself, if this user may read it."""
    try:
        info = facts(await client.command("INFO", "ALL"))
    except StatementFailed as error:
        if isinstance(error.__cause__, NoPermissionError):
            return [Finding("server", "does not report its settings to this user: no INFO")]
        raise
    config = await _configuration(client)
    found = [_version(info), *_persistence(info, config), *_memory(info)]
    found += [*_replication(info, config), *await _cluster(settings, client, info)]
    return [*found, *_clients(info)]


async def _configuration(client: ShardClient) -> Mapping[str, str]:
    """Settings of the server; empty if it does not expose them, as many hosted servers."""
    config: dict[str, str] = {}
    for name in ("appendfsync", "min-replicas-to-write"):
        try:
            pair = await client.command("CONFIG", "GET", name)
        except StatementFailed:
            return {}
        config |= {
            key.decode(): value.decode() for key, value in zip(pair[::2], pair[1::2], strict=True)
        }
    return config


def _version(info: Mapping[str, str]) -> Finding:
    valkey = info.get("valkey_version")
    name, text, least = ("Redis", info.get("redis_version", "0"), _REDIS)
    if valkey:
        name, text, least = "Valkey", valkey, _VALKEY
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    wanted = ".".join(map(str, least))
    todo = "" if numbers >= least else f"upgrade to {name} {wanted} or newer"
    return Finding("version", f"{name} {text}", todo)


def _persistence(info: Mapping[str, str], config: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("aof_enabled") == "0":
        yield Finding(
            "appendonly",
            "no: a crash loses everything pushed since the last snapshot",
            "set appendonly yes",
        )
    else:
        mode = config.get("appendfsync", "unknown")
        lost = {
            "always": "a power cut loses nothing",
            "everysec": "a power cut loses the last second or so",
            "no": "a power cut loses what the operating system has not written to disk",
        }.get(mode, "the server does not report how often it writes")
        yield Finding(
            "appendonly",
            f"yes, appendfsync {mode}: {lost}",
            "set appendfsync everysec, or always" if mode == "no" else "",
        )
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            yield Finding(
                "disk", f"{name}={info[name]}", "check the server's log and free disk space"
            )


def _memory(info: Mapping[str, str]) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    most, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
    if policy != "noeviction":
        risk = "silently drops jobs when it is full" if most else "drops jobs once maxmemory is set"
        yield Finding("maxmemory-policy", f"{policy}: {risk}", "set maxmemory-policy noeviction")
    else:
        yield Finding("maxmemory-policy", "noeviction")
    if int(info.get("evicted_keys", "0")):
        yield Finding("evicted", f"{info['evicted_keys']} keys were dropped", "check for lost jobs")
    share = f"{used / 1e6:,.0f} MB" + (f" of {most / 1e6:,.0f} MB" if most else ", without a limit")
    todo = "add more memory, or keep fewer finished jobs" if used > most * _NEARLY else ""
    yield Finding("memory", share, todo if most else "")


def _replication(info: Mapping[str, str], config: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield Finding(
            "role",
            "replica: it is read-only",
            "use the primary, or its service, in the url",
            Severity.ERROR,
        )
        return
    replicas = [value for name, value in info.items() if name.startswith("slave") and "=" in value]
    if not replicas:
        yield Finding("replication", "no replica")
        return
    lags = [
        int(part.partition("=")[2])
        for replica in replicas
        for part in replica.split(",")
        if part.startswith("lag=") and part[4:].isdecimal()
    ]
    lag_s = max(lags, default=0)
    waits = config.get("min-replicas-to-write", "0") != "0"
    yield Finding(
        "replication",
        f"{len(replicas)} replicas, up to {lag_s} s behind; a failover loses what they lack"
        + ("" if waits else ", and pushes do not wait for them"),
        "find out why a replica lags" if lag_s > _MOST_LAG_S else "",
    )


async def _cluster(
    settings: RedisSettings, client: ShardClient, info: Mapping[str, str]
) -> list[Finding]:
    if info.get("cluster_enabled") != "1":
        todo = "remove cluster=True from the plugin" if settings.cluster else ""
        return [Finding("cluster", "no", todo)]
    if not settings.cluster:
        return [
            Finding("cluster", "the server is a cluster node", "pass cluster=True to the plugin")
        ]
    status = facts(await client.command("CLUSTER", "INFO"))
    covered = int(status.get("cluster_slots_ok", "0"))
    state = f"{status.get('cluster_state')}, {covered} of {_SLOTS} slots"
    well = status.get("cluster_state") == "ok" and covered == _SLOTS
    todo = "" if well else "find the missing node with CLUSTER SHARDS"
    return [Finding("cluster", state, todo)]


def _clients(info: Mapping[str, str]) -> Iterator[Finding]:
    now, most = int(info.get("connected_clients", "0")), int(info.get("maxclients", "0"))
    if most:
        todo = "raise maxclients, or lower max_connections" if now > most * _NEARLY else ""
        yield Finding("connections", f"{now} of {most}", todo)


async def _clock(client: ShardClient) -> list[Finding]:
    """Clock offset, from the shortest of several round trips, and the median round trip."""
    trips: list[tuple[float, float]] = []
    for _ in range(_TRIPS):
        started, at = time.perf_counter(), time.time()
        seconds, micros = await client.command("TIME")
        took_s = time.perf_counter() - started
        trips.append((took_s, int(seconds) + int(micros) / 1e6 - at - took_s / 2))
    offset_s = min(trips)[1]
    trip_s = statistics.median(took_s for took_s, _ in trips)
    return [
        Finding(
            "clock",
            f"{abs(offset_s):.3f} s {'ahead of' if offset_s > 0 else 'behind'} this machine",
            "synchronize both clocks with NTP" if abs(offset_s) > _MOST_OFFSET_S else "",
        ),
        Finding(
            "round trip",
            f"{trip_s * 1000:.2f} ms",
            "run workers closer to the server" if trip_s > _SLOW_S else "",
        ),
    ]


async def _records(client: ShardClient) -> Finding:
    count, newest = await UnreadableRecords(client).newest(_SHOWN)
    if not count:
        return Finding("records", "workers have found none that cannot be read")
    some = "; ".join(f"job {record.id}: {record.reason}" for record in newest)
    return Finding(
        "records",
        f"{count} cannot be read and were set aside, newest first: {some}",
        "run a worker of the later release; delete the key of a damaged record, "
        f"{client.tag}:j: and the 16 bytes of the id",
    )


async def _scripts(client: ShardClient) -> Finding:
    try:
        await client.command("EVAL", _SCRIPT, 1, f"{client.tag}:doctor")
    except BrokerError as error:
        if access_refused(error):
            todo = _FIX_ACL
        elif not error.retryable:
            todo = "enable EVAL and EVALSHA on the server"
        elif any(word in str(error) for word in _NO_WRITES):
            todo = "correct what the server says: it refuses all writes"
        else:  # a replica, or a full server: another line says so
            todo = ""
        return Finding("scripts", str(error), todo)
    return Finding("scripts", "allowed")
