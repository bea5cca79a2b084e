"""The drain rate of one worker process: no-op jobs of a backlog until all are settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import Deployment, deployed, measure_each, ours
from benchmarks.floor import measure_floor
from benchmarks.limit import CLAIM_DELETE
from benchmarks.measurement import Measurement
from benchmarks.meters import Meter, cpu_s, rss_mb
from benchmarks.processes import WorkerProcess, wait_until
from benchmarks.tally import per_second
from chancy import Job, Queue

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


def drain(
    deployment: Deployment, jobs: int, against: Mapping[str, str], *, runs: int = 0
) -> Measurement:
    """Push jobs and drain them; measures only the drain.

    :param runs: how often the jobs run in total, if not once each.
    """
    deployment.fill(jobs)
    return _measured(deployment, jobs, _title(jobs), against, runs=runs)


def measure_drain(
    bench: Bench, queue: str, jobs: int, figure: str, against: Mapping[str, str], *, mode: str = ""
) -> Measurement:
    """Drain the backlog of a queue of chancy with a new worker; measures its rate and costs.

    :param mode: as for `benchmarks.deployment.ours`.
    """
    return _measured(ours(bench, queue, mode=mode), jobs, figure, against)


def acknowledged(drained: Measurement, figure: str = "") -> Measurement:
    """The drain with the rate until the last settlement, under another name if given."""
    value = drained.details["acknowledged jobs/s"]
    return replace(drained, value=value, figure=figure or drained.figure)


def _measured(
    deployment: Deployment, jobs: int, title: str, against: Mapping[str, str], *, runs: int = 0
) -> Measurement:
    """Measure a worker until every job is settled.

    The rate counts runs from the first to the last one. ``acknowledged`` ends with the commit of
    the last settlement. Transactions include the start and stop of the worker.
    """
    expected = runs or jobs
    meter = deployment.meter()
    with deployment.worker() as worker:
        tally = worker.tally
        wait_until(lambda: tally.runs().count > 0, "no job has run", check=worker.check)
        processes = worker.processes()
        seen, worker_s, server_s = tally.runs().count, cpu_s(processes), meter.server_cpu_s()
        wait_until(lambda: tally.runs().count >= expected, "jobs have not run", check=worker.check)
        emptied_ns = deployment.wait_for_empty([worker])
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
    return deployment.measurement(
        title,
        "jobs/s",
        counted.rate,
        {
            "acknowledged jobs/s": per_second(jobs, counted.first, emptied_ns),
            "transactions/1k jobs": 1_000 * meter.transactions() / jobs,
            **details,
        },
        against=against,
    )


def measure_idle(
    bench: Bench, queue: Queue, workers: Sequence[WorkerProcess], jobs: int | Iterable[Job]
) -> tuple[float, Meter]:
    """Jobs a second of idle workers, from the resumption of their queue to the last settlement."""
    asyncio.run(_pause(bench, queue, paused=True))
    bench.push(queue, jobs)
    count = int(bench.control.value("select count(*) from jobs"))
    meter = bench.meter()
    began_ns = time.time_ns()
    asyncio.run(_pause(bench, queue, paused=False))
    emptied_ns = ours(bench, queue.name).wait_for_empty(workers)
    return per_second(count, began_ns, emptied_ns), meter


async def _pause(bench: Bench, queue: Queue, *, paused: bool) -> None:
    async with bench.application() as app:
        await (app.pause_queue if paused else app.resume_queue)(queue.name)
