"""What the child of a partition logs, said again in the worker."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import pytest

from chancy.log_context import ORIGIN, LogContext, Origin
from chancy.plugins.redis.streams.processing.child_logs import (
    MAX_NAMES,
    MAX_RECORD,
    PartitionLogHandler,
    PartitionLogRelay,
)
from tests.support.waiting import eventually_sync


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(LogContext())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def heard() -> Iterator[Heard]:
    made, root = Heard(), logging.getLogger()
    root.addHandler(made)
    yield made
    root.removeHandler(made)


@pytest.fixture
def recorder() -> Iterator[PartitionLogHandler]:
    """Of a child that works on a partition; in this process, but for its pipe."""

    def begin() -> PartitionLogRelay:
        ORIGIN.set(Origin(lambda: "w").narrowed(executor="e", stream="orders", partition=3))
        return PartitionLogRelay()

    echo = contextvars.copy_context().run(begin)
    theirs = echo.theirs
    # A start closes the worker's copy of it, which is the only one here.
    echo.theirs = cast("Connection", Nothing())
    echo.start()
    yield PartitionLogHandler(theirs)
    theirs.close()
    echo.join(5.0)


class Nothing:
    def close(self) -> None:
        pass


def say(
    recorder: PartitionLogHandler, text: str, *, name: str = "shop", level: int = logging.ERROR
) -> None:
    recorder.handle(logging.LogRecord(name, level, "x.py", 1, "%s", (text,), None))


def test_it_is_said_from_the_context_of_the_partition(
    heard: Heard, recorder: PartitionLogHandler
) -> None:
    say(recorder, "one")
    eventually_sync(lambda: heard.texts == ["one"])
    (record,) = map(vars, heard.records)
    assert (record["name"], record["levelno"]) == ("shop", logging.ERROR)
    said = [record[name] for name in ("worker", "executor", "stream", "partition")]
    assert said == ["w", "e", "orders", 3]


def test_any_number_of_any_length_is_said_in_order(
    heard: Heard, recorder: PartitionLogHandler
) -> None:
    for number in range(200):  # three megabytes, of which a pipe takes 64 KB
        say(recorder, f"{number} {'x' * 2 * MAX_RECORD}")
    eventually_sync(lambda: len(heard.records) == 200)
    assert [int(text.split()[0]) for text in heard.texts] == list(range(200))
    assert MAX_RECORD - 100 < max(map(len, heard.texts)) <= MAX_RECORD


def test_a_filter_that_raises_leaves_the_others_heard(
    heard: Heard, recorder: PartitionLogHandler
) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError("no")

    bad = logging.getLogger("shop.bad")
    bad.addFilter(refuse)
    say(recorder, "one", name="shop.bad")
    say(recorder, "two")
    eventually_sync(lambda: heard.texts == ["two"])
    bad.removeFilter(refuse)


def test_names_that_are_made_up_do_not_stay(heard: Heard, recorder: PartitionLogHandler) -> None:
    for number in range(MAX_NAMES + 5):
        say(recorder, "x", name=f"made.up.{number}")
    eventually_sync(lambda: len(heard.records) == MAX_NAMES + 5)
    assert [record.name for record in heard.records[-5:]] == ["chancy.redis.streams"] * 5


class Interrupted:
    """A line during whose use a signal lets its handler log."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.interrupt: Callable[[], None] = lambda: None

    def send(self, what: object) -> None:
        self.interrupt()
        self.sent.append(what)


def test_a_signal_within_a_record_does_not_stand_still(capsys: pytest.CaptureFixture[str]) -> None:
    line = Interrupted()
    recorder = PartitionLogHandler(cast("Connection", line))
    line.interrupt = lambda: say(recorder, "by the signal")
    say(recorder, "interrupted")
    assert [text for _, _, text in line.sent] == ["interrupted"]
    assert "by the signal" in capsys.readouterr().err
