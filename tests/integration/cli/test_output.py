"""Output that cannot be written ends a command with one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.command import command, environment

#: Each starts a process twice: what click writes, and what the command writes.
EVERYDAY = [("--help",), ("plugins", "list")]
LONG = [("--version",), ("plugins", "list", "--json")]
COMMANDS = [
    *(pytest.param(words, id=" ".join(words)) for words in EVERYDAY),
    *(pytest.param(words, id=" ".join(words), marks=pytest.mark.chaos) for words in LONG),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_disk_is_reported_in_one_line(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*words),
            env=environment(None),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=45,
            check=False,
        )
    why = "chancy: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, why)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_closed_pipe_ends_a_command_without_a_traceback(words: tuple[str, ...]) -> None:
    with subprocess.Popen(
        command(*words),
        env=environment(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(45) == 1
