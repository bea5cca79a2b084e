"""Pages of jobs: by key, from an index, with a bound on the rows that are read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.plugin.tables import PluginTables, from_row
from chancy.plugins.dashboard.audit import SQL
from chancy.plugins.dashboard.search import Search
from chancy.states import State

#: Jobs of a page.
PAGE = 50
#: The most rows of a table that a page reads to find jobs by their content, the rows of one
#: statement, and the seconds after which a page begins no further one.
SCANNED, _SOME, _SCAN_S = 5_000, 500, 0.1

#: The bounds of ids and times.
LOW, HIGH = UUID(int=0), UUID(int=2**128 - 1)
NEVER = datetime(1, 1, 2, tzinfo=UTC)
FOREVER = datetime(9999, 12, 30, tzinfo=UTC)
_HIGHEST = 32_767
_ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a list. Times are aware, in UTC.

    :param arguments: JSON text; None if it is long.
    """

    position: str
    id: UUID
    func: str
    queue: str
    priority: int
    state: State
    attempt: int
    max_attempts: int
    run_at: datetime | None
    worker_id: UUID | None
    pushed_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    arguments: str | None
    error: str | None
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs.

    :param order: the order of the jobs, in words.
    :param after: the position from which the next page goes on; None: this is the last one.
    :param scanned: how many rows were read, if the page is not full because that was the bound.
    """

    jobs: Sequence[JobRow]
    order: str
    after: str | None
    scanned: int | None


class _Source(NamedTuple):
    #: The function ``dashboard_<name>`` in the database.
    name: str
    order: str
    #: The kind of its positions: ``id``, ``up`` or ``down`` in time, ``place`` or ``held``.
    key: str
    #: Whether the index alone answers the search.
    exact: bool


class _Found(NamedTuple):
    jobs: Sequence[JobRow]
    rows: int
    #: Where the last row is.
    edge: str | None
    #: Whether there may be rows behind it.
    more: bool


def _source(wanted: Search, *, failures: bool) -> _Source | None:
    """The index that serves a search; None: both tables by id."""
    states, queue, rest = wanted.states, wanted.queue, wanted.by_content
    only = next(iter(states)) if len(states) == 1 else None
    if only is State.RUNNING:
        return _Source("running", "the longest running first", "up", not rest and not queue)
    if only is State.SCHEDULED:
        return _Source("scheduled", "the next one first", "up", not rest and not queue)
    if only is State.HELD:
        return _Source("held", "by queue, those on hold last", "held", not rest and not queue)
    if only is State.PENDING and queue:
        return _Source("pending", "in the order in which they run", "place", not rest)
    if only is State.FAILED and failures:
        return _Source("failed", "the last failure first", "down", not rest and not queue)
    if states and states <= _ENDED and queue:
        exact = not rest and states == _ENDED
        return _Source("ended", "the last one first", "down", exact)
    if states and not states & _ENDED:
        return _Source("live", "newest first", "id", False)
    if states and states <= _ENDED:
        return _Source("finished", "newest first", "id", not rest and states == _ENDED)
    return None


async def find_page(
    store: SqlStore,
    wanted: Search,
    after: str | None,
    *,
    allows: Callable[[str], bool] | None,
    failures: bool,
) -> JobPage:
    """A page of matching jobs.

    :param after: where the previous page ended.
    :param allows: whether arguments and meta of a function's jobs may be looked into; None: those
        of all. A search for them finds no others, and its pages do not depend on them.
    :param failures: whether the index of failed jobs exists.
    """
    tables = _Tables(SQL.on(store), allows)
    if wanted.queue and not wanted.states and not wanted.worker:
        return await _of_queue(tables, wanted, after)
    source = _source(wanted, failures=failures)
    if source is None:
        return await _both(tables, wanted, after)
    budget = PAGE + 1 if source.exact else SCANNED
    found = await tables.fetch(source, wanted, after, budget, _SCAN_S)
    if len(found.jobs) > PAGE:
        page = found.jobs[:PAGE]
        return JobPage(jobs=page, order=source.order, after=page[-1].position, scanned=None)
    return JobPage(
        jobs=found.jobs,
        order=source.order,
        after=found.edge if found.more else None,
        scanned=found.rows if found.more else None,
    )


async def _both(tables: _Tables, wanted: Search, after: str | None) -> JobPage:
    """Jobs of both tables, newest first, down to where both have been read. Of a worker, those that
    it runs, and those that ended on it."""
    exact = not wanted.by_content and not wanted.queue and not wanted.states
    budget = PAGE + 1 if exact else SCANNED
    parts: list[_Found] = []
    for name in ("of_worker" if wanted.worker and not wanted.states else "live", "finished"):
        source = _Source(name, "", "id", exact)
        parts.append(await tables.fetch(source, wanted, after, budget, _SCAN_S / 2))
    # One of the tables may have been read less far than the other.
    edges = [part.edge for part in parts if part.edge and part.more and len(part.jobs) <= PAGE]
    edge = max(edges, default=None)
    jobs = sorted((job for part in parts for job in part.jobs), key=attrgetter("id"), reverse=True)
    if edge is not None:
        jobs = [job for job in jobs if job.position >= edge]
    if len(jobs) > PAGE:
        jobs = jobs[:PAGE]
        return JobPage(jobs=jobs, order="newest first", after=jobs[-1].position, scanned=None)
    scanned = sum(part.rows for part in parts) if edge is not None and not exact else None
    return JobPage(jobs=jobs, order="newest first", after=edge, scanned=scanned)


async def _of_queue(tables: _Tables, wanted: Search, after: str | None) -> JobPage:
    """Jobs of a queue in all states, one index after the other: beside millions of other jobs the
    newest rows of the tables may hold none of them. Those without an index by queue come last."""
    exact = not wanted.by_content
    sources = (
        _Source("running", "", "up", False),
        _Source("pending", "", "place", exact),
        _Source("ended", "", "down", exact),
        _Source("scheduled", "", "up", False),
        _Source("held", "", "held", False),
    )
    order = "running and pending first, then finished, scheduled and held"
    name, _, position = (after or "").partition(":")
    begin = next((no for no, source in enumerate(sources) if source.name == name), 0)
    jobs: list[JobRow] = []
    rows, until = 0, time.monotonic() + _SCAN_S
    for source in sources[begin:]:
        budget = PAGE + 1 - len(jobs) if source.exact else SCANNED
        left_s = until - time.monotonic()
        found = await tables.fetch(source, wanted, position or None, budget, left_s)
        position = ""
        rows += found.rows
        jobs += (replace(job, position=f"{source.name}:{job.position}") for job in found.jobs)
        if len(jobs) > PAGE:
            page = jobs[:PAGE]
            return JobPage(jobs=page, order=order, after=page[-1].position, scanned=None)
        if found.more:
            edge = f"{source.name}:{found.edge}"
            return JobPage(jobs=jobs, order=order, after=edge, scanned=rows)
    return JobPage(jobs=jobs, order=order, after=None, scanned=None)


async def find_batch(
    store: SqlStore,
    wanted: Search,
    after: str | None,
    *,
    allows: Callable[[str], bool] | None,
    limit: int,
) -> tuple[Sequence[JobRow], str | None]:
    """Matching jobs for a change, the newest first, and the position after which others may match.
    Jobs that are pushed, or fail, after the first call are not among them.

    :param wanted: with failed jobs alone, or others that have not finished.
    """
    if wanted.states == frozenset({State.FAILED}):
        source = _Source("failed", "", "down", False)
    else:
        source = _Source("live", "", "id", False)
    tables = _Tables(SQL.on(store), allows, limit)
    found = await tables.fetch(source, wanted, after, SCANNED, _SCAN_S)
    if len(found.jobs) > limit:
        jobs = found.jobs[:limit]
        return jobs, jobs[-1].position
    return found.jobs, found.edge if found.more else None


class _Tables:
    """The jobs in the database, of which a person may look into some."""

    def __init__(
        self, tables: PluginTables, allows: Callable[[str], bool] | None, limit: int = PAGE
    ) -> None:
        self._tables = tables
        self._allows = allows
        self._limit = limit

    async def fetch(
        self,
        source: _Source,
        wanted: Search,
        after: str | None,
        budget: int,
        scan_s: float,
    ) -> _Found:
        """The next jobs of a source that match, of up to ``budget`` rows.

        :param scan_s: the seconds after which no further rows are read.
        """
        jobs: list[JobRow] = []
        rows, until = 0, time.monotonic() + scan_s
        while True:
            size = min(_SOME, budget - rows)
            found = await self._read(source, wanted, after, size)
            jobs += found.jobs
            rows += found.rows
            over = len(jobs) > self._limit or rows >= budget or time.monotonic() > until
            if over or not found.more:
                return _Found(jobs, rows, found.edge or after, found.more)
            after = found.edge

    async def _read(self, source: _Source, wanted: Search, after: str | None, size: int) -> _Found:
        """The jobs that match among the next ``size`` rows."""
        position = json.dumps(_position(source.key, after, wanted.queue))
        rows = await self._tables.fetch(
            "job_page",
            sorted(int(state) for state in wanted.states) or None,
            wanted.queue,
            wanted.func,
            wanted.worker,
            list(wanted.args),
            list(wanted.args.values()),
            list(wanted.meta),
            list(wanted.meta.values()),
            wanted.error,
            wanted.since_s,
            source.name,
            size,
            self._limit + 1,
            position,
            await self._allowed(source, wanted, size, position),
        )
        found = [row[2:] for row in rows if row[3] is not None]
        jobs = [from_row(JobRow, row, state=State) for row in found]
        scanned = int(rows[0][0])
        return _Found(jobs, scanned, rows[0][1], scanned >= size)

    async def _allowed(
        self, source: _Source, wanted: Search, budget: int, position: str
    ) -> list[str] | None:
        """The functions whose jobs may match; None: all."""
        allows = self._allows
        # To find the functions takes as long as the search itself.
        if allows is None or not (wanted.args or wanted.meta):
            return None
        funcs = await self._tables.fetch(
            "job_funcs", source.name, wanted.queue, wanted.worker, budget, position
        )
        return [func for (func,) in funcs if allows(func)]


def _position(key: str, after: str | None, queue: str | None) -> dict[str, str | int]:
    """A position, as the functions take it; an unreadable one is the beginning."""
    first, _, second = (after or "").partition("_")
    try:
        match key:
            case "id":
                return {"id": str(UUID(first) if after else HIGH)}
            case "up" | "down":
                if after:
                    at = datetime.fromisoformat(first).replace(tzinfo=UTC)
                    return {"at": at.isoformat(), "id": str(UUID(second))}
                at, id = (NEVER, LOW) if key == "up" else (FOREVER, HIGH)
                return {"at": at.isoformat(), "id": str(id)}
            case "place":
                return _place(int(first), int(second)) if after else _place(_HIGHEST, 0)
            case _:
                if after:
                    own, pos, on_hold = json.loads(after)
                    return {"queue": str(own), "on_hold": bool(on_hold), "pos": _pos(int(pos))}
                return {"queue": queue or "", "on_hold": False, "pos": 0}
    except (TypeError, ValueError, RecursionError):
        return _position(key, None, queue)


def _place(priority: int, pos: int) -> dict[str, str | int]:
    bounded = max(-_HIGHEST, min(_HIGHEST, priority))
    return {"priority": bounded, "pos": _pos(pos)}


def _pos(pos: int) -> int:
    return max(0, min(2**63 - 1, pos))


def fraction_of(progress: object) -> float | None:
    """The fraction that a job has set as its progress, from 0 to 1; None: none."""
    found = progress.get("fraction") if isinstance(progress, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return max(0.0, min(1.0, float(found)))
