"""A small run of the benchmarks that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks import limit, limits
from benchmarks.clients import CLIENTS
from benchmarks.measurement import OTHERS, Measurement, Taken
from benchmarks.observers import MODES

HEAD: Mapping[str, Any] = {
    "started_at": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789ab",
    "machine": {"cpu": "Some CPU", "cores": 2, "memory_gb": 8.0, "system": "Linux"},
    "versions": {"python": "CPython 3.11.7", "postgres": "16.14", "asyncpg": "0.32.0"},
    "settings": {"fsync": "on", "synchronous_commit": "on"},
    "rounds": 2,
    "quick": False,
}
#: The systems with how many times as fast as graphile-worker they are, and their notes.
SYSTEMS: Mapping[str, tuple[float, str]] = {
    "chancy, history kept": (1.5, ""),
    "chancy, not kept": (2.0, ""),
    "graphile-worker": (1.0, "graphile-worker 9.8.7, concurrentJobs=24"),
    "pgqueuer": (0.5, "pgqueuer 6.5.4"),
}
#: Where its modes do not differ, chancy is measured once.
ONCE = {"chancy": (2.0, ""), **{name: SYSTEMS[name] for name in ("graphile-worker", "pgqueuer")}}


def taken(rounds: int = 2) -> list[Taken]:
    """Every figure that bars, pages and plots look for, with one peer that could not run."""
    return [
        Taken(case=case, round=turn, measurement=one)
        for turn in range(1, rounds + 1)
        for case, one in _measurements(1 + (turn - 1) / 10)
    ]


def _measurements(factor: float) -> Iterator[tuple[str, Measurement]]:
    for figure, unit, value in (
        (limit.CLAIM_DELETE, "jobs/s", 100_000.0),
        (limit.SINGLE, "rows/s", 5_000.0),
        (limit.UNNEST, "rows/s", 300_000.0),
        (limit.PACED_NOTIFY, "ms", 0.5),
        (limit.PACED_INSERT, "ms", 1.0),
    ):
        yield "limit", Measurement(figure=figure, unit=unit, value=value)
    yield from _of_systems(factor)
    yield from _of_chancy()


def _of_systems(factor: float) -> Iterator[tuple[str, Measurement]]:
    for system, (speed, note) in SYSTEMS.items():
        label = system.removeprefix("chancy, ")
        own = label != system
        if own:
            details = {"acknowledged jobs/s": 60_000 * factor}
            figure = f"storage floor, {label}"
            yield "drain", _rate(figure, 60_000 * factor, system, details=details)
        # The last settlement comes after the last run.
        acknowledged = {"acknowledged jobs/s": 28_000 * speed * factor}
        costs = {"CPU s/10k": 0.2 / speed, "WAL B/job": 540.0, **acknowledged}
        figure = f"20,000 async jobs, {label}"
        yield "drain", _rate(figure, 30_000 * speed * factor, system, note, costs)
        figure = f"200,000 async jobs, {label}"
        yield "drain", _rate(figure, 31_000 * speed * factor, system, note, acknowledged)
        figure = f"50,000 jobs pushed and run by two workers, {label}"
        yield "end_to_end", _rate(figure, 20_000 * speed, system, note, acknowledged)
        rounds = {"round 1": 1_000.0, "round 2": 950.0, "last/first": 0.9}
        figure = f"20,000 jobs, round 3 under a held snapshot, {label}"
        yield "held", _rate(figure, 900, system, note, rounds)
    for priorities in (2, 5, 10, 201):
        figure = f"drain with {priorities} priorities / one"
        yield "priorities", Measurement(figure=figure, unit="ratio", value=0.95)
    for mode in MODES[1:]:
        figure = f"drain with {mode} / {MODES[0]}"
        yield "observability", Measurement(figure=figure, unit="ratio", value=0.98)
    urgent = "slowest urgent job after 200,000 jobs under a held snapshot"
    yield "priorities", Measurement(figure=urgent, unit="ms", value=30.0)
    missing = "not installed"
    yield (
        "drain",
        Measurement(
            figure=f"20,000 async jobs, saq: cannot run: {missing}",
            unit="",
            value=0.0,
            system="saq",
            missing=missing,
        ),
    )
    for system, (speed, note) in ONCE.items():
        suffix = "" if system == "chancy" else f", {system}"
        yield "push", _rate(f"one by one, awaited{suffix}", 2_000 * speed, system, note)
        yield "push", _rate(f"100,000 jobs, 5,000 a call{suffix}", 40_000 * speed, system, note)
        for load in ("", *(f"{rate:,} a second, " for rate in (100, 500, 2_000, 5_000))):
            for since in ("call", "return"):
                figure = f"{load}from the {since} of push{suffix}"
                yield "latency", _ms(figure, 3 / speed, 9 / speed, system)


def _of_chancy() -> Iterator[tuple[str, Measurement]]:
    for executor in ("async", "thread", "process"):
        for jobs in ("20,000", "200,000"):
            details = {"acknowledged jobs/s": 29_000.0}
            figure = f"{jobs} no-op jobs, {executor}"
            yield "executors", _rate(figure, 30_000, "chancy", details=details)
    for detail in ("p99 ms", "RSS MB", "jobs MB", "finished MB"):
        figure = f"steady, {detail}, last window / first"
        yield "steady", Measurement(figure=figure, unit="ratio", value=1.0)
    for queues in (10, 100, 300):
        figure = f"1,000 idle workers, {queues} queues"
        yield "fleet", Measurement(figure=figure, unit="cores", value=0.2)
    for workers in (2, 200):
        figure = f"push to {workers} idle workers"
        details = {"p99 ms": 9.0}
        yield "fleet", Measurement(figure=figure, unit="claims", value=4.0, details=details)
    for clients in CLIENTS:
        reference = f"claim 100 + delete 100 (pgbench), {clients} clients"
        yield "clients", _rate(reference, 50_000, "chancy")
        figure = f"40,000 async jobs, {clients} workers"
        measured = _rate(figure, 40_000, "chancy")
        yield "clients", replace(measured, against={"pgbench": reference})
    for what, unit, value in (
        ("slowest page", "ms", 90.0),
        ("one open page, cores", "cores", 0.005),
    ):
        yield "dashboard", Measurement(figure=what, unit=unit, value=value)
    flows = {"a step of a chain": 2.0, "push to start": 1.0, "10,000 steps between two": 1.2}
    for what, value in {**flows, "10,000 plain jobs": 1.0}.items():
        yield "workflows", Measurement(figure=what, unit="ms", value=value, system="chancy")
    yield from _of_limits()
    for ms in (1, 5, 20):
        for what, rate in (("ProcessPoolExecutor", 100), ("process", 99)):
            yield "executors", _rate(f"300 jobs of {ms} ms, {what}", rate, "chancy")
    memory = "peak memory of a client that pushes 1,000,000 jobs in one call"
    details = {"before MB": 40.0}
    yield "push", Measurement(figure=memory, unit="MB", value=65.0, details=details)
    for pending, p50 in ((1_000, 0.5), (1_000_000, 0.6)):
        for claim in (1, 100):
            yield "claims", _ms(f"claim of {claim}, {pending:,} pending", p50, 3 * p50, "chancy")
    none = "drain of 20,000 beside no history"
    beside = "drain of 20,000 beside 10,000,000 finished jobs"
    yield "beside", _rate(none, 50_000, "chancy")
    yield (
        "beside",
        Measurement(figure=beside, unit="jobs/s", value=49_000, against={"none": none}),
    )
    for figure, value in (
        ("vacuum of the live table beside 10,000,000 finished jobs", 10.0),
        ("drop of a day, one of eight with 10,000,000 finished jobs", 120.0),
    ):
        details = {"longest write ms": 20.0}
        yield "beside", Measurement(figure=figure, unit="ms", value=value, details=details)
    for figure, value in (
        ("sustained, last window / first", 0.99),
        ("claim pages behind a hint, after / before", 1.1),
        ("claim pages of a short scan, after / before", 1.4),
        ("claim pages from the front, after / before", 9.0),
    ):
        yield "sustained", Measurement(figure=figure, unit="ratio", value=value)


def _of_limits() -> Iterator[tuple[str, Measurement]]:
    for title in limits.DRAINS:
        figure = f"{title}, 20,000 jobs"
        yield "limits", _rate(f"{figure}, beside it {limits.PLAIN}", 20_000, "chancy")
        against = {limits.PLAIN: f"{figure}, beside it {limits.PLAIN}"}
        if title == limits.SEQUENCES:
            for system in limits.SEQUENTIAL_PEERS:
                peer = system.figure(title)
                yield "limits", _rate(peer, 2_000, system.name)
                against[system.name] = peer
        yield "limits", replace(_rate(figure, 12_000, "chancy"), against=against)
    yield "limits", _rate(limits.POSSIBLE, 2_000, "chancy")
    binding = _rate(f"{limits.BINDING}, 5,000 jobs of 1 ms", 1_800, "chancy")
    yield "limits", replace(binding, against={"possible": limits.POSSIBLE})
    yield "limits", _rate(f"{limits.HELD}, round 5", 900, "chancy", details={"last/first": 0.95})
    for what in (limits.CLAIMS, limits.IDLE):
        yield "limits", Measurement(figure=what, unit="ratio", value=1.1)


def _rate(
    figure: str,
    value: float,
    system: str,
    note: str = "",
    details: Mapping[str, float] | None = None,
) -> Measurement:
    return Measurement(
        figure=figure,
        unit="jobs/s",
        value=value,
        details={OTHERS: 0.1, **(details or {})},
        system=system,
        note=note,
    )


def _ms(figure: str, p50: float, p99: float, system: str) -> Measurement:
    return Measurement(figure=figure, unit="ms", value=p50, details={"p99": p99}, system=system)
