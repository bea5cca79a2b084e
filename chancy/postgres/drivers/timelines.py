"""Recognizes an old primary that still answers after another server was promoted.

A promotion begins a new timeline. Each process remembers the highest one that it has met, and uses
no server of the same cluster on a lower one: what that accepts is lost when it joins the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.fork_lock import ForkLock
from chancy.postgres.drivers import sqlstates
from chancy.postgres.drivers.session import Session
from chancy.postgres.dsn import Dsn

S = TypeVar("S", bound=Session)

#: The identifier of the cluster, and the timeline of a primary in hexadecimal; null on a standby.
QUERY: Final = """\
select system_identifier::text,
       case when pg_catalog.pg_is_in_recovery() then null
         else pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) end
from pg_catalog.pg_control_system()"""

_lock = ForkLock()
#: The highest timeline by the place of the DSN and the cluster. A copy of a cluster has the same
#: identifier, and belongs to another DSN.
_highest: dict[tuple[str, str], int] = {}
#: The places that refuse the query, as some hosted servers do: repeating it would fill their logs.
_silent: set[str] = set()


def accepts(dsn: Dsn, row: Sequence[object]) -> bool:
    """Whether a server that gave this row for `QUERY` may be used."""
    system, timeline = row
    if timeline is None:
        return True
    cluster, number = (dsn.place, str(system)), int(str(timeline), 16)
    with _lock:
        highest = _highest[cluster] = max(number, _highest.get(cluster, 0))
    return number == highest


def known(dsn: Dsn) -> bool:
    """Whether the timeline of a server of this DSN is known."""
    with _lock:
        return any(place == dsn.place for place, _ in _highest)


def candidates(dsn: Dsn) -> Sequence[Dsn]:
    """The DSN, and then each of its hosts alone: an old primary may be before the new one."""
    return [dsn, *(map(dsn.only, dsn.hosts) if len(dsn.hosts) > 1 else ())]


def old_primary(dsn: Dsn) -> BrokerUnavailable:
    """The error where only an old primary answers."""
    return BrokerUnavailable(
        f"{dsn.place}: an old primary answers: this process has met a later timeline of the same "
        "cluster. Stop the old primary, or point the DSN at the new one; if the cluster was "
        "restored to an earlier state on purpose, restart this process"
    )


async def connect(dsn: Dsn, open_session: Callable[[Dsn], Awaitable[S]]) -> S:
    """Open a session with a server that is no old primary.

    :raises BrokerUnavailable: there is none.
    """
    failure: BrokerUnavailable | None = None
    for candidate in candidates(dsn):
        try:
            session = await open_session(candidate)
        except BrokerUnavailable:
            if failure is None:
                raise
            continue
        if await _accepted(dsn, session):
            return session
        failure = old_primary(dsn)
        await session.close()
    assert failure is not None
    raise failure


async def _accepted(dsn: Dsn, session: Session) -> bool:
    if dsn.place in _silent:
        return True
    try:
        return accepts(dsn, await session.ask(QUERY))
    except StatementFailed as error:
        if error.sqlstate in sqlstates.NEVER_ALLOWED:
            _silent.add(dsn.place)
        return True
