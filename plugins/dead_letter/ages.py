"""Options of the ``chancy dead`` commands: rates and filters."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import click

from chancy.plugin.commands import Age, where_option
from chancy.plugins.dead_letter.letter import LetterFilter
from chancy.plugins.dead_letter.replaying import MAX_RATE, MIN_RATE

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(?:/([smhd]))?")


# Not generic before click 8.4.
class Rate(click.ParamType):  # type: ignore[type-arg]
    """A rate: jobs a second, or a number with another unit of time."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = _RATE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a rate like 10, 10/s, 100/m or 5000/h", param, ctx)
        unit = found[2] or "s"
        rate, low, high = float(found[1]), MIN_RATE * _SECONDS[unit], MAX_RATE * _SECONDS[unit]
        if not low <= rate <= high:
            why = f"from {low:,.12g}/{unit} to {high:,.12g}/{unit}"
            self.fail(f"{value!r} is out of range: {why}", param, ctx)
        return rate / _SECONDS[unit]


_FILTER = (
    click.option("--queue", metavar="NAME", help="Only dead letters of this queue."),
    click.option(
        "--func",
        metavar="PATH",
        help="Only dead letters of this function: its path, a pattern such as 'shop.*', or its "
        "name without the module.",
    ),
    click.option(
        "--error", metavar="TYPE", help="Only this error type: module.Name, or a built-in."
    ),
    click.option(
        "--fingerprint",
        metavar="ID",
        help="Only dead letters of this group: see `chancy dead groups`.",
    ),
    click.option(
        "--older",
        "older_than",
        type=Age(),
        metavar="AGE",
        help="Failed at least this long ago: 90 (seconds), 15m, 2h, 7d, 4w.",
    ),
    click.option(
        "--newer", "newer_than", type=Age(), metavar="AGE", help="Failed within this time."
    ),
    where_option,
)
_STATES = {"waiting": False, "replayed": True, "all": None}
_NAMES = ("queue", "func", "error", "fingerprint", "older_than", "newer_than", "where")

state = click.option(
    "--state",
    type=click.Choice(list(_STATES)),
    default="waiting",
    show_default=True,
    help="Not replayed yet, replayed, or both.",
)


def filtered(function: Callable[..., None]) -> Callable[..., None]:
    """Add the filter options to a command."""
    for option in reversed(_FILTER):
        function = option(function)
    return function


def filter_from(options: dict[str, Any]) -> LetterFilter:
    """The filter that the options describe."""
    conditions = {name: options[name] for name in _NAMES if options[name] is not None}
    return LetterFilter(**conditions, replayed=_STATES[options.get("state", "all")])


def selects_by_filter(ids: tuple[UUID, ...], all_: bool, options: dict[str, Any]) -> bool:
    """Whether a command selects dead letters by a filter instead of by id.

    :raises click.UsageError: ids and a filter are given, or neither.
    """
    by_filter = all_ or any(options[name] is not None for name in _NAMES)
    if ids and by_filter:
        raise click.UsageError("pass either ids, or --all and filters, but not both")
    if not ids and not by_filter:
        raise click.UsageError("pass ids, filters such as --queue and --error, or --all")
    return by_filter
