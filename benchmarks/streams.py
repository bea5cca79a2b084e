"""Streams of chancy and of runnel in one run: ``python -m benchmarks.streams [--runnel PYTHON]``.

By default it uses the runnel that `benchmarks.peers.installation` has installed.

In each round both systems in turn send the same events in batches of 500, which one worker then
processes, on one server without persistence. Prints a table, or JSON with ``--json``. Compare only
within a run.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence

import click
import redis

from benchmarks.processes import ROOT, ask
from benchmarks.redis_queues import server
from benchmarks.systems import RUNNEL

_TIMEOUT_S = 120

#: The cases: role, records per call or batch, and fraction of the events.
CASES: Mapping[str, tuple[str, int, float]] = {
    "sent by 500": ("send", 500, 1.0),
    "sent by any number": ("send_many", 500, 1.0),
    "sent one by one": ("send", 1, 0.1),
    "processed one by one": ("work", 1, 1.0),
    "processed by 100": ("work", 100, 1.0),
}


def measured(command: Sequence[str], url: str, role: str, events: int, chunk: int) -> float:
    """Events a second of one role in a separate process."""
    rate: float = ask([*command, role, url, str(events), str(chunk)], {}, timeout_s=_TIMEOUT_S)
    return rate


def rounds(
    systems: Mapping[str, Sequence[str]], events: int, count: int
) -> dict[str, dict[str, list[float]]]:
    """The rates of each case and system, one per round."""
    found: dict[str, dict[str, list[float]]] = {
        case: {name: [] for name in systems} for case in CASES
    }
    with server(()) as url, redis.Redis.from_url(url) as client:
        for number in range(count):
            order = list(systems) if number % 2 == 0 else list(reversed(list(systems)))
            for case, (role, chunk, share) in CASES.items():
                for name in order:
                    client.flushall()
                    if role == "work":
                        measured(systems[name], url, "send", events, 500)
                    rate = measured(systems[name], url, role, int(events * share), chunk)
                    found[case][name].append(rate)
    return found


@click.command()
@click.option("--runnel", metavar="PYTHON", help="A Python interpreter with runnel.")
@click.option("--events", default=100_000, show_default=True)
@click.option("--rounds", "count", default=3, show_default=True)
@click.option("--json", "json_", is_flag=True)
def main(runnel: str | None, events: int, count: int, json_: bool) -> None:
    """Measure streams of chancy, and of runnel if it is installed."""
    systems: dict[str, Sequence[str]] = {
        "chancy": [sys.executable, "-m", "benchmarks.stream_roles"]
    }
    if runnel is None and not RUNNEL.absence():
        runnel = str(RUNNEL.directory / "bin" / "python")
    if runnel:
        systems["runnel"] = [runnel, str(ROOT / "benchmarks" / "peers" / "runnel_roles.py")]
    found = rounds(systems, events, count)
    if json_:
        print(json.dumps({"events": events, "rates": found}))
        return
    print("| case | " + " | ".join(systems) + " | ratio |")
    print("|---|" + "---|" * (len(systems) + 1))
    for case, rates in found.items():
        medians = [statistics.median(values) for values in rates.values()]
        cells = [
            f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"
            for values in rates.values()
        ]
        ratio = f"{medians[0] / medians[1]:.2f}" if len(medians) > 1 else "–"
        print(f"| {case} | " + " | ".join(cells) + f" | {ratio} |")


if __name__ == "__main__":
    main()
