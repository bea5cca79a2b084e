"""Notices are hints: deaf, flooded or forged, jobs start all the same."""

from __future__ import annotations

import asyncio
import random
import string
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager

import psutil
import psycopg
import pytest
from psycopg import sql

from chancy import Chancy, Queue, Worker
from chancy.broker.notices import channel
from tests.faults import jobs
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.sql import ask
from tests.support.waiting import eventually

#: What a busy machine may add to a latency, in seconds; see `starts_within`.
SLACK_S = 1.2
#: How often a job is pushed until one starts in time: a machine may stall for longer.
TRIES = 4


def application(dsn: str, listen_dsn: str, *, poll_interval_s: float) -> Chancy:
    queue = Queue(name="load", executor="async", poll_interval_s=poll_interval_s)
    return Chancy(dsn, listen_dsn=listen_dsn, queues=[queue], no_default_plugins=True)


async def latency_s(chancy: Chancy, book: Book, number: int) -> float:
    """Push a job; returns the seconds from the push to its start."""
    pushed = time.monotonic_ns()
    await chancy.push(jobs.work.job(book=str(book), number=number))
    await eventually(lambda: book.count("begin")[number])
    (begin,) = (one for one in book.entries() if (one.number, one.phase) == (number, "begin"))
    return (begin.at_ns - pushed) / 1e9


async def starts_within(chancy: Chancy, worker: Worker, book: Book, most_s: float) -> None:
    """Push jobs to a worker at rest, until one starts within some seconds."""
    took_s: list[float] = []
    while len(took_s) < TRIES:
        await eventually(lambda: at_rest(worker))
        took_s.append(await latency_s(chancy, book, len(book.count("begin"))))
        if took_s[-1] < most_s + SLACK_S:
            return
    raise AssertionError(f"{took_s} s instead of {most_s} s")


def at_rest(worker: Worker) -> bool:
    """Whether the quick claims that follow a wake-up are over."""
    return all(one.puller.resting for one in worker._queue_set._serving.values())


async def check_half_open(proxy: Proxy, dsn: str, book: Book, *, noticed_within_s: float) -> None:
    """The listening session falls silent without an end, and is replaced."""
    app = application(dsn, proxy.dsn(dsn), poll_interval_s=0.4)
    relaxed_s = 10 * 0.4
    async with app, Worker(app, queues=["load"]) as worker:
        await eventually(lambda: worker.listening)
        await eventually(lambda: at_rest(worker))
        proxy.black_hole()
        noticing = asyncio.create_task(
            eventually(lambda: not worker.listening, timeout=noticed_within_s + 3 * SLACK_S)
        )
        # The notice of this one is lost, and a poll finds it.
        await starts_within(app, worker, book, relaxed_s * 1.2)
        await noticing
        await starts_within(app, worker, book, 0.4 * 1.2)
        proxy.heal()
        # A try that began in the silence has its connect timeout.
        await eventually(lambda: worker.listening)
        await starts_within(app, worker, book, 0.0)


async def test_a_listener_that_is_half_open_is_noticed_and_replaced(
    proxy: Proxy, dsn: str, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.broker.listener._PROBE_EVERY_S", 1.0)
    monkeypatch.setattr("chancy.broker.listener._PROBE_TIMEOUT_S", 0.7)
    await check_half_open(proxy, dsn, book, noticed_within_s=1.7)


@pytest.mark.chaos
async def test_a_listener_that_is_half_open_is_noticed_within_twelve_seconds(
    proxy: Proxy, dsn: str, book: Book
) -> None:
    await check_half_open(proxy, dsn, book, noticed_within_s=12.0)


@contextmanager
def deaf_dsn(how: str, proxy: Proxy, dsn: str) -> Generator[str]:
    """A DSN that cannot be listened on."""
    host, _, database = dsn.rpartition("/")
    match how:
        case "closed":
            yield f"postgresql://postgres@127.0.0.1:{free_port()}/{database}"
        case "silent":
            proxy.black_hole()
            yield proxy.dsn(dsn)
            proxy.heal()
        case _:
            role = f"deaf_{uuid.uuid4().hex}"
            ask(dsn, f"create role {role} nologin")
            yield f"{host.replace('postgres@', f'{role}@')}/{database}"
            ask(dsn, f"drop role {role}")


@pytest.mark.parametrize(
    "how",
    ["closed", *(pytest.param(one, marks=pytest.mark.chaos) for one in ("silent", "no login"))],
)
async def test_without_any_notices_jobs_start_within_the_poll_interval(
    how: str, proxy: Proxy, dsn: str, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    with deaf_dsn(how, proxy, dsn) as listen_dsn:
        app = application(dsn, listen_dsn, poll_interval_s=0.5)
        began = time.monotonic()
        async with app, Worker(app, queues=["load"]) as worker:
            assert time.monotonic() - began < 3.0, "the start waited for the listener"
            for _ in range(3):
                await starts_within(app, worker, book, 0.5 * 1.2)
            await eventually(lambda: "listening_failed" in caplog.text)
            assert not worker.listening


class Flood(threading.Thread):
    """Sends 10,000 payloads a second, most of them garbage, some forged."""

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(name="flood", daemon=True)
        self._dsn = dsn
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self.sent = 0
        self.transactions = 0

    def run(self) -> None:
        with closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
            due = time.monotonic()
            while not self._stopping.is_set():
                payloads = [self._payload() for _ in range(500)]
                connection.execute(
                    "select pg_notify(%s, payload) from unnest(%s::text[]) as payload",
                    [channel("chancy"), payloads],
                )
                self.sent += len(payloads)
                self.transactions += 1
                due += 0.05
                self._stopping.wait(max(0.0, due - time.monotonic()))

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _payload(self) -> str:
        nonce = self._random.randbytes(6).hex()
        match self._random.randrange(12):
            case 0:
                return f"w:{nonce}"
            case 1:
                return f"r:load{'' if self._random.random() < 0.1 else nonce}"
            case 2:
                return f"q:{nonce}"
            case 3:
                return f"s:{uuid.UUID(bytes=self._random.randbytes(16))}"
            case 4:
                return f"s:{nonce}"
            case 5:
                return f"p:{nonce}"
            case 6:
                return '{"a":' * 40 + nonce
            case 7 if self._random.random() < 0.05:
                return "w:" + nonce + "x" * 7_900
            case _:
                alphabet = string.printable + "\x01\x1b\u202e\U0001f600é"
                return "".join(self._random.choices(alphabet, k=self._random.randrange(1, 40)))


@pytest.mark.chaos
async def test_a_flood_of_hostile_notices_holds_nothing_up(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    worker = start_worker(dsn)
    worker.wait_until_ready()
    process = psutil.Process(worker.pid)
    flood = Flood(dsn, seed=21)
    flood.start()
    began, before = time.monotonic(), process.cpu_times()
    latencies: list[float] = []
    while time.monotonic() - began < 3.0:
        latencies.append(await latency_s(chancy, book, len(latencies)))
        await asyncio.sleep(0.1)
    passed, after = time.monotonic() - began, process.cpu_times()
    flood.stop()
    assert flood.sent / passed > 5_000, "that was no flood"
    assert max(latencies) < 1.0
    assert after.user + after.system - before.user - before.system < 0.5 * passed
    assert process.memory_info().rss < 200 * 1024**2
    report = worker.stop()
    assert (report.settled, report.stale) == (len(latencies), 0)
    assert "notice_failed" not in worker.said()
    assert "worker_loop_failed" not in worker.said()


async def test_garbage_notifications_are_received_without_a_probe(
    dsn: str, start_worker: StartWorker
) -> None:
    start_worker(dsn, heartbeat_timeout_s=30.0).wait_until_ready()
    garbage = 300
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel("chancy"))))
        for number in range(garbage):
            connection.execute("select pg_notify(%s, %s)", [channel("chancy"), f"garbage {number}"])
        heard = [notice.payload for notice in connection.notifies(timeout=1.0)]
    assert len([payload for payload in heard if payload.startswith("garbage")]) == garbage
    # A worker that takes garbage for silence answers each with a NOTIFY of its own.
    assert len([payload for payload in heard if payload.startswith("p:")]) < 3
