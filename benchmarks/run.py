"""``python -m benchmarks.run``: measures chancy and the limits of the server. See README.md."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import (
    beside,
    claims,
    clients,
    dashboard,
    drain,
    end_to_end,
    executors,
    fleet,
    held,
    latency,
    limit,
    limits,
    machine,
    observability,
    priorities,
    push,
    steady,
    sustained,
    workflows,
    workloads,
)
from benchmarks.bench import Bench, Case
from benchmarks.measurement import BenchmarkFailed, Size, Taken
from benchmarks.report import as_json, as_markdown, number
from benchmarks.server import server
from benchmarks.session import Control
from benchmarks.systems import NAMES

#: All cases by name, in the order of a round.
CASES: Mapping[str, Case] = {
    "limit": limit.measure,
    "push": push.measure,
    "drain": drain.measure,
    "latency": latency.measure,
    "end_to_end": end_to_end.measure,
    "held": held.measure,
    "priorities": priorities.measure,
    "executors": executors.measure,
    "claims": claims.measure,
    "clients": clients.measure,
    "observability": observability.measure,
    "beside": beside.measure,
    "sustained": sustained.measure,
    "steady": steady.measure,
    "workflows": workflows.measure,
    "limits": limits.measure,
    "workloads": workloads.measure,
    "fleet": fleet.measure,
    "dashboard": dashboard.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and return the exit status."""
    options = _parser().parse_args(arguments)
    # As for Ctrl-C: stop all processes and remove all files and schemas of the run.
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        head, taken = _measure(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BenchmarkFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    print(as_markdown(head, taken))
    return 0


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[Taken]]:
    size = Size(quick=options.quick, full=options.full, scale=options.scale)
    rounds = options.repeat or (1 if options.quick else 3)
    taken: list[Taken] = []
    started = time.monotonic()
    with server(options.dsn) as target, Control(target.dsn) as control:
        bench = Bench(
            dsn=target.dsn,
            control=control,
            size=size,
            programs=target.programs,
            server_pid=target.pid or control.server_pid(),
            idle_budget_s=(5 if size.quick else 30) * min(1.0, size.scale),
            started=started,
            systems=options.systems,
        )
        head = {
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": machine.commit(),
            "machine": machine.machine(),
            "versions": machine.versions(control),
            "settings": machine.settings(control),
            "server_given": target.given,
            "rounds": rounds,
            "quick": size.quick,
            "full": size.full,
            "scale": size.scale,
        }
        # Round by round, not case by case, so that a noisy minute affects all cases alike.
        for bench.round in range(1, rounds + 1):
            for name in options.cases:
                bench.progress(f"round {bench.round} of {rounds}: {name}")
                count = len(taken)
                for found in CASES[name](bench):
                    bench.progress(f"  {found.figure}: {number(found.value)} {found.unit}")
                    taken.append(Taken(case=name, round=bench.round, measurement=found))
                if len(taken) == count:
                    bench.progress("  nothing to measure; some cases need --full, or a first round")
                head["seconds"] = round(time.monotonic() - started, 1)
                if options.json is not None:
                    # After each case: a run takes an hour, and what was measured must outlive it.
                    options.json.write_text(json.dumps(as_json(head, taken), indent=1) + "\n")
    return head, taken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer jobs and one round: a minute without peers"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="also long cases: larger backlogs, a history of ten million jobs, steady load",
    )
    parser.add_argument(
        "--json", type=_file, metavar="FILE", help="write every repetition to this file"
    )
    parser.add_argument(
        "--dsn", metavar="URI", help="measure this server, in its schema chancy_bench"
    )
    parser.add_argument(
        "--cases",
        type=partial(_names, "case", CASES),
        default=list(CASES),
        metavar="A,B",
        help=f"one or more of {', '.join(CASES)}; default: all. Ratios need limit",
    )
    parser.add_argument(
        "--systems",
        type=partial(_names, "system", NAMES),
        metavar="A,B",
        help=f"one or more of {', '.join(NAMES)}; default: all that are installed",
    )
    parser.add_argument(
        "--repeat",
        type=_rounds,
        metavar="N",
        help="number of rounds; default: 3, or 1 with --quick",
    )
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    return parser


def _names(kind: str, known: Collection[str], text: str) -> list[str]:
    wanted = text.split(",")
    for name in wanted:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"there is no {kind} {name!r}: choose from {', '.join(known)}"
            )
    return wanted


def _file(text: str) -> Path:
    path = Path(text)
    if not path.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.resolve().parent)!r}")
    return path


def _rounds(text: str) -> int:
    rounds = int(text) if text.isdecimal() else 0
    if rounds < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return rounds


if __name__ == "__main__":
    sys.exit(main())
