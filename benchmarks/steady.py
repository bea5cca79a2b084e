"""Half an hour of steady load with what a production database does beside it.

Jobs are pushed and run at a fixed rate while finished ones are pruned, an entry of cron fires, and
a dashboard looks each second. Latency, memory, tables and the work of the server must stay flat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import ours
from benchmarks.jobs import noop
from benchmarks.measurement import Measurement, quantile
from benchmarks.meters import Meter, rss_mb
from benchmarks.processes import WorkerProcess
from benchmarks.sustained import QUEUE, Window, measure_windows
from benchmarks.tally import SLOTS
from chancy import Chancy
from chancy.broker.values import JobFilter
from chancy.plugins.cron import Entry
from chancy.plugins.cron.store import Entries
from chancy.plugins.pruner import Prune
from chancy.plugins.pruner.sweep import PrunerSweep

#: Seconds of the case, and windows.
SECONDS, WINDOWS = 1_800.0, 6
#: Seconds before the first window: the history grows until autovacuum frees pruned rows.
_WARM_S = 600.0
_RULES = [Prune(queue=QUEUE.name, older_than=timedelta(minutes=1))]
_SIZE = """
select (sum(pg_total_relation_size(relid)) / 1e6)::float8 from pg_stat_user_tables
where schemaname = 'chancy_bench' and relname like '{}%'"""


def measure(bench: Bench) -> Iterator[Measurement]:
    """The figures of each window, and those of the last one over the first.

    Only in the first round of full runs: the windows are its repetitions. ``--scale 0.1`` makes it
    three minutes instead of thirty.
    """
    if not (bench.size.full and bench.round == 1 and systems.own(bench)):
        return
    bench.prepare(QUEUE)
    asyncio.run(_schedule(bench))
    with ours(bench, QUEUE.name).worker() as worker:
        worker.wait_for_ready()
        windows = measure_windows(
            bench,
            worker,
            partial(_counters, bench, worker, bench.meter()),
            seconds=SECONDS * bench.size.scale,
            count=WINDOWS,
            # Jobs are pruned after a minute, and dead rows after one of autovacuum.
            warm_s=_WARM_S if bench.size.scale >= 0.1 else _WARM_S * bench.size.scale,
            beside=(_prune, _look),
        )
    found = [_window(number, window) for number, window in enumerate(windows, 1)]
    yield from found
    for detail in ("p99 ms", "RSS MB", "jobs MB", "finished MB", "server cores", "WAL MB/s"):
        first, last = (found[at].details[detail] for at in (0, -1))
        yield Measurement(
            figure=f"steady, {detail}, last window / first",
            unit="ratio",
            value=last / max(first, 1e-9),
            details={"first": first, "last": last},
        )


async def _schedule(bench: Bench) -> None:
    async with bench.application() as app:
        job = noop.job.with_queue(QUEUE.name)(number=SLOTS)
        entry = Entry(name="tick", schedule="* * * * *", job=job)
        await Entries(app.broker, app.encode_arguments).add(entry, upsert=True)


async def _prune(app: Chancy) -> None:
    sweep = PrunerSweep(app.control, _RULES)  # type: ignore[arg-type]  # it is on Postgres
    while True:
        await sweep.turn(asyncio.sleep, lambda: True)
        await asyncio.sleep(1)


async def _look(app: Chancy) -> None:
    while True:
        await app.broker.counts()
        await app.broker.workers()
        await app.broker.find(JobFilter(limit=50))
        await asyncio.sleep(1)


def _counters(bench: Bench, worker: WorkerProcess, meter: Meter) -> Mapping[str, float]:
    return {
        "server_s": meter.server_cpu_s() or 0.0,
        "wal": meter.wal_bytes(),
        "RSS MB": rss_mb(worker.processes()),
        "jobs MB": float(bench.control.value(_SIZE.format("jobs")) or 0),
        "finished MB": float(bench.control.value(_SIZE.format("finished_jobs")) or 0),
    }


def _window(number: int, window: Window) -> Measurement:
    return Measurement(
        figure=f"steady, window {number}",
        unit="ms",
        value=quantile(window.took_ms, 0.5),
        details={
            "seconds": window.seconds,
            "p99 ms": quantile(window.took_ms, 0.99),
            **{title: window.counts[title] for title in ("RSS MB", "jobs MB", "finished MB")},
            "server cores": window.added["server_s"] / window.seconds,
            "WAL MB/s": window.added["wal"] / 1e6 / window.seconds,
        },
    )
