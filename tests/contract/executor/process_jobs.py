"""Functions of jobs for the process executor: what they do to the process they run in."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from chancy.context.context import current_job
from chancy.errors import Interrupted
from tests.contract.executor.jobs import exists, wait_until, write

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio

logger = logging.getLogger("shop.orders")
_kept: list[bytearray] = []
_ready = "no"


# What is called before the first job.


def make_ready() -> None:
    global _ready
    _ready = "yes"


async def make_ready_async() -> None:
    await asyncio.sleep(0.001)
    make_ready()


def make_ready_if_allowed() -> None:
    """Fails until the file is there that the environment names."""
    if not exists(os.environ["CHANCY_TEST_ALLOWED"]):
        raise LookupError("the model is not there yet")
    make_ready()


def make_ready_when_allowed() -> None:
    wait_until(os.environ["CHANCY_TEST_ALLOWED"])
    make_ready()


def how_ready() -> str:
    return _ready


# What takes time.


def busy(seconds: float) -> str:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return "done"


def rest(seconds: float) -> None:
    time.sleep(seconds)


def clean_up(started: str, until: str, stopped: str) -> str:
    """Says by which error it was stopped, and raises it on."""
    try:
        write(started, str(os.getpid()))
        wait_until(until)
    except BaseException as error:
        write(stopped, f"{type(error).__name__}: {error}")
        raise
    return "waited"


def clean_up_after_alarms(started: str, until: str, stopped: str) -> str:
    """`clean_up` after an alarm of its own."""
    before = signal.signal(signal.SIGALRM, lambda signum, frame: write(started, "rang"))
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    wait_until(started)
    signal.signal(signal.SIGALRM, before)
    return clean_up(started, until, stopped)


def return_after_alarm(seconds: float) -> float:
    """Set an alarm without a handler; return the seconds until the timer goes off after it."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    while signal.getitimer(signal.ITIMER_REAL)[0] <= seconds:
        pass
    return signal.getitimer(signal.ITIMER_REAL)[0]


def return_all_the_same(started: str, until: str) -> str:
    try:
        write(started, str(os.getpid()))
        wait_until(until)
    except Interrupted:
        return "half of it"
    return "waited"


def fail_when_stopped(started: str, until: str) -> str:
    try:
        write(started, str(os.getpid()))
        wait_until(until)
    except Interrupted:
        raise ValueError("in the cleanup") from None
    return "waited"


def swallow_all(started: str, until: str) -> str:
    while True:
        try:
            if not exists(started):
                write(started, str(os.getpid()))
            if exists(until):
                return "waited"
            time.sleep(0.002)
        except BaseException:
            continue


def timer() -> list[object]:
    """Whether the alarm has its default effect, and the seconds until it goes off."""
    default = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    return [default, signal.getitimer(signal.ITIMER_REAL)[0]]


# What takes memory.


def hog_slowly(megabytes: int) -> int:
    """Keeps it until the parent has seen it."""
    taken = []
    for _ in range(megabytes):
        taken.append(bytearray(b"x") * 2**20)
        time.sleep(0.005)
    time.sleep(60)
    return len(taken)


def catch_memory_error(megabytes: int) -> str:
    try:
        bytearray(megabytes * 2**20)
    except MemoryError:
        return "caught"
    return "had it"


def leak(megabytes: int) -> int:
    _kept.append(bytearray(b"x") * (megabytes * 2**20))
    return os.getpid()


def hold(megabytes: int) -> int:
    """Takes memory and gives it back."""
    return len(bytearray(b"x") * (megabytes * 2**20))


# What logs.


def log_some() -> None:
    logger.debug("too quiet")
    logger.info("order %d is packed", 7)
    try:
        raise ValueError("the reason")
    except ValueError:
        logger.exception("order %d is lost", 8)
    current_job().log("said by the job")


def log_much(records: int, size: int) -> str:
    for number in range(records):
        logger.warning("%d %s", number, "x" * size)
    return "logged"


def log_odd() -> None:
    logger.warning("\x1b[31m %s \ud800 \x00", "red")
    logger.log(10**9, "loud")
    logging.getLogger("a\0b\n").warning("named oddly")
    logger.warning("%d", "no number")


async def log_async(text: str) -> None:
    await asyncio.sleep(0)
    logger.warning(text)


# What makes other processes.


def _square(number: int) -> int:
    logger.warning("from a copy")
    return number * number


def fork_pool() -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        squares = pool.map(_square, range(4))
        # Leaving the block alone kills copies that may hold the lock of the pool.
        pool.close()
        pool.join()
        return squares


def spawn_pool() -> list[int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(_square, range(2))


def sockets() -> int:
    """How many sockets a copy of the process has."""
    reader, writer = os.pipe()
    copy = os.fork()
    if copy == 0:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
            except OSError:
                continue
        os.write(writer, bytes([count]))
        os._exit(0)
    os.waitpid(copy, 0)
    count = os.read(reader, 1)[0]
    os.close(reader)
    os.close(writer)
    return count


def copy_ends_when_told() -> int:
    """The signal that ended a copy of the process."""
    reader, writer = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.write(writer, b"here")
        time.sleep(60)
        os._exit(0)
    os.read(reader, 4)
    os.close(reader)
    os.close(writer)
    os.kill(copy, signal.SIGTERM)
    return os.WTERMSIG(os.waitpid(copy, 0)[1])


def exit_in_copy() -> NoReturn:
    """Has a copy that goes on for a while, and ends."""
    if os.fork() == 0:
        time.sleep(5)
    os._exit(4)


def exit_beside_copy(started: str, until: str) -> NoReturn:
    """Has a copy that goes on until the file is there, and ends."""
    if os.fork() == 0:
        write(started, str(os.getpid()))
        wait_until(until)
        os._exit(0)
    wait_until(started)
    os._exit(4)


# What tells.


def tell_and_wait_on(until: str) -> None:
    current_job().progress(0.5, "half")
    current_job().progress(0.6, "more")
    current_job().progress(0.7, "last")
    wait_until(until)
