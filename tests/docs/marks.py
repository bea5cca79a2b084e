"""The tests that show what the page of Redis promises: ``python -m tests.docs.marks`` writes them
into its tables. A test says by ``@pytest.mark.row("R05")`` which lines it shows.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

from tests.support.sources import ROOT, code

PAGE = ROOT / "docs" / "reference" / "redis.md"

#: The fixtures of tests of streams and of services that stand for a server alone and a cluster, of
#: which the latter is for the long runs.
_PLACES = {"streams": {"place", "link"}, "services": {"place"}}

_ROW = re.compile(r"^\| ([FPR]\d\d) \| (.*) \| [^|]* \|$", re.MULTILINE)


@cache
def marked() -> Mapping[str, list[str]]:
    """The tests of each line, in the order of their files, with the signs of the page."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(code("tests", "chancy")):
        text = path.read_text(encoding="utf-8")
        if "mark.row(" not in text:
            continue
        tree = ast.parse(text)
        whole = _marks(_pytestmark(tree))
        twice = _placed(tree, _PLACES.get(path.parent.name, set()))
        for name, decorators, arguments in _functions(tree):
            # A mark of the whole file is also on what its tests call.
            if not name.startswith("test_"):
                continue
            marks = [*whole, *_marks(decorators)]
            sign = " ‡" if twice & {*arguments} or any(map(_clustered, decorators)) else ""
            sign = " †" if any(mark == "chaos" for mark, _ in marks) else sign
            test = f"`{path.relative_to(ROOT)}::{name}`{sign}"
            for mark, rows in marks:
                for row in rows if mark == "row" else ():
                    if test not in found[row]:
                        found[row].append(test)
    return found


def written(text: str) -> str:
    """The page with the tests as they are marked."""
    tests = marked()
    return _ROW.sub(
        lambda row: f"| {row[1]} | {row[2]} | {', '.join(tests.get(row[1], ['`not yet`']))} |", text
    )


def rows(text: str) -> list[str]:
    """The lines that a page has."""
    return [row[0] for row in _ROW.findall(text)]


def _functions(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr], list[str]]]:
    """Every function with its decorators and those of its class, and the names that it takes."""
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.decorator_list, _arguments(node)
            case ast.ClassDef():
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        marks = [*node.decorator_list, *inner.decorator_list]
                        yield inner.name, marks, _arguments(inner)
            case _:
                pass


def _placed(tree: ast.Module, places: set[str]) -> set[str]:
    """These fixtures, and those of a file that are made of them."""
    found = {*places}
    for name, decorators, arguments in _functions(tree):
        if found & {*arguments} and any("fixture" in ast.unparse(one) for one in decorators):
            found.add(name)
    return found


def _clustered(decorator: ast.expr) -> bool:
    """Whether it leaves the cluster to the long runs for one test alone."""
    said = ast.unparse(decorator)
    return "param('cluster', marks=pytest.mark.chaos)" in said


def _arguments(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [one.arg for one in test.args.args]


def _pytestmark(tree: ast.Module) -> list[ast.expr]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=ast.List(elts=marks)):
                return marks
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=mark):
                return [mark]
            case _:
                pass
    return []


def _marks(decorators: list[ast.expr]) -> list[tuple[str, list[str]]]:
    """Names of marks with the texts that they are given."""
    found: list[tuple[str, list[str]]] = []
    for one in decorators:
        match one:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=name)):
                texts = [each.value for each in one.args if isinstance(each, ast.Constant)]
                found.append((name, [text for text in texts if isinstance(text, str)]))
            case ast.Attribute(value=ast.Attribute(attr="mark"), attr=name):
                found.append((name, []))
            case _:
                pass
    return found


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
