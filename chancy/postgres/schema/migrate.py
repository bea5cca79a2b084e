"""The tables: bringing them up to date, and refusing to work on others.

Each function takes the components of the plugins that an application has; the core is always one
more, and the first. A worker's check at start is one SELECT.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chancy.errors import BrokerError, ConfigurationError, StatementFailed
from chancy.postgres.drivers.base import Row
from chancy.postgres.schema import component as parts
from chancy.postgres.schema import revisions as alembic
from chancy.postgres.schema import sessions as maintenance
from chancy.postgres.schema import status as standing
from chancy.postgres.schema.component import CORE, CORE_NAME, Component
from chancy.postgres.schema.status import SchemaState, SchemaStatus

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

#: The revision of the core that this version of chancy works with.
HEAD = CORE.head
check = standing.check

Fetch = Callable[[str], Awaitable[Sequence[Row]]]

#: Seconds for which a migration comes again to a table that others hold.
_PATIENCE_S = 60.0
_UNDEFINED_TABLE = ("42P01", "3F000")


@dataclass(frozen=True, slots=True)
class Revision:
    """One step of a history."""

    component: str
    revision: str
    description: str
    applied: bool


def upgrade(
    dsn: str,
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
    revision: str = "head",
) -> None:
    """Bring the tables up: the core first, then each plugin behind those it depends on.

    Each component is one transaction, but for revisions that run outside of any. Several callers
    at once are safe: one does the work. A table that others hold is waited for in short turns, for
    a minute.

    :param component: only this one, up to ``revision``.
    :raises SchemaMismatch: tables that are newer than this code.
    :raises ConfigurationError: the database refuses; a component or revision that is not there.
    """
    chosen = _chosen(components, component, revision, word="head")
    with maintenance.connected(dsn) as connection:
        for one in chosen:
            _move("upgrade", one, schema, revision, dsn, connection)


def downgrade(
    dsn: str,
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
    revision: str = "base",
) -> None:
    """Take the tables back; ``base`` drops them with all that is in them.

    :param component: only this one, down to ``revision``. Without it all, the core last.
    :raises ConfigurationError: others need what would be dropped.
    """
    chosen = _chosen(components, component, revision, word="base")
    with maintenance.connected(dsn) as connection:
        with maintenance.refusals(CORE), maintenance.locked(connection, schema):
            # Before anything is dropped: each component is a transaction of its own.
            found = _found(connection, schema)
            for one in chosen:
                standing.check_known(one, found.get(one.name), schema)
                standing.check_unneeded(one, revision, components, found, dropped=chosen)
        for one in reversed(chosen):
            _move("downgrade", one, schema, revision, dsn, connection)


def _move(
    direction: alembic.Direction,
    one: Component,
    schema: str,
    revision: str,
    dsn: str,
    connection: Connection,
) -> None:
    """Run one leg after the other, each under the lock, from wherever the tables are by then."""
    deadline = time.monotonic() + _PATIENCE_S
    legs = None
    while legs is None or len(legs) > 1:
        try:
            with maintenance.refusals(one), maintenance.locked(connection, schema):
                found = _found(connection, schema)
                standing.check_known(one, found.get(one.name), schema)
                if direction == "upgrade":
                    standing.check_core(one, found.get(CORE_NAME))
                elif one.name not in found:
                    return
                legs = alembic.legs(one, direction, found.get(one.name), revision)
                for leg in legs[:1]:
                    if leg.concurrently:
                        # This connection keeps the lock; the other one is in no transaction.
                        with maintenance.connected(dsn, autocommit=True) as beside:
                            alembic.run(direction, one, schema, leg, beside)
                    else:
                        alembic.run(direction, one, schema, leg, connection)
        except maintenance.TableHeld:
            if time.monotonic() > deadline:
                raise
            legs = None
            time.sleep(random.uniform(0.5, 1.5))


def sql(
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
    revision: str = "head",
) -> str:
    """The statements of an upgrade from nothing, for somebody who runs them by hand."""
    chosen = _chosen(components, component, revision, word="head")
    return "".join(alembic.offline(one, schema, revision) for one in chosen)


def revisions(dsn: str, schema: str = "chancy") -> dict[str, str]:
    """The revision of every component that has tables in the schema, known here or not."""
    with maintenance.session(dsn) as connection:
        return parts.found_by(lambda sql: connection.execute(sql.encode()).fetchall(), schema)


def current(
    dsn: str, schema: str = "chancy", components: Sequence[Component] = ()
) -> Sequence[SchemaStatus]:
    """Where each component is: the core, the plugins', and at the end what is left behind."""
    found = revisions(dsn, schema)
    standings: list[SchemaStatus] = []
    for one in (CORE, *components):
        at = found.pop(one.name, None)
        standings.append(
            SchemaStatus(one.name, one.plugin, at, one.head, standing.state_of(one, at))
        )
    for name, at in found.items():
        standings.append(SchemaStatus(name, None, at, None, SchemaState.LEFT_BEHIND))
    return standings


def history(
    dsn: str | None,
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
) -> Sequence[Revision]:
    """Every revision, oldest first, and whether the database has it (False without a DSN)."""
    found = revisions(dsn, schema) if dsn else {}
    steps: list[Revision] = []
    for one in _chosen(components, component, "head", word="head"):
        done = one.name in found
        for step in alembic.steps(one):
            steps.append(Revision(one.name, step.revision, step.description, done))
            done = done and step.revision != found[one.name]
    return steps


async def find_revisions(
    fetch: Fetch, schema: str, components: Sequence[Component] = ()
) -> dict[str, str]:
    """The revisions of these components and the core: one SELECT if all have tables.

    :param fetch: runs one statement; raises `BrokerError`.
    """
    names = [one.name for one in (CORE, *components)]
    try:
        return parts.revisions_of(await fetch(parts.reading(schema, names)))
    except BrokerError as error:
        if not (isinstance(error, StatementFailed) and error.sqlstate in _UNDEFINED_TABLE):
            raise
    there = parts.names_of(await fetch(parts.listing(schema)))
    names = [name for name in names if name in there]
    return parts.revisions_of(await fetch(parts.reading(schema, names))) if names else {}


def _chosen(
    components: Sequence[Component], name: str | None, revision: str, *, word: str
) -> Sequence[Component]:
    """The components that are meant, the core first.

    :param word: the revision that all components have.
    """
    every = (CORE, *components)
    names = ", ".join(one.name for one in every)
    if name is None and revision != word:
        raise ConfigurationError(
            f"revision {revision!r} of which component? Name one of {names}; only {word!r} is a "
            "revision of all"
        )
    if name is None:
        return every
    chosen = [one for one in every if one.name == name]
    if not chosen:
        raise ConfigurationError(
            f"there is no component {name!r}: the plugins here and the core have {names}"
        )
    if revision != word and revision not in (known := alembic.known(chosen[0])):
        raise ConfigurationError(
            f"{chosen[0]} has no revision {revision!r}: use {', '.join((word, *known))}"
        )
    return chosen


def _found(connection: Connection, schema: str) -> dict[str, str]:
    def rows(statement: str) -> Sequence[Any]:
        return connection.exec_driver_sql(statement).fetchall()

    return parts.found_by(rows, schema)
