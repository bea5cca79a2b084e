"""Sizes for a planned load: what ``chancy bench --plan`` prints.

The costs are medians of `python -m benchmarks.run --cases push,drain` and of steady loads on one
server with two cores; see docs/explanation/scaling.md for the method and its limits.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.text import shown

#: Busy hours and minutes, over the mean of a day.
PEAK = 3.0
#: Days of finished jobs: the default of the pruner, and today.
KEPT_DAYS = 8
#: Finished jobs of a day above which its successors are stored by the hour.
HOURLY = 20_000_000
#: Seconds of processor time of a job: of the server, if pushed alone and if pushed with many
#: others; of the worker, without the function itself.
_SERVER_ALONE_S, _SERVER_MANY_S = 0.4e-3, 0.06e-3
_WORKER_S = 0.25e-3
#: Of a processor, used at any load.
_SERVER_BASE = 0.2
#: A processor that is busy for more than this share of the time makes jobs wait.
_BUSY = 0.6
#: Bytes of WAL of a job, and for each byte of its arguments: stored by the push, the claim and the
#: history. Images of whole pages after a checkpoint come on top.
_WAL, _WAL_PER_BYTE = 1_200, 3.0
#: Bytes of a finished job with its two index entries, and for each byte of its arguments.
_HISTORY, _HISTORY_PER_BYTE = 280, 1.25
#: Bytes of arguments if a plan does not name them.
_ARGUMENTS = 200.0
#: Sessions of a worker process under load.
_SESSIONS = 4

_UNITS = {
    "rate": {"s": 1.0, "min": 60.0, "h": 3_600.0, "day": 86_400.0},
    "duration": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3_600.0},
    "size": {"B": 1.0, "KB": 1e3, "MB": 1e6},
}
_TOKEN = re.compile(
    r"(?P<number>[\d,_]*\.?\d+)(?P<scale>[kM]?)"
    r"(/(?P<rate>s|min|h|day)|(?P<duration>ms|s|min|h)|(?P<size>B|KB|MB))"
)
_EXAMPLE = "for instance '1500/s 40ms' or '100M/day 200ms 2KB'"


@dataclass(frozen=True, slots=True)
class Load:
    """A planned load.

    :param rate: jobs a second, as the mean of a day.
    :param duration_s: seconds that a job takes.
    :param arguments: bytes of the arguments of a job, as JSON.
    """

    rate: float
    duration_s: float
    arguments: float = _ARGUMENTS

    def __post_init__(self) -> None:
        check_number(self.rate, "rate", 1e-6, 1e6, whole=False, unit="jobs a second")
        check_number(self.duration_s, "duration", 0.0, 86_400.0, whole=False, unit="seconds")
        check_number(self.arguments, "size", 0.0, 1e6, whole=False, unit="bytes")

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read ``RATE DURATION [SIZE]``, in any order.

        :raises ConfigurationError: a part is missing, there twice, unknown, or out of range.
        """
        found: dict[str, float] = {}
        for token in text.split():
            match = _TOKEN.fullmatch(token)
            if match is None:
                raise ConfigurationError(f"{shown(token)} in a plan: write {_EXAMPLE}")
            kind = next(name for name in _UNITS if match[name] is not None)
            if kind in found:
                raise ConfigurationError(f"a plan has one {kind}, not two: write {_EXAMPLE}")
            unit = _UNITS[kind][match[kind]]
            number = float(match["number"].replace(",", "").replace("_", ""))
            number *= {"": 1.0, "k": 1e3, "M": 1e6}[match["scale"]]
            found[kind] = number / unit if kind == "rate" else number * unit
        if missing := {"rate", "duration"} - found.keys():
            raise ConfigurationError(
                f"a plan needs a rate and a duration, {' and '.join(sorted(missing))} is missing: "
                f"write {_EXAMPLE}"
            )
        return cls(found["rate"], found["duration"], found.get("size", _ARGUMENTS))


def describe(load: Load) -> list[tuple[str, str, str]]:
    """Rows of a table: the item, its size (at the peak, unless stated otherwise), and its basis."""
    peak = load.rate * PEAK
    running = max(1, math.ceil(peak * load.duration_s))
    processes = max(2, math.ceil(peak * _WORKER_S / _BUSY))
    alone, many = (
        math.ceil((_SERVER_BASE + peak * each) / _BUSY)
        for each in (_SERVER_ALONE_S, _SERVER_MANY_S)
    )
    jobs_day = load.rate * 86_400
    wal_day = jobs_day * (_WAL + _WAL_PER_BYTE * load.arguments)
    history_day = jobs_day * (_HISTORY + _HISTORY_PER_BYTE * load.arguments)
    return [
        (
            "load",
            f"{_short(load.rate)} jobs/s, peak {_short(peak)}",
            f"{_short(jobs_day)} jobs a day; the peak is {PEAK:g} times the mean",
        ),
        ("running at a time", f"{running:,}", f"peak x {load.duration_s:g} s"),
        (
            "worker processes",
            f"{processes:,}, concurrency {math.ceil(running / processes):,}",
            f"at least 2; chancy itself takes {peak * _WORKER_S:.1f} cores of theirs, and your "
            "functions take what they take",
        ),
        (
            "sessions",
            f"{processes * _SESSIONS:,}",
            f"{_SESSIONS} for each worker process, and those of your clients",
        ),
        ("Postgres", f"{alone:,} cores", f"{many:,} if jobs are pushed by push_many"),
        (
            "write-ahead log",
            f"{_bytes(wal_day)} a day",
            f"{_bytes(wal_day / 86_400 * PEAK)} a second at the peak; more after checkpoints",
        ),
        (
            "history",
            f"{_bytes(history_day * KEPT_DAYS)}",
            f"{KEPT_DAYS} days of {_bytes(history_day)}, in partitions by the "
            f"{'hour' if jobs_day > HOURLY else 'day'}; none with keep_finished=False",
        ),
    ]


def _short(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:.3g} million"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _bytes(number: float) -> str:
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= least:
            return f"{number / least:.3g} {unit}"
    return f"{number / 1e3:.3g} KB"
