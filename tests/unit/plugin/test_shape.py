"""Plugins whose hooks could not be called are refused with the hook and what it should be."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from chancy import Chancy
from chancy.errors import ConfigurationError
from chancy.plugin.hooks import Hooks
from chancy.plugin.plugin import Plugin


def made(**hooks: Any) -> Plugin:
    """An instance of a plugin with these attributes."""
    plugin: Plugin = type("Audit", (Plugin,), {"__module__": "shop", **hooks})()
    return plugin


async def asynchronous(self: object, *args: object, **named: object) -> None: ...


def synchronous(self: object, *args: object, **named: object) -> None: ...


def takes_one(self: object, batch: object) -> None: ...


async def takes_one_async(self: object, batch: object) -> None: ...


def around(self: object, context: object) -> Generator[None]:
    yield


async def around_async(self: object, context: object) -> AsyncGenerator[None]:
    yield


def wrapped(self: object, *args: object) -> Any:
    return asynchronous(self, *args)


@pytest.mark.parametrize(
    ("hook", "function", "error"),
    [
        (
            "settled",
            takes_one,
            r"settled cannot be called as it will be \(too many positional arguments\): "
            r"write it as `def settled\(self, batch, stale\)`",
        ),
        (
            "settling",
            takes_one_async,
            r"settling cannot be called .* write it as `async def settling\(self, tx, batch\)`",
        ),
        ("serve", synchronous, r"serve must be a coroutine function: write it as `async def serve"),
        ("examine", synchronous, r"examine must be a coroutine function"),
        ("judging", asynchronous, r"judging must not be a coroutine function: write it as `def ju"),
        ("settled", asynchronous, r"settled must not be a coroutine function"),
        ("around", asynchronous, r"around must not be a coroutine function"),
        ("pushing", None, r"pushing is None and not a method"),
        (
            "prepare_push",
            takes_one,
            r"prepare_push cannot .* `def prepare_push\(self, chancy, value, \*, within, valid",
        ),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused(
    hook: str, function: Callable[..., Any] | None, error: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"the plugin 'shop\.Audit': {error}"):
        Chancy("postgresql://nowhere", plugins=[made(**{hook: function})])


@pytest.mark.parametrize(
    ("hook", "function"),
    [
        ("settled", synchronous),
        ("serve", asynchronous),
        ("serve", functools.wraps(asynchronous)(wrapped)),
        ("around", contextmanager(around)),
        ("around", asynccontextmanager(around_async)),
        ("commands", staticmethod(lambda: ())),
    ],
)
def test_other_ways_to_write_a_hook_are_accepted(hook: str, function: Any) -> None:
    assert Hooks([made(**{hook: function})]).plugins
