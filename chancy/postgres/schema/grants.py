"""The privileges of database roles, by kind: owner, worker, producer, viewer.

The functions run with the privileges of the caller, so privileges on tables decide: a role that may
call `claim` but not write to `jobs` cannot claim jobs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from chancy.errors import LOCK_NOT_AVAILABLE, BrokerUnavailable, ConfigurationError
from chancy.postgres.schema import sessions as maintenance
from chancy.postgres.schema.component import CORE, CORE_TABLES, Component, Privileges, RoleKind
from chancy.postgres.statements import SECURE, quoted
from chancy.text import shown

_ALL = "select, insert, update, delete"

# A producer reads the columns that the conflict clause and the notification of a push need, and
# which rules of queues would not count its jobs, but no arguments. To wait for its jobs it also
# needs the privileges of a viewer, besides `awaited`. To replace a waiting job it would need to
# update jobs, which is not granted: see docs/guides/unique-jobs.md.
_CORE: Mapping[RoleKind, Privileges] = {
    RoleKind.WORKER: {
        "jobs": _ALL,
        "finished_jobs": "select, insert",
        "recently_finished": "select, insert, delete",
        **{f"recently_finished_{slot}": "select, truncate" for slot in range(3)},
        "workers": _ALL,
        "queues": _ALL,
        "awaited": _ALL,
        "unique_periods": _ALL,
        "positions": "usage",
    },
    RoleKind.PRODUCER: {
        "jobs": "insert, select (id, queue, state, unique_key)",
        "finished_jobs": "select (id)",
        "queues": "select (name, broker, rules)",
        "recently_finished": "select",
        "awaited": _ALL,
        "unique_periods": "select, insert, update",
        "positions": "usage",
    },
    RoleKind.VIEWER: {
        "jobs": "select",
        "finished_jobs": "select",
        "recently_finished": "select",
        "workers": "select",
        "queues": "select",
        "awaited": "select",
        "unique_periods": "select",
    },
}
# For databases in which PUBLIC has no EXECUTE privilege on functions.
_FUNCTIONS: Mapping[RoleKind, str] = {
    RoleKind.WORKER: "all functions in schema {schema}",
    RoleKind.PRODUCER: "function {schema}.channel(), {schema}.wake(text, boolean, bigint), "
    "{schema}.admit(timestamptz, jsonb), {schema}.check_counted, "
    "{schema}.push, {schema}.push_unique, {schema}.push_unique_all, {schema}.push_keyed, "
    "{schema}.unique_key, {schema}.check_push, {schema}.check_unique, {schema}.new_id",
    RoleKind.VIEWER: "function {schema}.channel(), {schema}.utc(timestamptz)",
}
_DEFAULT: Mapping[RoleKind, str] = {RoleKind.WORKER: _ALL, RoleKind.VIEWER: "select"}

_TABLES = """\
do {tag}
declare
  v_table text;
begin
  for v_table in
    select case c.relkind
      when 'S' then 'usage on sequence ' else '{privileges} on table ' end || c.oid::regclass
    from pg_catalog.pg_class as c
    where c.relnamespace = {schema_text}::regnamespace
      and c.relkind in ({relkinds})
      and not c.relispartition
      and ({mine})
      and not ({others})
  loop
    execute 'grant ' || v_table || ' to ' || {role_text};
  end loop;
end
{tag}"""

# Skips objects that have the owner already, as changing the owner locks a table.
_OWNER = """\
do {tag}
declare
  v_thing text;
  v_owner oid := {role_text}::regrole;
begin
  if to_regnamespace({schema_text}) is null then
    create schema {schema} authorization {role};
  end if;
  for v_thing in
    select 'schema ' || n.oid::regnamespace
    from pg_catalog.pg_namespace as n
    where n.oid = {schema_text}::regnamespace and n.nspowner <> v_owner
    union all
    select case c.relkind
      when 'S' then 'sequence ' when 'v' then 'view ' when 'm' then 'materialized view '
      else 'table ' end || c.oid::regclass
    from pg_catalog.pg_class as c
    where c.relnamespace = {schema_text}::regnamespace and c.relowner <> v_owner
      and c.relkind in ('r', 'p', 'v', 'm', 'S')
      and not (c.relkind = 'S' and exists (
        select from pg_catalog.pg_depend as d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')))
    union all
    select 'routine ' || p.oid::regprocedure
    from pg_catalog.pg_proc as p
    where p.pronamespace = {schema_text}::regnamespace and p.proowner <> v_owner
    union all
    select 'type ' || t.oid::regtype
    from pg_catalog.pg_type as t
    left join pg_catalog.pg_class as r on r.oid = t.typrelid
    where t.typnamespace = {schema_text}::regnamespace and t.typowner <> v_owner
      and (t.typtype in ('e', 'd', 'r') or r.relkind = 'c')
  loop
    execute 'alter ' || v_thing || ' owner to ' || {role_text};
  end loop;
end
{tag}"""


def statements(
    kind: RoleKind, role: str, schema: str = "chancy", components: Sequence[Component] = ()
) -> Sequence[str]:
    """The statements of a transaction that grants a role the privileges of a kind. They are safe to
    repeat.

    They apply to the tables that exist when they are run: run them again after a migration.

    :raises ConfigurationError: an invalid name of a role or a schema.
    """
    to = _identifier(role)
    match kind:
        case RoleKind.OWNER:
            return [SECURE, _block(_OWNER, schema, to)]
        case RoleKind.WORKER | RoleKind.PRODUCER | RoleKind.VIEWER:
            pass
        case _:
            assert_never(kind)
    namespace = quoted(schema)
    versions = ", ".join(
        f"{namespace}.{component.version_table}" for component in (CORE, *components)
    )
    found = [
        SECURE,
        f"grant usage on schema {namespace} to {to}",
        f"grant select on table {versions} to {to}",
        f"grant execute on {_FUNCTIONS[kind].format(schema=namespace)} to {to}",
        *_grants(_CORE[kind], namespace, to),
    ]
    for component in components:
        found += _grants(component.migrations.core_grants.get(kind, {}), namespace, to)
        if kind in component.migrations.grants:
            found += _grants(component.migrations.grants[kind], namespace, to)
        elif kind in _DEFAULT:
            found.append(_grant_all(component, components, kind, schema, to))
    return found


def apply(dsn: str, schema: str, grants: Sequence[str]) -> None:
    """Run statements in one transaction, under the lock that migrations take.

    If other sessions hold a table, it retries with short waits for a minute.

    :raises ConfigurationError: the database rejects a statement; nothing was granted.
    """
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    deadline = time.monotonic() + maintenance.PATIENCE_S
    try:
        with maintenance.connected(dsn) as connection:
            while True:
                try:
                    with maintenance.locked(connection, schema):
                        for statement in grants:
                            connection.execute(text(statement.replace(":", "\\:")))
                    return
                except DBAPIError as error:
                    held = getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE
                    if not held or time.monotonic() > deadline:
                        raise
                maintenance.pause()
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) is None:
            raise BrokerUnavailable(
                f"the connection was lost, and nothing was granted: {error}"
            ) from error
        raise ConfigurationError(
            f"the database rejected the grants, and nothing was granted: {error.orig}"
        ) from error


def _grants(privileges: Privileges, namespace: str, to: str) -> list[str]:
    return [
        f"grant {text} on {'sequence' if text == 'usage' else 'table'} "
        f"{namespace}.{relation} to {to}"
        for relation, text in privileges.items()
    ]


def _grant_all(
    component: Component, components: Iterable[Component], kind: RoleKind, schema: str, to: str
) -> str:
    """Grant the default privileges on all tables whose names begin with the component's name.

    A worker gets `usage` of its sequences as well.
    """
    name = component.name
    others = [_named([*CORE_TABLES, component.version_table])]
    others += [_begins(other.name) for other in components if other.name.startswith(f"{name}_")]
    return _block(
        _TABLES,
        schema,
        to,
        mine=_begins(name),
        others="\n        or ".join(others),
        privileges=_DEFAULT[kind],
        relkinds="'r', 'p', 'v', 'm'" + (", 'S'" if kind is RoleKind.WORKER else ""),
    )


def _named(names: Iterable[str]) -> str:
    return f"c.relname in ({', '.join(_text(name) for name in names)})"


def _begins(name: str) -> str:
    return f"c.relname = '{name}' or starts_with(c.relname, '{name}_')"


def _block(template: str, schema: str, to: str, **words: str) -> str:
    """A DO block from a template, with a dollar quote that the role's name does not contain."""
    tag = "$chancy$"
    while tag in to:
        tag = f"{tag[:-1]}_$"
    return template.format(
        tag=tag,
        schema=quoted(schema),
        schema_text=_text(quoted(schema)),
        role=to,
        role_text=_text(to),
        **words,
    )


def _identifier(role: str) -> str:
    """The role as a quoted identifier.

    :raises ConfigurationError: an invalid or a reserved name.
    """
    if role.lower() in ("public", "none") or role.startswith("pg_"):
        raise ConfigurationError(
            f"{shown(role)} is a reserved name and cannot be granted privileges here: create a "
            "role for each kind of work"
        )
    if not role or not role.isprintable() or len(role.encode()) > 63:
        raise ConfigurationError(
            f"{shown(role)} cannot be the name of a role: use 1 to 63 bytes without control "
            "characters"
        )
    return '"' + role.replace('"', '""') + '"'


def _text(value: str) -> str:
    """A string as a literal, for any value of `standard_conforming_strings`."""
    literal = "'" + value.replace("'", "''").replace("\\", "\\\\") + "'"
    return f"E{literal}" if "\\" in value else literal
