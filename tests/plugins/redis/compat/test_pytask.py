"""Programs of pytask."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
import redis

from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.plugins.redis.compat.pytask import PyTaskHelpers, run_loop
from chancy.plugins.redis.compat.pytask.calls import client_of
from chancy.plugins.redis.services.base import BlockingContext, Stopping
from chancy.plugins.redis.services.standalone import serve
from tests.plugins.redis.compat.pytask_shop import application
from tests.support.redis_commands import command_sync
from tests.support.waiting import eventually


@contextmanager
def program(*words: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *words])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def raw(redis_url: str) -> Generator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_url, protocol=2, decode_responses=True)) as client:
        yield client


def is_stopped(helpers: PyTaskHelpers, id: str) -> bool:
    return bool(helpers.get_task(id, "state") == "STOPPED")


@pytest.mark.row("P01", "P06", "P13", "P18", "P24", "P27", "P34")
async def test_the_story_of_a_program(redis_url: str, raw: redis.Redis) -> None:
    helpers = PyTaskHelpers(raw)
    with program("-m", "tests.plugins.redis.compat.pytask_shop", redis_url) as process:
        # With any client, in the keys of pytask.
        command_sync(raw, "HSET", "task-r", "task", "loop", "data", '{"text":"raw"}')
        command_sync(raw, "LPUSH", "new-task", "r")
        sleeper = helpers.start_task("sleeper")
        await eventually(lambda: "raw" in command_sync(raw, "LRANGE", "heard:r", 0, -1))
        await eventually(lambda: helpers.get_task(sleeper, "state") == "RUNNING")
        assert {"r", sleeper} <= set(helpers.get_active_task_ids())
        assert helpers.get_task("r", ["task", "state"]) == ["loop", "RUNNING"]

        helpers.set_task("r", "data", {"text": "new"})
        helpers.reload_task("r")
        await eventually(lambda: command_sync(raw, "LRANGE", "heard:r", -1, -1) == ["new"])
        for id in ("r", sleeper):
            helpers.stop_task(id)
            await eventually(partial(is_stopped, helpers, id))
        assert command_sync(raw, "LRANGE", "heard:r", -1, -1) == ["stopping"]
        assert not helpers.restart_if_state("r", ["ERROR"])
        assert helpers.restart_if_state("r", ["STOPPED"])
        await eventually(lambda: helpers.get_task("r", "state") == "RUNNING")

        # The cleanup is a task of the program.
        once = helpers.start_task("once")
        await eventually(lambda: helpers.get_task(once) == {})
        assert command_sync(raw, "GET", f"ended:{once}") == "SUCCESS"
        kept = helpers.start_task("once", cleanup=False, fail="soft")
        await eventually(lambda: helpers.get_task(kept, "state") == "ERROR")
        assert json.loads(helpers.get_task(kept)["output"]) == "soft"

        # Invalid data does not end the program.
        bad = helpers.start_task("once", cleanup=False, unknown=1)
        await eventually(lambda: helpers.get_task(bad, "state") == "EXCEPTION")
        assert "unexpected keyword argument 'unknown'" in helpers.get_task(bad, "output")
        helpers.remove_task(bad)

        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert helpers.get_task("r", "state") == "WAIT"
    assert helpers.get_new_task_ids() == ["r"]
    # The local tasks are removed with it.
    assert set(helpers.get_active_task_ids()) == {kept, sleeper}
    assert helpers.get_end_task_ids() == []
    helpers.remove_task(kept)
    assert not raw.exists(f"task-{kept}")
    helpers.services.close()


STUCK = """
import sys, time
from redis import Redis
from chancy.plugins.redis.compat.pytask import PyTask, Task

class Stuck(Task):
    NAME = "stuck"
    def start(self):
        self.redis.set("asleep", 1)
        time.sleep(3600)

app = PyTask(Redis.from_url(sys.argv[1]))
app.services.configure(grace_s=0.1)
app.add_task(Stuck)
app.run()
"""


@pytest.mark.row("P35")
async def test_a_program_ends_despite_a_task_in_a_blocking_call(
    redis_url: str, raw: redis.Redis
) -> None:
    helpers = PyTaskHelpers(raw)
    id = helpers.start_task("stuck")
    with program("-c", STUCK, redis_url) as process:
        await eventually(lambda: raw.get("asleep"))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
    assert helpers.get_task(id, "state") == "RUNNING", "its lease ends later"
    helpers.services.close()


@pytest.mark.row("P36")
async def test_its_monitor_continues_after_redis_could_not_be_reached(
    redis_url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis returns before the failure of the monitor could be recorded."""
    app = application(raw)
    local = app.start_local_task("pytask/monitor", loop_interval=0.05)
    sweeps: list[bool] = []
    sweep = app.services.sweep

    def fail_once(*, timeout_s: float) -> None:
        sweeps.append(True)
        if len(sweeps) == 1:
            raise BrokerUnavailable("Redis is away")
        sweep(timeout_s=timeout_s)

    monkeypatch.setattr(app.services, "sweep", fail_once)
    task = asyncio.create_task(serve(app.services))
    try:
        await eventually(lambda: len(sweeps) > 3)
        assert app.helpers.get_task(local, "state") == "RUNNING"
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.row("P40")
async def test_two_programs_with_names_of_their_own_share_a_server(raw: redis.Redis) -> None:
    names = {
        "task_set": "b-set", "task_prefix": "b-", "new_queue": "b-new", "end_queue": "b-end",
    }  # fmt: skip
    one, other = application(raw), application(raw, **names)
    task = asyncio.create_task(serve(other.services))
    try:
        id = other.helpers.start_task("once", cleanup=False)
        mine = one.helpers.start_task("once", cleanup=False)
        await eventually(lambda: other.helpers.get_task(id, "state") == "SUCCESS")
        assert one.helpers.get_task(mine, "state") == "WAIT"
        assert one.helpers.get_task(id) == {}
        assert command_sync(raw, "HGET", f"b-{id}", "output") == '{"done":[1]}'
    finally:
        task.cancel()
        await asyncio.wait([task])
        one.services.close()


@pytest.mark.row("P41", "P42")
@pytest.mark.parametrize("kind", ["client", "details", "cluster client", "cluster details"])
async def test_clients_and_their_details_are_taken(
    kind: str, request: pytest.FixtureRequest
) -> None:
    given: Any
    if kind.startswith("cluster"):
        url = request.getfixturevalue("redis_cluster")
        host, _, port = url.split("//")[1].split("/")[0].partition(":")
        given = (
            redis.RedisCluster.from_url(url)
            if kind == "cluster client"
            else client_of([{"host": host, "port": int(port)}])
        )
    else:
        url = request.getfixturevalue("redis_url")
        path = url.removeprefix("unix://").partition("?")[0]
        given = redis.Redis.from_url(url) if kind == "client" else {"unix_socket_path": path}
    app = application(given)
    task = asyncio.create_task(serve(app.services))
    try:
        id = app.helpers.start_task("once", cleanup=False)
        await eventually(lambda: app.helpers.get_task(id, "state") == "SUCCESS")
        assert json.loads(app.helpers.get_task(id, "output")) == {"done": [1]}
        tag = "{services}" if kind.startswith("cluster") else ""
        assert app.services.keys.of(id) == f"{tag}task-{id}"
    finally:
        task.cancel()
        await asyncio.wait([task])
        client: Any = app.redis
        if kind.startswith("cluster"):
            client.disconnect_connection_pools()
        client.close()
    with pytest.raises(ConfigurationError, match="must be a redis-py client"):
        client_of("redis://")


@pytest.mark.row("P39")
def test_a_loop_waits_for_what_is_left_of_the_interval() -> None:
    stopping = Stopping()
    waits: list[float] = []

    class Noting(BlockingContext):
        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return False

    works = iter([0.05, 0.05, 0.5])

    def work() -> None:
        # The duration of this call is subtracted from the interval.
        time.sleep(next(works))
        if len(waits) == 2:
            stopping.flag.set()

    Noting("x", 1, {}, stopping, lambda event, data: None).every(0.4, work)
    assert 0 < max(waits[:2]) <= 0.35
    assert waits[2] == 0, "one that takes longer puts off the next"
    with pytest.raises(ZeroDivisionError):
        run_loop(lambda: 1 // 0, 0.1)
