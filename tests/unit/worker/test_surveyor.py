"""How often a worker surveys, and what it does with the result."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

import pytest

from chancy.broker.optional import Survey
from chancy.testing.clock import ManualClock
from chancy.worker.crowd import Crowd
from chancy.worker.surveyor import SurveyedQueues, Surveyor
from tests.support.waiting import eventually

WORKER = uuid.uuid4()


@dataclass
class Scene:
    """A surveyor, its broker and its queues; returns the same survey each time."""

    survey_: Survey = field(default_factory=lambda: Survey((), (), 0, 1, {}, "1", None, 0.0))
    surveys: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    counts: list[bool] = field(default_factory=list[bool])
    called: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    claimed: list[tuple[Collection[str], bool]] = field(
        default_factory=list[tuple[Collection[str], bool]]
    )
    stopped: list[uuid.UUID] = field(default_factory=list[uuid.UUID])
    changes: int = 0
    occupied: Sequence[str] = ()
    poll_interval_s: float = 1.0
    listening: bool = True
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.crowd = Crowd(self.clock)
        self.surveyor = Surveyor(
            self, self.crowd, self.clock, worker_id=lambda: WORKER, listening=lambda: self.listening
        )

    async def survey(
        self, worker_id: uuid.UUID, occupied: Sequence[str], *, count: bool = True
    ) -> Survey:
        assert worker_id == WORKER
        self.surveys.append(occupied)
        self.counts.append(count)
        return self.survey_ if count else self.survey_._replace(place=None, crowd=None)

    async def call_all(self, queues: Sequence[str]) -> None:
        self.called.append(queues)

    async def suppress(self, queue: str, seconds: float) -> None: ...

    def _changed(self) -> None:
        self.changes += 1

    async def serve(self) -> None:
        await self.surveyor.serve(
            SurveyedQueues(
                poll_interval_s=lambda: self.poll_interval_s,
                occupied=lambda: self.occupied,
                claim=lambda queues, unheard: self.claimed.append((queues, unheard)),
                stop=self.stopped.append,
                on_changed=self._changed,
            )
        )

    async def surveys_in(self, seconds: int) -> int:
        """The number of surveys in a time."""
        before = len(self.surveys)
        for _ in range(4 * seconds):
            await eventually(lambda: self.clock.sleepers)
            self.clock.advance(0.25)
        await eventually(lambda: self.clock.sleepers)
        return len(self.surveys) - before


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    serving = asyncio.create_task(scene.serve())
    await eventually(lambda: scene.clock.sleepers)
    yield scene
    serving.cancel()
    await asyncio.wait([serving])


@pytest.mark.parametrize(
    ("poll_interval_s", "listening", "least", "most"),
    [(1.0, True, 9, 16), (0.1, True, 45, 75), (60.0, True, 9, 16), (60.0, False, 45, 75)],
)
async def test_worker_surveys_more_rarely_while_notifications_arrive(
    scene: Scene, poll_interval_s: float, listening: bool, least: int, most: int
) -> None:
    scene.poll_interval_s, scene.listening = poll_interval_s, listening
    await scene.surveys_in(10)
    assert least <= await scene.surveys_in(60) <= most


@pytest.mark.parametrize(("took_s", "least", "most"), [(0.001, 10, 16), (0.01, 1, 3), (9.0, 0, 2)])
async def test_large_crowd_surveys_so_rarely_that_it_uses_a_quarter_of_a_core(
    scene: Scene, took_s: float, least: int, most: int
) -> None:
    scene.survey_ = scene.survey_._replace(crowd=1_000, took_s=took_s)
    await scene.surveys_in(20)
    assert least <= await scene.surveys_in(80) <= most * 80 / 60


async def test_large_crowd_is_not_counted_by_every_survey(scene: Scene) -> None:
    scene.survey_ = scene.survey_._replace(crowd=150)
    await scene.surveys_in(20)
    assert all(scene.counts)
    scene.survey_ = scene.survey_._replace(crowd=450)
    await scene.surveys_in(60)
    assert scene.counts[-9:].count(True) == 3
    assert scene.crowd.size == 450


async def test_worker_claims_from_the_queues_found_and_stops_the_jobs_found(scene: Scene) -> None:
    assert (scene.claimed, scene.stopped) == ([], [])
    job = uuid.uuid4()
    scene.survey_ = scene.survey_._replace(waiting=["a", "b"], stopping=[job])
    await scene.surveys_in(6)
    assert (scene.claimed[0], scene.stopped[0]) == ((["a", "b"], False), job)


async def test_survey_after_lost_notifications_says_so(scene: Scene) -> None:
    scene.survey_ = scene.survey_._replace(waiting=["a"])
    await scene.surveys_in(6)
    assert scene.claimed
    assert not any(unheard for _, unheard in scene.claimed)
    scene.claimed.clear()
    scene.surveyor.soon()
    await scene.surveys_in(20)
    assert [unheard for _, unheard in scene.claimed[:2]] == [True, False]


async def test_queues_are_read_again_once_their_version_changes(scene: Scene) -> None:
    assert scene.changes == 1
    await scene.surveys_in(20)
    assert scene.changes == 1
    scene.survey_ = scene.survey_._replace(queues_version="2")
    await scene.surveys_in(20)
    assert scene.changes == 2


async def test_occupied_queues_are_reported_up_to_a_bound(scene: Scene) -> None:
    scene.occupied = [f"q{n:03}" for n in range(100)]
    await scene.surveys_in(6)
    assert scene.surveys[-1] == scene.occupied[:64]


async def test_survey_after_an_outage_comes_soon_and_the_place_is_unknown_until_then(
    scene: Scene,
) -> None:
    scene.survey_ = scene.survey_._replace(crowd=50)
    await scene.surveys_in(6)
    before = len(scene.surveys)
    scene.surveyor.soon()
    assert scene.crowd.size == 0
    await eventually(lambda: len(scene.surveys) > before)
    assert scene.crowd.size == 50


async def test_other_workers_are_called_at_once_and_without_a_survey(scene: Scene) -> None:
    scene.survey_ = scene.survey_._replace(crowd=50)
    await scene.surveys_in(6)
    before = len(scene.surveys)
    scene.crowd.call("q")
    await eventually(lambda: scene.called == [["q"]])
    assert len(scene.surveys) == before
