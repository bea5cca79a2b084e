"""Stores metrics and reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.checks import check_number
from chancy.plugin.tables import PluginSql
from chancy.plugins.metrics.tally import COUNTS, PLACES, Totals, TotalsByFunction, quantile

SQL = PluginSql("chancy.plugins.metrics", "metrics")

#: The steps of rows: reports of workers, minutes, minutes that are also part of their hour, hours.
REPORT, MINUTE, COVERED, HOUR = 0, 60, -60, 3_600
#: Which rows are aggregated to which, how old they are, and whether they stay.
_ROLL_UPS = ((REPORT, MINUTE, 60.0, False), (MINUTE, HOUR, 120.0, True))
#: Seconds for which minutes are read, and after which they are removed.
_MINUTES_S, _COVERED_S = 48 * 3_600.0, 49 * 3_600.0
#: Rows that one statement aggregates or removes.
_STEP = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPoint:
    """Outcomes of jobs in one step of time.

    :param at: the start of the step, in UTC.
    :param queue: "" if queues were added up.
    :param func: "" if functions were added up.
    """

    at: datetime
    queue: str
    func: str
    totals: Totals

    def wait_s(self, share: float) -> float | None:
        """The maximum seconds that a share of the jobs (0.95) waited; None without jobs."""
        return quantile(self.totals.waits, share)

    def run_s(self, share: float) -> float | None:
        """The maximum seconds that a share of the jobs ran; None without jobs."""
        return quantile(self.totals.runs, share)

    def total_s(self, share: float) -> float | None:
        """The seconds within which a share of the jobs had ended once they were due."""
        return quantile(self.totals.ends, share)


class MetricsTable:
    """The table of metrics in the database of an application.

    :raises ConfigurationError: the broker does not offer SQL.
    """

    def __init__(self, broker: Broker | SqlStore) -> None:
        self._tables = SQL.on(broker)

    async def report(self, totals: Mapping[tuple[str, str], Totals]) -> None:
        """Store the totals of a worker, by queue and function."""
        rows = list(totals.items())
        await self._tables.fetch(
            "report",
            [queue for (queue, _), _ in rows],
            [func for (_, func), _ in rows],
            *([getattr(some, name) for _, some in rows] for name in COUNTS),
            [some.wait_s for _, some in rows],
            [some.run_s for _, some in rows],
            [json.dumps(some.waits) for _, some in rows],
            [json.dumps(some.runs) for _, some in rows],
            [json.dumps(some.ends) for _, some in rows],
        )

    async def collect(self) -> TotalsByFunction:
        """The counts of the database since the last call of any worker: waiting jobs that were
        cancelled or expired."""
        return {
            (queue, func): Totals(cancelled=cancelled, expired=expired)
            for queue, func, cancelled, expired in await self._tables.fetch("collect", _STEP)
        }

    async def roll_up(self, keep_days: float) -> None:
        """Aggregate old rows, and remove hourly rows that are over ``keep_days`` days old."""
        for step, following, older_s, keep in _ROLL_UPS:
            await self._repeat("roll_up", step, following, older_s, _STEP, keep)
        for step, older_s in ((COVERED, _COVERED_S), (HOUR, keep_days * 86_400.0)):
            await self._repeat("prune", step, older_s, _STEP)

    async def _repeat(self, statement: str, *parameters: object) -> None:
        """Run a statement until it finds fewer rows than it may take."""
        while True:
            ((rows,),) = await self._tables.fetch(statement, *parameters)
            if rows < _STEP:
                break

    async def read(
        self,
        span: timedelta,
        step: timedelta,
        *,
        queue: str | None = None,
        func: str | None = None,
        by_queue: bool = False,
        by_func: bool = False,
    ) -> Sequence[MetricsPoint]:
        """See `Metrics.read`."""
        span_s, step_s = span.total_seconds(), step.total_seconds()
        check_number(span_s, "span", 1, 366 * 86_400, whole=False, unit="seconds")
        check_number(step_s, "step", 1, span_s, whole=False, unit="seconds")
        return await self._read(span_s, step_s, queue, func, by_queue, by_func)

    async def read_hour(self) -> TotalsByFunction:
        """The totals of all workers since the hour began, by the clock of the database."""
        return add_up(await self._read(None, float(HOUR), None, None, True, True))

    async def _read(
        self, span_s: float | None, step_s: float, *parameters: object
    ) -> Sequence[MetricsPoint]:
        points: list[MetricsPoint] = []
        whole_hours = step_s % HOUR == 0
        for at, queue, func, *rest in await self._tables.fetch(
            "read", span_s, step_s, *parameters, whole_hours, _MINUTES_S
        ):
            counts, (wait_s, run_s, waits, runs, ends) = rest[: len(COUNTS)], rest[len(COUNTS) :]
            totals = Totals(
                **dict(zip(COUNTS, counts, strict=True)),
                wait_s=wait_s,
                run_s=run_s,
                waits=_counts(waits),
                runs=_counts(runs),
                ends=_counts(ends),
            )
            moment = datetime.fromtimestamp(at, UTC)
            points.append(MetricsPoint(at=moment, queue=queue, func=func, totals=totals))
        return points


def _counts(text: str) -> list[int]:
    """A list of counts from the text of an array, ``{1,2}``."""
    found = [int(count) for count in text.strip("{}").split(",") if count]
    return found + [0] * (PLACES - len(found))


def add_up(points: Sequence[MetricsPoint]) -> TotalsByFunction:
    """The totals of points by queue and function."""
    found: TotalsByFunction = {}
    for point in points:
        found.setdefault((point.queue, point.func), Totals()).add(point.totals)
    return found
