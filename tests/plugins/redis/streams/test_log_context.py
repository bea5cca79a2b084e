"""Where lines of the log come from: the worker, the executor, the stream, the partition."""

from __future__ import annotations

import ast
import json
import logging
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chancy.log_context import ORIGIN
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import Events, LogContext, Streams
from tests.plugins.redis.streams.fleet import in_turn, working
from tests.plugins.redis.streams.orders import Order
from tests.plugins.redis.streams.written_programs import shop_env
from tests.support.command import command, started
from tests.support.sources import ROOT
from tests.support.waiting import eventually, eventually_sync

SHOP = """\
import logging
import os
import threading

foreign = logging.getLogger("foreign")
foreign.propagate = False
foreign.setLevel("INFO")
if not foreign.handlers:
    handler = logging.FileHandler("foreign")
    handler.setFormatter(logging.Formatter("foreign: %(message)s"))
    foreign.addHandler(handler)

from chancy import Chancy
from chancy.log_context import ORIGIN
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams import Record

plugin = RedisPlugin(url=os.environ["SHOP_REDIS"], prefix="t:")
chancy = Chancy(plugins=[plugin])
logger = logging.getLogger("shop.orders")


class Order(Record):
    order_id: int


orders = plugin.streams.stream("orders", record=Order, partition_by="order_id", partitions=2)


@plugin.streams.processor(orders, join_delay_s=0)
async def here(events):
    async for order in events.records():
        logger.info("here %d partition=%d", order.order_id, events.partition)
        foreign.info("here %d", order.order_id)


@plugin.streams.processor(orders, join_delay_s=0, mode="thread")
def aside(events):
    for order in events.records():
        logger.info("aside %d partition=%d", order.order_id, events.partition)
        foreign.info("aside %d", order.order_id)


@plugin.streams.processor(orders, join_delay_s=0, mode="process")
def apart(events):
    for order in events.records():
        logger.info("apart %d partition=%d", order.order_id, events.partition)
        foreign.info("apart %d", order.order_id)
        match order.order_id:
            case 2:
                thread = threading.Thread(target=logger.info, args=("by a thread",))
                thread.start()
                thread.join()
            case 3:
                if os.fork() == 0:
                    logger.error("by a copy")
                    os._exit(0)
                os.wait()
            case 5:
                raise ValueError("five")
"""
MODES = {"async": "here", "thread": "aside", "process": "apart"}


@pytest.fixture
def env(dsn: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """A shop with its tables and with three events in each partition."""
    return shop_env(tmp_path, SHOP, dsn, redis_url, 2, range(6))


@pytest.mark.chaos
@pytest.mark.row("R48")
def test_json_lines_of_every_mode_say_where_they_come_from(
    tmp_path: Path, env: dict[str, str]
) -> None:
    program = command("worker", "--processes=0", "--log-format=json")
    with started(program, cwd=tmp_path, env=env) as worker:

        def done() -> bool:
            log = worker.log
            return log.count("partition_halted") == 1 and all(
                f"{name} {number}" in log for name in MODES.values() for number in range(6)
            )

        eventually_sync(done)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0, worker.log
        stray = [one for one in worker.log.splitlines() if not one.startswith("{")]
        lines = [json.loads(one) for one in worker.log.splitlines() if one.startswith("{")]
    # A fork of a child process has no worker that forwards its lines.
    assert stray == ["by a copy"]

    (worker_id,) = {line["worker"] for line in lines if "worker" in line}
    assert f"id={worker_id} " in next(
        line["message"] for line in lines if line["message"].startswith("worker_started")
    )
    for name in MODES.values():
        (member,) = {
            line["message"].split("member=")[1].split()[0]
            for line in lines
            if line["message"].startswith(f"processor_joined processor=orders/{name}")
        }
        place = {"worker": worker_id, "executor": member, "stream": "orders", "processor": name}
        own = [one for one in lines if one["message"].startswith(f"{name} ")]
        assert len(own) == 6
        for line in own:
            assert line["logger"] == "shop.orders"
            number = int(line["message"][-1])
            assert line.items() >= {**place, "partition": number}.items()
        assert {one["partition"] for one in own} == {0, 1}
        ours = [one for one in lines if f"processor=orders/{name}" in one["message"]]
        assert len(ours) >= 3
        for line in ours:
            assert line.items() >= place.items()
            at = re.search(r" partition=(\d)", line["message"])
            assert line.get("partition") == (int(at[1]) if at else None)
    (threads,) = (one for one in lines if one["message"] == "by a thread")
    assert threads["processor"] == "apart"
    assert threads["partition"] in {0, 1}
    assert sorted((tmp_path / "foreign").read_text().splitlines()) == sorted(
        f"foreign: {name} {number}" for name in MODES.values() for number in range(6)
    )


class Heard(logging.Handler):
    """A handler of the program that does not format the context of records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(dict(vars(record)))

    def of(self, name: str) -> Sequence[dict[str, Any]]:
        return [one for one in self.records if one["name"] == name]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[Heard]:
    caplog.set_level("INFO")
    made, root = Heard(), logging.getLogger()
    root.addHandler(made)
    yield made
    root.removeHandler(made)


async def billed(redis_url: str, heard: Heard) -> None:
    """Run a processor that logs a line for each of two events."""
    streams = Streams(RedisSettings(url=redis_url, prefix="t:"))
    orders = streams.stream(
        "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn
    )

    @streams.processor(orders, join_delay_s=0)
    async def bill(events: Events[Order]) -> None:
        async for order in events.records():
            logging.getLogger("shop").info("billed", extra={"stream": f"mine {order.order_id}"})

    async with working(streams):
        await orders.send(Order(order_id=0), Order(order_id=1))
        await eventually(lambda: len(heard.of("shop")) == 2)
    await streams.link.close()
    assert ORIGIN.get(None) is None


@pytest.mark.row("R48")
async def test_our_lines_say_it_by_any_handler_and_others_as_they_were(
    redis_url: str, heard: Heard
) -> None:
    await billed(redis_url, heard)
    first, *others, last = heard.of("chancy.redis.streams")
    assert first["msg"].startswith("processor_joined")
    assert last["msg"].startswith("processor_left")
    assert others
    for one in (*others, last):
        assert (one["worker"], one["executor"]) == (first["worker"], first["executor"])
        assert (one["stream"], one["processor"]) == ("orders", "bill")
    for one in heard.of("shop"):
        assert not {"worker", "executor", "processor", "partition"} & one.keys()


async def test_a_handler_is_made_to_know_it(redis_url: str, heard: Heard) -> None:
    heard.addFilter(LogContext())
    await billed(redis_url, heard)
    ours = heard.of("chancy.redis.streams")[0]
    found = sorted(heard.of("shop"), key=lambda one: str(one["stream"]))
    assert [one["partition"] for one in found] == [0, 1]
    for number, one in enumerate(found):
        assert (one["worker"], one["executor"]) == (ours["worker"], ours["executor"])
        assert one["processor"] == "bill"
        assert one["stream"] == f"mine {number}", "what a record says itself stays"


FOLDER = ROOT / "plugins" / "redis" / "streams"
#: Modules whose lines are about a process, its leadership, its timers or the outbox.
OTHERS = {"leadership.py", "timers.py", "relay.py"}
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
#: Modules whose lines are all about a partition.
OF_PARTITIONS = {"consumer.py", "fetcher.py", "run.py", "loss.py", "overdue.py"}


def _lines() -> Iterator[tuple[str, str]]:
    """The module and the format string of each line that streams log."""
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=level),
                    args=[ast.Constant(value=str(text)), *_],
                ) if level in LEVELS:
                    yield path.name, text
                case _:
                    pass


@pytest.mark.row("R48")
def test_lines_name_their_processor_and_their_partition() -> None:
    lines = list(_lines())
    assert len(lines) > 25
    for module, text in lines:
        event, _, rest = text.partition(" ")
        assert event.replace("_", "").isalpha(), text
        if module not in OTHERS and event != "process_ends":
            assert rest.startswith("processor=%s"), text
            assert " partition=%d" in rest or module not in OF_PARTITIONS, text
