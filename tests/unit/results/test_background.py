"""The loop beside threads that have none."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, cast
from uuid import UUID

import pytest

from chancy.app.background_broker import BackgroundBroker
from chancy.broker.contract import Broker
from chancy.errors import BrokerUnavailable
from chancy.job.definition import QueuedJob
from chancy.results.background import BackgroundLoop
from tests.support.waiting import eventually_sync


class Slow:
    """A broker that is never reached."""

    opening = False

    async def open(self) -> None:
        self.opening = True
        await asyncio.Event().wait()

    async def close(self) -> None:
        """It was not opened."""


class UnusedWaiter:
    """A waiter that is never reached."""

    async def wait(self, id: UUID, timeout_s: float | None, *, stored: bool = False) -> QueuedJob:
        raise AssertionError(id)

    async def close(self) -> None:
        """There is nothing to end."""


def in_background(broker: Slow) -> BackgroundBroker:
    return BackgroundBroker(
        lambda: (cast("Broker", broker), UnusedWaiter()), "chancy", routed=False
    )


def test_a_wait_for_an_unreachable_broker_ends_at_the_close() -> None:
    broker = Slow()
    background = in_background(broker)
    waiting = background.begin(uuid.uuid4(), None)
    given_up = background.begin(uuid.uuid4(), None)
    eventually_sync(lambda: broker.opening)
    given_up.cancel()
    background.close()
    with pytest.raises(BrokerUnavailable, match="the application was closed"):
        waiting.result(30)
    assert given_up.cancelled()


class Counted(Slow):
    """A broker that counts how often it is opened."""

    opened = 0

    async def open(self) -> None:
        self.opened += 1


def test_calls_do_not_try_again_to_open_brokers_that_are_unavailable() -> None:
    async def nothing(broker: Broker) -> None: ...

    broker = Counted()
    background = in_background(broker)
    for _ in range(3):
        background.run(nothing)
    background.close()
    assert broker.opened == 1


class Stubborn(Slow):
    """A broker whose opening ends only when it is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def open(self) -> None:
        try:
            await super().open()
        finally:
            await self.closed.wait()

    async def close(self) -> None:
        self.closed.set()


def test_a_wait_that_was_given_up_before_the_close_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.collect()  # what other tests have left may be logged, too
    caplog.clear()
    broker = Stubborn()
    background = in_background(broker)
    given_up = background.begin(uuid.uuid4(), None)
    eventually_sync(lambda: broker.opening)
    given_up.cancel()
    background.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_call_after_the_close_is_refused() -> None:
    """And starts no thread that nothing would stop."""
    before = set(threading.enumerate())
    background = in_background(Slow())
    background.close()
    with pytest.raises(BrokerUnavailable, match="the application was closed"):
        background.begin(uuid.uuid4(), None)
    begun = set(threading.enumerate()) - before
    assert not [thread for thread in begun if thread.name == "chancy calls"]


def test_a_pending_call_is_notified_of_a_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The close comes between the look for the loop and the hand-over to it."""
    background = in_background(Slow())
    first = background.begin(uuid.uuid4(), None)
    real = asyncio.run_coroutine_threadsafe
    closing: list[threading.Thread] = []

    def hand_over(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future[Any]:
        if not closing:
            closing.append(threading.Thread(target=background.close))
            closing[0].start()
            # Without a lock around both it is through by then.
            closing[0].join(0.2)
        return real(work, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", hand_over)
    second = background.begin(uuid.uuid4(), None)
    for one in (first, second):
        with pytest.raises(BrokerUnavailable, match="the application was closed"):
            one.result(30)
    closing[0].join()


def test_a_fork_while_another_thread_begins_a_call_does_not_block_the_child() -> None:
    code = """
import asyncio, os, signal, threading
from chancy.results.background import BackgroundLoop

async def work():
    return 7

def submit(work, loop):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        forked.wait()
    return real(work, loop)

calls = BackgroundLoop(work)
assert calls.run(work()) == 7
begun, forked = threading.Event(), threading.Event()
real, asyncio.run_coroutine_threadsafe = asyncio.run_coroutine_threadsafe, submit
thread = threading.Thread(target=lambda: calls.run(work()))
thread.start()
begun.wait()
if not (child := os.fork()):
    signal.alarm(30)
    os._exit(calls.run(work()))
forked.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
calls.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_closes_right_after_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the thread of the loop has yet to note that the call has returned."""
    noted, closed = threading.Event(), list[bool]()
    invoke: Callable[[Future[Any]], None] = vars(Future)["_invoke_callbacks"]

    def late(future: Future[Any]) -> None:
        if not closed:
            noted.wait(0.5)
        invoke(future)

    async def disconnect() -> None:
        closed.append(True)

    async def nothing() -> None:
        """The call."""

    calls = BackgroundLoop(disconnect)
    with monkeypatch.context() as patch:
        patch.setattr(Future, "_invoke_callbacks", late)
        calls.run(nothing())
        calls.close()
        noted.set()
    assert closed == [True]
