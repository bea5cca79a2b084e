"""How fast one worker process runs jobs that do nothing, from a backlog, until all are settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.bench import Bench, wait_until
from benchmarks.floor import measure_floor
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from benchmarks.meters import cpu_s, rss_mb
from benchmarks.tally import per_second
from chancy import Queue

KEPT = Queue(name="kept", executor="async")
DROPPED = Queue(name="dropped", executor="async", keep_finished=False)


def measure(bench: Bench) -> Iterator[Measurement]:
    """A backlog with the history kept and without, each beside the storage floor."""
    jobs = bench.size(20_000)
    backlogs = [jobs, bench.size(200_000)] if bench.size.full else [jobs]
    for queue, what in ((KEPT, "history kept"), (DROPPED, "not kept")):
        floor = f"storage floor, {what}"
        bench.prepare(queue, jobs)
        yield measure_floor(bench, queue, jobs, floor)
        for backlog in backlogs:
            figure = f"{backlog:,} async jobs, {what}"
            against = {"limit": CLAIM_DELETE, "floor": floor}
            bench.prepare(queue, backlog)
            yield measure_drain(bench, queue, backlog, figure, against=against)


def measure_drain(
    bench: Bench,
    queue: Queue,
    jobs: int,
    figure: str,
    *,
    against: Mapping[str, str],
) -> Measurement:
    """Start a worker on the backlog that stands in the queue; its rate, and what it cost.

    The rate counts runs, from the first one to the last one. ``acknowledged`` goes on until the
    last settlement is committed. Transactions are of the worker's whole life.
    """
    meter = bench.meter()
    with bench.worker(queue.name) as worker:
        tally = worker.tally
        wait_until(lambda: tally.runs().count > 0, "no job has run", check=worker.check)
        processes = worker.processes()
        seen, worker_s, server_s = tally.runs().count, cpu_s(processes), meter.server_cpu_s()
        wait_until(lambda: tally.runs().count >= jobs, "jobs have not run", check=worker.check)
        emptied = bench.wait_for_empty(worker)
        worker_s, rss = cpu_s(processes) - worker_s, rss_mb(processes)
        if server_s is not None:
            server_s = (meter.server_cpu_s() or 0.0) - server_s
        others, wal = meter.others(), meter.wal_bytes()
        runs = tally.runs()
    per_10k = 1e4 / max(1, jobs - seen)
    details = {
        "acknowledged jobs/s": per_second(jobs, runs.first, emptied),
        "CPU s/10k": per_10k * worker_s,
        "RSS MB": rss,
        "WAL B/job": wal / jobs,
        "transactions/1k jobs": 1_000 * meter.transactions() / jobs,
        "runs above jobs": float(runs.count - jobs),
        **others,
    }
    if server_s is not None:
        details["server CPU s/10k"] = per_10k * server_s
    return Measurement(
        figure=figure, unit="jobs/s", value=runs.rate, against=against, details=details
    )
