"""The processes of a case: workers, and programs that print a result."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measurement import BenchmarkFailed
from benchmarks.meters import tree
from benchmarks.tally import DIRECTORY, TallyReader

ROOT = Path(__file__).parents[1]

#: Timeout in seconds for the graceful stop of a worker.
_STOP_S = 30.0
_TAIL_LINES = 20
_POLL_S = 0.005


class WorkerProcess:
    """A worker process and its tally.

    :param command: stops gracefully at the end of its input, and writes its tally and the file
        ``ready`` to the directory in the environment variable `DIRECTORY`.
    :param environment: additional environment variables.
    :param directory: an empty directory for the tally and the log.
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
                # Ctrl-C reaches every process of the terminal's group; we stop this one ourselves.
                start_new_session=True,
            )

    def check(self) -> None:
        """Check that the process is running.

        :raises BenchmarkFailed: it has exited.
        """
        if (code := self._process.poll()) is not None:
            raise BenchmarkFailed(f"the worker exited with status {code}:\n{self._tail()}")

    def wait_for_ready(self) -> None:
        """Wait until the worker listens for notifications."""
        wait_until(self._ready.exists, "the worker is not ready", check=self.check)

    def processes(self) -> list[psutil.Process]:
        """The worker process and its executor processes."""
        return tree(self._process.pid)

    def stop(self) -> None:
        """Stop the worker gracefully, and wait for its exit.

        :raises BenchmarkFailed: the worker failed, or did not stop in time.
        """
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(
                f"the worker did not stop within {_STOP_S:g} s:\n{self._tail()}"
            ) from None
        if code != 0:
            raise BenchmarkFailed(f"the worker exited with status {code}:\n{self._tail()}")

    def kill(self) -> None:
        """Kill the processes that are still running."""
        self.tally.close()
        for process in self.processes():
            process.kill()
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _tail(self) -> str:
        return _tail(self._log.read_text(errors="replace"))


@contextmanager
def worker_processes(
    count: int, command: Sequence[str], environment: Mapping[str, str]
) -> Generator[Sequence[WorkerProcess]]:
    """Run several workers. Leaving the block stops them gracefully."""
    with ExitStack() as cleanup:
        workers: list[WorkerProcess] = []
        for _ in range(count):
            directory = tempfile.TemporaryDirectory(prefix="chancy-bench-")
            path = Path(cleanup.enter_context(directory))
            workers.append(WorkerProcess(command, environment, path))
            cleanup.callback(workers[-1].kill)
        yield workers
        for worker in workers:
            worker.stop()


def wait_until(
    condition: Callable[[], bool],
    message: str,
    *,
    timeout_s: float = 120.0,
    check: Callable[[], None] | None = None,
) -> None:
    """Poll until the condition holds.

    :param check: called at each poll; raises if the condition can no longer become true.
    :raises BenchmarkFailed: with ``message``, after the timeout.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{message} after {timeout_s:g} s")
        time.sleep(_POLL_S)


def ask(
    command: Sequence[str], environment: Mapping[str, str], *, timeout_s: float | None = None
) -> Any:
    """Run a program and return the JSON in the last line of its output.

    :raises BenchmarkFailed: the program exceeded the timeout, or failed.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"{_shown(command)} did not finish within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise BenchmarkFailed(
            f"{_shown(command)} exited with status {done.returncode}:\n"
            + _tail(done.stderr or done.stdout)
        )
    return json.loads(done.stdout.splitlines()[-1])


def _shown(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:]])


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
