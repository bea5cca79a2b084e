"""What runs in a worker beside its processors: timers, crontabs and startup tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import timers
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.support.waiting import eventually


class Gate:
    """A leader gate that a test opens and closes."""

    def __init__(self, leads: bool) -> None:
        self._leads = asyncio.Event()
        if leads:
            self._leads.set()

    @property
    def leading(self) -> bool:
        return self._leads.is_set()

    @property
    def term(self) -> int | None:
        return 1 if self.leading else None

    async def wait(self) -> int:
        await self._leads.wait()
        return 1

    def vacant(self) -> None: ...

    def elect(self) -> None:
        self._leads.set()


Start = Callable[[Streams, Gate | None], asyncio.Task[None]]


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[asyncio.Task[None]] = []

    def begin(streams: Streams, gate: Gate | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(streams.serve(leader=gate))
        running.append(task)
        return task

    yield begin
    for task in running:
        await stop(task)


def declared(where: dict[str, Any]) -> Streams:
    return Streams(RedisSettings(**where, prefix="t:"))


@pytest.mark.row("R36")
async def test_a_crontab_fires_by_the_clock_of_its_zone_once_in_each_worker(
    redis_url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a moment before nine of Kiritimati, which is another day than that of UTC."""
    zero = time.monotonic()

    class Moved:
        @staticmethod
        def now(_: tzinfo) -> datetime:
            moment = datetime(2031, 3, 2, 18, 59, 59, 500_000, tzinfo=UTC)
            return moment + timedelta(seconds=time.monotonic() - zero)

    monkeypatch.setattr(timers, "datetime", Moved)
    fired: list[tuple[int, str]] = []

    def declare(worker: int) -> Streams:
        streams = declared({"url": redis_url})

        async def at_nine() -> None:
            fired.append((worker, "nine"))

        async def elsewhere() -> None:
            fired.append((worker, "elsewhere"))

        async def later() -> None:
            fired.append((worker, "later"))

        streams.crontab("0 9 3 3 *", zone="Pacific/Kiritimati", name="nine")(at_nine)
        streams.crontab("0 9 * * *", zone="UTC", name="elsewhere")(elsewhere)
        # A second later: what was to fire twice would have done so.
        streams.crontab("0 9 3 3 * 1", zone="Pacific/Kiritimati", name="later")(later)
        return streams

    for worker in range(2):
        start(declare(worker), Gate(leads=False))
    await eventually(lambda: [what for _, what in fired].count("later") == 2)
    assert sorted(fired) == [(0, "later"), (0, "nine"), (1, "later"), (1, "nine")]


@pytest.mark.row("R35", "R45")
async def test_a_timer_continues_after_a_failure_and_never_overlaps(
    place: dict[str, Any], start: Start
) -> None:
    streams = declared(place)
    at_once, most, runs = 0, 0, 0

    @streams.timer(every_s=0.02)
    async def slow() -> None:
        nonlocal at_once, most, runs
        at_once += 1
        most = max(most, at_once)
        runs += 1
        await asyncio.sleep(0.05)
        at_once -= 1
        if runs == 1:
            raise ValueError("the first")

    start(streams, None)
    await eventually(lambda: runs >= 4)
    assert most == 1


@pytest.mark.row("R37", "R45")
async def test_timers_on_the_leader_run_in_one_worker(place: dict[str, Any], start: Start) -> None:
    ran: list[int] = []
    gates = [Gate(False), Gate(True)]
    for number, gate in enumerate(gates):
        streams = declared(place)

        async def work(number: int = number) -> None:
            ran.append(number)

        streams.timer(every_s=0.02, on_leader=True, name="led")(work)
        start(streams, gate)
    await eventually(lambda: len(ran) >= 3)
    assert set(ran) == {1}


@pytest.mark.row("R36", "R45")
async def test_a_tick_on_the_leader_is_fired_once_though_two_lead(
    place: dict[str, Any], start: Start
) -> None:
    fired: list[datetime] = []
    for _ in range(2):
        streams = declared(place)

        async def work() -> None:
            fired.append(datetime.now(UTC).replace(microsecond=0))

        streams.crontab("* * * * * *", on_leader=True, name="ticks")(work)
        start(streams, Gate(True))
    await eventually(lambda: len(fired) >= 2)
    assert len(set(fired)) == len(fired)


@pytest.mark.row("R34", "R45")
async def test_a_task_runs_once_in_each_worker_and_again_until_it_succeeds(
    place: dict[str, Any], start: Start
) -> None:
    """One on the leader in one worker only, and it, too, again."""
    ran: list[int] = []
    led: list[int] = []
    for number in range(2):
        streams = declared(place)

        async def work(number: int = number) -> None:
            ran.append(number)
            if ran.count(number) == 1:
                raise ValueError("the first time")

        async def lead(number: int = number) -> None:
            led.append(number)
            if len(led) == 1:
                raise ValueError("the first time")

        streams.task(name="once")(work)
        streams.task(name="led", on_leader=True)(lead)
        start(streams, Gate(leads=number == 0))
    await eventually(lambda: (sorted(ran), led) == ([0, 0, 1, 1], [0, 0]))


@pytest.mark.row("R34", "R45")
async def test_requests_before_the_end_are_not_run_after_it(
    place: dict[str, Any], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends as it says that it lives: the server may hear it after the farewell."""
    streams, call, sent = declared(place), RedisClient.run, asyncio.Event()

    async def work() -> None: ...

    streams.task(on_leader=True, name="once")(work)

    async def slow_call(
        link: RedisClient, script: str, keys: Any, args: Any = (), **more: Any
    ) -> Any:
        async def late() -> Any:
            if args[0] == "beat":
                sent.set()
                await asyncio.sleep(0.1)
            return await call(link, script, keys, args, **more)

        # A cancellation does not reach what is sent.
        return await asyncio.shield(asyncio.create_task(late()))

    monkeypatch.setattr(RedisClient, "run", slow_call)
    task = start(streams, Gate(False))
    await sent.wait()
    await stop(task)
    await asyncio.sleep(0.2)
    assert await streams.link.command("EXISTS", "{t:st}:workers") == 0
    await streams.link.close()


@pytest.mark.row("R34", "R45")
async def test_a_task_on_the_leader_runs_once_for_each_fleet(
    place: dict[str, Any], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, call, answered = list[int](), RedisClient.run, list[str]()

    async def noted(link: RedisClient, script: str, keys: Any, args: Any = (), **more: Any) -> Any:
        answer = await call(link, script, keys, args, **more)
        if script == "streams.once":
            answered.append(args[0])
        return answer

    monkeypatch.setattr(RedisClient, "run", noted)

    def worker(number: int, gate: Gate) -> asyncio.Task[None]:
        streams = declared(place)

        async def work() -> None:
            ran.append(number)

        streams.task(on_leader=True, name="once")(work)
        return start(streams, gate)

    first = worker(1, Gate(True))
    await eventually(lambda: ran == [1])
    second = worker(2, Gate(False))
    third = worker(3, Gate(True))
    # Who comes when the others have gone would begin another fleet.
    await eventually(lambda: answered.count("beat") >= 3 and answered.count("claim") >= 2)
    assert ran == [1], "the fleet has done it"
    for task in (first, second, third):
        await stop(task)
    worker(4, Gate(True))
    await eventually(lambda: ran == [1, 4])


@pytest.mark.row("R34", "R45")
async def test_the_next_leader_begins_a_task_again_within_which_the_last_one_ended(
    place: dict[str, Any], start: Start
) -> None:
    ran: list[int] = []
    gates = [Gate(True), Gate(False)]
    tasks = []
    for number, gate in enumerate(gates):
        streams = declared(place)

        async def work(number: int = number) -> None:
            ran.append(number)
            if number == 0:
                await asyncio.Event().wait()

        streams.task(on_leader=True, name="once")(work)
        tasks.append(start(streams, gate))
    await eventually(lambda: ran == [0])
    await stop(tasks[0])
    gates[1].elect()
    await eventually(lambda: ran == [0, 1])


def test_an_invalid_timer_is_refused() -> None:
    streams = Streams(RedisSettings())

    async def work() -> None: ...

    with pytest.raises(ConfigurationError, match="every_s=0 must be"):
        streams.timer(every_s=0)
    with pytest.raises(ConfigurationError):
        streams.crontab("every day")
    streams.task()(work)
    with pytest.raises(ConfigurationError, match="two tasks or timers 'work'"):
        streams.timer(every_s=1)(work)
