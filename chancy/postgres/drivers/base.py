"""The protocols of a database driver and its sessions.

Statements use ``$1`` placeholders, which both drivers support. Parameters and results are
``uuid.UUID``, ``str``, ``int``, ``float``, ``bool``, aware ``datetime``, ``None``, and lists of
one of these. JSON is passed as text in both directions, and the statements cast it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Row = Sequence[Any]

#: Seconds to wait for the response to a statement before its socket is closed.
STATEMENT_DEADLINE_S = 30.0


class Connection(Protocol):
    """One session, used by one task at a time.

    Every call raises `BrokerUnavailable` if the connection is lost or the deadline passes (the
    session is then closed for good), and `StatementFailed` if the server rejects the statement.
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

    async def command(self, sql: str) -> object:
        """Run statements without parameters or rows, in one message."""
        ...

    def check_idle(self) -> None:
        """Set `closed` if the server has closed the session while it was idle. Does not wait."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A READ COMMITTED transaction: committed on exit, rolled back on an exception."""
        ...

    async def listen(self, channel: str) -> None:
        """Start receiving notifications of a channel on this session."""
        ...

    async def notifications(
        self, timeout_s: float, handle: Callable[[str], bool] | None = None
    ) -> list[str]:
        """Wait for at least one payload or the timeout; returns the payloads in order of arrival.

        At most 10,000 payloads are kept between calls; further ones are dropped.

        :param handle: called with each payload as it arrives, some loop iterations before this call
            could return it, unless payloads had arrived before the call. If it returns True, the
            payload is not returned and the wait continues; the first False ends the wait.
        """
        ...

    def abort(self) -> None:
        """Close the socket immediately, without notifying the server. A pending call fails."""
        ...

    async def close(self) -> None: ...


class Driver(Protocol):
    """Opens sessions."""

    @property
    def name(self) -> str: ...

    async def connect(self, dsn: str, *, application_name: str) -> Connection: ...
