"""Runs the command line: in this process for most tests, in a separate one where it matters."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner

#: An application that a test writes into its directory.
SHOP = """\
import os
import time
from chancy import Chancy, Queue, job

chancy = Chancy(queues=[Queue(name="default", executor="thread", concurrency=4)])


def make():
    return chancy


@job(max_attempts=7)
def add(a: int, b: int = 1) -> int:
    return a + b


@job(max_attempts=1)
def fail() -> None:
    raise ValueError("no luck \\x1b[31m today")


@job
def touch(path: str, seconds: float = 0) -> None:
    with open(path, "a") as file:
        file.write(f"begun {os.getpid()}\\n")
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write("ended\\n")
"""


class Answer:
    """The output of a command, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment, in which only the given settings of chancy and libpq are set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CHANCY_", "PG"))}
    return {**kept, **(given or {})}


def _variable(setting: str) -> str:
    """The variable of a setting; those of the shop of some tests are not chancy's."""
    name = setting.upper()
    return name if name.startswith("SHOP_") else f"CHANCY_{name}"


def inside(*arguments: object, code: int | None = 0, **settings: str) -> Answer:
    """Run ``chancy`` in this process, with ``CHANCY_…`` set from the keywords."""
    from chancy.cli.main import cli

    variables: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("CHANCY_")
    }
    variables |= {_variable(name): value for name, value in settings.items()}
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        done = CliRunner().invoke(cli, [str(one) for one in arguments], env=variables)
    finally:
        # Commands that serve replace them.
        root.handlers[:] = handlers
        root.setLevel(level)
    answer = Answer(done.exit_code, done.stdout, done.stderr)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert code is None or answer.code == code, answer
    return answer


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "chancy.cli", *[str(one) for one in arguments]]


def alone(
    *arguments: object, cwd: Path, code: int | None = 0, env: Mapping[str, str] | None = None
) -> Answer:
    """Run ``chancy`` in a separate process."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    answer = Answer(done.returncode, done.stdout, done.stderr)
    # Failed jobs have theirs inside an object of the log.
    assert not re.search("^Traceback", answer.err, re.MULTILINE), answer
    assert code is None or answer.code == code, answer
    return answer


class Started:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """The output so far, including stderr."""
        return self._log.read_text()


def kill_session(process: subprocess.Popen[str]) -> None:
    """Kill a program that was started in a session of its own, and the children that it leaves."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def started(
    program: list[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> Generator[Started]:
    """Run a program during the block; it is killed with its children at the end."""
    log = cwd / f"log-{os.urandom(4).hex()}.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            program,
            cwd=cwd,
            env=environment({"PYTHONUNBUFFERED": "1", **(env or {})}),
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    try:
        yield Started(process, log)
    finally:
        kill_session(process)
