"""What import-linter cannot say: purity by name, frozen revisions, the cost of an import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.sources import ROOT, code, shown, statements

_PURE = {
    "judge",
    "codec",
    "rows",
    "states",
    "lease",
    "schedule",
    "graph",
    "assign",
    "counters",
    "misfire",
}
_IMPURE = {"asyncio", "asyncpg", "logging", "psycopg", "psycopg_pool", "time"}
_CLOCK_READS = {"now", "utcnow", "today"}
_OPTIONAL = (
    "alembic",
    "click",
    "croniter",
    "django",
    "opentelemetry",
    "redis",
    "rich",
    "starlette",
    "valkey",
)


def _imports(path: Path) -> Iterator[str]:
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from chancy import codec` imports a module, `from chancy import Worker` does not.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_front_door(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package != "chancy":
        return False
    home = ROOT / "chancy" / rest.partition(".")[0]
    return not rest or not (home.is_dir() or home.with_suffix(".py").exists())


def _clock_reads(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _CLOCK_READS
            and ast.unparse(node.func.value) in {"datetime", "date", "datetime.datetime"}
        ):
            yield ast.unparse(node)


def test_policies_are_pure() -> None:
    found = {
        shown(path): impure
        for path in code("chancy", "plugins")
        if path.stem in _PURE
        if (
            impure := sorted(
                {name for name in _imports(path) if name.partition(".")[0] in _IMPURE}
                | set(_clock_reads(path))
            )
        )
    }
    assert found == {}, "hand the time and the data in; wait, log and query elsewhere"


def test_a_migration_imports_nothing_of_ours() -> None:
    """A revision is frozen in time: it must mean the same after every later change."""
    found = {
        shown(path): ours
        for path in code("migrations", "plugins")
        if "versions" in path.parts
        if (ours := [name for name in _imports(path) if name.partition(".")[0] == "chancy"])
    }
    assert found == {}


def test_plugins_do_not_go_through_the_front_door() -> None:
    """``from chancy import …`` in a plugin would reach past the seams, and in a circle."""
    found = {
        shown(path): front
        for path in code("chancy", "plugins")
        if path != ROOT / "chancy" / "__init__.py"
        if "cli" not in path.parts and "testing" not in path.parts
        if (front := [name for name in _imports(path) if _is_front_door(name)])
    }
    assert found == {}


@pytest.mark.parametrize("unused", _OPTIONAL)
def test_importing_chancy_brings_nothing_optional(unused: str, imported: frozenset[str]) -> None:
    assert unused not in imported


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    """Every top-level name in sys.modules after ``import chancy`` in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", "import chancy, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return frozenset(name.partition(".")[0] for name in done.stdout.split())


def test_an_executor_process_starts_without_an_event_loop() -> None:
    """It needs one only for coroutine functions, and no hashes and entry points: a third of its
    start."""
    start = "import chancy.executors.process.child.main, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    spared = {"asyncio", "asyncpg", "hashlib", "importlib.metadata", "psycopg", "pydantic"}
    assert loaded.isdisjoint(spared | {"subprocess"})


#: Paths that users know.
_KNOWN = (
    "chancy.app.Chancy",
    "chancy.broker.SqlStore",
    "chancy.executors.process.ProcessExecutor",
    "chancy.plugin.Plugin",
    "chancy.plugins.batch.Batches",
    "chancy.plugins.cron.Cron",
    "chancy.plugins.dead_letter.DeadLetters",
    "chancy.plugins.leadership.Leadership",
    "chancy.plugins.pruner.Pruner",
    "chancy.plugins.recovery.Recovery",
    "chancy.plugins.redis.RedisPlugin",
    "chancy.plugins.reprioritize.Reprioritize",
    "chancy.plugins.retry.Retries",
    "chancy.plugins.workflow.Workflows",
    "chancy.worker.Worker",
)


@pytest.mark.parametrize("path", _KNOWN)
def test_a_path_that_users_know_imports(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert getattr(import_module(module), name).__name__ == name


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers count too; a package's ``__init__`` only hands names on."""
    graph = {}
    for path in code("chancy", "plugins", "benchmarks"):
        if path.name != "__init__.py":
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            graph[name if name.startswith(("chancy.", "bench")) else f"chancy.{name}"] = path
    edges = {
        name: {found for found in _modules_of(path) if found in graph and found != name}
        for name, path in graph.items()
    }
    assert len(edges) > 400
    TopologicalSorter(edges).prepare()  # raises CycleError with the modules of a circle


def _modules_of(path: Path) -> Iterator[str]:
    for name in _imports(path):
        yield from (name, name.rpartition(".")[0])
