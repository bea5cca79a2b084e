"""`periodic`: a decorator that runs a job function on a schedule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from chancy.errors import ChancyError, ConfigurationError
from chancy.job.definition import Job, JobFactory, job, path_of
from chancy.plugins.cron.entry import Entry, Overlap
from chancy.plugins.cron.misfire import Misfire

logger = logging.getLogger("chancy.cron")

_Function = TypeVar("_Function", bound=Callable[..., object])

#: The functions that create the entries of the decorated functions of this process, by name.
_MADE: dict[str, Callable[[], Entry]] = {}


def periodic_entries() -> dict[str, Entry]:
    """The entries of the decorated functions, by name, with the current settings of their jobs.

    Entries whose settings do not suit a schedule are left out, such as with ``@job(unique=…)``
    above ``@periodic``.
    """
    found: dict[str, Entry] = {}
    for name, make in _MADE.items():
        try:
            found[name] = make()
        except ChancyError as error:
            logger.error("cron_entry_refused entry=%s: %s", name, error)
    return found


def periodic(
    schedule: str,
    *,
    name: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    zone: str = "UTC",
    misfire: Misfire | Literal["skip", "one", "all"] = Misfire.ONE,
    grace_s: float = 60.0,
    backfill_limit: int = 100,
    overlap: Overlap | Literal["allow", "skip"] = Overlap.ALLOW,
    jitter_s: float = 0.0,
) -> Callable[[_Function], _Function]:
    """Decorate a function to run on a schedule, above or below ``@job``, or instead of it.

    Each worker whose application imports the function stores the entry, like the entries of `Cron`.
    An entry of `Cron` with the same name replaces it.

    :param schedule: a cron expression, see `chancy.schedule.Schedule`.
    :param name: the name of the entry; by default the path of the function. A function with two
        schedules needs a name for one of them.
    :param arguments: the keyword arguments of each job.
    :raises ConfigurationError: a value is invalid, or the name is taken; see `Entry`.
    :raises InvalidArguments: the function does not take these arguments.
    """

    def decorate(function: _Function) -> _Function:
        if not isinstance(getattr(function, "job", None), JobFactory):
            job(function)
        path = path_of(function)

        def make() -> Entry:
            return Entry(
                name or path,
                schedule,
                Job.from_func(function, **(arguments or {})),
                zone=zone,
                misfire=misfire,
                grace_s=grace_s,
                backfill_limit=backfill_limit,
                overlap=overlap,
                jitter_s=jitter_s,
            )

        entry = make()
        before = _MADE[entry.name]() if entry.name in _MADE else None
        # A module that is imported again defines its functions again.
        if before is not None and (before.job.func != path or before.schedule != entry.schedule):
            raise ConfigurationError(
                f"@periodic: there are two cron entries {entry.name!r}, of {before.job.func} "
                f"({before.schedule}) and {path} ({entry.schedule}): pass a different name="
            )
        _MADE[entry.name] = make
        return function

    return decorate
