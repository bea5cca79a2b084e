"""Clusters of Dask for tests, each of several processes."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from chancy.queue.executor_kind import EXECUTORS
from chancy.queue.executor_options import DaskOptions
from tests.support.leftovers import lasting

CLUSTERS = ("dask",)
ROOT = Path(__file__).parents[2]


#: Parameters for what holds in the executors of chancy and on clusters.
ANYWHERE = [*EXECUTORS, *(pytest.param(name, marks=pytest.mark.chaos) for name in CLUSTERS)]


@cache
def cluster_options(executor: str) -> DaskOptions:
    """Options for a cluster that the tests of this process share, started at its first use."""
    assert executor in CLUSTERS
    cluster = DaskProcesses()
    atexit.register(cluster.close)
    lasting.update(cluster.pids)
    cluster.wait_until_ready()
    return DaskOptions(address=cluster.address)


class DaskProcesses:
    """A scheduler, and workers with nannies, in processes of their own."""

    def __init__(self, workers: int = 2) -> None:
        pytest.importorskip("distributed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start the cluster, at the same address each time."""
        self.scheduler = self._run("scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        self._run("worker", self.address, "--nworkers", str(self._workers), "--nthreads", "1")

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
        process = subprocess.Popen(
            [*program, "--no-dashboard"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    def wait_until_ready(self) -> None:
        distributed: Any = import_module("distributed")
        with distributed.Client(self.address, timeout=120, set_as_default=False) as client:
            client.wait_for_workers(self._workers, timeout=120)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        """Kill it, with all that its processes have started."""
        for process in self._processes:
            if process.poll() is None:
                for below in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        below.kill()
                process.kill()
            process.wait()
        self._processes.clear()
