"""What stops a job in a child stops no other, and nothing of the child's own."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from contextvars import copy_context
from uuid import uuid4

import pytest

from chancy.attempt.claim import Claim
from chancy.context.context import JobContext
from chancy.context.host import DetachedHost
from chancy.errors import Interrupted
from chancy.executors.process.call import ChildCall, pack
from chancy.executors.process.child.connection import ChildConnection
from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.child.requests import Request
from chancy.executors.process.protocol import STORED, packed
from chancy.job.limits import NO_LIMITS
from tests.contract.executor.calls import DEADLINE_S


@pytest.fixture
def guard() -> Interrupter:
    return Interrupter()


def begin(guard: Interrupter, number: int) -> JobContext:
    claim = Claim(uuid4(), uuid4(), uuid4(), "default", "shop.pay", None, 1, 3, 0, 0, 0, None)
    call = ChildCall(pack(number, claim, NO_LIMITS)[0])
    job = JobContext(call, DetachedHost())
    guard.job_started(call, job)
    return job


def test_stops_the_job_that_runs(guard: Interrupter) -> None:
    job = begin(guard, 1)
    with pytest.raises(Interrupted, match="enough"):
        guard.call(copy_context(), lambda: guard.stop(1, "enough"), {})
    assert guard.stopped
    assert job.why_cancelled == "enough"


def test_stops_no_other_job(guard: Interrupter) -> None:
    job = begin(guard, 2)
    assert guard.call(copy_context(), lambda: guard.stop(1, "late"), {}) is None
    assert guard.call(copy_context(), lambda: guard.stop(3, "early"), {}) is None
    assert not job.cancelled
    guard.job_ended()
    begin(guard, 3)
    with pytest.raises(Interrupted, match="early"):
        guard.call(copy_context(), lambda: 1, {})


def test_stops_nothing_before_the_call_and_after_it(guard: Interrupter) -> None:
    begin(guard, 1)
    guard.call(copy_context(), lambda: 1, {})
    guard.stop(1, "after the function has returned")
    assert not guard.stopped, "it ended by itself"
    guard.job_ended()
    guard.stop(1, "after the job")
    begin(guard, 2)
    assert guard.call(copy_context(), lambda: 1, {}) == 1
    guard.job_ended()
    begin(guard, 3)
    guard.stop(3, "before the function is called")
    with pytest.raises(Interrupted):
        guard.call(copy_context(), lambda: 1, {})


def test_stops_a_job_once(guard: Interrupter) -> None:
    """Its own cleaning up is not broken off."""
    begin(guard, 1)

    def work() -> str:
        try:
            guard.stop(1, "first")
        except Interrupted as error:
            guard.stop(1, "second")
            return str(error)
        return "went on"

    assert guard.call(copy_context(), work, {}) == "first"
    assert guard.stopped


def test_puts_off_a_stop_in_the_middle_of_a_word(guard: Interrupter) -> None:
    begin(guard, 1)
    said: list[str] = []

    def work() -> None:
        guard.hold()
        guard.stop(1, "enough")
        said.append("whole")
        guard.release()

    with pytest.raises(Interrupted):
        guard.call(copy_context(), work, {})
    assert said == ["whole"]


async def test_stops_a_coroutine_by_its_task(guard: Interrupter) -> None:
    begin(guard, 1)

    async def work() -> str:
        guard.stop(1, "enough")  # in the middle of a step, which goes on
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            return str(error)
        return "went on"

    assert await asyncio.create_task(guard.awaiting(work())) == "enough"
    assert guard.stopped


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_reply_arrives_whose_signal_another_thread_took(
    guard: Interrupter, coroutine: bool
) -> None:
    """The kernel gives a signal to any thread; Python runs its handler in the main thread, and does
    not wake it."""
    here, there = socket.socketpair()
    connection = ChildConnection(here, guard, lambda frame: request.settle(None))
    request = Request(connection)

    async def awaiting() -> None:
        await request

    def wait() -> None:
        asyncio.run(awaiting()) if coroutine else request.wait(lambda: None)

    waiter = threading.Thread(target=wait, daemon=True)

    def reply() -> None:
        there.sendall(packed(STORED, 1, 1.0))
        signal.pthread_kill(waiter.ident or 0, signal.SIGURG)

    # Once this thread blocks: it must not run the handler by itself.
    replying = threading.Timer(0.2, reply)
    before = signal.signal(signal.SIGURG, lambda signum, frame: connection.receive())
    try:
        waiter.start()
        replying.start()
        started = time.monotonic()
        waiter.join(DEADLINE_S)
        assert time.monotonic() < started + DEADLINE_S
    finally:
        signal.signal(signal.SIGURG, before)
        replying.join()
        here.close()
        there.close()


def test_a_reply_to_a_loop_that_is_closed_is_dropped(guard: Interrupter) -> None:
    here, there = socket.socketpair()
    request = Request(ChildConnection(here, guard, lambda frame: None))

    async def give_up() -> None:
        async with asyncio.timeout(0.01):
            await request

    with here, there:
        with pytest.raises(TimeoutError):
            asyncio.run(give_up())
        request.settle(None)
