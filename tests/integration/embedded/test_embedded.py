"""The private Postgres: its data, its port, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psycopg
import pytest

from chancy.embedded import PostgresServer
from chancy.errors import ConfigurationError
from tests.support.postgres_fixtures import OwnServer
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.timeout(60)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, or just going
        return False
    return state != "Z"


def _run(dsn: str, *statements: str) -> object:
    with psycopg.connect(dsn) as connection:
        answer = None
        for statement in statements:
            cursor = connection.execute(statement.encode())
            answer = cursor.fetchone() if cursor.description else None
    return answer


def _wait_until_reachable(dsn: str) -> None:
    psycopg.connect(dsn, connect_timeout=10).close()


def test_a_restart_keeps_the_port_and_what_was_committed(own_server: OwnServer) -> None:
    """An immediate one is a crash, from which the next start recovers."""
    server = own_server(migrated=False)
    before = server.dsn()
    _run(before, "create table kept (x int)", "insert into kept values (7)")
    for mode in ("immediate", "smart", "fast"):
        first = server.pid
        server.restart(mode)
        assert server.dsn() == before
        assert server.pid != first
        assert not _alive(first)
        assert _run(before, "select x from kept") == (7,)
        assert server.log.read_text().count("was not properly shut down") == 1


def test_a_fast_stop_ends_sessions_and_the_server_is_gone(own_server: OwnServer) -> None:
    server = own_server(migrated=False)
    pid = server.pid
    with psycopg.connect(server.dsn()) as connection:
        connection.commit()
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert not server.running
    assert not _alive(pid)
    with pytest.raises(RuntimeError, match="is not running"):
        _ = server.pid


def test_it_starts_again_after_it_was_killed(own_server: OwnServer) -> None:
    server = own_server(migrated=False)
    os.kill(server.pid, 9)
    eventually_sync(lambda: not server.running)
    server.start()
    _wait_until_reachable(server.dsn())


def test_it_waits_for_the_last_process_of_one_that_was_killed(
    own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.embedded.postgres._LEAVE_SECONDS", 60.0)  # a try takes a while
    server = own_server(migrated=False)
    with psycopg.connect(server.dsn()) as connection:
        session = connection.info.backend_pid
        os.kill(session, signal.SIGSTOP)
        os.kill(server.pid, signal.SIGKILL)
        eventually_sync(lambda: not server.running)
        starting = threading.Thread(target=server.start)
        starting.start()
        held = "pre-existing shared memory block"
        eventually_sync(lambda: server.log.read_text().count(held) > 1)
        assert starting.is_alive()
        os.kill(session, signal.SIGKILL)
        starting.join()
    _wait_until_reachable(server.dsn())


def test_settings_hold_and_alter_system_overrides_them(own_server: OwnServer) -> None:
    server = own_server(migrated=False, application_name="it's", work_mem="5MB")
    assert _run(server.dsn(), "show work_mem") == ("5MB",)
    assert _run(server.dsn(), "show application_name") == ("it's",)
    ask(server.dsn(), "alter system set work_mem = '6MB'")
    server.restart()
    assert _run(server.dsn(), "show work_mem") == ("6MB",)


def test_a_temporary_directory_goes_and_nothing_comes_from_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    monkeypatch.setenv("LC_ALL", "nowhere.UTF-8")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    with PostgresServer() as server:
        temporary = server.directory
        assert temporary.exists()
        found = _run(
            server.dsn(),
            "select datcollate, pg_encoding_to_char(encoding), current_setting('TimeZone'),"
            " current_setting('fsync') from pg_database where datname = 'postgres'",
        )
        assert found == ("C", "UTF8", "UTC", "on")
    assert not temporary.exists()


def test_a_given_directory_stays(open_directory: Path) -> None:
    given = open_directory / "data"
    with PostgresServer(str(given)) as server:
        _run(server.dsn(), "create table kept (x int)")
    with PostgresServer(given) as server:
        assert _run(server.dsn(), "select count(*) from kept") == (0,)


def test_it_does_not_take_over_a_directory_with_other_files(open_directory: Path) -> None:
    (open_directory / "thesis.txt").write_text("mine")
    owner = open_directory.stat().st_uid
    with pytest.raises(ConfigurationError, match="not a Postgres database"):
        PostgresServer(open_directory).start()
    assert open_directory.stat().st_uid == owner
    assert (open_directory / "thesis.txt").read_text() == "mine"


@pytest.mark.chaos
def test_many_servers_at_once_in_one_process() -> None:
    servers = [PostgresServer() for _ in range(4)]
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({server.port for server in servers}) == 4
        for server in servers:
            _wait_until_reachable(server.dsn())
    finally:
        for server in servers:
            server.close()


_STARTER = textwrap.dedent(
    """
    import os, sys, time
    from chancy.embedded import PostgresServer
    server = PostgresServer()
    server.start()
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(3)  # holds what it inherited, such as pipes
        os._exit(0)
    print(server.pid, server.directory, os.getpid(), flush=True)
    if "wait" in sys.argv:
        time.sleep(60)
    """
)


def _starter(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _STARTER, *arguments], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "arguments",
    [("wait",), pytest.param(("wait", "fork"), marks=pytest.mark.chaos)],
    ids=["plain", "forked"],
)
def test_the_server_dies_with_a_parent_that_was_killed(arguments: tuple[str, ...]) -> None:
    with _starter(*arguments) as parent:
        assert parent.stdout is not None
        words = parent.stdout.readline().split()
        assert _alive(int(words[0]))
        parent.kill()
        eventually_sync(lambda: not _alive(int(words[0])), timeout=30)
        eventually_sync(lambda: not Path(words[1]).exists(), timeout=30)


@pytest.mark.parametrize(
    "arguments", [(), pytest.param(("fork",), marks=pytest.mark.chaos)], ids=["plain", "forked"]
)
def test_the_server_ends_with_a_parent_that_forgot_it(arguments: tuple[str, ...]) -> None:
    with _starter(*arguments) as parent:
        assert parent.stdout is not None
        words = parent.stdout.readline().split()
        assert parent.wait(30) == 0
    assert not _alive(int(words[0]))
    assert not Path(words[1]).exists()


def test_an_interrupt_ends_it_in_order() -> None:
    with _starter("wait") as parent:
        assert parent.stdout is not None
        words = parent.stdout.readline().split()
        parent.send_signal(2)
        parent.wait(30)
    assert not _alive(int(words[0]))
    assert not Path(words[1]).exists()


def test_a_start_that_fails_shows_the_log() -> None:
    server = PostgresServer(settings={"no_such_setting": "1"})
    with pytest.raises(ConfigurationError, match="no_such_setting"):
        server.start()


def test_links_in_the_data_directory_are_not_followed(open_directory: Path) -> None:
    """The server's user can replace files there, and root starts the server."""
    data = open_directory / "data"
    data.mkdir()
    (data / "PG_VERSION").write_text("16\n")
    for name in ("embedded.conf", "server.log"):
        (open_directory / name).write_text("precious")
        (data / name).symlink_to(open_directory / name)
    with pytest.raises(ConfigurationError, match="did not start") as raised:
        PostgresServer(data, settings={"fsync": "off"}).start()
    assert "precious" not in str(raised.value)
    for name in ("embedded.conf", "server.log"):
        assert (open_directory / name).read_text() == "precious"
    assert (data / "embedded.conf").read_text() == "fsync = 'off'\n"
