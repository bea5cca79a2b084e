"""``python -m benchmarks.peers.current FILE.json``: adds the current versions of peers to a run.

Asks the package registries for the newest release of each peer, so that the pages can name it
beside the version that was measured. A peer whose registry does not answer is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.installation import npm
from benchmarks.systems import OTHERS, System

#: Newer than every peer needs, since pip offers only what runs on the version of Python.
_PYTHON = "3.14"


def current(system: System) -> str:
    """The newest release of a peer; empty if it cannot be told."""
    pip = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check"]
    target = ["--python-version", _PYTHON, "--only-binary", ":all:"]
    command: Sequence[str] = [*pip, *target, system.package]
    if system.program == "node":
        if (program := npm()) is None:
            return ""
        command = [*program, "view", system.package, "version"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # pip answers "name (1.2.3)" and a list of all versions, npm the version alone.
    words = done.stdout.partition("\n")[0].split()
    return words[-1].strip("()") if done.returncode == 0 and words else ""


def main(file: str) -> int:
    """Add the versions by the name of the system to the output of ``benchmarks.run --json``."""
    path = Path(file)
    run = json.loads(path.read_text())
    found = {system.name: current(system) for system in OTHERS}
    run["current"] = {name: version for name, version in found.items() if version}
    path.write_text(json.dumps(run, indent=1) + "\n")
    for system in OTHERS:
        print(f"{system.name}: {system.version} pinned, {found[system.name] or 'unknown'} current")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
