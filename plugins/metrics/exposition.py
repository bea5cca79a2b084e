"""Metrics of a process in the format of Prometheus. Needs prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from chancy.plugins.metrics.gauges import Gauges
from chancy.plugins.metrics.tally import BOUNDS, COUNTS, Totals, TotalsByFunction


class JobsCollector(Collector):
    """Collects the outcomes of the jobs of this process, and the gauges of the database.

    :param totals: the totals since the process has started.
    :param gauges: the gauges as last read; None: another worker reads them.
    :param pushed: the pushes of this process, by queue and function; None: they are not counted.
    :param leads: whether this process is a worker, which reads the gauges only while it leads.
    """

    def __init__(
        self,
        totals: Callable[[], TotalsByFunction],
        gauges: Callable[[], Gauges | None],
        *,
        pushed: Callable[[], Mapping[tuple[str, str], int]] | None = None,
        leads: bool = True,
    ) -> None:
        self._pushed = pushed
        self._totals = totals
        self._gauges = gauges
        self._leads = leads

    def collect(self) -> Iterable[Metric]:
        """The current metrics."""
        totals = self._totals()
        jobs = CounterMetricFamily(
            "chancy_jobs",
            "Attempts by outcome, and waiting jobs that were cancelled or expired.",
            labels=["queue", "func", "outcome"],
        )
        stale = CounterMetricFamily(
            "chancy_stale_settlements",
            "Attempts that ended after another worker had taken the job over.",
            labels=["queue"],
        )
        by_queue: dict[str, Totals] = {}
        for (queue, func), some in totals.items():
            by_queue.setdefault(queue, Totals()).add(some)
            for name in COUNTS:
                if name != "stale":
                    jobs.add_metric([queue, func, name], getattr(some, name))
        waits = HistogramMetricFamily(
            "chancy_job_wait_seconds", "Time from due until claimed.", labels=["queue"]
        )
        runs = HistogramMetricFamily(
            "chancy_job_run_seconds", "Run time of attempts.", labels=["queue", "func"]
        )
        ends = HistogramMetricFamily(
            "chancy_job_total_seconds", "Time from due until ended.", labels=["queue"]
        )
        for queue, some in by_queue.items():
            ends.add_metric([queue], _buckets(some.ends), some.wait_s + some.run_s)
            stale.add_metric([queue], some.stale)
            waits.add_metric([queue], _buckets(some.waits), some.wait_s)
        for (queue, func), some in totals.items():
            runs.add_metric([queue, func], _buckets(some.runs), some.run_s)
        yield from (jobs, stale, waits, runs, ends)
        if self._pushed is not None:
            pushed = CounterMetricFamily(
                "chancy_jobs_pushed", "Jobs that this process has pushed.", labels=["queue", "func"]
            )
            for (queue, func), number in self._pushed().items():
                pushed.add_metric([queue, func], number)
            yield pushed
        if (gauges := self._gauges()) is not None:
            yield from _families(gauges)
            if self._leads:
                yield GaugeMetricFamily("chancy_leader", "1: this worker leads.", value=1)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    total = 0
    for bound, number in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        total += number
        found.append((bound, total))
    return found


def _families(gauges: Gauges) -> Iterable[Metric]:
    for name, text in (
        ("pending", "Due jobs that no worker has claimed."),
        ("held", "Due jobs that rules hold, or that wait for a worker that knows their function."),
        ("running", "Jobs that run."),
        ("scheduled", "Jobs that are not due."),
    ):
        yield _by_queue(f"chancy_queue_{name}", text, gauges.jobs[name])
    oldest = "For how long the oldest due job of the queue has waited, pending or held."
    yield _by_queue("chancy_queue_oldest_seconds", oldest, gauges.oldest_s)
    capped = GaugeMetricFamily(
        "chancy_queue_capped",
        "1: there may be more jobs of this state than were counted.",
        labels=["queue", "state"],
    )
    for state, queue in sorted(gauges.capped):
        capped.add_metric([queue, state], 1)
    yield capped
    for name, text, value in (
        ("workers", "Workers that are registered.", gauges.workers),
        ("jobs_dead_rows", "Dead rows of the table jobs, by the statistics.", gauges.dead_rows),
        ("jobs_bytes", "Size of the table jobs with its indexes.", gauges.jobs_bytes),
        ("history_bytes", "Size of the finished jobs with indexes.", gauges.history_bytes),
        ("horizon_seconds", "Age of the oldest snapshot of this database.", gauges.horizon_s),
        (
            "horizon_transactions",
            "Transactions since the oldest snapshot, of replication slots and replicas too.",
            gauges.horizon_transactions,
        ),
    ):
        yield GaugeMetricFamily(f"chancy_{name}", text, value=value)


def _by_queue(name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["queue"])
    for queue, value in values.items():
        family.add_metric([queue], value)
    return family
