"""Timers, crontabs and startup tasks beside processors; leader election in Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.plugin.leader import Unelected
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import timers
from chancy.plugins.redis.streams.group.leadership import RedisGate
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.streams.timers import Timer, Timers
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.testing.clock import ManualClock
from tests.plugins.redis.trips import Calls, Send, around, late
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


class Moved:
    """A clock in place of `datetime`: each task that looks at it begins at the same time.

    :ivar looked: set by the first look.
    """

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._zeros = dict[Any, float]()
        self.looked = asyncio.Event()

    def now(self, _: tzinfo) -> datetime:
        self.looked.set()
        now = time.monotonic()
        return self._start + timedelta(
            seconds=now - self._zeros.setdefault(asyncio.current_task(), now)
        )


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
    """Just before nine o'clock in Kiritimati, where the date differs from that in UTC."""
    moved = Moved(datetime(2031, 3, 2, 18, 59, 59, 500_000, tzinfo=UTC))
    monkeypatch.setattr(timers, "datetime", moved)
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
        # A second later, a second run would have started.
        streams.crontab("0 9 3 3 * 1", zone="Pacific/Kiritimati", name="later")(later)
        return streams

    for worker in range(2):
        start(declare(worker), Gate(leads=False))
    wanted = [(0, "later"), (0, "nine"), (1, "later"), (1, "nine")]
    await eventually(lambda: set(fired) >= set(wanted))
    assert sorted(fired) == wanted


@pytest.mark.row("R35", "R45")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BaseException])
async def test_a_timer_continues_after_a_failure_and_never_overlaps(
    place: dict[str, Any], start: Start, error: type[BaseException]
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
            raise error("the first")  # would end the worker

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
    fired: list[int] = []
    both = [declared(place), declared(place)]
    for number, streams in enumerate(both):

        async def work(number: int = number) -> None:
            fired.append(number)

        streams.crontab("* * * * * *", on_leader=True, name="ticks")(work)
        start(streams, Gate(True))
    await eventually(lambda: fired)
    await asyncio.sleep(0.2)  # the other worker would fire it in this time
    count = len(fired)
    # Each tick has a key. A late one may be fired in the second of the next.
    assert count <= len(await both[0].link.command("KEYS", "{t:st}:tick:ticks:*"))


@pytest.mark.row("R34", "R45")
async def test_a_task_runs_once_in_each_worker_and_again_until_it_succeeds(
    place: dict[str, Any], start: Start
) -> None:
    """A task on the leader runs in one worker only, and is also retried."""
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
    """The heartbeat of a worker that stops may reach the server after its leave."""
    streams, sent = declared(place), late(monkeypatch, lambda call: call.args[0] == "beat")

    async def work() -> None: ...

    streams.task(on_leader=True, name="once")(work)
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
    ran, answered = list[int](), list[Any]()

    async def noted(calls: Calls, send: Send) -> list[Any]:
        replies = await send()
        answered.extend(call.args[0] for call in calls)
        return replies

    around(monkeypatch, noted)

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
    # A worker that starts after the others have left begins another fleet.
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


@pytest.mark.row("R33")
async def test_a_lead_that_was_asked_for_before_the_end_is_given_up_behind_it(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request may reach the server after the release: there would be no leader for a lease."""
    sent = late(monkeypatch, lambda call: bool(call.args[1]))
    ending = asyncio.create_task(RedisGate(alone, lease_s=60.0).serve())
    await sent.wait()
    ending.cancel()
    await asyncio.wait([ending])
    await asyncio.sleep(0.2)
    assert await alone.run("streams.lead", ["{t:st}:lead"], ["another", 60_000]) == 2


@pytest.mark.row("R33")
async def test_another_leads_once_the_lease_of_one_that_died_has_ended(alone: RedisClient) -> None:
    began = time.monotonic()
    assert await alone.run("streams.lead", ["{t:st}:lead"], ["died", 500]) == 1
    gate = RedisGate(alone, lease_s=0.8)
    serving = asyncio.create_task(gate.serve())
    # Its own lease may end, too, if the machine stands still: the next term is higher then.
    assert await asyncio.wait_for(gate.wait(), 30) >= 2
    assert time.monotonic() - began > 0.45
    serving.cancel()
    await asyncio.wait([serving])


@pytest.mark.row("R35")
async def test_a_timer_runs_every_interval_and_makes_up_for_none_that_it_missed() -> None:
    """Intervals are measured from start to start, whatever the duration of a run."""
    clock, began = ManualClock(), list[float]()
    takes_s = {2: 0.75, 3: 2.5}  # less than an interval, and more than two

    async def work() -> None:
        began.append(clock.monotonic())
        await clock.sleep(takes_s.get(len(began), 0.0))

    timers = Timers(
        RedisClient(RedisSettings()),
        [Timer("work", work, on_leader=False, every_s=1.0)],
        Unelected(),
        clock,
    )
    serving = asyncio.create_task(timers.serve())
    for _ in range(36):
        await eventually(lambda: clock.sleepers)
        clock.advance(0.25)
    await eventually(lambda: clock.sleepers)
    serving.cancel()
    await asyncio.wait([serving])
    assert began == [1.0, 2.0, 3.0, 5.5, 6.5, 7.5, 8.5]


@pytest.fixture
def streams(proxy: Proxy) -> Streams:
    """The timers of a worker that reaches Redis through the proxy."""
    return Streams(RedisSettings(url=f"redis://127.0.0.1:{proxy.port}/0", prefix="t:"))


@pytest.fixture
async def direct(server: RedisServer) -> AsyncIterator[RedisClient]:
    """A client that does not use the proxy."""
    made = RedisClient(RedisSettings(url=server.url, prefix="t:"))
    yield made
    await made.close()


async def away(proxy: Proxy, seconds: float, gone: asyncio.Event | None = None) -> None:
    """Make the server unavailable for a while; sets the event when it is."""
    await asyncio.to_thread(proxy.refuse)
    await asyncio.to_thread(proxy.cut)
    if gone is not None:
        gone.set()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(proxy.heal)


@pytest.mark.row("R34")
async def test_a_task_that_is_done_is_not_done_again_because_redis_was_away(
    streams: Streams, proxy: Proxy, direct: RedisClient
) -> None:
    ran = 0
    outage: list[asyncio.Task[None]] = []

    async def work() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            gone = asyncio.Event()
            outage.append(asyncio.create_task(away(proxy, 0.4, gone)))
            await gone.wait()

    streams.task(on_leader=True, name="once")(work)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))

    async def done() -> bool:
        return bool(await direct.command("HGET", "{t:st}:done", "once") == b"done")

    try:
        await eventually(done)
        assert ran == 1
    finally:
        await asyncio.wait(outage)
        await stop(serving)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set the clock to just before nine o'clock; the first look of a crontab sets the event."""
    moved = Moved(datetime(2031, 3, 2, 8, 59, 59, 800_000, tzinfo=UTC))
    monkeypatch.setattr(timers, "datetime", moved)
    return moved.looked


def at_nine(streams: Streams) -> list[str]:
    """Return what has fired."""
    fired: list[str] = []

    async def nine() -> None:
        fired.append("nine")

    async def behind() -> None:
        fired.append("behind")

    streams.crontab("0 9 * * *", on_leader=True, name="nine")(nine)
    # A second run would have started by now.
    streams.crontab("0 9 * * * 1", on_leader=True, name="behind")(behind)
    return fired


@pytest.mark.row("R36")
async def test_a_tick_is_fired_though_redis_is_unavailable_at_that_time(
    streams: Streams, proxy: Proxy, asked: asyncio.Event
) -> None:
    fired = at_nine(streams)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))
    try:
        await asked.wait()
        await away(proxy, 1.0)
        await eventually(lambda: sorted(fired) == ["behind", "nine"])
    finally:
        await stop(serving)


@pytest.mark.row("R36")
@pytest.mark.usefixtures("asked")
async def test_a_tick_is_fired_once_though_the_answer_is_lost(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired, lost = at_nine(streams), list[object]()

    async def forgetful(calls: Calls, send: Send) -> list[Any]:
        replies = await send()
        if calls[0].script == "streams.tick" and calls[0].keys not in lost:
            lost.append(calls[0].keys)
            raise BrokerUnavailable("the answer is lost")
        return replies

    around(monkeypatch, forgetful)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))
    try:
        await eventually(lambda: {*fired} == {"behind", "nine"})
        assert sorted(fired) == ["behind", "nine"]
        assert len(lost) == 2
    finally:
        await stop(serving)


@pytest.mark.usefixtures("asked")
async def test_a_tick_is_fired_on_a_full_server(streams: Streams, direct: RedisClient) -> None:
    await direct.command("CONFIG", "SET", "maxmemory", 1)
    fired = at_nine(streams)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))
    try:
        await eventually(lambda: sorted(fired) == ["behind", "nine"])
    finally:
        await stop(serving)
