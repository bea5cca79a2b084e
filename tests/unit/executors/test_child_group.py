"""Which executor processes of a kind run, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from chancy.executors.process import group as groups
from chancy.executors.process.group import ChildGroup, ChildKind, ChildUser
from chancy.executors.process.pool import ChildPool
from chancy.queue.executor_options import ProcessOptions
from tests.support.waiting import eventually


class Child:
    """An executor process that a test ends."""

    #: Whether those that start now are ready at once.
    prompt = True
    made: list[Child]

    def __init__(self, number: int, owner: object, options: object) -> None:
        loop = asyncio.get_running_loop()
        self.number, self.owner = number, owner
        self.ready: asyncio.Future[str | None] = loop.create_future()
        self.successor_needed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[str] = loop.create_future()
        self.depth = 1
        self.lent_s = 60.0
        self.never_used = True
        self.made.append(self)

    def start(self, *settings: object) -> None:
        if self.prompt:
            self.ready.set_result(None)

    def lend(self, owner: object) -> None:
        self.owner = owner

    def retire(self) -> None:
        self.close(0.0)

    def close(self, grace_s: float, how: str = "was recycled") -> None:
        self.depth = 0
        if not self.successor_needed.done():
            self.successor_needed.set_result(None)
        if not self.exited.done():
            self.exited.set_result(how)


class User:
    """An executor that has no jobs."""

    weight, borrowed, waits = 1, 0, False

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency

    def give_back_idle(self) -> None:
        """It has none."""

    def group_changed(self) -> None:
        """Nothing depends on it."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    monkeypatch.setattr(groups, "ChildProcess", Child)
    monkeypatch.setattr(Child, "made", [], raising=False)
    monkeypatch.setattr(Child, "prompt", True)
    return Child.made


def group_of(pool: ChildPool) -> ChildGroup:
    return pool.group(ChildKind(options=ProcessOptions(), max_payload=1_000))


async def test_a_successor_whose_place_was_given_up_while_it_started_exits(
    made: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, user = group_of(ChildPool(2)), cast("ChildUser", User(2))
    await group.attach(user)
    first, _ = made
    monkeypatch.setattr(Child, "prompt", False)
    first.successor_needed.set_result(None)
    await eventually(lambda: len(made) == 3)
    assert group.evict(at_once=True)
    assert first.exited.done()
    made[2].ready.set_result(None)
    try:
        await eventually(made[2].exited.done)
        assert group.size == 1
    finally:
        await group.detach(user)
