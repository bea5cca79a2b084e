"""Metrics: outcomes of jobs, with their waits and durations; for dashboards and Prometheus."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from chancy.attempt.settlement import Settlement
from chancy.broker.optional import SqlStore
from chancy.broker.values import Capability
from chancy.checks import check_number
from chancy.clock import Clock, run_briefly
from chancy.errors import BrokerError, ConfigurationError
from chancy.job.definition import Job
from chancy.plugin.plugin import Plugin
from chancy.plugin.pushing import PushContext
from chancy.plugin.runtime import Application, Runtime
from chancy.plugins.metrics.gauges import Gauges, look
from chancy.plugins.metrics.series import MetricsPoint, MetricsTable
from chancy.plugins.metrics.tally import Tally, Totals, TotalsByFunction, bounded
from chancy.postgres.schema.component import Migrations

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from chancy.plugins.metrics.endpoint import MetricsEndpoint

__all__ = ["Metrics", "MetricsPoint", "Totals"]

logger = logging.getLogger("chancy.metrics")
#: The address that `Metrics` serves, and the number of the worker process of a supervisor.
_LISTEN, _NUMBER = "CHANCY_METRICS", "CHANCY_WORKER_NUMBER"
#: Pushes that are counted together.
_MOST_PUSHES = 1_000
#: Seconds between two roll-ups of the leader.
_ROLL_UP_S = 30.0
#: Seconds that the last report may take when the worker stops.
_LAST_S = 5.0
#: Seconds after which to try again to listen on an address that is in use.
_LISTEN_AGAIN_S = 10.0


class Metrics(Plugin):
    """Counts outcomes of jobs, with histograms of their waits and durations.

    Each worker counts in memory and stores its counts every few seconds. The leader aggregates them
    to minutes, and after two days to hours, and removes old ones. If a worker is killed, its counts
    of the last seconds are lost.

    :param every_s: seconds between two reports of a worker, 0.1 to 3,600.
    :param keep_days: days to keep hourly metrics.
    :param listen: the ``HOST:PORT`` at which to serve ``/metrics`` for Prometheus, and health
        checks; the default is the environment variable ``CHANCY_METRICS``, which
        ``chancy worker --metrics`` sets. Needs the extra ``prometheus``. None: serve nothing.
    """

    def __init__(
        self, *, every_s: float = 10.0, keep_days: int = 90, listen: str | None = None
    ) -> None:
        check_number(every_s, "every_s", 0.1, 3_600, whole=False, unit="seconds")
        check_number(keep_days, "keep_days", 1, 36_500, unit="days")
        self.every_s = every_s
        self.keep_days = keep_days
        self.listen = listen or os.environ.get(_LISTEN) or None
        #: The counts since the last report; the counts of all reports since the process has
        #: started; the counts of reports that are not stored yet.
        self._tally, self._taken, self._unstored = Tally(), Tally(), Tally()
        #: Held while totals move from the tally, so that a scrape, in its own thread, misses none.
        self._moving = Lock()
        #: Pushes of this process that are not counted yet, and the counts, by queue and function.
        self._pushes: deque[tuple[str, str]] = deque()
        self._pushed: Counter[tuple[str, str]] = Counter()
        self._pushing = Lock()
        #: The workers that this plugin serves. The id of a worker changes when it was declared
        #: dead.
        self._runtimes: list[Runtime] = []
        self._storing: asyncio.Task[None] | None = None
        self._gauges: Gauges | None = None
        self._registry: CollectorRegistry | None = None
        if self.listen is not None:
            _ = self.registry  # refuses a process without prometheus_client
            _address(self.listen)

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.metrics"

    def migrations(self) -> Migrations | None:
        return Migrations(name="metrics", package="chancy.plugins.metrics.migrations", head="0001")

    def requires(self) -> frozenset[Capability]:
        return frozenset() if self.listen is None else frozenset({Capability.SQL})

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        # Any thread may push. Recording a push takes a third of the time of a lock and a count.
        self._pushes.append((job.queue, job.func))
        if len(self._pushes) >= _MOST_PUSHES:
            self._count_pushes()
        return job

    def _count_pushes(self) -> Mapping[tuple[str, str], int]:
        """All pushes of this process, by queue and function."""
        with self._pushing:
            noted = Counter(self._pushes.popleft() for _ in range(len(self._pushes)))
            for key, number in noted.items():
                self._pushed[bounded(key, self._pushed)] += number
            return dict(self._pushed)

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        self._tally.add(batch, stale)

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of this process, to expose together with your own: those of its pushes, and
        of the jobs of its worker.

        :raises ConfigurationError: prometheus_client is not installed.
        """
        if self._registry is None:
            try:
                from prometheus_client import CollectorRegistry

                from chancy.plugins.metrics.exposition import JobsCollector
            except ImportError:
                raise ConfigurationError(
                    "metrics: prometheus_client is not installed: "
                    "pip install 'chancy-queue[prometheus]'"
                ) from None
            self._registry = CollectorRegistry()
            self._registry.register(
                JobsCollector(self._now, lambda: self._gauges, pushed=self._count_pushes)
            )
        return self._registry

    def asgi(self, chancy: Application) -> MetricsEndpoint:
        """An ASGI application with the metrics of all workers, for a process without a worker.

        Its counters restart at zero every hour.

        :param chancy: must be open while requests come in.
        :raises ConfigurationError: prometheus_client is not installed.
        """
        _ = self.registry
        from chancy.plugins.metrics.endpoint import MetricsEndpoint

        return MetricsEndpoint(chancy)

    def _now(self) -> TotalsByFunction:
        """The totals since the process has started."""
        totals = Tally()
        with self._moving:
            totals.give(self._taken.totals)
            totals.give(self._tally.totals)
        return totals.totals

    async def read(
        self,
        chancy: Application,
        span: timedelta = timedelta(hours=1),
        step: timedelta = timedelta(minutes=1),
        *,
        queue: str | None = None,
        func: str | None = None,
        by_queue: bool = False,
        by_func: bool = False,
    ) -> Sequence[MetricsPoint]:
        """Read the metrics of the last ``span``, oldest first. A step without jobs has no point.

        :param step: the duration of a step. Metrics over two days old are hourly.
        :param queue: only this queue; None: all.
        :param func: only this function; None: all.
        :param by_queue: whether to separate queues, instead of adding them up.
        :param by_func: whether to separate functions, instead of adding them up.
        :raises ConfigurationError: a duration is out of range.
        """
        table = MetricsTable(chancy.broker)
        return await table.read(
            span, step, queue=queue, func=func, by_queue=by_queue, by_func=by_func
        )

    async def serve(self, runtime: Runtime) -> None:
        if not isinstance(runtime.broker, SqlStore):
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work(runtime, MetricsTable(runtime.broker)))
            if self.listen is not None:
                group.create_task(self._listen(runtime, self.listen))

    async def _listen(self, runtime: Runtime, address: str) -> None:
        """Serve HTTP until cancelled. While the address is in use, keep trying."""
        from chancy.plugins.metrics.endpoint import Endpoint, resolved

        host_port, registry, logged = _address(address), self.registry, False
        while True:
            try:
                endpoint = Endpoint(await resolved(host_port), registry, runtime)
            except ConfigurationError as error:
                if not logged:
                    logger.error("metrics_not_served error=%s", error)
                logged = True
                await runtime.clock.sleep(_LISTEN_AGAIN_S)
                continue
            endpoint.start()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.to_thread(endpoint.stop)

    async def _work(self, runtime: Runtime, table: MetricsTable) -> None:
        clock, leader = runtime.clock, runtime.leader
        rolled_at = clock.monotonic()
        self._runtimes.append(runtime)
        self._tally.workers |= {runtime.worker_id}
        try:
            while True:
                await clock.sleep(self.every_s * random.uniform(0.8, 1.2))
                self._storing = asyncio.create_task(self._store(table))
                # A stop does not cancel a statement that may already have stored them.
                await asyncio.shield(self._storing)
                self._tally.workers = frozenset(one.worker_id for one in self._runtimes)
                try:
                    if leader.leading:
                        collected = await table.collect()  # by the database, and stored there
                        with self._moving:
                            self._taken.give(collected)
                    shows = leader.leading and self._registry is not None
                    self._gauges = await look(runtime.broker) if shows else None
                    if leader.leading and clock.monotonic() > rolled_at + _ROLL_UP_S:
                        await table.roll_up(self.keep_days)
                        rolled_at = clock.monotonic()
                except BrokerError as error:
                    self._gauges = None
                    logger.warning("metrics_look_failed error=%s", error)
        finally:
            self._runtimes.remove(runtime)
            await self._store_last(table, clock)

    async def _store(self, table: MetricsTable) -> None:
        """Store the counts since the last report, and those that an earlier report could not
        store."""
        with self._moving:
            taken = self._tally.take()
            self._taken.give(taken)
        self._unstored.give(taken)
        totals = self._unstored.take()
        if not totals:
            return
        try:
            await table.report(totals)
        except BrokerError as error:
            self._unstored.give(totals)
            logger.warning("metrics_postponed functions=%d error=%s", len(totals), error)

    async def _store_last(self, table: MetricsTable, clock: Clock) -> None:
        """When the worker stops, finish the current report, and store the counts since then."""
        storing, self._storing = self._storing, None

        async def rest() -> None:
            if storing is not None:
                await asyncio.wait([storing])
            await self._store(table)

        await run_briefly(rest(), clock, _LAST_S)
        if storing is not None:
            storing.cancel()


def _address(listen: str) -> tuple[str, int]:
    """The host and port that this process listens on."""
    from chancy.plugins.metrics.endpoint import parse_address

    return parse_address(listen, int(os.environ.get(_NUMBER, "1")) - 1)
