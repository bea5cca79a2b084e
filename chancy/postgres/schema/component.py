"""Components: what owns tables. The core is one, and each plugin that brings tables of its own.

A component has a linear history of its own and a version table in the schema. Histories do not
meet in one tree: a plugin that is gone leaves its tables behind, and strands nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources

from chancy.errors import ConfigurationError
from chancy.postgres.drivers.base import Row
from chancy.postgres.statements import load, quoted
from chancy.text import shown

#: The name of the component of the core.
CORE_NAME = "core"
#: The revision of the core that this version of chancy works with.
HEAD = "0001"

#: The tables of the core.
CORE_TABLES = ("jobs", "finished_jobs", "workers", "queues", "awaited", "unique_periods")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_REVISION = re.compile(r"[A-Za-z0-9_]{1,32}")
_RELATION = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PRIVILEGE = r"(?:select|insert|update|delete|usage)(?: \([a-z0-9_]+(?:, [a-z0-9_]+)*\))?"
_PRIVILEGES = re.compile(rf"{_PRIVILEGE}(?:, {_PRIVILEGE})*")


class RoleKind(StrEnum):
    """What a role of the database is there for; see `chancy.postgres.schema.grants`."""

    OWNER = "owner"
    WORKER = "worker"
    PRODUCER = "producer"
    VIEWER = "viewer"


#: Relations of a component and what a role may do with them: ``select, insert (a, b)``, or
#: ``usage`` of a sequence.
Privileges = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """The history of the tables of a component; see `chancy.plugin.plugin.Plugin.migrations`.

    :param name: of the component, 1 to 32 of ``a-z 0-9 _``. Its revision is in the table
        ``NAME_version``; its tables should begin with its name.
    :param package: dotted path of the package whose folder ``versions`` has the revisions.
    :param head: the newest revision, which this code works with. Said here so that the start of a
        worker imports no Alembic.
    :param core: the oldest revision of the core that the newest revision works with.
    :param grants: what roles of a kind may do with its tables and sequences, in place of what they
        may do otherwise: a worker reads and writes all tables that begin with its name, a viewer
        reads them, a producer does nothing with them.
    :param core_grants: what it needs of the tables of the core beside what a role of the kind may
        do with them anyway.
    :raises ConfigurationError: a name or a revision that cannot be one, or grants that cannot be.
    """

    name: str
    package: str
    head: str
    core: str = "0001"
    grants: Mapping[RoleKind, Privileges] = field(default_factory=dict, hash=False)
    core_grants: Mapping[RoleKind, Privileges] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"{shown(self.name)} cannot be the name of a component: use 1 to 32 of the "
                "characters a-z 0-9 _, beginning with a letter"
            )
        for revision in (self.head, self.core):
            if not _REVISION.fullmatch(revision):
                raise ConfigurationError(
                    f"component {self.name!r}: {shown(revision)} cannot be a revision: use 1 to "
                    "32 of the characters A-Z a-z 0-9 _, such as 0001"
                )
        for kind, privileges in (*self.grants.items(), *self.core_grants.items()):
            if kind not in (RoleKind.WORKER, RoleKind.PRODUCER, RoleKind.VIEWER):
                raise ConfigurationError(
                    f"component {self.name!r} grants something to {shown(kind)}: the kinds of "
                    "roles that are granted something are worker, producer and viewer"
                )
            for relation, what in privileges.items():
                self._check_privileges(relation, what)
        for relation in (name for one in self.grants.values() for name in one):
            if not (_RELATION.fullmatch(relation) and f"{relation}_".startswith(f"{self.name}_")):
                raise ConfigurationError(
                    f"component {self.name!r} grants something on {shown(relation)}: it must be a "
                    f"table or a sequence of its own, whose name begins with {self.name}_"
                )
        for relation in (name for one in self.core_grants.values() for name in one):
            if relation not in CORE_TABLES:
                raise ConfigurationError(
                    f"component {self.name!r} needs something of {shown(relation)}: the tables of "
                    f"the core are {', '.join(CORE_TABLES)}"
                )

    def _check_privileges(self, relation: str, what: str) -> None:
        if not _PRIVILEGES.fullmatch(what):
            raise ConfigurationError(
                f"component {self.name!r} grants {shown(what)} on {relation}: write privileges "
                "like 'select, insert (a, b)', or 'usage' for a sequence"
            )


@dataclass(frozen=True, slots=True)
class Component:
    """A history among others.

    :param plugin: identifier of the plugin that owns it; None: the core.
    :param after: names of the components that must be there before it, beside the core.
    """

    migrations: Migrations
    plugin: str | None = None
    after: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.migrations.name

    @property
    def head(self) -> str:
        return self.migrations.head

    @property
    def version_table(self) -> str:
        """The table that holds the revision."""
        return f"{self.name}_version"

    def __str__(self) -> str:
        """What it is called in messages."""
        owner = f" of the plugin {self.plugin!r}" if self.plugin else ""
        return f"component {self.name!r}{owner}"


CORE = Component(Migrations(name=CORE_NAME, package="chancy.migrations", head=HEAD))

#: What a plugin says of itself: identifier, its history if it has one, what it depends on.
Owner = tuple[str, Migrations | None, Sequence[str]]


def ordered(owners: Iterable[Owner]) -> tuple[Component, ...]:
    """The components of plugins, each behind those of the plugins that it depends on.

    Dependencies on plugins that are not among them are passed over.

    :raises ConfigurationError: two have one name, or depend on each other.
    """
    owners = list(owners)
    dependencies = {identifier: needed for identifier, _, needed in owners}
    histories = {identifier: history for identifier, history, _ in owners if history}
    by_name: dict[str, str] = {}
    for identifier, history in histories.items():
        if history.name == CORE_NAME:
            raise ConfigurationError(
                f"the plugin {identifier!r} calls its tables {CORE_NAME!r}, as the core does: "
                "give its component another name"
            )
        if history.name in by_name:
            raise ConfigurationError(
                f"the plugins {by_name[history.name]!r} and {identifier!r} both call their tables "
                f"{history.name!r}: give one component another name"
            )
        by_name[history.name] = identifier
    below = {identifier: _below(identifier, dependencies) for identifier in histories}
    components = [
        Component(history, one, frozenset(histories[b].name for b in below[one] & set(histories)))
        for one, history in histories.items()
    ]
    for component in components:
        if component.name in component.after:
            raise ConfigurationError(
                f"the plugin {component.plugin!r}, which owns tables, depends on itself by way "
                "of the plugins that it depends on: nobody can say whose tables are first"
            )
    # Whoever depends on another has all that the other has behind it, and the other as well.
    return tuple(sorted(components, key=lambda component: len(component.after)))


def _below(identifier: str, dependencies: Mapping[str, Sequence[str]]) -> set[str]:
    """Whom a plugin depends on, near and far."""
    found: set[str] = set()
    waiting = [identifier]
    while waiting:
        for one in dependencies.get(waiting.pop(), ()):
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found


def reading(schema: str, names: Iterable[str]) -> str:
    """The one statement that reads the revisions of components, whose version tables exist."""
    return " union all ".join(
        f"select '{name}', version_num::text from {quoted(schema)}.{name}_version"  # noqa: S608
        for name in names
    )


def listing(schema: str) -> str:
    """The statement that gives the names of the components whose version tables exist."""
    return load(resources.files("chancy.postgres") / "sql", "components", schema)


def names_of(rows: Sequence[Row]) -> list[str]:
    """The names in the rows of `listing` that can be names of components."""
    return [str(name) for (name,) in rows if _NAME.fullmatch(str(name))]


def found_by(fetch: Callable[[str], Sequence[Row]], schema: str) -> dict[str, str]:
    """The revision of every component that has tables in the schema, known here or not.

    :param fetch: runs a statement.
    """
    names = names_of(fetch(listing(schema)))
    return revisions_of(fetch(reading(schema, names))) if names else {}


def revisions_of(rows: Sequence[Row]) -> dict[str, str]:
    """The revisions in the rows of `reading`, by component. One that was taken back has none."""
    return {str(name): str(revision) for name, revision in rows}
