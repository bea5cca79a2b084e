"""What Alembic does for us: the revisions of one component, and running them.

Alembic is imported here alone, and only when somebody migrates.
"""

from __future__ import annotations

import importlib.util
import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chancy.checks import check_schema_name
from chancy.errors import ConfigurationError
from chancy.postgres.schema import indexes as building
from chancy.postgres.schema.component import CORE_NAME, Component
from chancy.postgres.statements import placeholders

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection

Direction = Literal["upgrade", "downgrade"]

# Alembic's `context` and `op` are global to a process.
_alembic = threading.Lock()


@dataclass(frozen=True, slots=True)
class RevisionScript:
    """One revision as its file has it.

    :param concurrently: it says so of itself; runs outside of a transaction.
    """

    revision: str
    description: str
    concurrently: bool


@dataclass(frozen=True, slots=True)
class RevisionRun:
    """Revisions that are run together: in one transaction, or one that runs outside of any.

    :param to: where the tables are then.
    """

    to: str
    concurrently: bool


def steps(component: Component) -> Sequence[RevisionScript]:
    """Every revision of a component, oldest first.

    :raises ConfigurationError: the files are not there, or are no linear history up to its head.
    """
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError

    scripts = ScriptDirectory.from_config(_config(component, "chancy"))
    try:
        found = [
            RevisionScript(
                s.revision, (s.doc or "").strip(), bool(getattr(s.module, "concurrently", False))
            )
            for s in scripts.walk_revisions()
        ]
    except (CommandError, RevisionError) as error:
        raise ConfigurationError(f"{component}: its revisions cannot be read: {error}") from error
    heads = scripts.get_heads()
    if heads != [component.head] or len(scripts.get_bases()) != 1:
        raise ConfigurationError(
            f"{component}: its newest revision is said to be {component.head}, and its files end "
            f"in {', '.join(heads) or 'nothing'}: a history is one line, whose end is the head"
        )
    return found[::-1]


def known(component: Component) -> Sequence[str]:
    """The revisions of a component, oldest first."""
    return [step.revision for step in steps(component)]


def legs(component: Component, direction: Direction, at: str | None, to: str) -> list[RevisionRun]:
    """The way from one revision (None: nothing) to another, in its order; empty: it is there.

    :param to: a revision, ``head`` or ``base``.
    """
    every = steps(component)
    names = [step.revision for step in every]
    begin = 0 if at is None else names.index(at) + 1
    end = {"head": len(names), "base": 0}.get(to)
    end = names.index(to) + 1 if end is None else end
    if direction == "upgrade":
        way = [RevisionRun(step.revision, step.concurrently) for step in every[begin:end]]
    else:
        way = [
            RevisionRun(names[i - 1] if i else "base", every[i].concurrently)
            for i in reversed(range(end, begin))
        ]
    found: list[RevisionRun] = []
    for leg in way:
        if found and not leg.concurrently and not found[-1].concurrently:
            found.pop()
        found.append(leg)
    return found


def run(
    direction: Direction,
    component: Component,
    schema: str,
    leg: RevisionRun,
    connection: Connection,
) -> None:
    """Run a leg in the transaction that the connection is in, or outside of any.

    :param connection: for a leg that runs concurrently, one that commits by itself.
    :raises ConfigurationError: there is no such way.
    """
    from alembic import command
    from alembic.util import CommandError

    config = _config(component, schema, concurrently=leg.concurrently)
    config.attributes["connection"] = connection
    if leg.concurrently:
        config.attributes["before"] = lambda text: building.clear(connection, schema, text)
    revision = leg.to
    move = command.upgrade if direction == "upgrade" else command.downgrade
    with _alembic:
        try:
            move(config, revision)
        except CommandError as error:
            raise ConfigurationError(f"{component}: {error}") from error


def offline(component: Component, schema: str, revision: str) -> str:
    """The statements of an upgrade from nothing."""
    from alembic import command

    output = io.StringIO()
    at = "base"
    for leg in legs(component, "upgrade", None, revision):
        if leg.concurrently:
            output.write(f"-- {component}, {leg.to}: not in a transaction\n\n")
        config = _config(component, schema, output=output, concurrently=leg.concurrently)
        config.attributes["before"] = building.index_of
        with _alembic:
            command.upgrade(config, f"{at}:{leg.to}", sql=True)
        at = leg.to
    return output.getvalue()


def _config(
    component: Component,
    schema: str,
    *,
    output: io.StringIO | None = None,
    concurrently: bool = False,
) -> Config:
    from alembic.config import Config

    import chancy.migrations

    config = Config(output_buffer=output) if output else Config()
    # Every component runs under the env.py of the core; a name may hold any other character.
    folder = Path(next(iter(chancy.migrations.__path__)))
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("version_locations", str(folder_of(component)).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes.update(
        schema=check_schema_name(schema),
        placeholders=placeholders(schema),
        version_table=component.version_table,
        makes_schema=component.name == CORE_NAME,
        concurrently=concurrently,
    )
    return config


def folder_of(component: Component) -> Path:
    """The folder of the revisions of a component."""
    package = component.migrations.package
    try:
        spec = importlib.util.find_spec(package)
    except ImportError as error:
        raise ConfigurationError(
            f"{component}: its package {package!r} cannot be imported: {error}"
        ) from error
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        folder = Path(place) / "versions"
        if folder.is_dir():
            return folder
    raise ConfigurationError(
        f"{component}: there is no folder 'versions' in the package {package!r} "
        f"({', '.join(places) or 'not found'}): does its distribution contain it, unpacked?"
    )
