"""A process is killed at each boundary of each script: before it is sent, and when Redis has run it
and nobody here knows. What it left behind is brought to its end by others."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.plugins.redis.jobs.doomed_processes import Nursery, nursery
from tests.plugins.redis.jobs.errand_fleet import balanced
from tests.plugins.redis.jobs.errands import make
from tests.plugins.redis.jobs.scene import Scene, check_ends, go_on, looking
from tests.plugins.redis.jobs.script_scenarios import SCENARIOS, Scenario
from tests.support import leftovers
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
    dsn: str
    url: str
    folder: Path
    survived: dict[object, Mapping[str, int]]

    def scene(self, scenario: Scenario) -> Scene:
        """One that shares nothing with another."""
        name = uuid.uuid4().hex[:12]
        book = self.folder / name
        book.touch()
        return Scene(self.dsn, self.url, f"{name}:", str(book), scenario.alone)

    async def play(self, name: str, fatal: str | None, at: int) -> Mapping[str, int]:
        """A scene from the beginning to the end; gives the keys that are left.

        :param fatal: None: the process lives.
        :param at: of the pairs in the scenario.
        """
        scenario = SCENARIOS[name]
        scene = self.scene(scenario)
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
            self.survived[known] = await self.play(name, None, 1)
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
    dsn: str,
    redis_url: str,
    tmp_path: Path,
) -> Stage:
    async with make(dsn, redis_url):
        pass  # it declares its queues
    return Stage(births, dsn, redis_url, tmp_path, survived)


def test_every_script_has_a_scenario() -> None:
    assert {name.partition("/")[0] for name in SCENARIOS} == scripts_of("jobs").keys()


async def check_place(stage: Stage, name: str, moment: str, number: int = 1) -> None:
    """Kill a process there: what is left is what one leaves that nobody has killed."""
    at = MOMENTS.index(moment)
    script = name.partition("/")[0]
    found = Counter(await stage.play(name, f"{script}:{moment}:{number}", at))
    wanted = Counter(await stage.survive(name))
    # Workers that have died are forgotten as others claim.
    for keys in (found, wanted):
        keys.pop("idle", None)
    assert wanted.keys() <= KEPT
    wanted.update(SCENARIOS[name].left[at])
    # A worker that has claimed something is dropped when others look for orphans.
    assert found.pop("holders", 0) <= wanted.pop("holders", 0) + 1
    assert found == wanted


@pytest.mark.parametrize("where", EVERYDAY)
async def test_a_kill_loses_nothing(stage: Stage, where: str) -> None:
    script, moment = where.split(":")
    await check_place(stage, script, moment)


@pytest.mark.chaos
@pytest.mark.row("F09")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_a_kill_at_every_script_loses_nothing(stage: Stage, name: str, moment: str) -> None:
    for number in range(min(ROUNDS, SCENARIOS[name].calls)):
        await check_place(stage, name, moment, 1 + number)
