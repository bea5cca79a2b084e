"""Failures: whatever is raised, its record can be stored and shown."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy.attempt.control import RateLimited, Retry
from chancy.attempt.failure import MAX_MESSAGE, MAX_NOTE, MAX_TRACE, Failure
from chancy.attempt.outcome import Raised, Snoozed
from chancy.errors import BrokerUnavailable
from chancy.executors import invocation
from chancy.testing.conformance.hostile import HOSTILE_TEXT
from chancy.testing.store import read_json
from chancy.text import storable

LIMIT = 400


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass(frozen=True)
class Frozen(Exception):
    reason: str


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


class Cancelling(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class Text(str):
    """Text with methods of its own."""

    __slots__ = ()

    def isprintable(self) -> bool:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __getitem__(self, key: object) -> str:
        raise RuntimeError


class OwnText(Exception):
    def __str__(self) -> str:
        return Text("text of a class of its own")


class Nameless(Exception):
    pass


Nameless.__module__ = None  # type: ignore[assignment]
Nameless.__qualname__ = "\x1b[31m\0" * 100


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def deep() -> BaseException:
    def dive() -> None:
        dive()

    try:
        dive()
    except RecursionError as caught:
        return caught
    raise AssertionError


def chained(length: int) -> BaseException:
    error: BaseException = ValueError("the first")
    for number in range(length):
        try:
            raise KeyError(number) from error
        except KeyError as caught:
            error = caught
    return error


def grouped(depth: int) -> BaseException:
    error: Exception = ValueError("the innermost")
    for _ in range(depth):
        members: list[Exception] = [error, KeyError("beside")]
        error = ExceptionGroup("group", members)
    return error


def circular() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def annotated() -> BaseException:
    error = ValueError("with notes")
    error.add_note("a note with \0")
    error.__notes__.append(5)  # type: ignore[arg-type]
    return error


HOSTILE: dict[str, BaseException] = {
    "nul": ValueError("a\0b"),
    "surrogate": ValueError("half \ud800 of a pair"),
    "ansi": ValueError("\x1b[31mred\x1b]0;title\x07"),
    "bidi": ValueError("\u202eevil"),
    "5-megabytes": ValueError("x" * 5_000_000),
    "5-megabytes-of-nul": ValueError("\0" * 5_000_000),
    "not-text-argument": ValueError(b"\xff", object()),
    "unprintable": Unprintable(),
    "exiting": Exiting(),
    "cancelling": Cancelling(),
    "not-text": NotText(),
    "endless": Endless(),
    "own-text": OwnText(),
    "nameless": Nameless("x"),
    "no-message": ValueError(),
    "deep": deep(),
    "chained": chained(2_000),
    "circular": circular(),
    "groups": grouped(2_000),
    "notes": annotated(),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "syntax": SyntaxError("bad", ("file\0", 1, 2, "code \ud800", 1, 3)),
}


def check(failure: Failure) -> None:
    """It can be stored, shown, and sent to another process."""
    text = json.dumps(failure.as_json())
    assert read_json(text, "the failure") == failure.as_json()
    assert Failure.from_json(json.loads(text)) == failure
    assert pickle.loads(pickle.dumps(failure)) == failure
    assert 1 <= len(failure.types) <= 20
    assert len(failure.message) <= MAX_MESSAGE
    assert len(failure.trace) <= MAX_TRACE
    for part in (*failure.types, failure.message, failure.trace):
        assert type(part) is str
        assert all(line.isprintable() for line in part.replace("\t", "").split("\n"))


@pytest.mark.parametrize("name", HOSTILE)
def test_any_exception_can_be_described(name: str) -> None:
    failure: Failure | str
    try:
        failure = Failure.of(raised(HOSTILE[name]))
    except BaseException as error:
        # Kept as a name: pytest itself would trip over showing some of these.
        failure = type(error).__name__
    assert isinstance(failure, Failure), f"{failure} came out of Failure.of"
    check(failure)


NESTED = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
ARGS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...] | None]] = {
    "its message": (("baz",), None),
    "nothing": ((), None),
    "several": ((1, "two", None, True, 2**70), (1, "two", None, True, 2**70)),
    "one number": ((5,), (5,)),
    "nested": ((NESTED, (1, 2)), (NESTED, [1, 2])),
    "what JSON has not": (
        ({1}, float("nan"), b"\xff", 1j),
        ("{1}", "nan", "b'\\xff'", "1j"),
    ),
    "what cannot be stored": (("\0", ["\0"], ["\ud800"]), ("\\x00", "['\\x00']", "['\\ud800']")),
    "many": (tuple(range(50)), tuple(range(10))),
}


@pytest.mark.parametrize("name", ARGS)
def test_the_arguments_of_an_exception_are_stored(name: str) -> None:
    """Unless it is what its message says."""
    args, kept = ARGS[name]
    failure = Failure.of(raised(ValueError(*args)))
    assert failure.args == kept
    check(failure)


def test_long_values_of_an_exception_are_shortened() -> None:
    failure = Failure.of(ValueError("x" * 10**6, ["y" * 10**6], b"z" * 10**6))
    assert failure.args is not None
    assert max(map(len, failure.args)) <= MAX_NOTE
    assert Failure.of(KeyError("k")).args == ("k",), "its message has quotes"


@pytest.mark.parametrize("text", HOSTILE_TEXT.values(), ids=HOSTILE_TEXT)
def test_any_text_can_be_described(text: str) -> None:
    check(Failure.of(raised(ValueError(text))))
    check(Failure.named("chancy.Named", text))


def test_huge_failures_are_quick() -> None:
    began = time.perf_counter()
    Failure.of(ValueError("\0" * 50_000_000))
    assert time.perf_counter() - began < 10.0


def test_a_plain_exception() -> None:
    failure = Failure.of(raised(BrokerUnavailable("the server is away")))
    assert failure.message == "the server is away"
    assert failure.types == (
        "chancy.errors.BrokerUnavailable",
        "chancy.errors.BrokerError",
        "chancy.errors.ChancyError",
        "builtins.Exception",
        "builtins.BaseException",
    )
    assert failure.trace.startswith("Traceback (most recent call last):\n")
    assert failure.trace.endswith("BrokerUnavailable: the server is away\n")
    assert failure.is_a("chancy.errors.BrokerError")
    assert not failure.is_a("BrokerError")


def test_causes_are_in_the_trace() -> None:
    trace = Failure.of(chained(1)).trace
    assert "ValueError: the first" in trace
    assert "direct cause" in trace
    assert "direct cause" not in Failure.of(chained(2_000)).trace


def test_the_members_of_a_group_are_in_the_trace() -> None:
    failure = Failure.of(grouped(1))
    assert "the innermost" in failure.trace
    assert "beside" in failure.trace
    assert failure.message == "group (2 sub-exceptions): ValueError: the innermost"


def test_a_group_is_known_by_the_types_of_its_members() -> None:
    inner = ExceptionGroup("inner", [ConnectionError("hung up"), OSError("no")])
    failure = Failure.of(ExceptionGroup("outer", [inner, ValueError("bad"), inner]))
    assert [one.removeprefix("builtins.") for one in failure.types] == [
        "ExceptionGroup",
        "BaseExceptionGroup",
        "ConnectionError",
        "OSError",
        "ValueError",
        "Exception",
        "BaseException",
    ]
    assert failure.message == "outer (3 sub-exceptions): ConnectionError: hung up"


def test_the_types_of_a_group_are_bounded() -> None:
    group = ExceptionGroup("many", [type(f"Error{n}", (Exception,), {})() for n in range(1_000)])
    assert len(Failure.of(group).types) == 14


RETRY, LIMITED = Retry(30, "busy"), RateLimited(60)
LATER = RateLimited(datetime.now(UTC) + timedelta(days=1))


@pytest.mark.parametrize(
    ("members", "again", "rate_limited"),
    [
        ([LIMITED], LIMITED.moment, True),
        ([LIMITED, ExceptionGroup("inner", [LATER])], LATER.moment, True),
        ([RETRY], RETRY.moment, False),
        ([LATER, RETRY, LIMITED], LATER.moment, False),
        ([RETRY, LIMITED, ValueError()], None, False),
    ],
)
def test_a_group_of_retries_asks_for_one_at_the_latest_time(
    members: list[Exception], again: datetime | timedelta | None, rate_limited: bool
) -> None:
    outcome = invocation.raised(ExceptionGroup("tasks", members), 0.0)
    if rate_limited:
        assert isinstance(outcome, Snoozed)
        assert (outcome.until, outcome.asked, outcome.rate_limited) == (again, True, True)
    else:
        assert isinstance(outcome, Raised)
        assert outcome.again == again
        assert again is None or outcome.failure.message == "busy"


def test_an_exception_without_a_message_is_named_by_its_type() -> None:
    assert Failure.of(Unprintable()).message == "(the message cannot be formatted: RuntimeError)"


def test_an_exception_whose_attributes_raise_has_a_failure() -> None:
    class HostileType(type):
        def __getattribute__(cls, name: str) -> Any:
            raise SystemExit(name)

    class Hostile(Exception, metaclass=HostileType):
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit(name)

        def __str__(self) -> str:
            raise SystemExit

    failure = Failure.of(Hostile())
    assert failure.types == ("builtins.BaseException",)
    assert failure.message == "(the message cannot be formatted: SystemExit)"
    assert failure.trace == "(the traceback cannot be formatted: SystemExit)"
    assert failure.notes == ("(the notes cannot be read: SystemExit)",)
    assert (failure.causes, failure.args) == ((), None)


def test_an_exception_that_refuses_attributes_keeps_its_type() -> None:
    outcome = invocation.raised(Frozen("no stock"), 0.0)
    assert isinstance(outcome, Raised)
    assert outcome.failure.is_a(f"{__name__}.Frozen")


def test_the_middle_of_a_long_text_is_left_out() -> None:
    failure = Failure.of(ValueError("<" + "x" * 1_000_000 + ">"))
    assert failure.message.startswith("<xxx")
    assert failure.message.endswith("xxx>")
    assert "\n… 996,042 characters left out …\n" in failure.message


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("one\ntwo\tthree", "one\ntwo\tthree"),
        ("a\0b", r"a\x00b"),
        ("a\r\nb", "a\\x0d\nb"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x85", r"\x85"),
        ("\ud800", r"\ud800"),
        ("\u202e", r"\u202e"),
        ("\u2028", r"\u2028"),
        ("…", "…"),
        ("", ""),
    ],
)
def test_control_characters_are_written_out(text: str, stored: str) -> None:
    assert storable(text, LIMIT) == stored


@given(st.text(st.characters()) | st.text(st.sampled_from("\0\ud800\x1bxü\n"), max_size=2_000))
def test_storable_text_is_unchanged(text: str) -> None:
    once: Any = storable(text, LIMIT)
    assert len(once) <= LIMIT
    assert storable(once, LIMIT) == once
    assert read_json(json.dumps(once), "it") == once
