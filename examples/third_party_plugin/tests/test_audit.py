"""The plugin keeps the contract of plugins, on a private Postgres."""

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from chancy_audit.plugin import Audit

from chancy import Plugin
from chancy.embedded import PostgresServer

pytest.register_assert_rewrite("chancy.testing.plugin")

from chancy.testing.plugin import PluginContract  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as made:
        yield made


class TestAudit(PluginContract):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Audit()

    @pytest.fixture
    def plugin_dsn(self, server: PostgresServer) -> str:
        """A database without tables for each test."""
        name = f"audit_{secrets.token_hex(4)}"
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return server.dsn(name)
