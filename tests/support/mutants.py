"""Breaks the code on purpose, in a copy, and checks that the everyday tests notice.

``make mutants`` applies each mutation of ``tests/mutants.toml`` to a copy of the tracked files and
runs the tests that should catch it. Names after ``--`` choose mutations by a part of their name::

    python -m tests.support.mutants -- "skip locked" quarantine
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
#: Seconds for the tests of one mutation, and for all of them without one. A mutation that stops the
#: code is caught by the timeout of a test; these are for a run that hangs.
_TIMEOUT_S, _BASELINE_S = 600.0, 3_600.0
#: Exit status of pytest if all tests passed; 1 means that some failed.
_PASSED = 0


class MutationError(Exception):
    """A mutation does not apply to the code."""


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    NOT_TESTED = "NOT TESTED"
    TOO_LONG = "TOO LONG"


@dataclass(frozen=True)
class Mutation:
    """A change that breaks a promise.

    :param promise: what users lose.
    :param file: the file to change, relative to the root of the repository.
    :param old: text that occurs exactly once in the file.
    :param tests: files or tests of which one has to fail.
    """

    promise: str
    file: str
    old: str
    new: str
    tests: Sequence[str]

    @contextmanager
    def applied(self, root: Path) -> Generator[None]:
        """Change the file under ``root``, and restore it afterwards.

        :raises MutationError: ``old`` does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text()
        if (count := text.count(self.old)) != 1:
            raise MutationError(f"{self.promise}: {count} times in {self.file}: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))
        try:
            yield
        finally:
            path.write_text(text)


def load() -> list[Mutation]:
    """The mutations of ``tests/mutants.toml``."""
    found = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())
    return [Mutation(**one) for one in found["mutation"]]


def _copy(to: Path) -> None:
    """Copy the tracked files, as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split("\0")[:-1]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def _run(
    root: Path, tests: Sequence[str], *options: str, timeout_s: float = _TIMEOUT_S
) -> tuple[int | None, str]:
    """Run tests of the copy.

    :returns: the exit status of pytest, None if it took too long, and its last lines.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "-m", "not chaos", *options, *tests],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"the tests took longer than {timeout_s:g} s"
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-5:])


def _try(mutation: Mutation, root: Path) -> tuple[Verdict, str]:
    with mutation.applied(root):
        status, output = _run(root, mutation.tests, "--exitfirst")
    match status:
        case 0:  # all passed
            return Verdict.SURVIVED, output
        case 1:
            return Verdict.CAUGHT, output
        case None:
            return Verdict.TOO_LONG, output
        case _:
            return Verdict.NOT_TESTED, output


@click.command()
@click.option("--baseline/--no-baseline", default=True, help="First run the tests unchanged.")
@click.argument("parts", nargs=-1)
def main(baseline: bool, parts: tuple[str, ...]) -> None:
    """Apply the mutations one by one and check that the tests fail."""
    chosen = [
        one for one in load() if not parts or any(part in one.promise.lower() for part in parts)
    ]
    if not chosen:
        raise click.ClickException("no mutation has such a name")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="chancy-mutants-") as folder:
        root = Path(folder)
        _copy(root)
        if baseline:
            files = sorted({test for one in chosen for test in one.tests})
            status, output = _run(root, files, "-n", "2", timeout_s=_BASELINE_S)
            if status != _PASSED:
                raise click.ClickException(f"the tests fail without a mutation:\n{output}")
        for mutation in chosen:
            began = time.monotonic()
            verdict, output = _try(mutation, root)
            missed += verdict is not Verdict.CAUGHT
            click.echo(f"{verdict:<10} {time.monotonic() - began:4.0f} s  {mutation.promise}")
            if verdict is not Verdict.CAUGHT:
                click.echo(output)
    click.echo(f"{len(chosen) - missed} of {len(chosen)} mutations were caught")
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
