"""What chancy asks of a database driver: one session, a pool of them, and errors of one kind.

The statements use ``$1`` placeholders, which both drivers take. Values that cross are
``uuid.UUID``, ``str``, ``int``, ``float``, ``bool``, aware ``datetime``, ``None``, and lists of
one of these. JSON crosses as text in both directions: the statements cast it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Row = Sequence[Any]

#: Seconds after which a statement that has no answer is given up and its socket cut.
STATEMENT_DEADLINE_S = 30.0


class Connection(Protocol):
    """One session, used by one task at a time.

    Every call raises `BrokerUnavailable` when the connection is lost or the deadline passes
    (the session is then closed for good), and `StatementFailed` when the server refuses.
    """

    @property
    def closed(self) -> bool: ...

    @property
    def pooled(self) -> bool:
        """Whether a pooler (PgBouncer, RDS Proxy …) stands between this session and the server."""
        ...

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        """Run one statement and return its rows in the server's order."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A READ COMMITTED transaction: committed on leaving, rolled back on an exception."""
        ...

    async def listen(self, channel: str) -> None:
        """Begin to receive notifications of a channel on this session."""
        ...

    async def notifications(
        self, timeout_s: float, first: Callable[[str], None] | None = None
    ) -> list[str]:
        """Wait for at least one payload, or for the timeout; return what came, in order.

        At most 10,000 payloads are kept between calls; what comes above that is dropped and
        the list then ends with an empty payload.

        :param first: is told the first one as it arrives, some turns of the loop before this
            returns it with the others; not when something had arrived before the call.
        """
        ...

    def abort(self) -> None:
        """Cut the socket at once, without a word to the server. A pending call fails."""
        ...

    async def close(self) -> None: ...


class Pool(Protocol):
    """Sessions shared by the callers of one process."""

    def connection(self) -> AbstractAsyncContextManager[Connection]: ...

    async def close(self) -> None: ...


class Driver(Protocol):
    """How sessions are opened."""

    @property
    def name(self) -> str: ...

    async def connect(self, dsn: str, *, application_name: str) -> Connection: ...

    async def pool(
        self, dsn: str, *, application_name: str, min_size: int, max_size: int
    ) -> Pool: ...
