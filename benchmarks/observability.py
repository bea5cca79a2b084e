"""Drains by workers with plugins that watch each job, beside drains without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import systems
from benchmarks.bench import Bench
from benchmarks.drain import KEPT, acknowledged, measure_drain
from benchmarks.measurement import OTHERS, Measurement
from benchmarks.observers import MODES, NONE, plugins
from benchmarks.summary import ACKNOWLEDGED

_JOBS = 20_000
#: Drains with each mode in a round: what is sought is smaller than the noise of one.
_DRAINS, _QUICK_DRAINS = 3, 1
#: Details: CPU time for a job, of the process that pushes and of the worker.
_PUSH_CPU, _RUN_CPU = "CPU µs/push", "CPU µs/run"


def ratio_figure(mode: str) -> str:
    return f"drain with {mode} / {NONE}"


def measure(bench: Bench) -> Iterator[Measurement]:
    """The modes alternate, every other time in reverse, so that a ratio is of the same seconds."""
    if not systems.own(bench):
        return
    rounds: list[dict[str, Measurement]] = []
    for number in range(_QUICK_DRAINS if bench.size.quick else _DRAINS):
        order = MODES if number % 2 == 0 else MODES[::-1]
        rounds.append({mode: _drain(bench, mode) for mode in order})
        yield from rounds[-1].values()
    for mode in MODES[1:]:
        yield _ratio(mode, rounds)


def _ratio(mode: str, rounds: list[dict[str, Measurement]]) -> Measurement:
    """The median of the ratios to the drains without a plugin, and the CPU time that is added."""
    added = {
        title: statistics.median(
            drains[mode].details[title] - drains[NONE].details[title] for drains in rounds
        )
        for title in (_PUSH_CPU, _RUN_CPU)
    }
    others = max(one.details[OTHERS] for drains in rounds for one in drains.values())
    return Measurement(
        figure=ratio_figure(mode),
        unit="ratio",
        value=statistics.median(drains[mode].value / drains[NONE].value for drains in rounds),
        details={f"{title} added": value for title, value in added.items()} | {OTHERS: others},
    )


def _drain(bench: Bench, mode: str) -> Measurement:
    jobs = bench.size(_JOBS)
    bench.prepare(KEPT)
    began = time.process_time()
    bench.push(KEPT, jobs, plugins=plugins(mode))
    push_s = time.process_time() - began
    drain = measure_drain(bench, KEPT.name, jobs, f"drain of {jobs:,} with {mode}", {}, mode=mode)
    details = drain.details
    return replace(
        acknowledged(drain),
        details={
            _PUSH_CPU: 1e6 * push_s / jobs,
            _RUN_CPU: 100 * details["CPU s/10k"],
            **{title: value for title, value in details.items() if title != ACKNOWLEDGED},
        },
    )
