"""Services beside the jobs of ``chancy worker``, in processes that are sent real signals."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from chancy.plugins.redis.services import ServiceState
from tests.plugins.redis.services.shop import Shop
from tests.support.command import alone as run
from tests.support.command import command, started
from tests.support.waiting import eventually_sync

SHOP = """\
import json
import os

from chancy import Chancy
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.services import Context, Service

redis = RedisPlugin(url=os.environ["SHOP_REDIS"], prefix="t:")
redis.services.configure(lease_s=60.0)
chancy = Chancy(plugins=[redis])


def note(ctx: Context, what: str) -> None:
    with open(ctx.data["file"], "a") as file:
        file.write(json.dumps([what, os.getpid()]) + "\\n")


@redis.services.service
class Feed(Service):
    name = "feed"

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        note(ctx, "begin")
        while not await ctx.wait(0.05):
            pass
        note(ctx, "end")

    async def stop(self) -> None:
        note(self.ctx, "stop")
"""


@pytest.mark.chaos
@pytest.mark.row("P35")
@pytest.mark.parametrize("processes", [0, 1])
def test_a_worker_that_is_asked_to_end_stops_its_services_and_releases_them(
    alone: Shop, dsn: str, tmp_path: Path, processes: int
) -> None:
    """The lease is of a minute: the second worker takes what was given back, not what ran out."""
    (tmp_path / "feeds.py").write_text(SHOP)
    course = tmp_path / "course"
    env = {"CHANCY_DSN": dsn, "SHOP_REDIS": alone.url}
    program = command("worker", "--app=feeds:chancy", f"--processes={processes}")
    run("migrate", "upgrade", "--app=feeds:chancy", cwd=tmp_path, env=env)
    id = alone.services.blocking.begin("feed", {"file": str(course)})
    pids: set[int] = set()
    for turn in range(1, 3):
        with started(program, cwd=tmp_path, env=env) as worker:
            eventually_sync(partial(_has_begun, course, turn))
            worker.process.send_signal(signal.SIGTERM)
            assert worker.process.wait(20) == 0, worker.log
        notes = _read(course)
        assert [what for what, _ in notes] == ["begin", "stop", "end"] * turn
        pids |= {pid for _, pid in notes}
        assert len(pids) == turn, "each worker ran it whole"
        found = alone.services.blocking.get(id)
        assert found is not None
        assert (found.state, alone.waiting) == (ServiceState.WAIT, [id])


def _has_begun(course: Path, times: int) -> bool:
    return sum(what == "begin" for what, _ in _read(course)) == times


def _read(course: Path) -> list[tuple[str, int]]:
    lines = course.read_text().splitlines() if course.exists() else []
    return [(what, pid) for what, pid in map(json.loads, lines)]
