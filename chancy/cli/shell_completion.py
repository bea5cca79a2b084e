"""Shell completion of the names of queues and functions. Asks no database."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

#: The most names that are offered.
_MOST = 200


def queues(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The queues of the application, and those that its functions name."""
    from chancy.job.definition import NAMED_QUEUES

    declared = _application_queues(context)
    return [] if declared is None else _offered({*declared, *NAMED_QUEUES}, begun)


def functions(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The functions that the application registers."""
    from chancy.job.definition import DECORATED

    return [] if _application_queues(context) is None else _offered(DECORATED, begun)


def _application_queues(context: click.Context) -> list[str] | None:
    """The queues of the application, which is imported; None if it cannot be.

    Nothing may be printed or raised: the shell would show it in the middle of the line.
    """
    from chancy.cli.options import SHARED, CommandTarget

    # As for a command that runs: see `chancy.cli.main`.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        target = CommandTarget({name: context.params.get(name) for name in SHARED})
        found = target.unconnected()
    except (Exception, SystemExit):
        return None
    return ["default", *(queue.name for queue in found.queues)]


def _offered(names: Iterable[str], begun: str) -> list[str]:
    return sorted(name for name in names if name.startswith(begun))[:_MOST]
