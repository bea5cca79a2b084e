"""The types of Postgres itself, which asyncpg asks for in each session again.

The question takes 10 ms of CPU time of the server, in a suite that opens thousands of sessions. The
answer is the same on every server: a process of the run asks once. Other processes are as shipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import asyncpg

#: Object ids from here on are of types that are made in a database.
_FIRST_OF_DATABASE = 16_384
_known: dict[frozenset[int], Any] = {}
#: With members that its annotations leave out.
_CONNECTION: Any = asyncpg.Connection


class _Asking:
    """The method of asyncpg's connection, with a memory."""

    ask: Any = _CONNECTION._introspect_types

    async def answer(self: Any, typeoids: Iterable[int], timeout: float | None) -> Any:
        wanted = frozenset(typeoids)
        if max(wanted) >= _FIRST_OF_DATABASE:
            return await _Asking.ask(self, typeoids, timeout)
        if wanted not in _known:
            _known[wanted], statement = await _Asking.ask(self, typeoids, timeout)
            return _known[wanted], statement
        # The name says that no statement without a name was replaced.
        return _known[wanted], SimpleNamespace(name="not asked")


def pytest_configure() -> None:
    """Have the sessions of this process share the answers."""
    _CONNECTION._introspect_types = _Asking.answer
