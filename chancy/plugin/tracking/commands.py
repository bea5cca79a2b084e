"""Options and output of commands about groups of jobs. Needs click."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import click

from chancy.plugin.commands import as_json, refuse
from chancy.plugin.runtime import CommandLine
from chancy.plugin.tracking.groups import MAX_FOUND, GroupCalls, GroupFilter, GroupState

F = TypeVar("F", bound=GroupFilter[Any])


def listing(
    groups: str, states: type[GroupState], filtered: type[F]
) -> Callable[[Callable[[CommandLine, F, bool], None]], Callable[..., None]]:
    """Add the options of a command that lists groups, and pass it a filter.

    :param groups: the groups, in help texts.
    """

    def decorate(function: Callable[[CommandLine, F, bool], None]) -> Callable[..., None]:
        @click.pass_obj
        def command(
            cli: CommandLine, /, *, state: Sequence[str], json_: bool, **wanted: Any
        ) -> None:
            found = [states[label.upper()] for label in state]
            function(cli, filtered(states=found, **wanted), json_)

        older = f"Only {groups} older than this id: the last of the previous page."
        options = [
            click.option("--name", help=f"Only {groups} of this name."),
            click.option(
                "--state",
                type=click.Choice([state.label for state in states]),
                multiple=True,
                help=f"Only {groups} in this state; repeatable.",
            ),
            click.option("--before", type=click.UUID, help=older),
            click.option(
                "--limit",
                type=click.IntRange(1, MAX_FOUND),
                default=50,
                show_default=True,
                help=f"The most {groups} to list.",
            ),
            as_json,
        ]
        listed = functools.update_wrapper(command, function)
        for option in reversed(options):
            listed = option(listed)
        return listed

    return decorate


def cancel_group(
    cli: CommandLine, calls: type[GroupCalls[Any, Any]], id: UUID, *, done: str, json_: bool
) -> None:
    """Cancel a group. Exits with status 1 if it does not exist, or has ended otherwise."""
    cancelled = cli.run(lambda chancy: calls(chancy.broker).cancel(id))
    if json_:
        cli.script({"cancelled": cancelled})
    if not cancelled:
        refuse(f"{calls.kind} {id} does not exist, or has ended otherwise")
    if not json_:
        cli.line(f"{calls.kind} {id} {done}")
