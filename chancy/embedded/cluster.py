"""The data directory of a private Postgres server."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from chancy.embedded.binaries import Account, closed_part
from chancy.errors import ConfigurationError

_SETTINGS = "embedded.conf"


def prepare(
    directory: Path, *, programs: Path, account: Account | None, settings: Mapping[str, str]
) -> None:
    """Create a cluster in an empty directory, or reuse the one it holds, and write the settings.

    :raises ConfigurationError: the directory holds anything else, or the account cannot enter it.
    """
    fresh = not (directory / "PG_VERSION").exists()
    if fresh and any(directory.iterdir()):
        raise ConfigurationError(
            f"{directory} holds files that are not a Postgres database: "
            "pass an empty directory or one that does not exist yet"
        )
    if account is not None:
        if directory.stat().st_uid != account.uid:
            os.chown(directory, account.uid, account.gid)
        if (closed := closed_part(directory, account)) is not None:
            raise ConfigurationError(
                f"the user {account.name!r}, which runs Postgres for root, cannot enter "
                f"{closed}; run `chmod o+x {closed}` or choose a directory below "
                f"{tempfile.gettempdir()}"
            )
    if fresh:
        _initialise(directory, programs, account)
    lines = [f"{name} = {_quoted(value)}\n" for name, value in settings.items()]
    file = directory / _SETTINGS
    file.unlink(missing_ok=True)
    with open(file, "x", opener=without_links) as new:
        new.write("".join(lines))
        os.fchmod(new.fileno(), 0o644)  # readable for the server's user, whatever the umask is


def without_links(path: str, flags: int) -> int:
    """Open a file of the directory, but not through a symbolic link: the server's user could make
    one that leads a root process to other files."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def environment() -> dict[str, str]:
    """The environment of the programs, without the locale, time zone and PG* variables of the
    machine."""
    return {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}


def _initialise(directory: Path, programs: Path, account: Account | None) -> None:
    options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres"]
    done = subprocess.run(
        [str(programs / "initdb"), *options, "-D", str(directory)],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
        env=environment(),
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise ConfigurationError(f"initdb failed in {directory}:\n{done.stdout}{done.stderr}")
    with open(directory / "postgresql.conf", "a", opener=without_links) as file:
        file.write(f"include_if_exists = '{_SETTINGS}'\n")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
