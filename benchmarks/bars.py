"""The performance bars of chancy as data, and whether a run meets them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks import observers, systems
from benchmarks.clients import CLIENTS
from benchmarks.limits import BINDING, CLAIMS, DRAINS, IDLE, PLAIN, SEQUENCES, SEQUENTIAL_PEERS
from benchmarks.limits import HELD as RULED_HELD
from benchmarks.observability import ratio_figure
from benchmarks.summary import (
    ACKNOWLEDGED,
    CALL,
    DRAIN,
    END_TO_END,
    HELD,
    KEPT,
    LEAST,
    LONG_DRAIN,
    MANY,
    MOST,
    NOT_KEPT,
    ONE_BY_ONE,
    RETURN,
    NotRead,
    Reading,
    Summary,
    read,
)

#: The reason if the case of a bar did not run. If a number is missing, the reason names it.
NOT_MEASURED = "case not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bound on a figure of chancy, or on its ratio to another figure.

    :param over: the figure to divide by. With several peers, the best one counts: the greatest
        number for "at least", the smallest for "at most".
    """

    name: str
    of: Reading
    over: Reading | None = None
    sense: Literal["at least", "at most"]
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of a run on a bar.

    :param measured: the number, or the ratio; None if the bar was not judged.
    :param met: None if the bar was not judged; ``reason`` is why.
    """

    bar: Bar
    measured: float | None
    met: bool | None
    reason: str


def _least(name: str, bound: float, of: Reading, over: Reading | None = None) -> Bar:
    return Bar(name=name, of=of, over=over, sense="at least", bound=bound)


def _most(name: str, bound: float, of: Reading, over: Reading | None = None) -> Bar:
    return Bar(name=name, of=of, over=over, sense="at most", bound=bound)


def _drain(system: str, detail: str = ACKNOWLEDGED, figure: str = DRAIN) -> Reading:
    return Reading(case="drain", system=system, figure=figure, detail=detail)


def _drains() -> Iterator[Bar]:
    graphile, pgqueuer = systems.GRAPHILE_WORKER.name, systems.PGQUEUER.name
    for mode, other, over, bound in (
        (NOT_KEPT, "graphile-worker", _drain(graphile), 1.3),
        (NOT_KEPT, "storage floor", _drain(NOT_KEPT, figure="storage floor"), 0.6),
        (KEPT, "graphile-worker", _drain(graphile), 1.1),
        (KEPT, "pgqueuer", _drain(pgqueuer), 3.0),
        (KEPT, "storage floor", _drain(KEPT, figure="storage floor"), 0.6),
    ):
        yield _least(f"drain, {_mode(mode)} / {other}", bound, _drain(mode), over)
    for mode in (NOT_KEPT, KEPT):
        of, over = (_drain(system, figure=LONG_DRAIN) for system in (mode, graphile))
        yield _least(f"drain of 200,000, {_mode(mode)} / graphile-worker", 1.3, of, over)
    for clients in CLIENTS:
        of = Reading(case="clients", figure=rf"[\d,]+ async jobs, {clients} workers")
        yield _least(f"drain by {clients} workers / pgbench", 0.75, replace(of, detail="/ pgbench"))
    for mode in (NOT_KEPT, KEPT):
        of, over = (_drain(system, "CPU s/10k") for system in (mode, graphile))
        yield _most(f"worker CPU of a drain, {_mode(mode)} / graphile-worker", 1.0, of, over)
    for mode, bound in ((NOT_KEPT, 550), (KEPT, 950)):
        name = f"log of a drain, {_mode(mode)}, B/job"
        yield _most(name, bound, _drain(mode, "WAL B/job"))


def _flows() -> Iterator[Bar]:
    for mode in (NOT_KEPT, KEPT):
        of = Reading(case="end_to_end", figure=END_TO_END, system=mode)
        yield _least(f"end to end, {_mode(mode)} / best peer", 1.3, of, replace(of, system=None))
    for name, figure, bound in (
        ("push one by one", ONE_BY_ONE, 1.2),
        ("push of many", MANY, 1.5),
    ):
        of = Reading(case="push", figure=figure)
        yield _least(f"{name} / best peer", bound, of, replace(of, system=None))
    for since in (CALL, RETURN):
        for detail in ("", "p99"):
            of = Reading(case="latency", figure=since, detail=detail)
            name = f"idle latency {since}, {detail or 'p50'} / best peer"
            yield _most(name, 1.0, of, replace(of, system=None))


def _burdens() -> Iterator[Bar]:
    for mode in (NOT_KEPT, KEPT):
        of = Reading(case="held", system=mode, figure=HELD, detail="last/first")
        yield _least(f"drains under a held snapshot, {_mode(mode)}, last / first", 0.95, of)
    for priorities, bound in ((2, 0.85), (5, 0.85), (10, 0.85), (201, 0.5)):
        figure = f"drain with {priorities} priorities / one"
        of = Reading(case="priorities", figure=figure, detail=LEAST)
        yield _least(f"{figure}, in each round", bound, of)
    of = Reading(case="priorities", figure="slowest urgent job", detail=MOST)
    yield _most("urgent job under a held snapshot, slowest start, ms", 200, of)
    of = Reading(case="sustained", figure="sustained, last window")
    yield _least("steady work under a held snapshot, last / first", 0.95, of)
    for detail, bound in (("p99 ms", 1.5), ("RSS MB", 1.1), ("jobs MB", 1.5), ("finished MB", 1.2)):
        of = Reading(case="steady", figure=f"steady, {detail}, last window")
        yield _most(f"half an hour of steady load, {detail}, last / first", bound, of)
    for where in ("behind a hint", "of a short scan", "from the front"):
        of = Reading(case="sustained", figure=f"claim pages {where}")
        yield _most(f"pages of a claim {where}, after steady work / before", 2.0, of)
    of = Reading(case="beside", figure="drain of .* finished jobs", detail="/ none")
    yield _least("drain beside ten million finished jobs / beside none", 0.95, of)
    of = Reading(case="beside", figure="vacuum of the live table")
    yield _most("vacuum of the live table beside them, ms", 100, of)
    # The pruner waits at most 100 ms for a lock, so it may block other sessions for as long.
    of = Reading(case="beside", figure="drop of a day")
    yield _most("drop of a day of them, ms", 100, of)
    yield _most("longest write meanwhile, ms", 100, replace(of, detail="longest write ms"))
    for limit in (1, 100):
        for detail in ("", "p99"):
            over = Reading(case="claims", figure=f"claim of {limit},", detail=detail)
            name = f"claim of {limit}, large backlog / small, {detail or 'p50'}"
            yield _most(name, 1.5, replace(over, index=1), over)
    of = Reading(case="claims", figure="claim of 100,", detail="p99", index=1)
    yield _most("claim of 100, large backlog, p99 ms", 5, of)


def _workflows() -> Iterator[Bar]:
    of = Reading(case="workflows", figure="a step of a chain")
    yield _most("a step of a chain / push to start", 3.0, of, replace(of, figure="push to start"))
    of, over = (
        Reading(case="workflows", figure=rf"[\d,]+ {kind}")
        for kind in ("steps between two", "plain jobs")
    )
    yield _most("steps between two / plain jobs", 1.5, of, over)


def _observers() -> Iterator[Bar]:
    for mode, bound in ((observers.METRICS, 0.97), (observers.COUNTER, 0.97),
                        (observers.AROUND, 0.7)):  # fmt: skip
        of = Reading(case="observability", figure=re.escape(ratio_figure(mode)))
        yield _least(ratio_figure(mode), bound, of)


def _limits() -> Iterator[Bar]:
    for title, (_, bound, _) in DRAINS.items():
        figure = rf"{re.escape(title)}, [\d,]+ jobs$"
        of = Reading(case="limits", figure=figure, detail=f"/ {PLAIN}")
        yield _least(f"drain, {title} / {PLAIN}", bound, of)
    for system, bound in zip(SEQUENTIAL_PEERS, (1.5, 5.0), strict=True):
        figure = rf"{re.escape(SEQUENCES)}, [\d,]+ jobs$"
        of = Reading(case="limits", figure=figure, detail=f"/ {system.name}")
        yield _least(f"drain, {SEQUENCES} / {system.name}", bound, of)
    of = Reading(case="limits", figure=re.escape(BINDING), detail="/ possible")
    yield _least(f"{BINDING} / 10 slots with a claim each", 0.8, of)
    of = Reading(case="limits", figure=CLAIMS)
    yield _most(f"{CLAIMS}, long backlog / short", 1.5, of)
    of = Reading(case="limits", figure=re.escape(RULED_HELD), detail="last/first")
    yield _least(f"drains, {RULED_HELD}, last / first", 0.9, of)
    yield _most(f"{IDLE}, many partitions / none", 1.2, Reading(case="limits", figure=IDLE))


def _dashboard() -> Iterator[Bar]:
    of = Reading(case="dashboard", figure="slowest page")
    yield _most("slowest page of the dashboard, p95 ms", 200, of)
    of = Reading(case="dashboard", figure="one open page")
    yield _most("one open page of the dashboard, cores of Postgres", 0.01, of)


def _executors() -> Iterator[Bar]:
    for title, jobs in (("drain", r"[\d,]+"), ("drain of 200,000", r"\d{3},\d{3}")):
        for executor in ("thread", "process"):
            of, over = (
                Reading(case="executors", figure=f"{jobs} no-op jobs, {name}", detail=ACKNOWLEDGED)
                for name in (executor, "async")
            )
            yield _least(f"{title}, {executor} / async", 0.6, of, over)
    for ms in (1, 5, 20):
        of = Reading(case="executors", figure=rf"[\d,]+ jobs of {ms} ms, process")
        over = replace(of, figure=rf"[\d,]+ jobs of {ms} ms, ProcessPoolExecutor")
        yield _least(f"jobs of {ms} ms, process / ProcessPoolExecutor", 0.95, of, over)


def _fleets() -> Iterator[Bar]:
    of, few, more = (
        Reading(case="fleet", figure=f"1,000 idle workers, {queues} queues")
        for queues in (100, 10, 300)
    )
    yield _most("1,000 idle workers with 100 queues each, cores of Postgres", 0.3, of)
    yield _most("the same with 300 queues / 10", 1.25, more, few)
    of = Reading(case="fleet", figure="push to 200 idle workers")
    yield _most("claims for a push to 200 idle workers", 5.0, of)
    of = replace(of, detail="p99 ms")
    two = replace(of, figure="push to 2 idle workers")
    yield _most("its p99 start / that with 2 workers", 1.3, of, two)


def _mode(system: str) -> str:
    return system.removeprefix("chancy, ")


#: All bars, in the order of the report.
BARS: Sequence[Bar] = (
    *_drains(),
    *_flows(),
    *_burdens(),
    *_workflows(),
    *_limits(),
    *_observers(),
    *_executors(),
    *_fleets(),
    *_dashboard(),
)


def judge(found: Sequence[Summary], bars: Sequence[Bar] = BARS) -> list[Verdict]:
    """A verdict for each bar."""
    return [_verdict(bar, found) for bar in bars]


def _verdict(bar: Bar, found: Sequence[Summary]) -> Verdict:
    measured_cases = {summary.case for summary in found}
    if bar.of.case not in measured_cases:
        return Verdict(bar=bar, measured=None, met=None, reason=NOT_MEASURED)
    try:
        measured = read(bar.of, found, _best(bar))
        if bar.over is not None:
            measured /= read(bar.over, found, _best(bar))
    except NotRead as error:
        return Verdict(bar=bar, measured=None, met=None, reason=str(error))
    met = measured >= bar.bound if bar.sense == "at least" else measured <= bar.bound
    return Verdict(bar=bar, measured=measured, met=met, reason="")


def _best(bar: Bar) -> Callable[[Sequence[float]], float]:
    return max if bar.sense == "at least" else min
