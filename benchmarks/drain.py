"""The drain rate of one worker process: no-op jobs of a backlog until all are settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import systems
from benchmarks.bench import Bench, wait_until
from benchmarks.deployment import Deployment, deployed, measure_each
from benchmarks.floor import measure_floor
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from benchmarks.meters import Meter, cpu_s, rss_mb
from benchmarks.processes import WorkerProcess
from benchmarks.systems import System
from benchmarks.tally import Runs, per_second
from chancy import Queue

KEPT = Queue(name="kept", executor="async")
DROPPED = Queue(name="dropped", executor="async", keep_finished=False)


def measure(bench: Bench) -> Iterator[Measurement]:
    """Drains with and without a kept history, each with the storage floor; then peers."""
    jobs = bench.size(20_000)
    backlogs = [jobs] if bench.size.quick else [jobs, bench.size(200_000)]
    for system in systems.own(bench):
        queue = KEPT if system is systems.KEPT else DROPPED
        floor = system.figure("storage floor")
        bench.prepare(queue, jobs)
        yield replace(measure_floor(bench, queue, jobs, floor), system=system.name)
        for backlog in backlogs:
            against = {
                "limit": CLAIM_DELETE,
                "floor": floor,
                **systems.against(bench, _title(backlog)),
            }
            with deployed(bench, system) as deployment:
                yield drain(deployment, backlog, against)
    for backlog in backlogs:
        peers = [
            system for system in systems.peers(bench) if system.most >= backlog or backlog == jobs
        ]
        yield from measure_each(
            bench,
            peers,
            _title(backlog),
            partial(_peer, backlog),
        )


def _title(jobs: int) -> str:
    return f"{jobs:,} async jobs"


def _peer(backlog: int, deployment: Deployment) -> Iterator[Measurement]:
    jobs = min(backlog, deployment.system.most)
    yield drain(deployment, jobs, {"limit": CLAIM_DELETE})


def drain(deployment: Deployment, jobs: int, against: Mapping[str, str]) -> Measurement:
    """Push jobs and drain them; measures only the drain."""
    system = deployment.system
    deployment.fill(jobs)
    meter = deployment.meter()
    with deployment.worker() as worker:
        found = _follow(meter, worker, jobs, lambda: deployment.wait_for_empty([worker]))
    return found.measurement(system.figure(_title(jobs)), against, system)


def measure_drain(
    bench: Bench,
    queue: Queue | Sequence[str],
    jobs: int,
    figure: str,
    *,
    against: Mapping[str, str],
    runs: int | None = None,
    beside: bool = False,
    mode: str | None = None,
) -> Measurement:
    """Drain the backlog of a queue, or of several, with a new worker; measures its rate and costs.

    :param runs: how often the jobs run in total, if not once each.
    :param beside: whether there are scheduled jobs too, which stay.
    :param mode: as for `Bench.worker`.

    The rate counts runs from the first to the last one. ``acknowledged`` ends with the commit of
    the last settlement. Transactions include the start and stop of the worker.
    """
    meter = bench.meter()
    queues = [queue.name] if isinstance(queue, Queue) else queue
    with bench.worker(*queues, mode=mode) as worker:
        emptied = partial(bench.wait_for_empty, worker, scheduled=beside)
        found = _follow(meter, worker, jobs, emptied, runs=runs or jobs)
    return found.measurement(figure, against)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drain:
    """The results of a drain until the backlog was empty. The meter runs until the worker stops."""

    jobs: int
    runs: Runs
    emptied_ns: int
    details: Mapping[str, float]
    meter: Meter

    def measurement(
        self, figure: str, against: Mapping[str, str], system: System | None = None
    ) -> Measurement:
        transactions = 1_000 * self.meter.transactions() / self.jobs
        return Measurement(
            figure=figure,
            unit="jobs/s",
            value=self.runs.rate,
            against=against,
            details={
                "acknowledged jobs/s": per_second(self.jobs, self.runs.first, self.emptied_ns),
                "transactions/1k jobs": transactions,
                **self.details,
            },
            system="chancy" if system is None else system.name,
            note="" if system is None else system.note,
        )


def _follow(
    meter: Meter,
    worker: WorkerProcess,
    jobs: int,
    wait_for_empty: Callable[[], int],
    *,
    runs: int | None = None,
) -> _Drain:
    """Measure until every job is settled."""
    expected = runs or jobs
    tally = worker.tally
    wait_until(lambda: tally.runs().count > 0, "no job has run", check=worker.check)
    processes = worker.processes()
    seen, worker_s, server_s = tally.runs().count, cpu_s(processes), meter.server_cpu_s()
    wait_until(lambda: tally.runs().count >= expected, "jobs have not run", check=worker.check)
    emptied_ns = wait_for_empty()
    worker_s, rss = cpu_s(processes) - worker_s, rss_mb(processes)
    per_10k = 1e4 / max(1, jobs - seen)
    details = {
        "CPU s/10k": per_10k * worker_s,
        "RSS MB": rss,
        "WAL B/job": meter.wal_bytes() / jobs,
    }
    if server_s is not None:
        details["server CPU s/10k"] = per_10k * ((meter.server_cpu_s() or 0.0) - server_s)
    counted = tally.runs()
    details |= {"runs above jobs": float(counted.count - expected), **meter.others()}
    return _Drain(jobs=jobs, runs=counted, emptied_ns=emptied_ns, details=details, meter=meter)
