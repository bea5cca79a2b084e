"""When jobs of functions that a worker does not know wait, and when they fail."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from pathlib import Path

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Raised, Returned, SetAside
from chancy.broker.values import MOST_SET_ASIDE, WorkerRecord
from chancy.errors import UnknownFunction, UnknownVersion
from chancy.job.registry import Registry
from chancy.worker.unknown_functions import UnknownFunctions, look_up

OWN_ID = uuid.uuid4()
NEW = "shop.jobs.new"
UNKNOWN = Raised(Failure.of(UnknownFunction("no job is registered")))


class HandClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        raise NotImplementedError


class Scene:
    """The unknown functions of a worker, whose clock and registry a test changes."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.registered: set[str] = set()
        self.looked_up = 0
        self.unknown = UnknownFunctions("mail", self.find, self.clock, after_s=3_600.0)

    def find(self, func: str) -> object:
        self.looked_up += 1
        if func not in self.registered:
            raise UnknownFunction(f"no job is registered as {func}")
        return func

    def check_for(self, seconds: float, *workers: WorkerRecord) -> None:
        """Check every 30 seconds, while jobs of the function are met."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 30.0
            assert self.unknown.check_due()
            self.unknown.knows(NEW)
            self.unknown.check(workers, OWN_ID, 15.0)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def claim(func: str = NEW) -> Claim:
    return Claim(uuid.uuid4(), uuid.uuid4(), OWN_ID, "mail", func, None, 1, 3, 0, 0, 0, None)


def worker(
    *unknown: str,
    queue: str = "mail",
    heartbeat_age_s: float = 0.0,
    worker_id: uuid.UUID | None = None,
) -> WorkerRecord:
    return WorkerRecord(
        id=worker_id or uuid.uuid4(),
        host="host",
        pid=1,
        tags=frozenset(),
        queues=(queue,),
        version="1",
        heartbeat_age_s=heartbeat_age_s,
        unknown=unknown,
    )


def test_jobs_of_an_unknown_function_are_set_aside(scene: Scene) -> None:
    assert isinstance(scene.unknown.changed(claim(), UNKNOWN), SetAside)
    assert list(scene.unknown.names) == [NEW]
    assert isinstance(scene.unknown.outcome_of(claim()), SetAside)


def test_other_outcomes_stay_as_they_are(scene: Scene) -> None:
    for outcome in (Returned("1"), Raised(Failure.named("shop.Oops", "oops"))):
        assert scene.unknown.changed(claim(), outcome) is outcome
    assert not scene.unknown.names


def test_an_unknown_function_is_logged_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        scene.unknown.changed(claim(), UNKNOWN)
        scene.unknown.knows(NEW)
    scene.check_for(1_000)
    events = [record.getMessage() for record in caplog.records]
    assert len(events) == 1
    assert "function_unknown queue=mail func='shop.jobs.new'" in events[0]
    assert caplog.records[0].levelno == logging.WARNING


def test_jobs_fail_once_no_live_worker_has_known_their_function_for_long_enough(
    scene: Scene,
) -> None:
    assert not scene.unknown.knows(NEW)
    scene.check_for(3_570, worker(NEW), worker(queue="other"), worker(worker_id=OWN_ID))
    assert isinstance(scene.unknown.outcome_of(claim()), SetAside)
    scene.check_for(60, worker(NEW))
    assert scene.unknown.knows(NEW)
    outcome = scene.unknown.outcome_of(claim())
    assert isinstance(outcome, Raised)
    assert outcome.failure.is_a("chancy.errors.UnknownFunction")
    assert "no live worker has known the function for 3600 s" in outcome.failure.message


def test_a_worker_that_may_know_the_function_keeps_its_jobs_waiting(scene: Scene) -> None:
    assert not scene.unknown.knows(NEW)
    scene.check_for(7_200, worker(NEW), worker("shop.jobs.other"))
    assert isinstance(scene.unknown.outcome_of(claim()), SetAside)
    # From its death on, the whole time passes again.
    scene.check_for(3_570, worker(NEW), worker(heartbeat_age_s=16.0))
    assert isinstance(scene.unknown.outcome_of(claim()), SetAside)
    scene.check_for(60, worker(NEW))
    assert isinstance(scene.unknown.outcome_of(claim()), Raised)
    scene.check_for(30, worker())
    assert isinstance(scene.unknown.outcome_of(claim()), SetAside)


def test_an_unknown_function_is_looked_up_at_growing_intervals(scene: Scene) -> None:
    for _ in range(3_600):
        assert not scene.unknown.knows(NEW)
        scene.clock.now += 1.0
    assert 5 <= scene.looked_up <= 15


def test_a_function_that_becomes_known_runs(scene: Scene) -> None:
    assert not scene.unknown.knows(NEW)
    scene.registered.add(NEW)
    scene.clock.now += 60.0
    assert scene.unknown.knows(NEW)
    assert not scene.unknown.names
    assert scene.unknown.changed(claim(), Returned()) == Returned()
    assert not scene.unknown.tried


def test_a_function_that_only_the_worker_process_knows_is_tried_at_growing_intervals(
    scene: Scene,
) -> None:
    scene.registered.add(NEW)
    tries = 0
    for _ in range(3_600):
        if scene.unknown.knows(NEW):
            tries += 1
            assert isinstance(scene.unknown.changed(claim(), UNKNOWN), SetAside)
        scene.clock.now += 1.0
    assert 5 <= tries <= 15


def test_a_function_that_no_longer_occurs_is_dropped(scene: Scene) -> None:
    assert not scene.unknown.knows(NEW)
    scene.clock.now += 601.0
    scene.unknown.check([], OWN_ID, 15.0)
    assert not scene.unknown.names


def test_the_number_of_unknown_functions_is_bounded(scene: Scene) -> None:
    for number in range(MOST_SET_ASIDE + 10):
        assert isinstance(scene.unknown.changed(claim(f"shop.f{number}"), UNKNOWN), SetAside)
        assert not scene.unknown.knows(f"shop.g{number}")
    assert len(scene.unknown.names) == MOST_SET_ASIDE


def test_a_function_is_looked_up_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_not_imported.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(str(tmp_path))
    look_up(Registry(allow=["shop_*"]), "shop_not_imported.work")
    assert "shop_not_imported" not in sys.modules
    with pytest.raises(UnknownFunction, match="allow="):
        look_up(Registry(allow=["other_*"]), "shop_not_imported.work")


def test_a_later_version_sets_its_own_job_aside_for_ever_longer(scene: Scene) -> None:
    scene.registered.add(NEW)
    later = Raised(Failure.of(UnknownVersion("the arguments have version 3")))
    for pause_s in (15.0, 30.0, 60.0):
        assert isinstance(scene.unknown.changed(claim(NEW), later), SetAside)
        # Others of the function run, and no other worker is told that it is unknown.
        assert NEW not in scene.unknown.names
        scene.clock.now += pause_s - 0.1
        assert not scene.unknown.knows(NEW)
        scene.clock.now += 0.2
        assert scene.unknown.knows(NEW)
