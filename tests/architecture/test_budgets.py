"""Nothing grows past what a reader holds in the head."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.sources import ROOT, code, files, shown, statements

FUNCTION_LINES = 60
STATEMENT_LINES = 60

_EVERYTHING = ("chancy", "plugins", "migrations", "tests", "benchmarks", "examples")


def _present(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(folder for folder in folders if (ROOT / folder).exists())


def _statement_lines(text: str) -> int:
    """Lines that are neither blank nor comment."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("--") for line in lines)


def test_functions_fit_the_budget() -> None:
    over = {
        f"{shown(path)}:{node.lineno} {node.name}": length
        for path in code(*_present(_EVERYTHING))
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert over == {}


def _sql() -> list[Path]:
    """Statements; a migration's file is a script and may be longer."""
    return [path for path in files(".sql") if "migrations" not in path.parts]


def test_statements_fit_the_budget() -> None:
    over = {
        shown(path): lines
        for path in _sql()
        if (lines := _statement_lines(path.read_text())) > STATEMENT_LINES
    }
    assert over == {}


def test_sql_files_begin_with_a_comment() -> None:
    bare = [shown(path) for path in _sql() if not path.read_text().startswith("--")]
    assert bare == [], "say which index it leans on, its lock order, whether it is safe to repeat"


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    found = [
        name
        for path in code(*_present(_EVERYTHING))
        if drawers & {*Path(name := shown(path)).parts, path.stem}
    ]
    assert found == [], "name a module after the one thing it holds"
