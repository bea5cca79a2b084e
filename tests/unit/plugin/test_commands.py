"""What options of commands take, and what they say of what they do not."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from chancy.cli.options import DATETIME
from chancy.cli.push import push
from chancy.cli.queues import pause
from chancy.plugin.commands import Seconds


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "-1", "soon"])
def test_seconds_are_a_number_that_a_calendar_has(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)


def test_seconds_have_a_least() -> None:
    assert (Seconds().convert("0", None, None), Seconds(0.5).convert("1e3", None, None)) == (0, 1e3)
    with pytest.raises(click.BadParameter, match=r"0\.1 is not in the range"):
        Seconds(0.5).convert("0.1", None, None)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(push, ["a.b", "--delay=nan"]), (push, ["a.b", "--wait=nan"]), (pause, ["mail", "--for=inf"])],
)
def test_commands_refuse_what_are_no_seconds(command: click.Command, arguments: list[str]) -> None:
    with pytest.raises(click.BadParameter, match="is not a number of seconds"):
        command.make_context("it", arguments)


@pytest.mark.parametrize("text", ["2030-01-01", "2030-01-01T09:00", "2030-01-01 09:00:01.5"])
def test_the_suggested_datetime_with_a_zone_is_valid(text: str) -> None:
    with pytest.raises(click.BadParameter, match="has no time zone: write ") as caught:
        DATETIME.convert(text, None, None)
    proposed = caught.value.message.split("write ")[1].removesuffix(" for UTC")
    assert DATETIME.convert(proposed, None, None) == datetime.fromisoformat(text).replace(
        tzinfo=UTC
    )


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00"])
def test_a_time_beyond_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="outside the years 1 to 9999"):
        DATETIME.convert(text, None, None)
