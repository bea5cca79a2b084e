"""The functions that the jobs of `test_executor` run. They show what they do by files."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextvars import ContextVar
from json import dumps as dumps  # a function that this module does not define
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from chancy import job

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class TwoPartError(Exception):
    """Cannot be unpickled, since its arguments are not those of its ``__init__``."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")
        self.lock = threading.Lock()


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class SpitefulError(Exception):
    def __str__(self) -> str:
        sys.exit("no text either")


class Later:
    """Awaitable, but no coroutine."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, object]:
        yield from asyncio.sleep(0.001).__await__()
        return self._value


class Shop:
    @staticmethod
    @job
    def price(value: int) -> int:
        return 2 * value


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(**arguments: Any) -> Any:
        return function(**arguments)

    return wrapper


# What returns.


def nothing() -> None:
    return None


def echo(value: Any) -> Any:
    return value


async def echo_async(value: Any) -> Any:
    return value


async def echo_later(value: Any) -> Any:
    await asyncio.sleep(0.001)
    return value


def echo_awaitable(value: Any) -> Awaitable[Any]:
    return Later(value)


@wrapped
async def echo_wrapped(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def print_much(size: int) -> int:
    sys.stdout.write("x" * size)
    sys.stderr.write("y" * size)
    return size


def from_threads(value: Any) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=found.append, args=(value,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def read_stdin() -> str:
    return sys.stdin.read()


def pid() -> int:
    return os.getpid()


def say_tenant(new: str) -> str:
    old = tenant.get()
    tenant.set(new)
    return old


async def say_tenant_async(new: str) -> str:
    return say_tenant(new)


async def say_tenant_later(new: str) -> list[str]:
    old = say_tenant(new)
    await asyncio.sleep(0)
    return [old, tenant.get()]


# What raises.


def raise_plain() -> NoReturn:
    raise ValueError("the reason")


async def raise_async() -> NoReturn:
    raise ValueError("the reason")


async def raise_later() -> NoReturn:
    await asyncio.sleep(0)
    raise ValueError("the reason")


def raise_two_part() -> NoReturn:
    raise TwoPartError("one", "two")


def raise_speechless() -> NoReturn:
    raise SpeechlessError


def raise_spiteful() -> NoReturn:
    raise SpitefulError


def raise_text(text: str, times: int) -> NoReturn:
    raise ValueError(text * times)


def raise_builtin(name: str) -> NoReturn:
    raise _error(name)


async def raise_builtin_async(name: str) -> NoReturn:
    raise _error(name)


async def raise_builtin_later(name: str) -> NoReturn:
    await asyncio.sleep(0)
    raise _error(name)


def _error(name: str) -> BaseException:
    kinds: dict[str, type[BaseException]] = {
        "SystemExit": SystemExit,
        "KeyboardInterrupt": KeyboardInterrupt,
        "GeneratorExit": GeneratorExit,
        "CancelledError": asyncio.CancelledError,
        "StopIteration": StopIteration,
    }
    return kinds[name]("the reason")


def recurse() -> None:
    recurse()


async def recurse_async() -> None:
    await recurse_async()


def type_error_inside(value: Any) -> Any:
    return value + "text"


@wrapped
async def type_error_inside_wrapped(value: Any) -> Any:
    return value + "text"


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def return_nan() -> float:
    return float("nan")


def return_object() -> object:
    return object()


def return_nul() -> list[str]:
    return ["\x00"]


def return_much(size: int) -> str:
    return "x" * size


async def return_much_async(size: int) -> str:
    return "x" * size


def return_deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


async def return_future() -> Any:
    return asyncio.get_running_loop().create_future()


# What waits.


def write(path: str, text: str = "") -> None:
    """All at once, so that a reader never sees half."""
    part = Path(f"{path}.part")
    part.write_text(text)
    part.rename(path)


def exists(path: str) -> bool:
    return Path(path).exists()


def wait_until(path: str) -> None:
    while not exists(path):
        time.sleep(0.002)


def wait_for_file(started: str, until: str) -> str:
    write(started, str(os.getpid()))
    wait_until(until)
    return "waited"


async def wait_for_file_async(started: str, until: str, stopped: str) -> str:
    write(started, str(os.getpid()))
    try:
        while not exists(until):
            await asyncio.sleep(0.002)
    except asyncio.CancelledError:
        await asyncio.sleep(0.001)
        write(stopped)
        raise
    return "waited"


def mark(path: str) -> None:
    write(path)


async def swallow(started: str, until: str) -> str:
    """Ends when the file is there, and not because it is cancelled."""
    write(started)
    while not exists(until):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.002)
    return "went on"


async def give_in(started: str) -> str:
    write(started)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "half of it"
    return "all of it"


async def trip(started: str) -> None:
    write(started)
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("in the cleanup")
