"""For which workers a supervisor sends heartbeats, and which it removes."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import pytest

from chancy.errors import LOCK_NOT_AVAILABLE, BrokerUnavailable, StatementFailed
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.statements import Statements
from chancy.worker.supervisor import heartbeats as module
from chancy.worker.supervisor import liveness
from chancy.worker.supervisor.heartbeats import SupervisorHeartbeats
from chancy.worker.supervisor.link import WorkerReport
from chancy.worker.supervisor.liveness import Liveness, LivenessStatus
from tests.support.waiting import eventually_sync

HUNG, LIVE = 1, 2


class Noting:
    """Takes the place of the connection."""

    beats: ClassVar[Counter[uuid.UUID]] = Counter()
    removed: ClassVar[list[uuid.UUID]] = []
    #: Workers whose rows another transaction has locked.
    locked: ClassVar[set[uuid.UUID | None]] = set()

    def __init__(self, dsn: str, statements: Statements) -> None: ...

    def beat(self, worker_id: uuid.UUID, blocked_s: float) -> bool:
        self.beats[worker_id] += 1
        self._lock(worker_id)
        return True

    def forget(self, worker_id: uuid.UUID) -> bool:
        self._lock(worker_id)
        self.removed.append(worker_id)
        return True

    def _lock(self, worker_id: uuid.UUID) -> None:
        if worker_id in self.locked:
            raise StatementFailed("locked", sqlstate=LOCK_NOT_AVAILABLE)

    def close(self) -> None: ...


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each process was looked at."""
    found = Counter[int]()

    def read(pid: int) -> Liveness:
        found[pid] += 1
        return Liveness("T", {}) if pid == HUNG else Liveness("R", {1: float(found[pid])})

    monkeypatch.setattr(liveness, "read", read)
    monkeypatch.setattr(module, "Register", Noting)
    Noting.beats.clear()
    Noting.removed.clear()
    Noting.locked.clear()
    return found


@pytest.fixture
def heartbeats(checks: Counter[int]) -> Iterator[SupervisorHeartbeats]:
    made = SupervisorHeartbeats()
    made.start()
    yield made
    made.stop(10.0)


def report() -> WorkerReport:
    return WorkerReport(uuid.uuid4(), "postgresql://", "chancy", heartbeat_s=0.02)


def test_only_a_worker_that_lives_gets_heartbeats(
    heartbeats: SupervisorHeartbeats, checks: Counter[int]
) -> None:
    hung, live = report(), report()
    heartbeats.receive(1, HUNG, hung)
    heartbeats.receive(2, LIVE, live)
    assert live.worker is not None
    worker = live.worker
    eventually_sync(lambda: checks[HUNG] > 3 and Noting.beats[worker] > 3)
    assert set(Noting.beats) == {worker}
    assert heartbeats.status(1) is LivenessStatus.STOPPED


def test_a_worker_that_has_died_is_removed(heartbeats: SupervisorHeartbeats) -> None:
    dead, other = report(), report()
    heartbeats.receive(1, LIVE, dead)
    heartbeats.receive(2, LIVE, other)
    heartbeats.worker_died(1, dead)
    eventually_sync(lambda: Noting.removed, timeout=10.0)
    heartbeats.stop(10.0)
    assert Noting.removed == [dead.worker]


def test_the_locked_row_of_a_worker_holds_up_no_other(heartbeats: SupervisorHeartbeats) -> None:
    dead, gone, locked, live = (report() for _ in range(4))
    Noting.locked |= {dead.worker, locked.worker}
    heartbeats.receive(3, LIVE, locked)
    heartbeats.receive(4, LIVE, live)
    heartbeats.worker_died(1, dead)
    heartbeats.worker_died(2, gone)
    assert live.worker is not None
    worker = live.worker
    eventually_sync(lambda: Noting.removed == [gone.worker] and Noting.beats[worker] > 3)


def test_the_reason_of_a_failed_heartbeat_is_one_line_of_the_log() -> None:
    register = Register("postgresql://ann@127.0.0.1:1/shop", Statements("chancy"))
    with pytest.raises(BrokerUnavailable) as raised:
        register.beat(uuid.uuid4(), 0.0)
    assert "refused" in str(raised.value)
    assert "\n" not in str(raised.value)
