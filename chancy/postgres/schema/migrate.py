"""Migrates the tables of the core and of plugins, and checks their revisions.

Each function takes the components of an application's plugins; the core is always included, and is
the first. The check when a worker starts is one SELECT.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chancy.errors import BrokerError, ConfigurationError, StatementFailed
from chancy.postgres.drivers.base import Row
from chancy.postgres.schema import revisions as scripts
from chancy.postgres.schema import sessions, status
from chancy.postgres.schema.component import (
    CORE,
    CORE_NAME,
    Component,
    component_names,
    components_query,
    read_revisions,
    revisions_of,
    revisions_query,
)
from chancy.postgres.schema.status import SchemaState, SchemaStatus
from chancy.postgres.statements import SECURE

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

#: The revision of the core that this version of chancy works with.
HEAD = CORE.head
check = status.check

Fetch = Callable[[str], Awaitable[Sequence[Row]]]

_UNDEFINED_TABLE = ("42P01", "3F000")


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a component, and whether the database has it."""

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
    """Migrate the tables up: the core first, then each plugin after those it depends on.

    Each component is migrated in one transaction, except for revisions that run outside of one.
    Safe to run concurrently: one caller does the work. If other sessions hold a table, the
    migration retries with short waits for a minute.

    :param component: migrate only this component, up to ``revision``.
    :raises SchemaMismatch: the tables are newer than this code.
    :raises ConfigurationError: the database rejects a statement, or there is no such component or
        revision.
    """
    selected = _selected(components, component, revision, shared="head")
    with sessions.connected(dsn) as connection:
        for each in selected:
            _migrate("upgrade", each, schema, revision, dsn, connection)


def downgrade(
    dsn: str,
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
    revision: str = "base",
) -> None:
    """Migrate the tables down; ``base`` drops them with their contents.

    :param component: migrate only this component, down to ``revision``. Without it all components
        are migrated, the core last.
    :raises ConfigurationError: other components depend on these tables, or the database rejects a
        statement. Each component has its own transaction: the message names those that were
        downgraded before.
    """
    selected = _selected(components, component, revision, shared="base")
    with sessions.connected(dsn) as connection:
        with sessions.refusals(CORE), sessions.locked(connection, schema):
            # Before anything is dropped, as each component has its own transaction.
            found = _found(connection, schema)
            for each in selected:
                status.check_known(each, found.get(each.name), schema)
                status.check_unneeded(each, revision, components, found, dropped=selected)
        done: list[str] = []
        for each in reversed(selected):
            try:
                _migrate("downgrade", each, schema, revision, dsn, connection)
            except ConfigurationError as error:
                if done:
                    error.args = (f"{error}; downgraded before it: {', '.join(done)}",)
                raise
            if each.name in found:
                done.append(each.name)


def _migrate(
    direction: scripts.Direction,
    component: Component,
    schema: str,
    revision: str,
    dsn: str,
    connection: Connection,
) -> None:
    """Run one part after the other, each under the lock, from the revision found at that time."""
    deadline = time.monotonic() + sessions.PATIENCE_S
    runs = None
    while runs is None or len(runs) > 1:
        try:
            with sessions.refusals(component), sessions.locked(connection, schema):
                found = _found(connection, schema)
                at = found.get(component.name)
                status.check_known(component, at, schema)
                if direction == "upgrade":
                    status.check_core(component, found.get(CORE_NAME))
                elif at is None:
                    return
                runs = scripts.runs_between(component, direction, at, revision)
                for next_run in runs[:1]:
                    if next_run.concurrently:
                        # This connection holds the lock; the second one is in no transaction.
                        with sessions.connected(dsn, autocommit=True) as second:
                            scripts.run(direction, component, schema, next_run, second)
                    else:
                        scripts.run(direction, component, schema, next_run, connection)
        except sessions.TableHeld:
            if time.monotonic() > deadline:
                raise
            runs = None
            sessions.pause()


def sql(
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
    revision: str = "head",
) -> str:
    """The statements of an upgrade of an empty schema, to be run by hand."""
    selected = _selected(components, component, revision, shared="head")
    return "".join(scripts.offline(each, schema, revision) for each in selected)


def revisions(dsn: str, schema: str = "chancy") -> dict[str, str]:
    """The revision of every component that has tables in the schema, installed or not."""
    with sessions.session(dsn) as connection, connection.transaction():
        connection.execute(SECURE.encode())
        return read_revisions(lambda sql: connection.execute(sql.encode()).fetchall(), schema)


def current(
    dsn: str, schema: str = "chancy", components: Sequence[Component] = ()
) -> Sequence[SchemaStatus]:
    """The status of each component: the core, the plugins', and last those left behind."""
    found = revisions(dsn, schema)
    statuses: list[SchemaStatus] = []
    for component in (CORE, *components):
        at = found.pop(component.name, None)
        state = status.state_of(component, at)
        statuses.append(SchemaStatus(component.name, component.plugin, at, component.head, state))
    for name, at in found.items():
        statuses.append(SchemaStatus(name, None, at, None, SchemaState.LEFT_BEHIND))
    return statuses


def history(
    dsn: str | None,
    schema: str = "chancy",
    components: Sequence[Component] = (),
    *,
    component: str | None = None,
) -> Sequence[Revision]:
    """Every revision, oldest first, and whether the database has it (False without a DSN)."""
    found = revisions(dsn, schema) if dsn else {}
    all_revisions: list[Revision] = []
    for selected in _selected(components, component, "head", shared="head"):
        applied = selected.name in found
        for script in scripts.revision_scripts(selected):
            all_revisions.append(
                Revision(selected.name, script.revision, script.description, applied)
            )
            applied = applied and script.revision != found[selected.name]
    return all_revisions


async def find_revisions(
    fetch: Fetch, schema: str, components: Sequence[Component] = ()
) -> dict[str, str]:
    """The revisions of these components and the core: one SELECT if all have tables.

    :param fetch: runs one statement; raises `BrokerError`.
    """
    names = [component.name for component in (CORE, *components)]
    query = revisions_query(schema, names)
    try:
        return revisions_of(await fetch(query))
    except BrokerError as error:
        if not (isinstance(error, StatementFailed) and error.sqlstate in _UNDEFINED_TABLE):
            raise
    rows = await fetch(components_query(schema))
    existing = component_names(rows)
    names = [name for name in names if name in existing]
    if not names:
        return {}
    return revisions_of(await fetch(revisions_query(schema, names)))


def _selected(
    components: Sequence[Component], name: str | None, revision: str, *, shared: str
) -> Sequence[Component]:
    """The component of this name, or all of them, the core first.

    :param shared: the revision that all components have.
    """
    every = (CORE, *components)
    names = ", ".join(component.name for component in every)
    if name is None and revision != shared:
        raise ConfigurationError(
            f"revision {revision!r} needs the name of a component, one of {names}: only "
            f"{shared!r} is a revision of all components"
        )
    if name is None:
        return every
    selected = [component for component in every if component.name == name]
    if not selected:
        raise ConfigurationError(
            f"there is no component {name!r}: the core and the plugins here have {names}"
        )
    if revision != shared and revision not in (known := scripts.known(selected[0])):
        raise ConfigurationError(
            f"{selected[0]} has no revision {revision!r}: use {', '.join((shared, *known))}"
        )
    return selected


def _found(connection: Connection, schema: str) -> dict[str, str]:
    def rows(statement: str) -> Sequence[Any]:
        return connection.exec_driver_sql(statement).fetchall()

    return read_revisions(rows, schema)
