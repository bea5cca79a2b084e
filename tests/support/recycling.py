"""Databases that are emptied after a test and used by the next one of the same process.

To make and to drop a clone takes 25 ms of CPU time of the server, to empty it 2 ms. A database in
which a test changed more than rows, as an event trigger of the template notes, is dropped. So is
one that cannot be emptied within a second, because a test left a session or a lock behind.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from importlib.resources import files

import psycopg
from psycopg.rows import TupleRow

from tests.support import leftovers
from tests.support.sql import LASTING

#: Emptied databases of each template to keep: more are in use at a time by few tests.
_KEPT = 4
_OPTIONS = "-c statement_timeout=1s -c lock_timeout=1s -c session_replication_role=replica"
_PREPARE = [
    files("tests.support").joinpath(name).read_text(encoding="utf-8")
    for name in ("recycling.sql", "recycling_clean.sql")
]

Session = psycopg.Connection[TupleRow]


def prepare(dsn: str) -> None:
    """Add to a template what empties its clones."""
    with psycopg.connect(dsn) as session:
        for statements in _PREPARE:
            session.execute(statements.encode())


class Recycling:
    """The emptied databases of this process, each with the session that empties it."""

    def __init__(self) -> None:
        self._spare: dict[str, list[str]] = defaultdict(list)
        self._sessions: dict[str, Session] = {}

    def take(self, template: str) -> str | None:
        """The name of an empty database, if there is one."""
        spare = self._spare[template]
        return spare.pop() if spare else None

    def keep(self, template: str, name: str, dsn: str) -> bool:
        """Empty a database after a test; False if it has to be dropped."""
        with suppress(psycopg.Error):
            session = self._sessions.get(name) or self._session(name, dsn)
            clean = session.execute("select recycling.clean()").fetchone()
            if clean == (True,) and len(self._spare[template]) < _KEPT:
                self._spare[template].append(name)
                return True
        self._close(name)
        return False

    def close(self) -> None:
        """Close all sessions."""
        for name in [*self._sessions]:
            self._close(name)

    def _session(self, name: str, dsn: str) -> Session:
        session = psycopg.connect(dsn, autocommit=True, options=_OPTIONS, application_name=LASTING)
        leftovers.lasting.add(session.info.backend_pid)
        self._sessions[name] = session
        return session

    def _close(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.close()
