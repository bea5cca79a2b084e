"""What must not be written down anywhere in the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.support.sources import ROOT, files, shown

# Put together here, so that this file does not find itself.
_HOSTS = [
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "registry" + r"\.npmjs",
    "npmjs" + r"\.(com|org)",
    "docker" + r"\.io",
    "gh" + r"cr\.io",
    "quay" + r"\.io",
    "gcr" + r"\.io",
    "proxy" + r"\.golang",
    "crates" + r"\.io",
]
_MACHINE = [
    r"file" + r":///\w",
    r"(?<![\w.])/" + r"home/\w",
    r"(?<![\w.])/" + r"Users/\w",
    r"(?<![\w.])/" + r"root/[.\w]",
    r"(?<![\w.])/" + r"work/\w",
]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    wanted = re.compile("|".join([*_HOSTS, *_MACHINE]))
    found = []
    for path in files():
        with suppress(UnicodeDecodeError):
            if wanted.search(text := path.read_text()):
                lines = enumerate(text.splitlines(), 1)
                found += [f"{shown(path)}:{n}: {line}" for n, line in lines if wanted.search(line)]
    assert found == []


def test_no_plain_literal_of_sql_holds_a_backslash() -> None:
    """With ``standard_conforming_strings = off`` it would be another text: write E'…'."""
    token = re.compile(r"--[^\n]*|\be'(?:[^'\\]|\\.|'')*'|('(?:[^']|'')*')", re.IGNORECASE)
    found = [
        f"{shown(path)}: {literal}"
        for path in files(".sql", below=("chancy", "migrations", "plugins"))
        for literal in token.findall(path.read_text())
        if "\\" in literal
    ]
    assert found == []


def test_constraints_pin_every_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    loose = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert loose == []


@pytest.mark.parametrize("name", ["plugins", "migrations"])
def test_the_links_are_relative(name: str) -> None:
    """An absolute link works on one machine; a copy instead of a link drifts apart."""
    link = ROOT / "chancy" / name
    if (ROOT / name).exists():  # not so in a source distribution, which holds the files once
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"


def test_ruff_visits_each_file_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # From the root on: a checkout is often called chancy itself.
    links = f"{ROOT}/chancy/plugins/"
    assert [line for line in done.stdout.splitlines() if line.startswith(links)] == []
    assert "/plugins/__init__.py" in done.stdout
