"""A Postgres server for the whole run and a separate database for each test.

The server belongs to the controller of pytest-xdist, or to the only process of the run.
``CHANCY_TEST_DSN`` names a server to use instead; its role must be a superuser.
``CHANCY_TEST_POSTGRES`` names a directory with programs of another version to start. The first test
that needs the tables migrates a template database; later tests clone it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from chancy import Plugin
from chancy.embedded import PostgresServer
from tests.support import leftovers, recycling
from tests.support.proxy import Proxy
from tests.support.sql import LASTING, ask, close_sessions, keep_sessions

# The shared server need not survive a power cut; crashes of the *server* are tested with
# `own_server`. synchronous_commit stays on, so that commits wait where they do in production.
SHARED_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "256MB",
    "synchronous_commit": "on",
    "autovacuum": "on",
    # It looks through every database each time, of which there are many.
    "autovacuum_naptime": "10min",
    "max_wal_size": "512MB",
    "checkpoint_timeout": "1h",
}
#: A server of a test may be killed, which loses nothing that it has written to a file.
_UNSYNCED = {"fsync": "off", "full_page_writes": "off"}
_SERVER = pytest.StashKey["Run"]()
_MIGRATING = 6_027_301  # the advisory lock under which one process migrates the template


@dataclass(slots=True)
class Run:
    """The server that the processes of one test run share."""

    dsn: str
    name: str
    server: PostgresServer | None = None
    owner: bool = True
    given: bool = False
    session: psycopg.Connection[TupleRow] | None = None
    #: Templates that this process has made or found.
    made: set[str] = field(default_factory=set)
    recycling: recycling.Recycling = field(default_factory=recycling.Recycling)
    #: When the run began, by UTC.
    day: date = field(default_factory=lambda: datetime.now(UTC).date())

    @property
    def folder(self) -> Path:
        """The directory of what the processes of the run share; it may not exist yet."""
        return (memory() or Path(tempfile.gettempdir())) / f"chancy-run-{self.name}"

    @property
    def template(self) -> str:
        """The migrated database that tests are cloned from."""
        return f"chancy_template_{self.name}"

    def make(self, database: str, template: str | None = None) -> None:
        """Create a database, empty or as a clone of another one.

        Copying files takes 11 ms of CPU, writing the pages to the log 24. It needs checkpoints,
        which are cheap only on a server without fsync.
        """
        statement = sql.SQL("create database {} template {} strategy {}").format(
            sql.Identifier(database),
            sql.Identifier(template or "template1"),
            sql.Identifier("wal_log" if self.given else "file_copy"),
        )
        self.execute(statement)

    def drop(self, database: str) -> None:
        """Drop a database if it exists, even with open connections."""
        statement = sql.SQL("drop database if exists {} with (force)")
        self.execute(statement.format(sql.Identifier(database)))

    def execute(self, statement: sql.Composed) -> list[TupleRow]:
        """Run a statement on a persistent session: a new one takes 37 ms more for each test."""
        if self.session is None or self.session.closed:
            self.session = psycopg.connect(self.dsn, autocommit=True)
            leftovers.lasting.add(self.session.info.backend_pid)
        found = self.session.execute(statement)
        return found.fetchall() if found.description else []

    def close(self) -> None:
        """Close the sessions."""
        self.recycling.close()
        close_sessions()
        if self.session is not None:
            self.session.close()


def memory() -> Path | None:
    """A file system in memory with enough space, if there is one.

    A clone writes some 300 small files: 8 ms in memory, 150 ms on an ext4 disk, fsync off in both.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3
    return memory if roomy and os.access(memory, os.W_OK | os.X_OK) else None


def programs() -> str | None:
    """The directory with the programs of Postgres to test; None: the default ones of the wheel."""
    return os.environ.get("CHANCY_TEST_POSTGRES")


class Worker(Protocol):
    """The part of an xdist worker's controller that is used here."""

    workerinput: dict[str, Any]


def find_run(config: pytest.Config) -> Run:
    """The run of this process; the first call starts its server."""
    run = config.stash.get(_SERVER, None)
    if run is None:
        handed: dict[str, Any] | None = getattr(config, "workerinput", None)
        given = os.environ.get("CHANCY_TEST_DSN")
        if handed is not None:
            run = Run(
                handed["chancy_dsn"],
                handed["chancy_run"],
                owner=False,
                given=bool(given),
                day=date.fromisoformat(handed["chancy_day"]),
            )
        elif given:
            run = Run(dsn=given, name=secrets.token_hex(4), given=True)
        else:
            server = PostgresServer(
                settings=SHARED_SETTINGS, bin_path=programs(), temporary_in=memory()
            )
            server.start()
            # The first session of a database writes a file of the system catalogs that clones get:
            # the first session of each then takes 5 ms of CPU in place of 9.
            psycopg.connect(server.dsn("template1")).close()
            run = Run(dsn=server.dsn(), name=secrets.token_hex(4), server=server)
        config.stash[_SERVER] = run
    return run


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Worker) -> None:
    """Pass the DSN of the server to a new xdist worker."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    run = find_run(config)
    node.workerinput |= {
        "chancy_dsn": run.dsn,
        "chancy_run": run.name,
        "chancy_day": str(run.day),
    }


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server, or clean up one that ``CHANCY_TEST_DSN`` names."""
    run = config.stash.get(_SERVER, None)
    if run is None:
        return
    if run.owner and run.server is None:
        ours = sql.SQL("select datname from pg_database where starts_with(datname, {})")
        for (name,) in run.execute(ours.format(run.template)):
            run.drop(name)
    run.close()
    if run.server is not None:
        run.server.close()
    if run.owner:
        shutil.rmtree(run.folder, ignore_errors=True)


def migrate_template(dsn: str) -> None:
    """Migrate an empty database to the newest revision of all components."""
    from chancy import Chancy

    Chancy(dsn).sync_migrate()


@pytest.fixture(scope="session")
def server_dsn(pytestconfig: pytest.Config) -> str:
    """The DSN of the maintenance database of the run's server. Create nothing in it."""
    return find_run(pytestconfig).dsn


@pytest.fixture(scope="session")
def shipped_template(pytestconfig: pytest.Config, server_dsn: str) -> str:
    """The name of the migrated template database."""
    run = find_run(pytestconfig)
    return _made_once(run, run.template, None, migrate_template)


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, shipped_template: str) -> str:
    """The name of the template of `dsn`, whose queue ``default`` runs jobs in threads.

    As shipped, every worker starts a process for each core, which is half of the CPU time of most
    tests with a worker. Where the queue has to be as shipped, override this fixture with
    `shipped_template`.
    """

    def use_threads(dsn: str) -> None:
        ask(dsn, "update chancy.queues set executor = 'thread'")

    return extended_template(pytestconfig, shipped_template, "threads", use_threads)


def extended_template(
    config: pytest.Config, template: str, name: str, migrate: Callable[[str], object]
) -> str:
    """The name of a changed clone of a template.

    :param migrate: is called with its DSN. Takes up to half a second: too long for each test.
    """
    return _made_once(find_run(config), f"{template}_{name}", template, migrate)


def template_with(config: pytest.Config, template: str, *plugins: Plugin) -> str:
    """The name of a clone of a template that has the tables of plugins, too."""

    def migrate(dsn: str) -> None:
        from chancy import Chancy

        Chancy(dsn, plugins=plugins).sync_migrate()

    names = [plugin.get_identifier().rpartition(".")[2] for plugin in plugins]
    return extended_template(config, template, "_".join(names), migrate)


def core_template(config: pytest.Config, migrate: Callable[[str], object]) -> str:
    """The name of a template that has been made from an empty database by ``migrate``."""
    run = find_run(config)
    return _made_once(run, f"{run.template}_core", None, migrate)


@contextmanager
def new_database(request: pytest.FixtureRequest, template: str) -> Generator[str]:
    """The DSN of a clone of a template, which is dropped afterwards."""
    run = find_run(request.config)
    name = f"test_{run.name}_{secrets.token_hex(6)}"
    run.make(name, template)
    try:
        yield _named(run.dsn, name)
    finally:
        run.drop(name)


def _made_once(run: Run, name: str, template: str | None, migrate: Callable[[str], object]) -> str:
    """The name of a database that the first process that needs it creates."""
    if name in run.made:
        return name
    with closing(psycopg.connect(run.dsn, autocommit=True)) as connection:
        # A session lock: it is released with the connection even if this process dies.
        connection.execute("select pg_advisory_lock(%s)", (_MIGRATING,))
        known = connection.execute("select from pg_database where datname = %s", (name,)).fetchone()
        if known is None:
            half = f"{name}_half"
            run.drop(half)
            run.make(half, template)
            migrate(_named(run.dsn, half))
            recycling.prepare(_named(run.dsn, half))
            names = sql.Identifier(half), sql.Identifier(name)
            connection.execute(sql.SQL("alter database {} rename to {}").format(*names))
    run.made.add(name)
    return name


@contextmanager
def _database(run: Run, request: pytest.FixtureRequest, template: str | None) -> Generator[str]:
    # The template has the partitions of the day on which the run began.
    recycled = _today() == run.day and bool(request.getfixturevalue("recycled"))
    name = run.recycling.take(template) if template and recycled else None
    if name is None:
        name = f"test_{run.name}_{secrets.token_hex(6)}"
        run.make(name, template)
        if template is not None and (today := _today()) != run.day:
            _move_days(_named(run.dsn, name), run.day, today)
    dsn = _named(run.dsn, name)
    kept = False
    if template and recycled:
        keep_sessions(dsn)
    try:
        yield dsn
        alive = _sessions(run, name)
        if template and recycled and not alive:
            kept = run.recycling.keep(template, name, dsn)
    finally:
        if not kept:
            close_sessions(dsn)
            run.drop(name)
    if alive:
        pytest.fail(f"{request.node.nodeid} left connections open: {'; '.join(alive)}")


def _today() -> date:
    return datetime.now(UTC).date()


def _move_days(dsn: str, began: date, today: date) -> None:
    """Give a clone the partitions of a template that is made today.

    The run began before midnight, and so did its template.
    """
    with psycopg.connect(dsn) as connection:
        for past in range((today - began).days):
            day = f"finished_jobs_{began + timedelta(days=past):%Y%m%d}"
            connection.execute(
                sql.SQL("drop table if exists {}").format(sql.Identifier("chancy", day))
            )
        connection.execute("select chancy.make_days(7)")


def _named(dsn: str, database: str) -> str:
    return dsn.rpartition("/")[0] + f"/{database}"


def _sessions(run: Run, name: str) -> list[str]:
    """The sessions still connected to a database after a grace period.

    A backend ends slightly later than the client's close returns, and seconds after its client
    was killed.
    """
    deadline = time.monotonic() + 30.0
    connected = sql.SQL(
        "select format('%s (%s): %s', pid, application_name, query) from pg_stat_activity"
        " where datname = {} and backend_type = 'client backend'"
        " and application_name <> {}"
    ).format(sql.Literal(name), sql.Literal(LASTING))
    while True:
        rows = run.execute(connected)
        if not rows or time.monotonic() > deadline:
            return [str(row[0]) for row in rows]
        time.sleep(0.01)


@pytest.fixture(scope="session")
def recycled() -> bool:
    """Whether a test may get a database that an earlier one has used, emptied; see `recycling`.

    Override it where tests read sizes, statistics or plans.
    """
    return True


@pytest.fixture
def dsn(request: pytest.FixtureRequest, template: str) -> Iterator[str]:
    """The DSN of a migrated database that only this test uses; see `template`.

    The test fails if it leaves connections open.
    """
    with _database(find_run(request.config), request, template) as name:
        yield name


@pytest.fixture
def empty_dsn(request: pytest.FixtureRequest, server_dsn: str) -> Iterator[str]:
    """The DSN of a database without tables that only this test uses."""
    with _database(find_run(request.config), request, None) as name:
        yield name


class OwnServer(Protocol):
    """The signature of the fixture `own_server`."""

    def __call__(self, *, migrated: bool = True, **settings: str) -> PostgresServer: ...


@pytest.fixture
def own_server(pytestconfig: pytest.Config, server_dsn: str) -> Iterator[OwnServer]:
    """Starts a private server to stop, crash and restart: ``own_server()``.

    Its database ``postgres`` is migrated unless ``migrated=False``; further keywords are server
    settings. What it has written survives its death without fsync, which the machine outlives. The
    server is removed at the end of the test.

    :param server_dsn: so that the server of the run, which owns the data to copy, is not begun in
        the middle of a test.
    """
    servers: list[PostgresServer] = []

    def start(*, migrated: bool = True, **settings: str) -> PostgresServer:
        folder = Path(tempfile.mkdtemp(prefix="chancy-own-", dir=memory()))
        folder.chmod(0o755)
        data = folder / "data"
        _copy(_data(find_run(pytestconfig), "migrated" if migrated else "empty"), data)
        server = PostgresServer(data, settings=_UNSYNCED | settings, bin_path=programs())
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()
        shutil.rmtree(server.directory.parent)


def _data(run: Run, kind: Literal["empty", "migrated"]) -> Path:
    """A data directory to copy, which the first process of a run that needs it makes.

    To make one takes 3 s of CPU time if it is migrated, and 0.7 s if it is not; a copy 0.1 s.
    """
    folder = run.folder
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    data = folder / kind
    with (folder / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not data.exists():
            half = folder / f"{kind}-half"
            if kind == "migrated":
                _copy(_data(run, "empty"), half)
            server = PostgresServer(half, settings=_UNSYNCED, bin_path=programs())
            with server:
                if kind == "migrated":
                    migrate_template(server.dsn())
            server.log.unlink()
            half.rename(data)
    return data


def _copy(data: Path, to: Path) -> None:
    """Copy a data directory to a path that does not exist, with its owners."""
    subprocess.run(["cp", "-a", str(data), str(to)], check=True)


@pytest.fixture
def proxy(server_dsn: str) -> Iterator[Proxy]:
    """A proxy in front of the run's server; ``proxy.dsn(dsn)`` is a DSN through it."""
    found = conninfo_to_dict(server_dsn)
    with Proxy(str(found.get("host", "127.0.0.1")), int(found.get("port") or 5432)) as made:
        yield made


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """An empty directory that other users can access, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory(prefix="chancy-test-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
