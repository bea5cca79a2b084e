"""A server of each version that is here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chancy.embedded import PostgresServer
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import Component
from tests.migrations import next_release as later
from tests.support.postgres_fixtures import core_template, new_database

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

LONG = pytest.mark.chaos
#: The wheel has two servers; the system may have a third. The oldest and the newest stand for all.
SERVERS = [pytest.param("16", marks=LONG), "18", "15"] if DEBIAN_15.is_dir() else ["16", "18"]

#: For what takes long: on the newest alone every day.
NEWEST = pytest.mark.parametrize(
    "server",
    [
        "18",
        pytest.param("16", marks=LONG),
        *([pytest.param("15", marks=LONG)] if DEBIAN_15.is_dir() else []),
    ],
    indirect=True,
)


@pytest.fixture
def core_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a database with the tables of the core alone."""
    template = core_template(request.config, lambda dsn: schema.upgrade(dsn, components=[]))
    with new_database(request, template) as dsn:
        yield dsn


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Component:
    """`chancy.postgres.schema.migrate` has the history of a later release of the core."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = later.written(tmp_path)
    monkeypatch.setattr("chancy.postgres.schema.migrate.CORE", made)
    return made


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    bin_path = DEBIAN_15 if request.param == "15" else None
    version = 16 if bin_path else int(request.param)
    with PostgresServer(version=version, bin_path=bin_path) as made:
        yield made
