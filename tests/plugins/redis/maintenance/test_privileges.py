"""A user of Redis that may do no more than is needed, or less."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest

from chancy import Chancy, Job, Queue, Unique
from chancy.errors import StatementFailed
from chancy.plugins.redis import RedisBroker, RedisPlugin, RedisSettings
from chancy.plugins.redis.maintenance.doctor import examine
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.services import Context, Service
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.transport import blocking_reads
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from chancy.states import State
from chancy.testing.conformance.bench import prepared, settlement
from chancy.worker.worker import Worker
from tests.docs.pages import page
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.test_replicated import PATIENCE_S, sentinel
from tests.support import jobs
from tests.support.command import inside
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]
#: All but the category to which INFO and CLIENT UNBLOCK belong.
SAFE = ["on", ">secret", "~*", "&*", "+@all", "-@dangerous", "+client|setname", "+client|id"]


def documented() -> list[str]:
    """The rules of the guide."""
    text = page("docs/guides/redis.md").text
    _, _, rules = text.partition("ACL SETUSER shop ")
    return rules.partition("```")[0].split()


def login(server: RedisServer, rules: list[str]) -> str:
    """Create a user; returns its URL."""
    with closing(server.client()) as client:
        command_sync(client, "ACL", "SETUSER", "shop", *rules)
    return server.url.replace("redis://", "redis://shop:secret@")


def denied(server: RedisServer) -> set[str]:
    """The commands, keys and channels that the server has refused."""
    with closing(server.client()) as client:
        entries: list[list[bytes]] = command_sync(client, "ACL", "LOG")
    found = {entry[entry.index(b"object") + 1].decode().lower() for entry in entries}
    # Redis 6.2, whose entries name no subcommand, has no CLIENT SETINFO: redis-py sends it.
    return found - {"client"}


class Tick(Record):
    number: int


class Feed(Service):
    name = "feed"
    begun = 0

    async def start(self, ctx: Context) -> None:
        type(self).begun += 1
        await ctx.emit("begun", None)
        await ctx.wait(60)

    async def stop(self) -> None: ...


@asynccontextmanager
async def application(dsn: str, url: str, seen: set[int]) -> AsyncGenerator[Chancy]:
    plugin = RedisPlugin(url=url)
    ticks = plugin.streams.stream("ticks", record=Tick, partition_by="number", partitions=4)

    @plugin.streams.processor(ticks, join_delay_s=0.0)
    async def show(events: Events[Tick]) -> None:
        async for tick in events.records():
            seen.add(tick.number)

    plugin.services.service(Feed)
    queue = Queue(name="far", executor="async", broker="redis")
    plugins = [plugin, Retries(Constant(0.05))]
    async with Chancy(dsn, queues=[queue], plugins=plugins, pool_size=4) as chancy:
        yield chancy


def note(value: object) -> Job[object]:
    return jobs.note.job(value=value).with_queue("far")


@pytest.mark.parametrize(
    ("rules", "refused"),
    [(documented, {"info"}), (lambda: SAFE, {"info", "client|unblock"})],
    ids=["documented", "safe"],
)
async def test_jobs_streams_and_services_need_no_other_privileges(
    own_redis: Start,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    rules: Callable[[], list[str]],
    refused: set[str],
) -> None:
    # Until its end a read goes on that the user may not unblock.
    monkeypatch.setattr(blocking_reads, "_BLOCK_MS", 1_000)
    server, seen = own_redis(), set[int]()
    url = login(server, rules())
    Feed.begun = 0
    async with application(dsn, url, seen) as chancy, Worker(chancy):
        [plugin] = [one for one in chancy.hooks.plugins if isinstance(one, RedisPlugin)]
        many = await chancy.push_many(note(n) for n in range(200))
        once = note("once").with_unique(Unique(key="once"))
        later = await chancy.push(once.with_delay(timedelta(seconds=0.1)))
        failing = await chancy.push(jobs.fail.job().with_queue("far").with_max_attempts(2))
        running = await chancy.push(jobs.wait_for_ever.job().with_queue("far"))
        assert [await job.result(20) for job in many[:3]] == [0, 1, 2]
        assert await later.result(20) == "once"
        assert (await failing.wait(20)).state is State.FAILED
        await chancy.cancel(running.id)
        assert (await running.wait(20)).state is State.CANCELLED
        [ticks] = plugin.streams.streams
        await ticks.send(*(Tick(number=n) for n in range(20)))
        await eventually(lambda: len(seen) == 20)
        id = await plugin.services.start("feed")
        await eventually(lambda: Feed.begun == 1)
        await plugin.services.stop(id)
        assert len(await chancy.get_jobs([job.id for job in many])) == 200
    assert denied(server) <= refused


#: All but the channels.
SILENT = ["on", ">secret", "resetchannels", "~*", "+@all"]


async def test_a_refused_channel_fails_nothing_that_was_written(own_redis: Start) -> None:
    """What a script has written before remains: the caller would be told the opposite."""
    async with opened(login(own_redis(), SILENT)) as (broker, bench):
        watched, stopped, *others = [prepared() for _ in range(4)]
        [claim] = await bench.running(watched)
        await broker.watch([watched.id])
        assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()
        # The worker is idle from here on, and would be woken.
        assert await bench.claim() == []
        await bench.running(stopped)
        await broker.cancel([stopped.id])
        await bench.claim(9)
        await bench.push(*others)
        assert {claim.id for claim in await bench.claim(2)} == {job.id for job in others}
        assert await broker.pause("default")
        assert await bench.state(watched.id) is State.SUCCEEDED


async def test_a_refused_channel_keeps_no_service_from_running(own_redis: Start, dsn: str) -> None:
    Feed.begun = 0
    async with application(dsn, login(own_redis(), SILENT), set()) as chancy, Worker(chancy):
        [plugin] = [one for one in chancy.hooks.plugins if isinstance(one, RedisPlugin)]
        await plugin.services.start("feed")
        await eventually(lambda: Feed.begun > 0)


async def test_the_report_of_queues_fails_if_the_counts_are_refused(
    own_redis: Start, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would show queues without jobs."""
    url = login(own_redis(), [*SAFE, "-eval", "-evalsha"])
    plugin = f"RedisPlugin(url={url!r})"
    (tmp_path / "shop_refused.py").write_text(
        "from chancy import Chancy\nfrom chancy.plugins.redis import RedisPlugin\n"
        f"chancy = Chancy(plugins=[{plugin}])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("redis", "info", "--app", "shop_refused:chancy")
    told = await asyncio.to_thread(inside, *words, dsn=dsn, code=4)
    assert "Redis refused access" in told.err
    assert "Traceback" not in told.err
    assert not told.out


async def test_sentinel_needs_the_documented_privilege(own_redis: Start, tmp_path: Path) -> None:
    server = own_redis()
    login(server, documented())
    with sentinel(server, tmp_path, replicas=0) as port:
        url = f"redis://shop:secret@127.0.0.1:{port}/0"
        settings = RedisSettings(url=url, sentinel="shop", connect_timeout_s=PATIENCE_S)
        broker = RedisBroker(settings)
        with pytest.raises(StatementFailed, match="no permissions to run the 'role' command"):
            await broker.open()
        more = re.search(
            "With Sentinel the user also needs `([^`]+)`", page("docs/guides/redis.md").text
        )
        assert more is not None
        login(server, more[1].split())
        await broker.open()
        await broker.close()


async def test_upkeep_continues_without_info(
    own_redis: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chancy.redis")
    server = own_redis()
    url = login(server, SAFE)
    async with opened(url, keep_finished_s=0.001) as (broker, bench):
        [claim] = await bench.running()
        await bench.settle(settlement(claim, State.SUCCEEDED))
        upkeep = asyncio.create_task(Upkeep(broker.client).serve())
        try:

            async def trimmed() -> bool:
                return not await broker.client.command("EXISTS", f"{broker.tag}:done")

            await eventually(trimmed)
        finally:
            upkeep.cancel()
            await asyncio.wait([upkeep])
    assert caplog.text.count("redis_settings_unknown") == 1
    assert "upkeep_postponed" not in caplog.text


@pytest.mark.parametrize(
    "rules",
    [
        [*SAFE, "-@write"],
        SILENT,
        ["~*", "&*", "-@all", "+@read", "+@connection", "+@scripting", "+@pubsub", "+time"],
    ],
    ids=["writes", "channels", "reader"],
)
async def test_the_doctor_reports_scripts_that_may_not_do_their_work(
    own_redis: Start, rules: list[str]
) -> None:
    url = login(own_redis(), ["on", ">secret", *rules])
    found = {one.about: one for one in await examine(RedisSettings(url=url))}
    assert "refused access" in found["scripts"].found
    assert "Privileges" in found["scripts"].todo


@pytest.mark.parametrize("rules", [["-time"], ["resetkeys", "~other:*"]], ids=["time", "keys"])
async def test_the_doctor_tells_a_denied_command_from_a_wrong_url(
    own_redis: Start, rules: list[str]
) -> None:
    url = login(own_redis(), [*SAFE, *rules])
    [found] = await examine(RedisSettings(url=url))
    assert "url" not in found.todo
    assert "Privileges" in found.todo


async def test_the_doctor_reports_a_server_that_takes_no_writes(own_redis: Start) -> None:
    server = own_redis()
    with closing(server.client()) as direct:
        direct.config_set("min-replicas-to-write", 1)
    found = {one.about: one for one in await examine(RedisSettings(url=server.url))}
    assert not found["scripts"].ok
    assert "NOREPLICAS" in found["scripts"].found


async def test_the_doctor_checks_what_it_may(own_redis: Start) -> None:
    found = {one.about: one for one in await examine(RedisSettings(url=login(own_redis(), SAFE)))}
    assert "no INFO" in found["server"].found
    assert {"clock", "scripts", "records"} <= found.keys()
    assert all(one.ok for one in found.values() if one.about != "round trip")
