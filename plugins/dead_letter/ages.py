"""What the commands of dead letters take: ages, rates, and which letters."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import click

from chancy.plugins.dead_letter.letter import LetterFilter

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw]?)")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:/([smhd]))?")


class Age(click.ParamType[timedelta]):
    """A number of seconds, or one with a unit."""

    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not an age like 90s, 15m, 2h, 7d or 4w", param, ctx)
        try:
            return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        except OverflowError:
            self.fail(f"{value!r} is longer ago than anything", param, ctx)


class Rate(click.ParamType[float]):
    """Jobs a second, or a number with another unit of time."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = _RATE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a rate like 10, 10/s, 100/m or 5000/h", param, ctx)
        return float(found[1]) / _UNITS[found[2] or "s"]


_FILTER = (
    click.option("--queue", metavar="NAME", help="Only letters of this queue."),
    click.option("--func", metavar="PATH", help="Only letters of this function."),
    click.option(
        "--error", metavar="TYPE", help="Only this type of error: module.Name, or a built-in one."
    ),
    click.option(
        "--older-than", type=Age(), metavar="AGE", help="Died so long ago: 90s, 15m, 2h, 7d, 4w."
    ),
    click.option("--newer-than", type=Age(), metavar="AGE", help="Died since then."),
)
_STATES = {"waiting": False, "replayed": True, "all": None}
_NAMES = ("queue", "func", "error", "older_than", "newer_than")

state = click.option(
    "--state",
    type=click.Choice(list(_STATES)),
    default="waiting",
    show_default=True,
    help="Waiting for somebody, replayed, or both.",
)


def filtered(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which letters."""
    for option in reversed(_FILTER):
        function = option(function)
    return function


def wanted(given: dict[str, Any]) -> LetterFilter:
    """The filter of the options."""
    asked = {name: given[name] for name in _NAMES}
    return LetterFilter(**asked, replayed=_STATES[given.get("state", "all")])


def selected(ids: tuple[UUID, ...], all_: bool, given: dict[str, Any]) -> bool:
    """Whether a filter says which letters, not ids.

    :raises click.UsageError: both do, or nothing does.
    """
    by_filter = all_ or any(given[name] is not None for name in _NAMES)
    if ids and by_filter:
        raise click.UsageError("give either ids, or --all and conditions")
    if not ids and not by_filter:
        raise click.UsageError("say which: ids, conditions such as --queue and --error, or --all")
    return by_filter
