"""The processes that a case starts."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measurement import BenchmarkFailed
from benchmarks.meters import tree
from benchmarks.tally import DIRECTORY, TallyReader

ROOT = Path(__file__).parents[1]

#: Seconds that a worker may take to end in good order.
_END_S = 30.0
_TAIL_LINES = 20


class WorkerProcess:
    """A worker that was started and its tally.

    :param command: ends in good order when its input ends, and writes its tally and the file
        ``ready`` into the directory that it is told.
    :param environment: beyond ours.
    :param directory: an empty one for its tally and its log.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path
    ) -> None:
        self.tally = TallyReader(directory)
        self._ready = directory / "ready"
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **environment, DIRECTORY: str(directory)},
                # Ctrl-C reaches every process of the terminal's group; this one is ended by us.
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise `BenchmarkFailed` if it has ended."""
        if (code := self._process.poll()) is not None:
            raise BenchmarkFailed(f"the worker ended with exit code {code}:\n{self._tail()}")

    @property
    def ready(self) -> bool:
        """Whether it hears notices."""
        return self._ready.exists()

    def processes(self) -> list[psutil.Process]:
        """Its process and those of its executors."""
        return tree(self._process.pid)

    def end(self) -> None:
        """Let it end in good order, and wait for that."""
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(
                f"the worker did not end within {_END_S:g} s:\n{self._tail()}"
            ) from None
        if code != 0:
            raise BenchmarkFailed(f"the worker ended with exit code {code}:\n{self._tail()}")

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.tally.close()
        for process in self.processes():
            process.kill()
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _tail(self) -> str:
        return _tail(self._log.read_text(errors="replace"))


def ask(
    command: Sequence[str], environment: Mapping[str, str], *, timeout_s: float | None = None
) -> dict[str, Any]:
    """Run a program whose last line of output is one JSON object, and wait for its end.

    :raises BenchmarkFailed: it took longer, or ended with another exit code than 0.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        with process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise BenchmarkFailed(f"{_shown(command)} took over {timeout_s:g} s") from None
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            log.seek(0)
            raise BenchmarkFailed(
                f"{_shown(command)} ended with exit code {process.returncode}:\n"
                + _tail(log.read() or output)
            )
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def _shown(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:]])


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
