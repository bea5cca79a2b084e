"""Reads the revisions of a component and runs them, with Alembic.

Only this module imports Alembic, and only for a migration.
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
from chancy.postgres.schema import indexes
from chancy.postgres.schema.component import CORE_NAME, Component
from chancy.postgres.statements import SEARCH_PATH, SECURE, placeholders

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection

Direction = Literal["upgrade", "downgrade"]

# Alembic's `context` and `op` are global to the process.
_alembic_lock = threading.Lock()

#: The settings of an SQL function that leave the planner only index scans and nested loops: what
#: `{pinned_plan}` stands for in a revision. Revisions are not changed after their release, so these
#: lines are not either: another set of settings gets another name.
#:
#: jit is off because up to Postgres 17 a forbidden node without a substitute, such as the scan of a
#: small table, adds 10,000,000,000 to the cost of its plan, so that the server compiles it at each
#: call: settling a job took 103 ms instead of 0.25. Functions that forbid less turn it off, too.
PINNED_PLAN = """\
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off"""


@dataclass(frozen=True, slots=True)
class RevisionScript:
    """One revision, read from its file.

    :param concurrently: the file sets ``concurrently``, so it runs outside a transaction.
    """

    revision: str
    description: str
    concurrently: bool


@dataclass(frozen=True, slots=True)
class RevisionRun:
    """Revisions that run in one transaction, or a single one that runs outside a transaction.

    :param to: the revision of the tables after it.
    """

    to: str
    concurrently: bool


def revision_scripts(component: Component) -> Sequence[RevisionScript]:
    """Every revision of a component, oldest first.

    :raises ConfigurationError: the files are missing, or are no linear history up to its head.
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
            f"{component}: its head is declared as {component.head}, but its files end in "
            f"{', '.join(heads) or 'nothing'}: revisions must be one linear history that ends in "
            "the head"
        )
    return found[::-1]


def known(component: Component) -> Sequence[str]:
    """The revisions of a component, oldest first."""
    return [script.revision for script in revision_scripts(component)]


def runs_between(
    component: Component, direction: Direction, at: str | None, to: str
) -> list[RevisionRun]:
    """The runs from one revision (None: no tables) to another, in order; empty if it is reached.

    :param to: a revision, ``head`` or ``base``.
    """
    scripts = revision_scripts(component)
    names = [script.revision for script in scripts]
    start = 0 if at is None else names.index(at) + 1
    end = {"head": len(names), "base": 0}.get(to)
    end = names.index(to) + 1 if end is None else end
    if direction == "upgrade":
        single = [
            RevisionRun(script.revision, script.concurrently) for script in scripts[start:end]
        ]
    else:
        single = [
            RevisionRun(names[i - 1] if i else "base", scripts[i].concurrently)
            for i in reversed(range(end, start))
        ]
    runs: list[RevisionRun] = []
    for revision_run in single:
        if runs and not revision_run.concurrently and not runs[-1].concurrently:
            runs.pop()
        runs.append(revision_run)
    return runs


def run(
    direction: Direction,
    component: Component,
    schema: str,
    revision_run: RevisionRun,
    connection: Connection,
) -> None:
    """Run revisions in the transaction of the connection, or outside a transaction.

    :param connection: in autocommit mode if the revision runs concurrently.
    :raises ConfigurationError: Alembic cannot run the revisions.
    """
    from alembic import command
    from alembic.util import CommandError

    config = _config(component, schema, concurrently=revision_run.concurrently)
    config.attributes["connection"] = connection
    if revision_run.concurrently:
        config.attributes["before"] = lambda text: indexes.clear(connection, schema, text)
    migrate = command.upgrade if direction == "upgrade" else command.downgrade
    with _alembic_lock:
        try:
            migrate(config, revision_run.to)
        except CommandError as error:
            raise ConfigurationError(f"{component}: {error}") from error


def offline(component: Component, schema: str, revision: str) -> str:
    """The statements of an upgrade of an empty schema."""
    from alembic import command

    output = io.StringIO()
    at = "base"
    for revision_run in runs_between(component, "upgrade", None, revision):
        to, concurrently = revision_run.to, revision_run.concurrently
        if concurrently:
            output.write(f"-- {component}, {to}: not in a transaction\n\n")
            output.write(f"set search_path = {SEARCH_PATH};\n\n")
        config = _config(component, schema, output=output, concurrently=concurrently)
        config.attributes["before"] = indexes.index_of
        with _alembic_lock:
            command.upgrade(config, f"{at}:{to}", sql=True)
        if concurrently:
            output.write("reset search_path;\n\n")
        at = to
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
    # Every component uses the env.py of the core. Newline is the separator because a path may
    # contain any other character.
    folder = Path(next(iter(chancy.migrations.__path__)))
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("version_locations", str(folder_of(component)).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes.update(
        schema=check_schema_name(schema),
        placeholders={**placeholders(schema), "pinned_plan": PINNED_PLAN},
        version_table=component.version_table,
        makes_schema=component.name == CORE_NAME,
        concurrently=concurrently,
        secure=SECURE,
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
        f"{component}: the package {package!r} ({', '.join(places) or 'not found'}) has no folder "
        "'versions': include it in the distribution, and install that unpacked"
    )
