"""How the tables of components stand to this code, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from chancy.errors import ConfigurationError, SchemaMismatch
from chancy.postgres.schema import revisions as alembic
from chancy.postgres.schema.component import CORE, CORE_NAME, Component


class SchemaState(StrEnum):
    """How the tables of a component stand to this code."""

    CURRENT = "current"
    MISSING = "missing"
    BEHIND = "behind"
    #: Newer code than this has made them.
    AHEAD = "ahead"
    #: By a plugin that is not here any more.
    LEFT_BEHIND = "left behind"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Where a component is.

    :param found: the revision of its tables; None: it has none.
    :param head: the revision that this code needs; None: it knows nothing of them.
    """

    name: str
    plugin: str | None
    found: str | None
    head: str | None
    state: SchemaState


def state_of(one: Component, found: str | None) -> SchemaState:
    """How tables at this revision, or none, stand to a component."""
    if found is None:
        return SchemaState.MISSING
    if found == one.head:
        return SchemaState.CURRENT
    return SchemaState.BEHIND if found in alembic.known(one) else SchemaState.AHEAD


def check(found: Mapping[str, str], schema: str, components: Sequence[Component] = ()) -> None:
    """Raise `SchemaMismatch` unless every component is at the revision of this code.

    :param found: the revision of each component that has tables.
    """
    wrong = [
        _mismatch(one, found.get(one.name), schema)
        for one in (CORE, *components)
        if found.get(one.name) != one.head
    ]
    if wrong and CORE_NAME not in found:
        raise SchemaMismatch(wrong[0])
    if wrong:
        raise SchemaMismatch("; ".join(wrong))


def _mismatch(one: Component, found: str | None, schema: str) -> str:
    if one.plugin is None:
        tables, code = f"the tables in schema {schema!r}", "this version of chancy"
        behind = "run `chancy migrate upgrade`"
    else:
        tables, code = f"the tables of the {one} in schema {schema!r}", "this version of it"
        behind = "run `chancy migrate upgrade`, with the --app if the plugin is not a default one"
    if found is None and one.plugin is None:
        return (
            f"schema {schema!r} of the database has no tables of chancy: run `chancy migrate "
            "upgrade`, or `await chancy.migrate()`"
        )
    if found is None:
        return f"{tables} are missing: {behind}, or `await chancy.migrate()`"
    if found in alembic.known(one):
        return f"{tables} are at revision {found}, {code} needs {one.head}: {behind}"
    name = "chancy" if one.plugin is None else f"the plugin {one.plugin!r}"
    return (
        f"{tables} are at revision {found}, which {code} (revision {one.head}) does not know: it "
        f"is older than the database; upgrade {name} here"
    )


def check_known(one: Component, found: str | None, schema: str) -> None:
    """Raise `SchemaMismatch` if newer code than this has made the tables.

    :raises ConfigurationError: its history cannot be.
    """
    known = alembic.known(one)
    if found is not None and found not in known:
        raise SchemaMismatch(_mismatch(one, found, schema))


def check_core(one: Component, found: str | None) -> None:
    """Raise `ConfigurationError` if the core lacks what a plugin's tables stand on."""
    needed = one.migrations.core
    if one.plugin is None or (found is not None and found >= needed):
        return
    todo = "migrate the core first" if needed <= CORE.head else "upgrade chancy here"
    raise ConfigurationError(
        f"{one} needs the core at revision {needed} or later, and it is at {found or 'nothing'}, "
        f"with {CORE.head} the newest here: {todo}"
    )


def check_unneeded(
    one: Component,
    revision: str,
    components: Sequence[Component],
    found: Mapping[str, str],
    *,
    dropped: Sequence[Component],
) -> None:
    """Raise `ConfigurationError` if tables that stay stand on what would be taken back."""
    gone = {other.name for other in dropped}
    known = {other.name: other for other in components}
    for name in [one for one in sorted(found) if one not in gone and one != CORE_NAME]:
        other = known.get(name)
        if one.plugin is not None:
            needs = other is not None and one.name in other.after
        elif revision == "base":
            needs = True
        else:
            needs = other is not None and revision < other.migrations.core
        if needs and other is not None:
            raise ConfigurationError(
                f"{one} cannot go back to {revision} while the tables of the {other} stand on "
                "it: take those back first, or all at once"
            )
        if needs:
            raise ConfigurationError(
                f"{one} cannot go back to {revision}: the tables of component {name!r} stand on "
                "it, and no plugin here knows them; add the plugin to take them back, or drop "
                f"them and {name}_version by hand"
            )
