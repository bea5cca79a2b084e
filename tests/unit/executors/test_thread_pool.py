"""Threads of the pool that outlast the event loop."""

from __future__ import annotations

import asyncio
import threading

from chancy.executors.thread.pool import ThreadPool


def test_a_thread_whose_call_outlasts_the_event_loop_closes_what_it_has_opened() -> None:
    begun, gate, closed = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        gate.wait(30)

    async def leave() -> None:
        ThreadPool(1, "left", closed.set).submit(call)
        await asyncio.to_thread(begun.wait, 30)

    asyncio.run(leave())
    gate.set()
    assert closed.wait(30)
