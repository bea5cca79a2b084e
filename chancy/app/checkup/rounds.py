"""Runs every check, each with a time limit, so that one that fails does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chancy.app.checkup import database, fleet
from chancy.app.checkup.database import UPGRADE
from chancy.app.checkup.examination import Examination
from chancy.errors import ChancyError, ConfigurationError
from chancy.plugin.finding import Finding, Severity
from chancy.postgres.broker import PostgresBroker
from chancy.routing.router import RoutedBroker

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: Seconds for one check.
LIMIT_S = 8.0
#: Checks of tables that run at a time: each may wait for a lock.
_AT_A_TIME = 4

_Check = Callable[[Examination], Awaitable[Sequence[Finding]]]

#: The checks that need no tables. One at a time: they must not find each other's transactions.
_OF_SERVER: Mapping[str, _Check] = {
    "writable": database.writable,
    "pooler": database.pooler,
    "listener": database.listener,
    "clock": database.clock,
    "horizon": database.horizon,
    "transactions": database.transactions,
    "prepared": database.prepared,
    "slots": database.slots,
    "search_path": database.search_path,
}
_OF_TABLES: Mapping[str, _Check] = {
    "bloat": database.live_table,
    "sizes": database.sizes,
    "partitions": fleet.partitions,
    "workers": fleet.workers,
    "queues": fleet.queues,
    "functions": fleet.functions,
    "promotion": fleet.promotion,
}
#: The checks of each Postgres server; the other ones are about the application as a whole.
_OF_EACH_SERVER = ("bloat", "sizes", "partitions")
#: The checks that find a problem, whose cause is another one, while nothing can be written.
_NEED_WRITES = ("workers", "leader")


async def examine(chancy: Chancy, *, transaction_s: float, wait_s: float) -> Sequence[Finding]:
    """Run every check on an open application, and those of its plugins.

    A check that fails or takes too long is a finding of the severity `Severity.UNKNOWN`. Without
    tables only the server is checked.

    :param transaction_s: seconds for which a transaction may be open.
    :param wait_s: seconds for which a due job of a served queue may wait.
    :raises ConfigurationError: the application does not keep its jobs in Postgres.
    """
    if not isinstance(chancy.control, PostgresBroker):
        raise ConfigurationError(f"the checks need the Postgres broker, not {chancy.control!r}")
    examination = Examination(
        chancy=chancy, store=chancy.control, transaction_s=transaction_s, wait_s=wait_s
    )
    found = await _server(examination, _OF_TABLES)
    places = asyncio.Semaphore(_AT_A_TIME)

    async def other(name: str, store: PostgresBroker) -> Sequence[Finding]:
        async with places:
            return await _other(replace(examination, store=store), name)

    for some in await asyncio.gather(*(other(*pair) for pair in _others(chancy).items())):
        found += some
    if any(one.about == "schema" and one.ok for one in found):
        found += await chancy.hooks.examine(chancy)
    if any(one.about == "writable" and one.severity is Severity.ERROR for one in found):
        # No heartbeat and no lease is stored, whatever the workers do.
        return [
            one._replace(todo="see writable: correct that first")
            if one.about in _NEED_WRITES and not one.ok
            else one
            for one in found
        ]
    return found


def _others(chancy: Chancy) -> Mapping[str, PostgresBroker]:
    """The further Postgres servers of an application, such as shards, by the name of the broker."""
    broker = chancy.broker
    others = broker.brokers.others if isinstance(broker, RoutedBroker) else {}
    return {name: one for name, one in others.items() if isinstance(one, PostgresBroker)}


async def _other(examination: Examination, name: str) -> Sequence[Finding]:
    """Examine another server; the names of its checks start with that of its broker."""

    async def connect(one: Examination) -> Sequence[Finding]:
        await one.store.open()  # it is closed if it could not be reached before
        await one.store.now_s()
        return ()

    checks = {check: _OF_TABLES[check] for check in _OF_EACH_SERVER}
    found = await _checked(examination, "schema", connect) or await _server(examination, checks)
    return [
        one._replace(
            about=f"{name}: {one.about}",
            todo=f"{one.todo} --dsn DSN, that of {name}" if one.todo == UPGRADE else one.todo,
        )
        for one in found
    ]


async def _server(examination: Examination, of_tables: Mapping[str, _Check]) -> list[Finding]:
    """Examine one server, and its tables if they are at the right revisions."""
    found = list(await _checked(examination, "schema", database.schema))
    has_tables = all(one.ok for one in found)
    for name, check in _OF_SERVER.items():
        found += await _checked(examination, name, check)
    if not has_tables:
        return found
    places = asyncio.Semaphore(_AT_A_TIME)

    async def placed(name: str, check: _Check) -> Sequence[Finding]:
        async with places:
            return await _checked(examination, name, check)

    for some in await asyncio.gather(*(placed(*pair) for pair in of_tables.items())):
        found += some
    return found


async def _checked(examination: Examination, name: str, check: _Check) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await check(examination)
    except TimeoutError:
        why = f"there was no result within {LIMIT_S:g} s"
    except ChancyError as error:
        why = str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return [Finding(name, f"could not be checked: {why}", "correct that, and run it again",
                    Severity.UNKNOWN)]  # fmt: skip
