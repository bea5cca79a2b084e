"""One name, one meaning: of classes, of modules; and modules that are whole nouns."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import ROOT, code, shown, statements

#: A module below this with a single importer is most often a piece of that importer.
SMALL = 60

#: Names that modules of several packages share, because each means the same in its package.
SHARED = {
    "adoption": "jobs taken over from the control broker",
    "base": "what the modules of the package implement",
    "broker": "the broker of that store",
    "calls": "what programs call",
    "checks": "checks of what a user has given",
    "claim": "the claim of that store",
    "clock": "time",
    "commands": "the commands of the package",
    "connection": "one end of a connection",
    "control": "what may be asked of what runs",
    "description": "what is declared, before it is stored",
    "doctor": "checks of a server, each with what to do",
    "executor": "an executor of jobs or of a stream",
    "heartbeat": "sign of life",
    "keys": "names of keys",
    "logs": "records of the log",
    "main": "where a process starts",
    "memory": "memory",
    "middleware": "what stands around a call",
    "migrate": "migrations",
    "optional": "what may be missing",
    "outcomes": "what became of jobs",
    "plugin": "a plugin",
    "pool": "a bounded set that is shared",
    "preparation": "checks before something is stored",
    "progress": "how far something is",
    "push": "the push to that store",
    "pushing": "pushes of jobs",
    "queues": "queues",
    "record": "a stored thing as it was at one time",
    "reference": "a handle to what was pushed",
    "run": "one run of a function",
    "runner": "keeps things running",
    "runtime": "what runs beside a worker",
    "services": "loops that go on",
    "settings": "the settings of the package",
    "standalone": "running without a worker",
    "store": "the statements of the package",
    "sweep": "repairs and bounds what is stored",
    "timers": "what happens at a time",
    "values": "plain values",
    "waiter": "waits for something",
    "worker": "a worker",
}
#: Small modules that stay apart from their only importer, and why.
APART = {
    "chancy/routing/clock_steps.py": "what it notices is not routing",
    "chancy/testing/structure.py": "what migrations are compared by, for tests of others too",
    "plugins/dashboard/pages/audit_page.py": "one page, as the modules beside it",
    "plugins/redis/cli/commands.py": "loaded with click only",
}

#: Packages whose names mirror others: of libraries, of the contract, of an application.
_NOT_OURS = {"compat", "conformance", "demo", "drivers", "versions", "within"}


def _modules() -> Iterator[Path]:
    for path in code("chancy", "plugins"):
        if path.stem not in {"__init__", "__main__"} and not _NOT_OURS & {*path.parts}:
            yield path


def test_no_class_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in code("chancy", "plugins"):
        if _NOT_OURS & {*path.parts}:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(shown(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_name_has_two_meanings() -> None:
    names = Counter(path.stem for path in _modules())
    twice = {name for name, count in names.items() if count > 1}
    assert twice - SHARED.keys() == set(), "rename one, or say in SHARED what both mean"
    assert SHARED.keys() - twice == set(), "these stand once: take them out of SHARED"


def _imported(path: Path) -> Iterator[str]:
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name if name.startswith("chancy.") else f"chancy.{name}"


def test_no_small_module_belongs_to_its_only_importer() -> None:
    importers = defaultdict(set)
    for path in code("chancy", "plugins", "benchmarks"):
        for name in _imported(path):
            importers[name].add(shown(path))
    small = {
        shown(path): next(iter(found))
        for path in _modules()
        if len(path.read_text().splitlines()) < SMALL
        and len(found := importers[_dotted(path)] - {shown(path)}) == 1
    }
    assert {name: by for name, by in small.items() if name not in APART} == {}
    assert APART.keys() - small.keys() == set()
