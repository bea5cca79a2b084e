"""Database roles, one of each kind, for the tests of least privilege."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from chancy import Chancy
from chancy.plugins.cron import Cron
from chancy.postgres.schema import grants
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import Component, RoleKind
from tests.plugins.ledger import Ledger

COMPONENTS = Chancy("postgresql://nowhere", plugins=[Ledger(), Cron()]).hooks.components
W, P, V = RoleKind.WORKER, RoleKind.PRODUCER, RoleKind.VIEWER


class Cast:
    """Roles of a database, one of each kind, with names unique to this test."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        run = secrets.token_hex(4)
        self.names = {kind: f"{kind.value}_{run}" for kind in RoleKind}

    def of(self, kind: RoleKind) -> str:
        """The DSN of a role."""
        return make_conninfo(self.dsn, options=f"-c role={self.names[kind]}")

    def grant(self, components: Sequence[Component] = COMPONENTS) -> None:
        """Set the owner, migrate as the owner, and grant privileges to the other roles."""
        owner = self.names[RoleKind.OWNER]
        grants.apply(self.dsn, "chancy", grants.statements(RoleKind.OWNER, owner))
        schema.upgrade(self.of(RoleKind.OWNER), components=components)
        for kind in (RoleKind.WORKER, RoleKind.PRODUCER, RoleKind.VIEWER):
            made = grants.statements(kind, self.names[kind], "chancy", components)
            grants.apply(self.of(RoleKind.OWNER), "chancy", made)


@contextmanager
def roles(dsn: str, names: Sequence[str]) -> Generator[None]:
    """Create roles for the test and drop them afterwards, as all databases share them."""

    def each(connection: psycopg.Connection[Any], *statements: LiteralString) -> None:
        for name in names:
            for statement in statements:
                connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

    with psycopg.connect(dsn, autocommit=True) as connection:
        each(connection, "create role {}")
        try:
            yield
        finally:
            each(connection, "drop owned by {} cascade", "drop role {}")
