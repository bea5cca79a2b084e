"""Shell completion of queues, functions and ids. Only ids are read from the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from chancy.app.app import Chancy
    from chancy.cli.options import CommandTarget

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

    async def newest(chancy: Chancy) -> list[tuple[UUID, str]]:
        wanted = JobFilter(states=frozenset(states), limit=_NEWEST)
        found = sorted(
            await chancy.find_jobs(wanted), key=lambda job: job.state is not State.FAILED
        )
        return [(job.id, f"{job.state.label} {job.queue} {job.func}") for job in found]

    return ids(context, parameter, begun, newest)


def worker_ids(
    context: click.Context, parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The ids of the workers that are alive."""

    async def newest(chancy: Chancy) -> list[tuple[UUID, str]]:
        found = await chancy.get_workers()
        return [(one.id, f"{one.host} {one.pid}") for one in found if not one.dead]

    return ids(context, parameter, begun, newest)


def ids(
    context: click.Context,
    parameter: click.Parameter,
    begun: str,
    newest: Callable[[Chancy], Awaitable[Iterable[tuple[UUID, str]]]],
) -> list[CompletionItem]:
    """The ids that `newest` reads, without those that are on the line already."""

    async def found() -> list[tuple[UUID, str]]:
        async with asyncio.timeout(_PATIENCE_S), _target(context).application() as chancy:
            return list(await newest(chancy))

    # Nothing may be printed: the shell would show it in the middle of the line.
    logging.disable()
    try:
        offered = asyncio.run(found())
    except (Exception, SystemExit):
        return []
    given = context.params.get(parameter.name or "")
    written = {str(id) for id in given} if isinstance(given, Sequence) else set[str]()
    fitting = [
        CompletionItem(str(id), help=description)
        for id, description in offered
        if str(id).startswith(begun) and str(id) not in written
    ]
    return fitting[:_OFFERED]


def _target(context: click.Context) -> CommandTarget:
    """The application that the options typed so far select."""
    from chancy.cli.options import SHARED, CommandTarget

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
