"""What the code has that the reference pages have to name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from chancy.errors import ChancyError
from tests.support.presence import present
from tests.support.sources import ROOT, code

_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


@cache
def trees() -> Mapping[Path, ast.Module]:
    """Every module of the product that logs or has a text with a dotted name of chancy, parsed: to
    parse all of them took each process that runs tests two seconds."""
    texts = {path: path.read_text(encoding="utf-8") for path in code("chancy", "plugins")}
    return {
        path: ast.parse(text, str(path))
        for path, text in texts.items()
        if re.search(r"\blogger\b|[\"']chancy\.", text)
    }


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of message: its first word, the logger, and a level that it is logged at."""

    name: str
    logger: str
    level: str


@cache
def events() -> Sequence[Event]:
    """What each call of a logger logs. Kept: a walk through every module takes a second."""
    return tuple(_events())


def _events() -> Iterator[Event]:
    for path, nodes in _nodes().items():
        logger = ""
        for node in nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=level),
                    args=[ast.Constant(value=str(message)), *_],
                ) if level in _LEVELS:
                    pass
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr="log"),
                    args=[_, ast.Constant(value=str(message)), *_],
                ):
                    level = "info"  # chosen when it runs
                case ast.Call(
                    func=ast.Name(id="_log"),
                    args=[ast.Attribute(attr=name), ast.Constant(value=str(message)), *_],
                ):
                    level = name.lower()  # a record with its fields as attributes
                case _:
                    continue
            logger = logger or _logger(nodes, path)
            yield Event(message.split()[0], logger, level)


@cache
def _nodes() -> Mapping[Path, Sequence[ast.AST]]:
    """What is said here of modules: their calls, names of attributes and texts."""
    kinds = (ast.Call, ast.Attribute, ast.Constant)
    return {
        path: [node for node in ast.walk(tree) if isinstance(node, kinds)]
        for path, tree in trees().items()
    }


def _logger(nodes: Sequence[ast.AST], path: Path) -> str:
    """The argument of a module's ``getLogger``."""
    for node in nodes:
        match node:
            case ast.Call(
                func=ast.Attribute(attr="getLogger"), args=[ast.Constant(value=str(name))]
            ):
                return name
            case ast.Call(func=ast.Attribute(attr="getLogger"), args=[ast.Name(id="__name__")]):
                return ".".join(path.relative_to(ROOT).with_suffix("").parts)
            case _:
                continue
    raise AssertionError(f"{path} logs by a logger that is not its own")


def log_calls() -> int:
    """How many calls of a logger there are, whatever their messages look like."""
    return sum(
        (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_log")
        or (
            isinstance(node, ast.Attribute)
            and node.attr in {*_LEVELS, "log"}
            and isinstance(node.value, ast.Name)
            and node.value.id == "logger"
        )
        for nodes in _nodes().values()
        for node in nodes
    )


@cache
def texts() -> frozenset[str]:
    """Every text in the code that looks like a dotted name of chancy: identifiers of plugins,
    names of failures, loggers."""
    return frozenset(
        node.value
        for nodes in _nodes().values()
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"chancy(\.\w+)+", node.value)
    )


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that a caller gives."""
    return [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("self", "cls") and one.kind is not one.VAR_KEYWORD
    ]


def members(kind: type) -> list[str]:
    """The public methods and properties that a class itself defines."""
    return [name for name in vars(kind) if not name.startswith("_")]


def errors() -> list[type[ChancyError]]:
    """The base of all errors and everything below it."""
    found: list[type[ChancyError]] = [ChancyError]
    for one in found:
        found += [below for below in one.__subclasses__() if below.__module__ == one.__module__]
    return list(dict.fromkeys(found))


def commands(
    command: click.Command | None = None, path: str = "chancy"
) -> Iterator[tuple[str, click.Command]]:
    """Every command below the top, with the words that call it."""
    if command is None:
        from chancy.cli.main import cli
        from chancy.cli.options import with_target
        from chancy.plugins.batch import Batches
        from chancy.plugins.dashboard import DashboardPlugin
        from chancy.plugins.encryption import Encryption, new_key
        from chancy.plugins.job_logs import JobLogs
        from chancy.plugins.redis import RedisPlugin
        from chancy.plugins.workflow import Workflows

        command = cli
        # Theirs are there for an application that has the plugin.
        encryption = Encryption({"k1": new_key()})
        others = DashboardPlugin(), encryption, JobLogs(), RedisPlugin()
        plugins = Batches(), *others, Workflows()
        for plugin in plugins:
            for own in plugin.commands():
                yield f"{path} {own.name}", with_target(own)
                yield from commands(with_target(own), f"{path} {own.name}")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = present(command.get_command(context, name))
            yield f"{path} {name}", below
            yield from commands(below, f"{path} {name}")
