"""What a role of the database must be allowed, by the kind of work that it does.

Functions run with the rights of whoever calls them, so the tables are what guards: whoever may call
`claim` and not write to `jobs` claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.postgres.schema import sessions as maintenance
from chancy.postgres.schema.component import CORE, CORE_TABLES, Component, Privileges, RoleKind
from chancy.postgres.statements import quoted
from chancy.text import shown

_ALL = "select, insert, update, delete"

# A producer reads what the conflict of a push and its notice need, and no arguments. One that
# waits for its jobs is a viewer too, and says so in `awaited`. To replace a job that waits takes
# rights to change jobs, which it is not given: see docs/guides/unique-jobs.md.
_CORE: Mapping[RoleKind, Privileges] = {
    RoleKind.WORKER: {
        "jobs": _ALL,
        "finished_jobs": "select, insert",
        "workers": _ALL,
        "queues": _ALL,
        "awaited": _ALL,
        "unique_periods": _ALL,
        "positions": "usage",
    },
    RoleKind.PRODUCER: {
        "jobs": "insert, select (id, queue, state, unique_key)",
        "finished_jobs": "select (id)",
        "awaited": _ALL,
        "unique_periods": "select, insert, update",
        "positions": "usage",
    },
    RoleKind.VIEWER: {
        "jobs": "select",
        "finished_jobs": "select",
        "workers": "select",
        "queues": "select",
        "awaited": "select",
        "unique_periods": "select",
    },
}
# For databases in which PUBLIC may not call functions.
_FUNCTIONS: Mapping[RoleKind, str] = {
    RoleKind.WORKER: "all functions in schema {schema}",
    RoleKind.PRODUCER: "function {schema}.channel(), {schema}.wake(text, boolean), {schema}.push, "
    "{schema}.push_unique, {schema}.push_unique_all, {schema}.push_keyed, {schema}.unique_key, "
    "{schema}.check_push, {schema}.check_unique, {schema}.new_id",
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

# What has the owner already is passed over: to give it an owner locks a table.
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
    """The statements after which a role can do the work of a kind. They bear to be repeated.

    They name the tables that are there when they are run: run them again after a migration.

    :raises ConfigurationError: the role or the schema has a name that cannot be.
    """
    to = _identifier(role)
    match kind:
        case RoleKind.OWNER:
            return [_block(_OWNER, schema, to)]
        case RoleKind.WORKER | RoleKind.PRODUCER | RoleKind.VIEWER:
            pass
        case _:
            assert_never(kind)
    place = quoted(schema)
    versions = ", ".join(f"{place}.{one.version_table}" for one in (CORE, *components))
    found = [
        f"grant usage on schema {place} to {to}",
        f"grant select on table {versions} to {to}",
        f"grant execute on {_FUNCTIONS[kind].format(schema=place)} to {to}",
        *_grants(_CORE[kind], place, to),
    ]
    for one in components:
        found += _grants(one.migrations.core_grants.get(kind, {}), place, to)
        if kind in one.migrations.grants:
            found += _grants(one.migrations.grants[kind], place, to)
        elif kind in _DEFAULT:
            found.append(_all_of(one, components, kind, schema, to))
    return found


def apply(dsn: str, schema: str, given: Sequence[str]) -> None:
    """Run the statements in one transaction, while nobody migrates.

    :raises ConfigurationError: the database refuses; nothing was granted.
    """
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    try:
        with maintenance.connected(dsn) as connection, maintenance.locked(connection, schema):
            for statement in given:
                connection.execute(text(statement.replace(":", "\\:")))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) is None:
            raise BrokerUnavailable(
                f"the connection broke; granted was nothing: {error}"
            ) from error
        raise ConfigurationError(
            f"the database refused the grants, and nothing was granted: {error.orig}"
        ) from error


def _grants(privileges: Privileges, place: str, to: str) -> list[str]:
    return [
        f"grant {what} on {'sequence' if what == 'usage' else 'table'} {place}.{relation} to {to}"
        for relation, what in privileges.items()
    ]


def _all_of(
    one: Component, components: Iterable[Component], kind: RoleKind, schema: str, to: str
) -> str:
    """Grants something on all tables of a component, and to a worker on its sequences: those that
    begin with its name."""
    others = [_named([*CORE_TABLES, one.version_table])]
    others += [_begins(o.name) for o in components if o.name.startswith(f"{one.name}_")]
    return _block(
        _TABLES,
        schema,
        to,
        mine=_begins(one.name),
        others="\n        or ".join(others),
        privileges=_DEFAULT[kind],
        relkinds="'r', 'p', 'v', 'm'" + (", 'S'" if kind is RoleKind.WORKER else ""),
    )


def _named(names: Iterable[str]) -> str:
    return f"c.relname in ({', '.join(_text(name) for name in names)})"


def _begins(name: str) -> str:
    return f"c.relname = '{name}' or starts_with(c.relname, '{name}_')"


def _block(template: str, schema: str, to: str, **words: str) -> str:
    """A block of which nothing that is put in can be the end."""
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
    """The role as an identifier.

    :raises ConfigurationError: it is no name of a role, or one that means another.
    """
    if role.lower() in ("public", "none") or role.startswith("pg_"):
        raise ConfigurationError(
            f"{shown(role)} is a word of the database's, and no role that could be granted "
            "something here: make a role for each kind of work"
        )
    if not role or not role.isprintable() or len(role.encode()) > 63:
        raise ConfigurationError(
            f"{shown(role)} cannot be the name of a role: it has 1 to 63 bytes, and no control "
            "characters"
        )
    return '"' + role.replace('"', '""') + '"'


def _text(value: str) -> str:
    """A text as a literal, whatever `standard_conforming_strings` says."""
    literal = "'" + value.replace("'", "''").replace("\\", "\\\\") + "'"
    return f"E{literal}" if "\\" in value else literal
