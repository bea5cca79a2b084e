"""Functions and other things that the registry is asked for."""

from __future__ import annotations

from collections.abc import Callable
from json import dumps
from typing import Any

from chancy import job

__all__ = ["dumps", "plain", "registered"]

LIMIT = 3


def plain(a: int, b: str = "x") -> str:
    return b * a


@job(queue="mail", priority=3, max_attempts=7, delay=60, meta={"team": "shop"})
def registered(a: int) -> int:
    return a


@job
async def registered_async(a: int, *, b: int = 2, **rest: int) -> int:
    return a + b + sum(rest.values())


def make_local() -> Callable[[], None]:
    def local() -> None: ...

    return local


class Shop:
    def open(self) -> None: ...


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides what it decorates. Its module is not that of the function."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__module__ = "tests.elsewhere"
    return call


hidden = unwrapped(plain)
