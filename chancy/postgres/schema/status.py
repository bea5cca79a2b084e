"""Compares the revisions of tables with those that this code needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from chancy.errors import ConfigurationError, SchemaMismatch
from chancy.postgres.schema import revisions
from chancy.postgres.schema.component import CORE, CORE_NAME, Component


class SchemaState(StrEnum):
    """The state of a component's tables, compared with this code."""

    CURRENT = "current"
    MISSING = "missing"
    BEHIND = "behind"
    #: Created by a newer version of the code.
    AHEAD = "ahead"
    #: Created by a plugin that is no longer installed.
    LEFT_BEHIND = "left behind"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The revision and state of a component's tables.

    :param found: the revision of the tables; None: there are none.
    :param head: the revision that this code needs; None: the plugin is not installed.
    """

    name: str
    plugin: str | None
    found: str | None
    head: str | None
    state: SchemaState


def state_of(component: Component, found: str | None) -> SchemaState:
    """The state of a component's tables at this revision; None: there are no tables."""
    if found is None:
        return SchemaState.MISSING
    if found == component.head:
        return SchemaState.CURRENT
    return SchemaState.BEHIND if found in revisions.known(component) else SchemaState.AHEAD


def check(found: Mapping[str, str], schema: str, components: Sequence[Component] = ()) -> None:
    """Raise `SchemaMismatch` unless every component is at the revision that this code needs.

    :param found: the revision of each component that has tables.
    """
    mismatches = [
        _mismatch(component, found.get(component.name), schema)
        for component in (CORE, *components)
        if found.get(component.name) != component.head
    ]
    if mismatches and CORE_NAME not in found:
        raise SchemaMismatch(mismatches[0])
    if mismatches:
        raise SchemaMismatch("; ".join(mismatches))


def check_shard(name: str, found: Mapping[str, str], schema: str) -> None:
    """`check` for the core tables of another server than the application's own.

    :param name: the name of its broker.
    """
    state = state_of(CORE, found.get(CORE_NAME))
    if state is SchemaState.CURRENT:
        return
    if state is SchemaState.AHEAD:
        found_at = "newer than this version of chancy: upgrade chancy here"
    else:
        found_at = (
            f"{state}: run `chancy migrate upgrade --dsn DSN`, with the DSN of {name} and the "
            "--app of this application"
        )
    raise SchemaMismatch(f"the tables of the shard {name} in schema {schema!r} are {found_at}")


def check_encoding(encoding: str) -> None:
    """Raise `ConfigurationError` unless the database has the encoding UTF8."""
    if encoding != "UTF8":
        raise ConfigurationError(
            f"the database has the encoding {encoding}, which cannot store every text of jobs, and "
            "chancy needs UTF8: use another database, made by "
            "`create database … encoding 'UTF8' template template0`"
        )


def _mismatch(component: Component, found: str | None, schema: str) -> str:
    if component.plugin is None:
        tables, code = f"the tables in schema {schema!r}", "this version of chancy"
        behind = "run `chancy migrate upgrade`"
    else:
        tables = f"the tables of the {component} in schema {schema!r}"
        code = "this version of the plugin"
        behind = "run `chancy migrate upgrade`, with --app if it is not a default plugin"
    if found is None and component.plugin is None:
        return (
            f"schema {schema!r} of the database has no tables of chancy: run `chancy migrate "
            "upgrade`, or `await chancy.migrate()`"
        )
    if found is None:
        return f"{tables} are missing: {behind}, or `await chancy.migrate()`"
    if found in revisions.known(component):
        return f"{tables} are at revision {found}, but {code} needs {component.head}: {behind}"
    name = "chancy" if component.plugin is None else f"the plugin {component.plugin!r}"
    return (
        f"{tables} are at revision {found}, but {code} (revision {component.head}) is older than "
        f"the database; upgrade {name} here"
    )


def check_known(component: Component, found: str | None, schema: str) -> None:
    """Raise `SchemaMismatch` if a newer version of the code has created the tables.

    :raises ConfigurationError: the component's revisions are invalid.
    """
    known = revisions.known(component)
    if found is not None and found not in known:
        raise SchemaMismatch(_mismatch(component, found, schema))


def check_core(component: Component, found: str | None) -> None:
    """Raise `ConfigurationError` if the tables of the core are too old for a plugin's."""
    needed = component.migrations.core
    if component.plugin is None or (found is not None and found >= needed):
        return
    hint = "migrate the core first" if needed <= CORE.head else "upgrade chancy here"
    raise ConfigurationError(
        f"{component} needs the core at revision {needed} or later, but it is at "
        f"{found or 'nothing'} ({CORE.head} is the newest here): {hint}"
    )


def check_unneeded(
    component: Component,
    revision: str,
    components: Sequence[Component],
    found: Mapping[str, str],
    *,
    dropped: Sequence[Component],
) -> None:
    """Raise `ConfigurationError` if tables that remain depend on those of a downgrade."""
    gone = {other.name for other in dropped}
    known = {other.name: other for other in components}
    for name in [name for name in sorted(found) if name not in gone and name != CORE_NAME]:
        other = known.get(name)
        if component.plugin is not None:
            needs = other is not None and component.name in other.after
        elif revision == "base":
            needs = True
        else:
            needs = other is not None and revision < other.migrations.core
        if needs and other is not None:
            raise ConfigurationError(
                f"{component} cannot be downgraded to {revision} while the tables of the {other} "
                "depend on it: downgrade those first, or all components at once"
            )
        if needs:
            raise ConfigurationError(
                f"{component} cannot be downgraded to {revision}: the tables of component {name!r} "
                "depend on it, and no plugin here owns them; add the plugin to downgrade them, or "
                f"drop them and {name}_version by hand"
            )
