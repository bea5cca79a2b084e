"""What a long run shows of itself: readings by window, as JSON and as a plot."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from chancy import BrokerError, Chancy
from tests.faults import jobs
from tests.support.sql import ask

# It takes a second of each process that collects the tests, where it is imported by a module.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Versions of its row that a job leaves behind, and the bytes of each with its index entries: by
#: the push (346) and by the claim (297). Measured with 40,000 jobs of the soak.
VERSIONS, VERSION_BYTES = 2, 325
#: Seconds between two vacuums (autovacuum_naptime), and between two faults, which is the longest
#: time for which jobs pile up.
NAP_S, OUTAGE_S = 60, 30
#: The size of the tables of jobs that have not ended, of those that have, and of all others.
SIZES = """
select coalesce(sum(size) filter (where name = 'jobs'), 0)::bigint,
  coalesce(sum(size) filter (where name ~ '^finished_jobs'), 0)::bigint,
  coalesce(sum(size) filter (where name !~ '^(jobs|finished_jobs)'), 0)::bigint
from (
  select c.relname as name, pg_total_relation_size(c.oid) as size from pg_class c
  where c.relnamespace = 'chancy'::regnamespace and c.relkind = 'r') t
"""
#: What has ended since a watermark, and how many live.
PROGRESS = """
select count(*), coalesce(max(number), %(mark)s), (select count(*) from chancy.jobs)
from ledger.ends where number > %(mark)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The readings of one window. Memory and descriptors are those of a worker that is not killed,
    and of the dashboard."""

    at_s: float
    fault: str
    jobs_per_s: float
    live: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    worker_mb: float
    worker_descriptors: int
    dashboard_mb: float
    dashboard_descriptors: int
    jobs_mb: float
    finished_mb: float
    other_mb: float


def cycle_mb(jobs_per_s: float) -> float:
    """MB that the table of live jobs takes up between two vacuums in which one fault occurs.

    Space is used again after a vacuum and never returned, so that the size of the file is that of
    the worst cycle so far. Later cycles are like earlier ones: if nothing leaks, the worst one of
    them is larger by less than a whole cycle.
    """
    return jobs_per_s * VERSIONS * VERSION_BYTES * (NAP_S + OUTAGE_S) / 2**20


@dataclass(slots=True)
class Readings:
    """Takes the readings."""

    dsn: str
    worker: psutil.Process
    dashboard: psutil.Process
    jobs_per_s: float
    began: float = field(default_factory=time.monotonic)
    windows: list[Window] = field(default_factory=list[Window])
    #: Seconds from the push of each probe to its end, since the last window.
    waits_s: list[float] = field(default_factory=list[float])
    _mark: int = 0
    _read_at: float = field(default_factory=time.monotonic)

    async def probe(self, chancy: Chancy, over: Callable[[], bool]) -> None:
        """Push one job after the other, and measure how long each takes to end."""
        while not over():
            began = time.monotonic()
            try:
                await (await chancy.push(jobs.probe.job())).wait(60)
            except (BrokerError, TimeoutError):
                continue
            self.waits_s.append(time.monotonic() - began)

    def read(self, fault: str) -> None:
        """End a window."""
        now = time.monotonic()
        ((ended, self._mark, live),) = ask(self.dsn, PROGRESS, {"mark": self._mark})
        (sizes,) = ask(self.dsn, SIZES)
        waits_ms, self.waits_s = sorted(1_000 * one for one in self.waits_s) or [0.0], []
        self.windows.append(
            Window(
                at_s=round(now - self.began, 1),
                fault=fault,
                jobs_per_s=round(ended / (now - self._read_at), 1),
                live=live,
                p50_ms=round(statistics.median(waits_ms), 1),
                p99_ms=round(waits_ms[int(0.99 * (len(waits_ms) - 1))], 1),
                most_ms=round(waits_ms[-1], 1),
                worker_mb=_mb(self.worker.memory_info().rss),
                worker_descriptors=self.worker.num_fds(),
                dashboard_mb=_mb(self.dashboard.memory_info().rss),
                dashboard_descriptors=self.dashboard.num_fds(),
                jobs_mb=_mb(sizes[0]),
                finished_mb=_mb(sizes[1]),
                other_mb=_mb(sizes[2]),
            )
        )
        self._read_at = now

    def check_flat(self) -> None:
        """Check that nothing but the history grows: the last quarter over the second one."""
        quarter = len(self.windows) // 4
        early, late = self.windows[quarter : 2 * quarter], self.windows[-quarter:]
        for name, factor, slack in (
            ("worker_mb", 1.15, 15),
            ("dashboard_mb", 1.15, 15),
            ("worker_descriptors", 1.15, 15),
            ("dashboard_descriptors", 1.15, 15),
            ("jobs_mb", 1.0, cycle_mb(self.jobs_per_s)),
        ):
            before, after = (_median(part, name) for part in (early, late))
            assert after <= factor * before + slack, f"{name}: {before:g}, then {after:g}"

    def save(self, into: Path, totals: dict[str, object]) -> None:
        """Write ``soak.json``, each window anew: a run that is stopped leaves what it has read."""
        into.mkdir(parents=True, exist_ok=True)
        found = {"totals": totals, "windows": [asdict(one) for one in self.windows]}
        (into / "soak.json").write_text(json.dumps(found, indent=1) + "\n")

    def write(self, into: Path, totals: dict[str, object]) -> None:
        """Write ``soak.json`` and ``soak.svg``."""
        import matplotlib as mpl

        self.save(into, totals)
        # Text stays text, which makes a quarter of the size.
        with mpl.rc_context({"svg.hashsalt": "chancy", "svg.fonttype": "none", "font.size": 9}):
            plotted(self.windows).savefig(into / "soak.svg", format="svg", metadata={"Date": None})


def _mb(size: int) -> float:
    return round(size / 2**20, 1)


def _median(windows: Sequence[Window], name: str) -> float:
    return statistics.median(float(getattr(one, name)) for one in windows)


#: The titles of the rows of the plot, and the readings that each shows, with their labels.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("jobs a second", {"jobs_per_s": "ended"}),
    ("ms from push to end", {"most_ms": "longest", "p99_ms": "p99", "p50_ms": "p50"}),
    ("memory, MB", {"worker_mb": "a worker", "dashboard_mb": "dashboard"}),
    ("descriptors", {"worker_descriptors": "a worker", "dashboard_descriptors": "dashboard"}),
    ("tables, MB", {"finished_mb": "finished jobs", "jobs_mb": "live jobs", "other_mb": "others"}),
)


def plotted(windows: Sequence[Window]) -> Figure:
    """A row for each of `PANELS` over the minutes, with the faults below the last one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2 * len(PANELS)), layout="constrained")
    minutes = [one.at_s / 60 for one in windows]
    rows = figure.subplots(len(PANELS), sharex=True)
    for axes, (title, names) in zip(rows, PANELS, strict=True):
        for name, label in names.items():
            axes.plot(minutes, [getattr(one, name) for one in windows], label=label, linewidth=1)
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    rows[1].set_yscale("log")
    rows[1].set_ylim(bottom=1)
    if len(windows) <= 20:
        rows[-1].set_xticks(minutes, [one.fault for one in windows], rotation=60, fontsize=7)
    else:
        rows[-1].set_xlabel("minutes")
    return figure
