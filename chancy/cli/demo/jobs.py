"""The jobs of the demo, and the computations they wrap, which need no queue."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from chancy.job.definition import job


class Measure(TypedDict):
    """Counts of a module. ``depth`` is its deepest nesting of statements."""

    lines: int
    functions: int
    classes: int
    depth: int


class Content(TypedDict):
    """The size and hash of a file."""

    bytes: int
    sha256: str


class FailedOnPurpose(Exception):
    """Raised by the first attempt of some jobs, to demonstrate a retry."""


@job(queue="parse")
def parse(path: str, fails_once: str | None = None) -> Measure:
    """Measure a module, in a process: parsing holds the GIL."""
    _fail_once(fails_once)
    return measure(Path(path).read_bytes())


@job(queue="read")
async def read(path: str, fails_once: str | None = None) -> Content:
    """Read and hash a file, in the worker's event loop."""
    _fail_once(fails_once)
    return content(await asyncio.to_thread(Path(path).read_bytes))


def _fail_once(marker: str | None) -> None:
    """Raise unless the file ``marker`` exists, and create it."""
    if marker is None:
        return
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return
    raise FailedOnPurpose("the first attempt of this job fails on purpose")


def measure(source: bytes) -> Measure:
    """Parse Python source and count. Raises SyntaxError if it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # escapes in old modules
        tree = ast.parse(source)
    nodes = list(_walk(tree))
    return Measure(
        lines=len(source.splitlines()),
        functions=sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n, _ in nodes),
        classes=sum(isinstance(node, ast.ClassDef) for node, _ in nodes),
        depth=max(depth for _, depth in nodes),
    )


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, int]]:
    """Yield every node with its nesting depth. An ``elif`` has the depth of its ``if``."""
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        inside = depth + isinstance(node, ast.stmt)
        beside = node.orelse if isinstance(node, ast.If) and len(node.orelse) == 1 else []
        for child in ast.iter_child_nodes(node):
            is_elif = child in beside and isinstance(child, ast.If)
            waiting.append((child, depth if is_elif else inside))


def content(data: bytes) -> Content:
    """Measure and hash a file."""
    return Content(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
