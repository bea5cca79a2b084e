"""The checks of the database: sessions, snapshots, clocks, dead rows, sizes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from chancy.app.checkup.examination import MOST_LISTED, MOST_OFFSET_S, Examination
from chancy.broker.notices import Topic
from chancy.errors import BrokerError, ConfigurationError, SchemaMismatch
from chancy.plugin.finding import Finding, Severity
from chancy.postgres.drivers import driver
from chancy.postgres.drivers.base import Connection
from chancy.postgres.schema import migrate as tables
from chancy.postgres.schema import status
from chancy.postgres.schema.component import CORE
from chancy.text import elapsed, storable

#: What to do about tables at an older revision.
UPGRADE = "chancy migrate upgrade"
_TRIPS = 5
_PID = "select pg_backend_pid()"
_WRITABLE = """\
select pg_is_in_recovery(), current_setting('transaction_read_only') = 'off', source, current_user
from pg_settings where name = 'default_transaction_read_only'"""
#: Sources of a setting that applies to every role.
_FOR_ALL = frozenset({"configuration file", "command line", "database"})
#: Seconds to find out the mode of a pooler, which may have no second session to give.
_MODE_S = 2.0
#: Seconds for a test notification to arrive.
_NOTICE_S = 3.0
#: Transactions behind which the horizon of a slot or replica, which has no age in seconds, is old.
_FAR_BEHIND = 1_000_000
#: Dead rows that are too many if no vacuum has run for so many seconds, and if any has.
_MANY_DEAD, _UNVACUUMED_S, _TOO_MANY_DEAD = 50_000, 600.0, 1_000_000
#: The share of a sequence above which its end is near.
_MOST_USED = 0.5


async def schema(examination: Examination) -> Sequence[Finding]:
    """Whether all tables are at the revisions that this version needs, and the encoding is UTF8."""
    ((encoding,),) = await examination.store.fetch("show server_encoding")
    try:
        status.check_encoding(encoding)
    except ConfigurationError as error:
        return [Finding("schema", f"{error}", "create a database in UTF8", Severity.ERROR)]
    components = examination.chancy.hooks.components
    # Outside a transaction, which a missing table would abort.
    found = await tables.find_revisions(examination.store.fetch, examination.schema, components)
    try:
        status.check(found, examination.schema, components)
    except SchemaMismatch as error:
        why = f"{error}; the tables were not examined further"
        ahead = any(
            status.state_of(component, found.get(component.name)) is status.SchemaState.AHEAD
            for component in (CORE, *components)
        )
        todo = "run this command with the newer release" if ahead else UPGRADE
        return [Finding("schema", why, todo, Severity.ERROR)]
    return [Finding("schema", ", ".join(f"{name} {at}" for name, at in found.items()))]


async def writable(examination: Examination) -> Sequence[Finding]:
    """Whether this role may write on this server."""
    async with examination.session() as session:
        ((standby, writes, source, role),) = await session.fetch(_WRITABLE)
    if standby:
        why = "the server is a standby, which accepts no writes: no job is pushed or run"
        todo = "connect to the primary; if there is none, promote a standby"
        return [Finding("writable", why, todo, Severity.ERROR)]
    if writes:
        return [Finding("writable", "the server accepts writes")]
    everyone = source in _FOR_ALL
    return [
        Finding(
            "writable",
            f"transactions of the role {role!r} may only read, so it can neither push nor run "
            f"jobs: default_transaction_read_only is on (source: {source})",
            "set default_transaction_read_only = off"
            if everyone
            else "set default_transaction_read_only = off, if this role pushes or runs jobs",
            Severity.ERROR if everyone else Severity.WARNING,
        )
    ]


async def clock(examination: Examination) -> Sequence[Finding]:
    """The offset of the clocks, from the shortest of several round trips."""
    trips: list[tuple[float, float]] = []
    async with examination.session() as session:
        for _ in range(_TRIPS):
            started, at = time.perf_counter(), time.time()
            ((server,),) = await session.fetch(
                "select extract(epoch from clock_timestamp())::float8"
            )
            took_s = time.perf_counter() - started
            trips.append((took_s, server - at - took_s / 2))
    trip_s, offset_s = min(trips)
    way = "ahead of" if offset_s > 0 else "behind"
    return [
        Finding(
            "clock",
            f"the server is {abs(offset_s):.3f} s {way} this machine; a round trip takes "
            f"{trip_s * 1000:.1f} ms",
            "synchronize both clocks with NTP" if abs(offset_s) > MOST_OFFSET_S else "",
        )
    ]


async def listener(examination: Examination) -> Sequence[Finding]:
    """Whether a notification that is sent arrives."""
    todo = (
        "pass --listen-dsn, or set CHANCY_LISTEN_DSN: a DSN of the server itself, past any pooler"
    )
    try:
        subscription = await examination.store.subscribe(Topic.WORK)
        try:
            started = time.perf_counter()
            await subscription.probe(_NOTICE_S)
            took_s = time.perf_counter() - started
        finally:
            await subscription.close()
    except BrokerError as error:
        found = f"{error}; without notifications each queue is polled, by default every second"
        return [Finding("listener", found, todo)]
    return [Finding("listener", f"a notification arrives within {took_s * 1000:.1f} ms")]


async def pooler(examination: Examination) -> Sequence[Finding]:
    """Whether a pooler stands between this process and the server."""
    async with examination.session() as session:
        pooled = session.pooled
    if not pooled:
        return [Finding("pooler", "none: the connection is direct")]
    mode = await _pool_mode(examination)
    way = f"the connection goes through a pooler{mode}"
    return [Finding("pooler", f"{way}; notifications do not pass, and nothing is prepared")]


async def _pool_mode(examination: Examination) -> str:
    """The mode of the pooler in words: in session mode, a client has the same session of the server
    again while another client has a transaction."""
    dsn, name = examination.store.dsn, "chancy doctor"
    try:
        async with asyncio.timeout(_MODE_S), AsyncExitStack() as stack:
            clients: list[Connection] = []
            for _ in range(2):
                clients.append(await driver("psycopg").connect(dsn, application_name=name))
                stack.push_async_callback(clients[-1].close)
            one, other = clients
            ((pid,),) = await one.fetch(_PID)
            for _ in range(_TRIPS):
                async with other.transaction():
                    ((others,),) = await other.fetch(_PID)
                    if others == pid or await one.fetch(_PID) != [(pid,)]:
                        return " in transaction mode: clients share the sessions of the server"
    except (TimeoutError, BrokerError):
        return ", whose mode could not be determined"
    return " in session mode: each client keeps a session of the server"


async def horizon(examination: Examination) -> Sequence[Finding]:
    """The oldest snapshot, which keeps dead rows from being removed."""
    longest_s = examination.transaction_s
    for (
        kind,
        name,
        application,
        state,
        held_s,
        query_s,
        behind,
        query,
        blocker,
    ) in await examination.fetch("horizon"):
        if behind <= _FAR_BEHIND if held_s is None else held_s <= longest_s:
            continue
        name = storable(name, 200)
        held = f"{behind:,} transactions" if held_s is None else f"{elapsed(held_s)}"
        if kind == "session":
            who, detail = _session(name, application, state), _query(query_s, query, blocker)
            todo = _end(name, blocker)
        else:
            who, detail = f"the {kind} {name!r} ({application}, {state})", ""
            todo = {
                "prepared transaction": f"rollback prepared {_literal(name)};",
                "replication slot": "start its reader, or "
                f"select pg_drop_replication_slot({_literal(name)});",
            }.get(kind, "end the long query there, or set hot_standby_feedback = off there")
        found = f"{who} has held the horizon for {held}: no row that died since can be removed"
        return [Finding("horizon", f"{found}{detail}", todo)]
    return [Finding("horizon", f"no snapshot has been held for {elapsed(longest_s)}")]


async def transactions(examination: Examination) -> Sequence[Finding]:
    """Sessions with a transaction that has been open for too long."""
    ((role, sees_all),) = await examination.fetch("visible")
    longest_s = examination.transaction_s
    rows = await examination.fetch("transactions", longest_s)
    found = [
        Finding(
            "transactions",
            f"{_session(pid, application, state)} has had a transaction open for "
            f"{elapsed(xact_s)}{_query(query_s, query, blocker)}",
            _end(pid, blocker),
        )
        for pid, application, state, xact_s, query_s, query, blocker in rows[:MOST_LISTED]
    ]
    if len(rows) > MOST_LISTED:
        found.append(Finding("transactions", "there are more", "end these, and look again"))
    if not sees_all:
        todo = "grant pg_read_all_stats to " + '"' + role.replace('"', '""') + '"'
        why = f"the role {role!r} sees its own transactions only"
        found.append(Finding("transactions", why, todo, Severity.UNKNOWN))
    return found or [Finding("transactions", f"none is open for {elapsed(longest_s)}")]


async def prepared(examination: Examination) -> Sequence[Finding]:
    """Prepared transactions that wait for their second phase."""
    rows = await examination.fetch("prepared", examination.transaction_s)
    return [
        Finding(
            "prepared",
            f"the transaction {storable(gid, 200)!r} of {owner} has been prepared for "
            f"{elapsed(age_s)}, with its locks and its snapshot",
            f"commit prepared or rollback prepared {_literal(gid)};",
        )
        for gid, owner, age_s in rows[:MOST_LISTED]
    ] or [Finding("prepared", "no prepared transaction is old")]


async def slots(examination: Examination) -> Sequence[Finding]:
    """Replication slots without a reader."""
    rows = await examination.fetch("slots")
    return [
        Finding(
            "slots",
            f"nothing reads the {kind} replication slot {name!r}: the server keeps "
            f"{megabytes(retained)} of WAL for it, and may keep dead rows",
            f"start its reader, or select pg_drop_replication_slot({_literal(name)});",
        )
        for name, kind, retained in rows[:MOST_LISTED]
    ] or [Finding("slots", "no replication slot is without a reader")]


async def search_path(examination: Examination) -> Sequence[Finding]:
    """Schemas of the search path in which everybody may create functions.

    A function or an operator there that suits a statement better than the one of Postgres is called
    in its place, with the privileges of this role.
    """
    found = ", ".join(name for (name,) in await examination.fetch("open_schemas"))
    if not found:
        return [Finding("search_path", "PUBLIC may not create anything in its schemas")]
    return [
        Finding(
            "search_path",
            f"PUBLIC may create functions in {found}, which can act as this role",
            f"revoke create on schema {found} from public;",
        )
    ]


async def live_table(examination: Examination) -> Sequence[Finding]:
    """Dead rows of the table of unfinished jobs."""
    ((live, dead, vacuum_s),) = await examination.fetch("live_table")
    late = vacuum_s is None or vacuum_s > _UNVACUUMED_S
    when = "never" if vacuum_s is None else f"{elapsed(vacuum_s)} ago"
    found = f"jobs has about {live:,} rows and {dead:,} dead ones; last vacuum: {when}"
    todo = ""
    if dead > _MANY_DEAD and late:
        todo = f'vacuum "{examination.schema}".jobs; and check that autovacuum is on'
    elif dead > max(_TOO_MANY_DEAD, 2 * live):
        todo = "end what holds the horizon, and " + f'vacuum "{examination.schema}".jobs;'
    return [Finding("bloat", found, todo)]


async def sizes(examination: Examination) -> Sequence[Finding]:
    """The sizes of the tables, and how far the sequences are."""
    ((live, history, rows, database),) = await examination.fetch("sizes")
    found = [
        Finding(
            "sizes",
            f"jobs {megabytes(live)}, finished_jobs {megabytes(history)} with about {rows:,} rows, "
            f"the database {megabytes(database)}; SQL does not show how full the disk is",
        )
    ]
    for name, used in await examination.fetch("sequences"):
        todo = f'alter sequence "{examination.schema}".{name} cycle, or restart it by hand'
        found.append(
            Finding(
                "sequences",
                f"{name} has used {used:.1%} of its numbers",
                todo if used > _MOST_USED else "",
            )
        )
    return found


def megabytes(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def _session(pid: str, application: str, state: str | None) -> str:
    names = ", ".join(storable(text, 64) for text in (application, state) if text)
    return f"pid {pid} ({names})"


def _query(query_s: float | None, query: str | None, blocker: int | None) -> str:
    # Postgres gives a prepared transaction the pid 0.
    holder = f"pid {blocker}" if blocker else "a prepared transaction"
    waits = "" if blocker is None else f"; it waits for a lock of {holder}"
    if query_s is None or not query:
        return waits
    text = " ".join(storable(query, 200).split())
    return f"{waits}; its last query began {elapsed(query_s)} ago: {text}"


def _end(pid: str, blocker: int | None) -> str:
    """The statement that ends a session, or the one that it waits for."""
    if blocker == 0:
        return "commit prepared or rollback prepared it: select * from pg_prepared_xacts;"
    return f"select pg_terminate_backend({pid if blocker is None else blocker});"


def _literal(text: str) -> str:
    return "'" + storable(text, 200).replace("'", "''") + "'"
