"""The processes that a case starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.measurement import BenchmarkFailed
from benchmarks.meters import tree
from benchmarks.tally import DIRECTORY, TallyReader

ROOT = Path(__file__).parents[1]

#: Seconds that a worker may take to end in good order.
_END_S = 30.0


class WorkerProcess:
    """A worker that was started and its tally.

    :param directory: an empty one for its tally and its log.
    """

    def __init__(self, dsn: str, schema: str, queues: Sequence[str], directory: Path) -> None:
        self.tally = TallyReader(directory)
        self._ready = directory / "ready"
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.worker", schema, *queues],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "CHANCY_DSN": dsn, DIRECTORY: str(directory)},
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
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def ask(module: str, *arguments: str, dsn: str) -> dict[str, float]:
    """Run a module of ours that prints one JSON object, and wait for its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "CHANCY_DSN": dsn},
        start_new_session=True,
    )
    with process:
        try:
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise BenchmarkFailed(f"{module} ended with exit code {process.returncode}:\n{errors}")
    answer: dict[str, float] = json.loads(output)
    return answer
