"""Workflows against plain jobs: the speed of a chain, and the cost of a fan-out and fan-in.

A chain is compared with the latency from a push to the start of its job in the same idle worker,
and with a chain in the chancy release on the package index. A fan of steps between two steps is
compared with the same number of plain jobs, from the call of the push until all are settled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.deployment import CALL, Deployment, measure_each
from benchmarks.latency import pushed_starts
from benchmarks.limit import EVERY_S
from benchmarks.measurement import BenchmarkFailed, Measurement, quantile
from benchmarks.observers import WORKFLOWS

STEPS, QUICK_STEPS, WIDTH, QUICK_WIDTH = 1_000, 200, 10_000, 2_000
#: Steps of a chain in a system that advances by polling once a second.
_SLOW_STEPS = 15
_PUSHES, _WARM = 100, 3

#: chancy with the workflow plugin and a kept history.
FLOWS = replace(systems.CHANCY, settings={"queue": "kept", "mode": WORKFLOWS})
UPSTREAM = replace(systems.CHANCY_026, settings={"concurrency": 1_000, "workflows": 1})

START = "push to start, with workflows"
CHAIN = "a step of a chain"


def measure(bench: Bench) -> Iterator[Measurement]:
    """chancy in every round, the release on the package index in the first."""
    own = [FLOWS] if systems.own(bench) else []
    all_systems = [*own, *systems.peers(bench, [UPSTREAM])]
    yield from measure_each(bench, all_systems, CHAIN, _chain)
    yield from measure_each(bench, own, "", _fan)


def _empty(deployment: Deployment) -> None:
    deployment.session.run(
        "truncate workflows, workflows_steps, workflows_joins, workflows_signals, "
        "workflows_timers, workflows_starts"
    )


def _chain(deployment: Deployment) -> Iterator[Measurement]:
    """The time from the start of one step to the start of the next."""
    bench, system = deployment.bench, deployment.system
    steps = bench.size(STEPS, quick=QUICK_STEPS) if system.own else _SLOW_STEPS
    if system.own:
        _empty(deployment)
    with deployment.worker() as worker:
        deployment.wait_for_idle([worker], _WARM)
        if system.own:
            pushes = bench.size(_PUSHES, quick=30)
            found, starts = pushed_starts(deployment, worker, pushes, "paced", EVERY_S)
            waits = zip(found["called_ns"], starts, strict=True)
            took_ms = [(start - called) / 1e6 for called, start in waits]
            yield deployment.measurement(START, "ms", quantile(took_ms, 0.5), {})
            deployment.wait_for_empty([worker])
        before = worker.tally.runs().count
        meter = deployment.meter()
        deployment.ask("chain", steps)
        deployment.wait_for_runs([worker], before + steps)
        starts = worker.tally.starts(steps)
        details = meter.others()
    between = [(later - earlier) / 1e6 for earlier, later in pairwise(starts)]
    if min(between) < 0:
        raise BenchmarkFailed("the steps of a chain started out of order")
    mean_ms = sum(between) / len(between)
    details = {"steps/s": 1e3 / mean_ms, "p99": quantile(between, 0.99), **details}
    against = {"push to start": START} if system.own else {}
    if system.own and not UPSTREAM.absence() and bench.round == 1:
        against[UPSTREAM.name] = f"{CHAIN}, {UPSTREAM.label}"
    yield deployment.measurement(CHAIN, "ms", mean_ms, details, against=against)


def _fan(deployment: Deployment) -> Iterator[Measurement]:
    """Plain jobs, and then the same number of steps between two steps."""
    _empty(deployment)
    width = deployment.bench.size(WIDTH, quick=QUICK_WIDTH)
    plain, fan = f"{width:,} plain jobs", f"{width:,} steps between two"
    with deployment.worker() as worker:
        deployment.wait_for_idle([worker], _WARM)
        for figure, role in ((plain, ("bulk", width, CALL, _WARM)), (fan, ("fan", width))):
            before = worker.tally.runs().count
            meter = deployment.meter()
            found = deployment.ask(*role)
            pushed = int(found.get("pushed", width + _WARM))
            deployment.wait_for_runs([worker], before + pushed)
            took_s = (deployment.wait_for_empty([worker]) - int(found["began_ns"])) / 1e9
            against = {"plain jobs": plain} if figure == fan else {}
            details = {"jobs/s": width / took_s, **meter.others()}
            yield deployment.measurement(figure, "s", took_s, details, against=against)
