"""Jobs that fail in every way that may break the recording of a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from chancy import job

MEGABYTE = 1024 * 1024


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class TwistedError(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class QuittingError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text either")


def _chained(length: int) -> Exception:
    error: Exception = ValueError("the first")
    for number in range(length):
        following = ValueError(f"link {number}")
        following.__cause__ = error
        error = following
    return error


def _circular() -> Exception:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _named(name: str) -> Exception:
    made: type[Exception] = type(name, (Exception,), {"__module__": name})
    return made("of a type with a hostile name")


OUTBURSTS: Mapping[str, Callable[[], BaseException]] = {
    "nul": lambda: ValueError("before \x00 after"),
    "surrogate": lambda: ValueError("half \ud800 a pair"),
    "ansi": lambda: ValueError("\x1b[31mred\x1b[0m\x07\x1b]0;title\x07\r\nnext"),
    "bidi": lambda: ValueError("\u202eevil\u202c \u2066isolate\u2069"),
    "huge": lambda: ValueError("x" * (50 * MEGABYTE)),
    "huge and wide": lambda: ValueError("\x00\U0001f600" * MEGABYTE),
    "speechless": SpeechlessError,
    "twisted": TwistedError,
    "quitting": QuittingError,
    "bytes": lambda: ValueError(b"\xff\x00"),
    "chain": lambda: _chained(3_000),
    "circle": _circular,
    "group": lambda: ExceptionGroup("many", [ValueError(n) for n in range(5_000)]),
    "name": lambda: _named("Evil\x00\x1b[31m\ud800Name" + "n" * 10_000),
    "recursion": lambda: RecursionError("maximum recursion depth exceeded"),
    "stop": lambda: StopIteration("a value"),
    "exit": lambda: SystemExit("the job exits"),
    "interrupt": lambda: KeyboardInterrupt(),
    "cancelled": lambda: asyncio.CancelledError("by itself"),
    "generator": lambda: GeneratorExit(),
}


@job(queue="load", max_attempts=2)
def burst(kind: str) -> NoReturn:
    raise OUTBURSTS[kind]()


@job(queue="load", max_attempts=2)
async def burst_at_once(kind: str) -> NoReturn:
    raise OUTBURSTS[kind]()


@job(queue="load", max_attempts=2)
async def burst_later(kind: str) -> NoReturn:
    await asyncio.sleep(0.001)
    raise OUTBURSTS[kind]()
