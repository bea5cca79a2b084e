"""A program in fennel's call shapes, served by ``chancy worker --app``.

Where its servers are, and how it is set, is in ``FENNEL_…`` and ``CHANCY_DSN``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from chancy import current_job
from chancy.plugins.redis.compat.fennel import App
from tests.support.waiting import eventually, eventually_sync

app = App(name="shop", autodiscover="")


@app.task
def foo(n: float) -> float:
    time.sleep(n)
    return n


@app.task
async def bar(n: float) -> float:
    await asyncio.sleep(n)
    return n


@app.task(name="echo")
def echo(*, value: Any = None, more: Any = None) -> Any:
    return value if more is None else [value, more]


@app.task(retries=0)
def fail(message: str) -> None:
    raise RuntimeError(message)


@app.task(name="short", retries=0)
def named() -> None:
    """Has a custom name."""


@app.task(retries=0)
def odd_words() -> None:
    """Fails with several arguments."""
    raise ValueError(1, {"a": [None, "two"]}, b"3")


@app.task(retries=3)
def count(file: str) -> None:
    """Fails, and writes a note into the file."""
    note(file)
    raise ValueError("again")


@app.task(retries=3)
def until(file: str, succeeds: str) -> str:
    """Fails until a file exists."""
    note(file)
    if not Path(succeeds).exists():
        raise ValueError("not yet")
    return "at last"


@app.task(retries=0)
def odd() -> Any:
    """Returns a value that JSON lacks."""
    return object()


@app.task(retries=3)
def much(file: str) -> str:
    """Returns more bytes than the limit."""
    note(file)
    return "x" * 2_000_000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise TypeError("nor this")


@app.task(retries=0)
def odd_failure() -> None:
    """Fails with a value that can be neither stored nor printed."""
    raise Unprintable(object())


@app.task
def where(seconds: float) -> list[int]:
    time.sleep(seconds)
    return [os.getpid(), threading.get_ident()]


@app.task
def slow(file: str, seconds: float) -> None:
    note(file)
    time.sleep(seconds)
    note(file, "done")


@app.task
def gate(file: str) -> None:
    """Runs until the test releases it."""
    note(file)
    eventually_sync(Path(f"{file}.open").exists)


@app.task
async def async_gate(file: str) -> None:
    note(file)
    await eventually(Path(f"{file}.open").exists)


@app.task
def number(file: str, n: int) -> int:
    note(file, str(n))
    return n


@app.task
def speak(word: str) -> None:
    current_job().log(word, level=logging.WARNING)


def note(file: str, text: str = "begun") -> None:
    with Path(file).open("a") as open_file:
        open_file.write(json.dumps([text, os.getpid()]) + "\n")


def at_once(tries: int) -> float:
    return 0.0


def soon(tries: int) -> float:
    return float(tries)


def late(tries: int) -> float:
    return 600.0
