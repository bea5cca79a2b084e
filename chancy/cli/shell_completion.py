"""Shell completion of queues, functions and ids of jobs. Only ids are read from the database."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from chancy.broker.values import JobFilter
    from chancy.cli.options import CommandTarget
    from chancy.job.definition import QueuedJob

#: The most names that are offered.
_MOST = 200
#: The newest jobs whose ids are compared with the typed prefix, and how many are offered.
_NEWEST, _OFFERED = 200, 20
#: Seconds that reading ids may take, connecting included.
_PATIENCE_S = 3.0


def queues(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The queues of the application, and those that its functions name."""
    from chancy.job.definition import NAMED_QUEUES

    declared = _application_queues(context)
    return [] if declared is None else _offered({*declared, *NAMED_QUEUES}, begun)


def queue_list(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """`queues`, for an option that takes several names separated by commas."""
    given, comma, last = begun.rpartition(",")
    chosen = given.split(",")
    return [
        f"{given}{comma}{name}" for name in queues(context, parameter, last) if name not in chosen
    ]


def functions(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The functions that the application registers."""
    from chancy.job.definition import DECORATED

    return [] if _application_queues(context) is None else _offered(DECORATED, begun)


def job_ids(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The ids of the newest jobs that the command applies to: those that failed come first."""
    from chancy.broker.values import JobFilter
    from chancy.states import State

    states = {
        "retry": {State.SCHEDULED},
        "release": {State.HELD},
        "cancel": {State.PENDING, State.SCHEDULED, State.HELD, State.RUNNING},
        "wait": {State.PENDING, State.SCHEDULED, State.HELD, State.RUNNING},
        "why": {State.PENDING, State.SCHEDULED, State.HELD, State.FAILED},
    }.get(context.info_name or "", set())
    # Nothing may be printed: the shell would show it in the middle of the line.
    logging.disable()
    try:
        wanted = JobFilter(states=frozenset(states), limit=_NEWEST)
        found = asyncio.run(_newest(_target(context), wanted))
    except (Exception, SystemExit):
        return []
    given = {str(id) for id in context.params.get("ids") or ()}
    fitting = [job for job in found if str(job.id).startswith(begun) and str(job.id) not in given]
    fitting.sort(key=lambda job: job.state is not State.FAILED)
    return [
        CompletionItem(str(job.id), help=f"{job.state.label} {job.queue} {job.func}")
        for job in fitting[:_OFFERED]
    ]


async def _newest(target: CommandTarget, wanted: JobFilter) -> list[QueuedJob]:
    async with asyncio.timeout(_PATIENCE_S):
        async with target.application() as chancy:
            return list(await chancy.find_jobs(wanted))


def _target(context: click.Context) -> CommandTarget:
    """The application that the options typed so far select."""
    from chancy.cli.options import SHARED, CommandTarget

    # As for a command that runs: see `chancy.cli.main`.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    return CommandTarget({name: context.params.get(name) for name in SHARED})


def _application_queues(context: click.Context) -> list[str] | None:
    """The queues of the application, which is imported; None if it cannot be.

    Nothing may be printed or raised: the shell would show it in the middle of the line.
    """
    try:
        found = _target(context).unconnected()
    except (Exception, SystemExit):
        return None
    return ["default", *(queue.name for queue in found.queues)]


def _offered(names: Iterable[str], begun: str) -> list[str]:
    return sorted(name for name in names if name.startswith(begun))[:_MOST]
