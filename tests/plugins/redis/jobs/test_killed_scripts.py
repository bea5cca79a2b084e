"""A process is killed at each boundary of each script: before it is sent, and when Redis has run it
and nobody here knows. What it left behind is brought to its end by others."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from chancy.plugins.redis.relay import adoption as moves
from tests.plugins.redis.jobs.doomed_processes import Nursery, nursery
from tests.plugins.redis.jobs.errand_fleet import balanced
from tests.plugins.redis.jobs.errands import make
from tests.plugins.redis.jobs.scene import LEASE_S, Scene, check_ends, go_on, looking
from tests.plugins.redis.jobs.script_scenarios import SCENARIOS, Scenario
from tests.support import leftovers
from tests.support.postgres_fixtures import _database, find_run
from tests.support.redis_commands import scripts_of

MOMENTS = ("before", "after")
#: Keys that there are where no job waits or runs, and nobody works.
KEPT = {"j", "ids", "done", "dead", "position", "queues", "history", "holders"}
#: Of everyday; `make chaos` goes to all.
EVERYDAY = ("settle:after",)
#: Of a script that a scenario runs several times, the runs at which its process is killed.
ROUNDS = 2


@pytest.fixture(scope="module")
def births(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("doomed") / "log") as made:
        leftovers.lasting.add(made.pid)
        yield made


@pytest.fixture(scope="module")
def survived() -> dict[object, Mapping[str, int]]:
    return {}


@dataclass
class Stage:
    """Where scenes are played."""

    births: Nursery
    #: Databases: scenes at the same time have one each.
    dsns: Sequence[str]
    url: str
    folder: Path
    survived: dict[object, Mapping[str, int]]

    def scene(self, scenario: Scenario, dsn: str) -> Scene:
        """One that shares nothing with another but the database."""
        name = uuid.uuid4().hex[:12]
        book = self.folder / name
        book.touch()
        return Scene(dsn, self.url, f"{name}:", str(book), scenario.alone)

    async def play(self, name: str, dsn: str, fatal: str | None, at: int) -> Mapping[str, int]:
        """A scene from the beginning to the end; gives the keys that are left.

        :param fatal: None: the process lives.
        :param at: of the pairs in the scenario.
        """
        scenario = SCENARIOS[name]
        scene = self.scene(scenario, dsn)
        async with scene.application() as chancy:
            with looking(scene) as look:
                await scenario.prepare(scene, chancy)
                before = look.keys()
                code = await self.births.end_of(name, scene, fatal)
                assert code == (0 if fatal is None else -signal.SIGKILL), self.births.said()
                if fatal is not None:
                    self.look_at_once(scenario, scene, at)
                    assert not scenario.still or look.keys() == before
                await scenario.again(scene, chancy)
                await go_on(scene, chancy, look)
                await check_ends(scene, chancy, scenario.ended[at], scenario.end)
                look.check_counters()
                return look.keys()

    async def survive(self, name: str) -> Mapping[str, int]:
        """The keys that are left where nobody is killed; of the same scenes they are the same."""
        one = SCENARIOS[name]
        known = (one.deed, one.prepare, one.again, one.alone)
        if known not in self.survived:
            self.survived[known] = await self.play(name, self.dsns[-1], None, 1)
        return self.survived[known]

    def look_at_once(self, scenario: Scenario, scene: Scene, at: int) -> None:
        """What the dead process has left: pushed = succeeded + failed + cancelled + live."""
        with looking(scene) as look:
            assert scenario.seen(look, scene) == scenario.values[at]
        if scenario.stored is not None:
            with closing(redis.Redis.from_url(self.url, protocol=2)) as client:
                assert balanced(client, scene.tag) == scenario.stored[at]


@pytest.fixture
async def stage(
    births: Nursery,
    survived: dict[object, Mapping[str, int]],
    request: pytest.FixtureRequest,
    template: str,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Stage]:
    monkeypatch.setattr(moves, "LEASE_S", LEASE_S)
    run = find_run(request.config)
    with ExitStack() as made:
        # A database for each moment of a kill, and one for the run without kills.
        dsns = [made.enter_context(_database(run, request, template)) for _ in (*MOMENTS, None)]
        for dsn in dsns:
            async with make(dsn, redis_url):
                pass  # it declares its queues
        yield Stage(births, dsns, redis_url, tmp_path, survived)


def test_every_script_has_a_scenario() -> None:
    assert {name.partition("/")[0] for name in SCENARIOS} == scripts_of("jobs").keys()


async def check(stage: Stage, name: str, moments: Sequence[str], rounds: int = 1) -> None:
    """Kill a process at these places; it leaves what a run without kills leaves."""
    async with asyncio.TaskGroup() as group:
        kept = group.create_task(stage.survive(name))
        left = [group.create_task(killed(stage, name, moment, rounds)) for moment in moments]
    for moment, found in zip(moments, left, strict=True):
        for number, keys in enumerate(found.result(), 1):
            check_keys(name, moment, kept.result(), keys, f"{moment}:{number}")


async def killed(stage: Stage, name: str, moment: str, rounds: int) -> list[Mapping[str, int]]:
    """The keys that are left after a death at each of the first runs of a script."""
    at, script = MOMENTS.index(moment), name.partition("/")[0]
    return [
        await stage.play(name, stage.dsns[at], f"{script}:{moment}:{number}", at)
        for number in range(1, rounds + 1)
    ]


def check_keys(
    name: str, moment: str, kept: Mapping[str, int], left: Mapping[str, int], where: str
) -> None:
    at, found, wanted = MOMENTS.index(moment), Counter(left), Counter(kept)
    # Workers that have died are forgotten as others claim.
    for keys in (found, wanted):
        keys.pop("idle", None)
    assert wanted.keys() <= KEPT
    wanted.update(SCENARIOS[name].left[at])
    # A worker that has claimed something is dropped when others look for orphans.
    assert found.pop("holders", 0) <= wanted.pop("holders", 0) + 1, where
    assert found == wanted, where


@pytest.mark.parametrize("where", EVERYDAY)
async def test_a_kill_loses_nothing(stage: Stage, where: str) -> None:
    script, moment = where.split(":")
    await check(stage, script, [moment])


@pytest.mark.chaos
@pytest.mark.row("F09")
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_a_kill_at_every_script_loses_nothing(stage: Stage, name: str) -> None:
    """Before and after it at the same time: most of a scene is waiting for a timeout."""
    await check(stage, name, MOMENTS, min(ROUNDS, SCENARIOS[name].calls))
