"""A heartbeat that depends on neither the event loop nor a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from chancy.errors import BrokerUnavailable
from chancy.postgres.dsn import parse
from chancy.postgres.statements import Statements

if TYPE_CHECKING:
    import psycopg


class PostgresPulse:
    """Beats for one worker on a blocking connection of its own, from a thread of its own."""

    def __init__(self, dsn: str, statements: Statements, worker_id: UUID) -> None:
        self._dsn = dsn
        self._sql = statements.beat
        self._worker_id = worker_id
        self._connection: psycopg.Connection[tuple[int]] | None = None

    def beat(self) -> bool:
        """See `Pulse.beat`. Raises `BrokerUnavailable` if the server cannot be asked."""
        import psycopg  # 40 % of the time that `import chancy` would take

        try:
            if self._connection is None:
                self._connection = psycopg.Connection.connect(
                    parse(self._dsn).conninfo(application_name="chancy heartbeat"),
                    autocommit=True,
                    prepare_threshold=None,
                )
            cursor = psycopg.RawCursor(self._connection)
            return cursor.execute(self._sql.encode(), (self._worker_id,)).fetchone() is not None
        except psycopg.Error as error:
            self.close()
            raise BrokerUnavailable(f"the heartbeat did not reach the server: {error}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
