"""Output that cannot be written ends a command with one line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import command, environment
from tests.support.sql import ask

#: What click writes, and what the command writes.
EACH = pytest.mark.parametrize("words", [("--help",), ("plugins", "list")], ids=" ".join)


@EACH
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


@EACH
def test_a_closed_pipe_ends_a_command_without_a_traceback(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            command(*words),
            env=environment(None),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=45,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_closes_its_pipe_is_no_negative_result(dsn: str) -> None:
    ask(dsn, "select chancy.push('default', 'shop.work') from generate_series(1, 200)")
    with subprocess.Popen(
        command("job", "list", "--limit", 200),
        env=environment({"CHANCY_DSN": dsn}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pipesize=4_096,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("id ")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
