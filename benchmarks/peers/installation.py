"""Installs the peers: ``python -m benchmarks.peers.installation [NAME…]``; all by default.

Each peer is installed in its own directory below ``benchmarks/.peers``: a virtual environment, or a
folder of Node packages. Peers in the required versions are skipped. A peer that cannot be installed
is reported, and the others are still installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.systems import OTHERS, PEERS, REDIS, RUNNEL, STAMP, System, node

_MINORS = range(8, 20)

#: All peers.
_ALL = (*OTHERS, *REDIS[1:], RUNNEL)


class Refused(Exception):
    """A peer could not be installed; the message is the reason."""


def install(system: System) -> None:
    """Install a system in a new directory, and write the result to its stamp.

    :raises Refused: the system cannot be installed on this machine.
    """
    directory = system.directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    stamp = directory / STAMP
    try:
        if system.program == "node":
            _install_node(system)
        else:
            _install_python(system)
    except Refused as error:
        stamp.write_text(f"failed: {error}")
        raise
    stamp.write_text(system.digest())


def _install_python(system: System) -> None:
    python = _python(system.python, system.before)
    if python is None:
        least, before = (".".join(map(str, number)) for number in (system.python, system.before))
        raise Refused(f"needs Python {least} or newer, before {before}")
    _run([python, "-m", "venv", str(system.directory)])
    pip = [str(system.directory / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    # The file lists all packages, including dependencies.
    _run([*pip, "--disable-pip-version-check", "--no-deps", "-r", str(system.requirements)])


def _python(least: tuple[int, int], before: tuple[int, int]) -> str | None:
    """The current interpreter, or the oldest suitable one on the path or of pyenv."""
    if least <= sys.version_info[:2] < before:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for name in (f"python3.{minor}" for minor in _MINORS if least <= (3, minor) < before):
        found = [shutil.which(name), *map(str, sorted(pyenv.glob(f"*/bin/{name}")))]
        for python in found:
            if python is not None and _runs(python):
                return python
    return None


def _runs(python: str) -> bool:
    """Whether the interpreter starts: version managers leave stubs of inactive versions."""
    return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0


def npm() -> Sequence[str] | None:
    """The command of npm; None if there is none."""
    program = node()
    script = program and program.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if program is None or script is None or not script.exists():
        return None
    return [str(program), str(script)]


def _install_node(system: System) -> None:
    command = npm()
    if command is None:
        raise Refused("needs Node and its npm")
    shutil.copy(system.requirements, system.directory / "package.json")
    options = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error"]
    _run([*command, "install", *options, "--prefix", str(system.directory)])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise Refused(str(error)) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Refused(lines[-1] if lines else f"{command[0]} exited with status {done.returncode}")


def main(names: Sequence[str]) -> int:
    """Install peers; returns the exit status, 1 if one could not be installed."""
    known = [system.name for system in _ALL]
    if unknown := [name for name in names if name not in known]:
        print(f"there is no peer {unknown[0]!r}: choose from {', '.join(known)}", file=sys.stderr)
        return 2
    PEERS.mkdir(exist_ok=True)
    failed = 0
    for system in _ALL:
        if names and system.name not in names:
            continue
        if not system.absence():
            print(f"{system.name} {system.version}: already installed")
            continue
        try:
            install(system)
        except Refused as error:
            failed += 1
            print(f"{system.name} {system.version}: cannot be installed: {error}")
        else:
            print(f"{system.name} {system.version}: installed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
