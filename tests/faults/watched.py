"""An application for supervised workers: ``chancy worker --app tests.faults.watched:app``."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import time
from typing import NoReturn

from chancy import Chancy, Queue, job
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from tests.faults import book as books
from tests.faults import jobs

_PR_SET_PDEATHSIG = 1

# Importing the module registers its jobs.
JOBS = jobs


def plugins() -> list[Recovery | Retries]:
    return [Recovery(sweep_s=0.2), Retries()]


def app() -> Chancy:
    return Chancy(
        queues=[
            Queue(name="loop", executor="async", poll_interval_s=0.1),
            Queue(name="threads", executor="thread", poll_interval_s=0.1),
            Queue(name="children", executor="process", concurrency=2, poll_interval_s=0.1),
        ],
        plugins=plugins(),
        no_default_plugins=True,
    )


@job(queue="loop")
async def backtrack(book: str, number: int, length: int) -> None:
    """Holds the GIL in one regular expression match that takes twice as long for each character."""
    books.write(book, number, "begin")
    re.match(r"(a+)+$", "a" * length + "b")
    books.write(book, number, "end")


@job(queue="loop")
async def doze(book: str, number: int, length: int) -> None:
    """Holds the GIL for ``length`` seconds in its first run."""
    books.write(book, number, "begin")
    if books.begun(book, number) == 1:
        ctypes.PyDLL(None).sleep(length)
    books.write(book, number, "end")


@job(queue="loop")
async def linger(book: str, number: int) -> None:
    """Sleeps for a minute in its first run."""
    first = books.begun(book, number) == 0  # before the test can see the run and freeze it
    books.write(book, number, "begin")
    if first:
        await asyncio.sleep(60)
    books.write(book, number, "end")


def length_of(seconds: float) -> int:
    """The length of the string for which `backtrack` takes at least this long on this machine."""
    length, took = 18, 0.0
    while took < 0.02:
        length += 1
        began = time.perf_counter()
        re.match(r"(a+)+$", "a" * length + "b")
        took = time.perf_counter() - began
    while took < seconds:
        length, took = length + 1, took * 2
    return length


@job(queue="loop")
async def exit_soon(book: str, number: int) -> NoReturn:
    """Exits its process after 0.2 s, when other jobs run in it."""
    books.write(book, number, "begin")
    await asyncio.sleep(0.2)
    os._exit(66)


@job(queue="children")
def break_down(book: str, number: int) -> None:
    """Ends its process by a signal after 0.2 s, when other jobs run beside it."""
    books.write(book, number, "begin")
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGSEGV)


@job(queue="children")
def cling(book: str, number: int) -> None:
    """Holds the GIL for a minute in its first run.

    It has started a program, and its process does not die with the worker.
    """
    with books.run(book, number):
        if books.begun(book, number) == 1:
            libc = ctypes.PyDLL(None)
            libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)  # as a change of the user does
            with subprocess.Popen(["sleep", "60"]):
                libc.sleep(60)
