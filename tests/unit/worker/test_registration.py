"""A worker whose heartbeats go without an answer stops its jobs."""

from __future__ import annotations

import asyncio
import threading
import uuid

from chancy.broker.contract import Heartbeat
from chancy.errors import BrokerUnavailable
from chancy.testing.memory import MemoryBroker
from chancy.worker.registration import Registration
from tests.support.waiting import eventually

TIMEOUT_S = 0.4


class Line(Heartbeat):
    """A connection that may stop answering, or be refused."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.refused = False
        self.sent = 0

    def beat(self, blocked_s: float = 0.0) -> bool:
        self.sent += 1
        self.answers.wait()
        if self.refused:
            raise BrokerUnavailable("connection refused")
        return True

    def close(self) -> None: ...


class Reached(MemoryBroker):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line

    def heartbeat(self, worker_id: uuid.UUID) -> Heartbeat:
        return self.line


async def test_a_worker_that_gets_no_answer_is_cut_off_once_in_each_outage() -> None:
    line, cut_off = Line(), list[str]()
    registration = Registration(
        Reached(line),
        tags=(),
        heartbeat_s=0.05,
        blocked_s=lambda: 0.0,
        link=None,
        declared_dead=lambda: None,
    )
    await registration.register()
    watching = asyncio.create_task(registration.watch(TIMEOUT_S, cut_off.append))
    try:
        line.refused = True  # another worker is refused as well, and none is declared dead
        now = asyncio.get_running_loop().time
        over = now() + TIMEOUT_S
        await eventually(lambda: line.sent > 1 and now() > over)
        assert cut_off == []
        line.refused = False
        await lose(line, cut_off, outages=1)
        await lose(line, cut_off, outages=2)
    finally:
        line.answers.set()
        watching.cancel()
        await asyncio.wait([watching])
        await registration.unregister()
    assert len(cut_off) == 2
    assert "cannot reach the server" in cut_off[0]


async def lose(line: Line, cut_off: list[str], *, outages: int) -> None:
    """Stop answering until the worker is cut off, and then answer again."""
    line.answers.clear()
    await eventually(lambda: len(cut_off) == outages, timeout=10.0)
    sent = line.sent
    line.answers.set()
    await eventually(lambda: line.sent > sent + 2)
