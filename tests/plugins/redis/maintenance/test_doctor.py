"""What the doctor and workers say of the configuration of servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from chancy import Chancy
from chancy.plugin.finding import Finding, Severity
from chancy.plugins.redis import RedisPlugin, RedisSettings
from chancy.plugins.redis.maintenance.doctor import examine
from chancy.plugins.redis.maintenance.upkeep import risks
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.shard import ShardClient
from tests.support.command import inside
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]
SOUND = {"appendonly": "yes", "appendfsync": "everysec"}


async def looked(url: str, *, cluster: bool = False) -> Mapping[str, Finding]:
    found = {one.about: one for one in await examine(RedisSettings(url=url, cluster=cluster))}
    # What a busy machine needs for a round trip is nothing to complain of here.
    found.pop("round trip", None)
    return found


def complaints(found: Mapping[str, Finding]) -> set[str]:
    return {one.about for one in found.values() if not one.ok}


@pytest.mark.parametrize(
    ("settings", "about", "word"),
    [
        ({}, None, ""),
        ({"appendfsync": "no"}, "appendonly", "set appendfsync"),
        ({"appendonly": "no"}, "appendonly", "set appendonly yes"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy", "noeviction"),
        ({"maxmemory": "1mb"}, "memory", "more memory"),
    ],
)
async def test_each_setting_is_reported_with_advice(
    own_redis: Start, settings: dict[str, str], about: str | None, word: str
) -> None:
    found = await looked(own_redis(**SOUND | settings).url)
    assert complaints(found) == ({about} if about else set())
    if about:
        assert word in found[about].todo
    assert {"version", "clock", "scripts", "connections", "replication"} <= found.keys()


async def test_replicas_are_seen_from_both_sides(own_redis: Start) -> None:
    primary = own_redis(**SOUND)
    replica = own_redis(**SOUND, replicaof=f"127.0.0.1 {primary.port}")

    async def follows() -> bool:
        return "1 replicas" in (await looked(primary.url))["replication"].found

    await eventually(follows)
    assert complaints(await looked(primary.url)) == set()

    async def refuses() -> bool:
        return {"role"} <= complaints(await looked(replica.url))

    await eventually(refuses)


async def test_the_checkup_of_the_application_covers_redis(dsn: str, own_redis: Start) -> None:
    server = own_redis(appendonly="no")
    async with Chancy(dsn, plugins=[RedisPlugin(url=server.url)]) as chancy:
        found = {one.about: one for one in await chancy.hooks.examine(chancy)}
        assert found["redis appendonly"].severity is Severity.WARNING
        assert found["redis scripts"].ok
        server.kill()
        found = {one.about: one for one in await chancy.hooks.examine(chancy)}
        assert found["redis reached"].severity is Severity.ERROR
        assert "start the server" in found["redis reached"].todo


@pytest.mark.parametrize(("user", "database"), [(":wrong@", 0), ("", 99)])
async def test_a_server_that_refuses_the_url_is_not_to_be_started(
    own_redis: Start, user: str, database: int
) -> None:
    server = own_redis(**SOUND)
    url = f"redis://{user}127.0.0.1:{server.port}/{database}"
    [found] = (await looked(url)).values()
    assert "the password and the database" in found.todo


async def test_a_wrong_clock_is_reported(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skewed, now = 5.0, time.time
    monkeypatch.setattr(time, "time", lambda: now() + skewed)
    found = (await looked(redis_url))["clock"]
    assert "behind this machine" in found.found
    assert "NTP" in found.todo
    skewed = -5.0
    assert "ahead of this machine" in (await looked(redis_url))["clock"].found


async def test_a_server_that_hides_its_configuration(own_redis: Start) -> None:
    """As a user without CONFIG, and one without scripts."""
    server = own_redis(**SOUND)
    with closing(server.client()) as client:
        for name, right in (("plain", "-config"), ("poor", "-eval")):
            rights = ("on", "nopass", "~*", "&*", "+@all", right)
            command_sync(client, "ACL", "SETUSER", name, *rights)
    place = server.url.removeprefix("redis://")
    found = await looked(f"redis://plain:x@{place}")
    assert complaints(found) == set()
    assert "does not report" in found["appendonly"].found
    assert complaints(await looked(f"redis://poor:x@{place}")) == {"scripts"}


async def test_a_cluster_is_to_be_whole(redis_cluster: str) -> None:
    found = await looked(redis_cluster, cluster=True)
    assert (found["cluster"].found, found["cluster"].ok) == ("ok, 16384 of 16384 slots", True)
    assert "cluster=True" in (await looked(redis_cluster))["cluster"].todo


def test_the_command(own_redis: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks to Redis alone."""
    server = own_redis(**SOUND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "doctored.py").write_text(
        "from chancy import Chancy\n"
        "from chancy.plugins.redis import RedisPlugin\n"
        "chancy = Chancy('postgresql://nobody@127.0.0.1:1/none',"
        f" plugins=[RedisPlugin(url={server.url!r})])\n"
    )
    words = ("redis", "doctor", "--app", "doctored:chancy")
    told = inside(*words, "--json", code=None)
    found = json.loads(told.out)
    assert [one["about"] for one in found if not one["ok"]] in ([], ["round trip"])
    assert told.code == (0 if all(one["ok"] for one in found) else 1)
    with closing(server.client()) as client:
        client.config_set("appendonly", "no")
    told = inside(*words, code=1)
    [line] = [line for line in told.out.splitlines() if "appendonly" in line]
    assert line.split()[0] == "warn"
    assert "set appendonly yes" in line
    # Whatever is wrong is shown to its end.
    server.stop()
    told = inside(*words, code=1)
    assert f"Connect call failed ('127.0.0.1', {server.port})" in told.out


def test_without_redis_py_the_error_names_the_package() -> None:
    program = "import sys; sys.modules['redis'] = None; import chancy.plugins.redis"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: chancy.plugins.redis requires the package 'redis': "
        "pip install 'chancy-queue[redis]'"
    )


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"appendonly": "yes"}, []),
        ({}, ["appendonly=no"]),
        (
            {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"},
            ["maxmemory_policy=allkeys-lru", "appendonly=no"],
        ),
        ({"appendonly": "yes", "maxmemory_policy": "allkeys-lru"}, []),
        ({"appendonly": "yes", "replicaof": "127.0.0.1 1"}, ["role=replica"]),
    ],
)
async def test_settings_that_may_lose_jobs_are_logged(
    own_redis: Callable[..., RedisServer], settings: dict[str, str], wanted: list[str]
) -> None:
    server = own_redis(**settings)
    link = ShardClient(RedisClient(RedisSettings(url=server.url)))
    await link.open()
    try:
        found = risks(await link.command("INFO", "ALL"))
    finally:
        await link.close()
    assert [one.partition(":")[0] for one in found] == wanted
