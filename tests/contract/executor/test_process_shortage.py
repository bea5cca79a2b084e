"""Children that cannot even be made, since this process has no descriptors left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest

from chancy.executors.process import prefetch as hand_over
from tests.contract.executor.calls import DEADLINE_S, result, started
from tests.support.waiting import eventually


class Shortage:
    """Whether channels to children can be had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.met = 0
        shortage = self

        class Channel(hand_over.Channel):
            def __init__(self) -> None:
                if shortage.on:
                    shortage.met += 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                super().__init__()

        monkeypatch.setattr(hand_over, "Channel", Channel)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


async def test_process_start_without_descriptors_is_reported_and_tried_again(
    shortage: Shortage, caplog: pytest.LogCaptureFixture
) -> None:
    shortage.on = True
    async with asyncio.timeout(DEADLINE_S), started("process", concurrency=2) as it:
        assert it.slots == 0
        assert it.broken is not None
        assert "could not be started: [Errno 24] Too many open files" in it.broken
        assert caplog.text.count("Too many open files before it was ready: the next try is in") == 2
        await eventually(lambda: shortage.met >= 4)
        shortage.on = False
        assert await result(it, "echo", value=1) == 1
        assert it.broken is None


async def test_process_replacement_without_descriptors_is_broken_until_there_are_some(
    shortage: Shortage,
) -> None:
    async with asyncio.timeout(DEADLINE_S), started("process") as it:
        first = await result(it, "pid")
        shortage.on = True
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: it.broken)
        assert it.slots == 0
        shortage.on = False
        assert await result(it, "pid") != first
        assert it.slots > 0


async def test_process_stop_while_there_are_no_descriptors(shortage: Shortage) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with started("process", concurrency=2) as it:
            shortage.on = True
            os.kill(await result(it, "pid"), signal.SIGKILL)
            await eventually(lambda: shortage.met)
