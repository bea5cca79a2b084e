"""How claims and settlements scale with the number of clients, beside pgbench with as many."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import limit, systems
from benchmarks.bench import Bench
from benchmarks.deployment import ours
from benchmarks.drain import measure_idle
from benchmarks.measurement import Measurement
from chancy import Queue

QUEUE = Queue(name="clients", executor="async", keep_finished=False)
#: Numbers of clients; the first three with ``--quick``.
CLIENTS = (1, 2, 4, 8, 16, 32)
#: Jobs that each worker drains first, more or less.
_WARM = 500


def measure(bench: Bench) -> Iterator[Measurement]:
    """A drain by 1 to 32 worker processes, each beside pgbench with the same number of clients.

    The workers are idle until their queue is resumed. The rate counts until the last settlement is
    committed. They have drained some jobs before, so that what a worker loads, opens and plans for
    its first jobs does not count.
    """
    if bench.round > 1 or not systems.own(bench) or bench.programs is None:
        return
    jobs = bench.size(40_000, quick=10_000)
    for clients in CLIENTS[:3] if bench.size.quick else CLIENTS:
        reference = f"claim 100 + delete 100 (pgbench), {clients} clients"
        limit.create_table(bench)
        yield limit.measure_claims(bench, bench.programs, reference, clients=clients)
        bench.control.run("drop table raw_jobs")
        yield _drain(bench, jobs, clients, reference)


def _drain(bench: Bench, jobs: int, clients: int, reference: str) -> Measurement:
    bench.prepare(QUEUE)
    with ours(bench, QUEUE.name).workers(clients) as workers:
        for worker in workers:
            worker.wait_for_ready()
        measure_idle(bench, QUEUE, workers, bench.size(_WARM * clients))
        rate, meter = measure_idle(bench, QUEUE, workers, jobs)
        details = meter.others()
    return Measurement(
        figure=f"{jobs:,} async jobs, {clients} workers",
        unit="jobs/s",
        value=rate,
        against={"pgbench": reference},
        details=details,
    )
