"""The files of the repository, for the architecture tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Directories that tools generate.
_SKIPPED = {".git", "build", "dist", "site", "node_modules", "__pycache__"}


def files(*suffixes: str, below: tuple[str, ...] = (".",)) -> Iterator[Path]:
    """Every file once; symbolic links and hidden directories of tools are skipped.

    :param suffixes: such as ``.py``; none means every file.
    """
    for start in below:
        yield from _walk(ROOT / start, suffixes)


def _walk(path: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    if path.is_symlink() or (path.name in _SKIPPED and path != ROOT):
        return
    if path.is_file():
        if not suffixes or path.suffix in suffixes:
            yield path
    elif path == ROOT or path.name in {".ci", ".github"} or not path.name.startswith("."):
        for part in sorted(path.iterdir()) if path.is_dir() else ():
            yield from _walk(part, suffixes)


def code(*below: str) -> Iterator[Path]:
    """The Python modules of the product, or of some folders."""
    return files(".py", below=below or ("chancy", "plugins", "migrations"))


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement, including nested ones: a third of the nodes that `ast.walk` visits."""
    for below in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, below, ()):
            if isinstance(node, ast.stmt):
                yield node
            yield from statements(node)


def shown(path: Path) -> str:
    """A path relative to the repository, for messages."""
    return str(path.relative_to(ROOT))
