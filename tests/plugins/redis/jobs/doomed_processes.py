"""Processes that are to die: each is a fork of one that has imported all it needs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from chancy.plugins.redis.relay import adoption as moves
from tests.plugins.redis.jobs.doomed_calls import Deed
from tests.plugins.redis.jobs.errand_fleet import ROOT
from tests.plugins.redis.jobs.fatal_points import arm
from tests.plugins.redis.jobs.scene import LEASE_S, Scene
from tests.plugins.redis.jobs.script_scenarios import SCENARIOS

#: Seconds after which one that has not come to its place is ended by an alarm.
PATIENCE_S = 30


class Nursery:
    """Begins them, and awaits their end."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._asking = threading.Lock()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.plugins.redis.jobs.doomed_processes"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end_of(self, script: str, scene: Scene, fatal: str | None) -> int:
        """Run the scenario of a script in a process of its own; gives how it ended.

        :param fatal: where it kills itself, as `arm` takes it; None: nowhere.
        """
        told = json.dumps({"script": script, "scene": asdict(scene), "fatal": fatal})
        return await asyncio.to_thread(self._ask, told)

    def _ask(self, told: str) -> int:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        with self._asking:
            asked.write(told.encode() + b"\n")
            asked.flush()
            return int(answers.readline())

    def said(self) -> str:
        """The last words of those that were not to end as they did."""
        return self.log.read_text(errors="replace")[-3_000:]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def nursery(log: Path) -> Generator[Nursery]:
    made = Nursery(log)
    try:
        yield made
    finally:
        made.close()


def serve(asked: IO[str], answers: IO[str]) -> None:
    """A process for each line, one after the other."""
    for line in asked:
        told = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(told["script"], told["scene"], told["fatal"])
        _, status = os.waitpid(pid, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def run(script: str, scene: Mapping[str, Any], fatal: str | None) -> None:
    """Never comes back."""
    code = 1
    try:
        signal.alarm(PATIENCE_S)
        if fatal is not None:
            arm(fatal)
        moves.LEASE_S = LEASE_S
        asyncio.run(do(SCENARIOS[script].deed, Scene(**scene)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


async def do(deed: Deed, scene: Scene) -> None:
    async with scene.application() as chancy:
        await deed(scene, chancy)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
