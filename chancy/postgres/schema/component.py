"""Components: the owners of tables. The core is one, and so is each plugin with its own tables.

A component has its own linear history and a version table in the schema. Histories are not joined
in one tree: a plugin that is removed leaves its tables behind, and does not block the others.
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
CORE_TABLES = (
    "jobs",
    "finished_jobs",
    "recently_finished",
    "workers",
    "queues",
    "awaited",
    "unique_periods",
)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_REVISION = re.compile(r"[A-Za-z0-9_]{1,32}")
_RELATION = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PRIVILEGE = r"(?:select|insert|update|delete|usage)(?: \([a-z0-9_]+(?:, [a-z0-9_]+)*\))?"
_PRIVILEGES = re.compile(rf"{_PRIVILEGE}(?:, {_PRIVILEGE})*")


class RoleKind(StrEnum):
    """The purpose of a database role; see `chancy.postgres.schema.grants`."""

    OWNER = "owner"
    WORKER = "worker"
    PRODUCER = "producer"
    VIEWER = "viewer"


#: Privileges by relation of a component: ``select, insert (a, b)``, or ``usage`` for a sequence.
Privileges = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """The migrations of a component's tables; see `chancy.plugin.plugin.Plugin.migrations`.

    :param name: name of the component, 1 to 32 of ``a-z 0-9 _``. The table ``NAME_version`` stores
        its revision; the names of its tables should begin with its name.
    :param package: dotted path of the package with the revisions in its folder ``versions``.
    :param head: the newest revision, which this code works with. Declared here so that starting a
        worker does not import Alembic.
    :param core: the oldest revision of the core that the newest revision works with.
    :param grants: privileges of each kind of role on its tables and sequences. Without them a
        worker reads and writes all tables that begin with its name, a viewer reads them, and a
        producer has no access.
    :param core_grants: privileges on tables of the core, in addition to those that a role of the
        kind has anyway.
    :raises ConfigurationError: an invalid name, revision or privilege.
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
                    f"component {self.name!r} grants privileges to {shown(kind)}: the kinds of "
                    "roles are worker, producer and viewer"
                )
            for relation, text in privileges.items():
                self._check_privileges(relation, text)
        for relation in (name for privileges in self.grants.values() for name in privileges):
            if not (_RELATION.fullmatch(relation) and f"{relation}_".startswith(f"{self.name}_")):
                raise ConfigurationError(
                    f"component {self.name!r} grants privileges on {shown(relation)}: it must be "
                    f"one of its own tables or sequences, whose name begins with {self.name}_"
                )
        for relation in (name for privileges in self.core_grants.values() for name in privileges):
            if relation not in CORE_TABLES:
                raise ConfigurationError(
                    f"component {self.name!r} needs privileges on {shown(relation)}: the tables of "
                    f"the core are {', '.join(CORE_TABLES)}"
                )

    def _check_privileges(self, relation: str, text: str) -> None:
        if not _PRIVILEGES.fullmatch(text):
            raise ConfigurationError(
                f"component {self.name!r} grants {shown(text)} on {relation}: write privileges "
                "like 'select, insert (a, b)', or 'usage' for a sequence"
            )


@dataclass(frozen=True, slots=True)
class Component:
    """The core or a plugin as an owner of tables.

    :param plugin: identifier of the plugin that owns it; None: the core.
    :param after: names of the components that must be migrated before it, in addition to the core.
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
        """The table that stores the revision."""
        return f"{self.name}_version"

    def __str__(self) -> str:
        """The component, for messages."""
        owner = f" of the plugin {self.plugin!r}" if self.plugin else ""
        return f"component {self.name!r}{owner}"


CORE = Component(Migrations(name=CORE_NAME, package="chancy.migrations", head=HEAD))

#: A plugin's identifier, its migrations if it has any, and the plugins that it depends on.
Owner = tuple[str, Migrations | None, Sequence[str]]


def ordered(owners: Iterable[Owner]) -> tuple[Component, ...]:
    """The components of plugins, each after those of the plugins that it depends on.

    Dependencies on other plugins are ignored.

    :raises ConfigurationError: two components have the same name, or depend on each other.
    """
    owners = list(owners)
    dependencies = {identifier: needed for identifier, _, needed in owners}
    histories = {identifier: history for identifier, history, _ in owners if history}
    by_name: dict[str, str] = {}
    for identifier, history in histories.items():
        if history.name == CORE_NAME:
            raise ConfigurationError(
                f"the plugin {identifier!r} names its component {CORE_NAME!r}, which is the name "
                "of the core: use another name"
            )
        if history.name in by_name:
            raise ConfigurationError(
                f"the plugins {by_name[history.name]!r} and {identifier!r} both name their "
                f"component {history.name!r}: rename one of them"
            )
        by_name[history.name] = identifier
    below = {identifier: _below(identifier, dependencies) for identifier in histories}
    components = [
        Component(
            history,
            identifier,
            frozenset(histories[other].name for other in below[identifier] & set(histories)),
        )
        for identifier, history in histories.items()
    ]
    for component in components:
        if component.name in component.after:
            raise ConfigurationError(
                f"the plugin {component.plugin!r} has tables and depends on itself through other "
                "plugins, so their migrations have no order: remove one of the dependencies"
            )
    # A component comes after everything that its dependencies come after, and after these.
    return tuple(sorted(components, key=lambda component: len(component.after)))


def _below(identifier: str, dependencies: Mapping[str, Sequence[str]]) -> set[str]:
    """The plugins that a plugin depends on, directly or indirectly."""
    found: set[str] = set()
    waiting = [identifier]
    while waiting:
        for dependency in dependencies.get(waiting.pop(), ()):
            if dependency not in found:
                found.add(dependency)
                waiting.append(dependency)
    return found


def revisions_query(schema: str, names: Iterable[str]) -> str:
    """The statement that reads the revisions of components whose version tables exist."""
    return " union all ".join(
        f"select '{name}', version_num::text from {quoted(schema)}.{name}_version"  # noqa: S608
        for name in names
    )


def components_query(schema: str) -> str:
    """The statement that reads the names of the components whose version tables exist."""
    return load(resources.files("chancy.postgres") / "sql", "components", schema)


def component_names(rows: Sequence[Row]) -> list[str]:
    """The valid names of components in the rows of `components_query`."""
    return [str(name) for (name,) in rows if _NAME.fullmatch(str(name))]


def read_revisions(fetch: Callable[[str], Sequence[Row]], schema: str) -> dict[str, str]:
    """The revision of every component that has tables in the schema, installed or not.

    :param fetch: runs a statement.
    """
    names = component_names(fetch(components_query(schema)))
    return revisions_of(fetch(revisions_query(schema, names))) if names else {}


def revisions_of(rows: Sequence[Row]) -> dict[str, str]:
    """The revisions in the rows of `revisions_query`, by component; none if it was downgraded."""
    return {str(name): str(revision) for name, revision in rows}
