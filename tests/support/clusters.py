"""Clusters of Dask and Ray for tests, each of several processes."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import psutil
import pytest

from chancy.queue.executor_kind import EXECUTORS
from chancy.queue.executor_options import ClusterOptions, DaskOptions, RayOptions
from tests.support.leftovers import lasting
from tests.support.ports import free_port
from tests.support.waiting import eventually_sync

CLUSTERS = ("dask", "ray")
#: Executors whose jobs have processes of their own.
ISOLATED = ("process", *CLUSTERS)
ROOT = Path(__file__).parents[2]

#: One process of a run has the tests of clusters: two would start each of them twice.
TOGETHER = pytest.mark.xdist_group("clusters")
# On a busy machine of two cores a job takes 5 s on Ray, and a test has up to 15 of them.
_MARKS = [pytest.mark.chaos, pytest.mark.timeout(600), TOGETHER]
#: Parameters for what holds in the executors of chancy and on clusters, which differ only in how
#: calls, messages and results travel. On Ray, where each job has a process that takes seconds to
#: start, `ON_RAY_TOO` adds the tests of that.
ANYWHERE = [*EXECUTORS, pytest.param("dask", marks=_MARKS)]
ON_RAY_TOO = pytest.mark.parametrize(
    "anywhere", [*ANYWHERE, pytest.param("ray", marks=_MARKS)], indirect=True
)

#: Name of the variable that marks the processes of a cluster.
_MARK = "CHANCY_TEST_CLUSTER"
#: The program of a guard: kills a cluster once the tests close its input, or are killed.
_GUARD = "import sys; from tests.support.clusters import end; sys.stdin.read(); end(sys.argv[1])"


class ClusterProcesses(ABC):
    """The processes of a cluster. A guard kills them at the end with all that they have started,
    also when the process of the tests is killed."""

    #: The name of the executor, and the library that it needs.
    name: str
    library: str
    environment: Mapping[str, str] = {}

    def __init__(self, workers: int = 2) -> None:
        missing = f"{self.library} is not installed: the command `make clusters` installs it"
        pytest.importorskip(self.library, reason=missing)
        self._workers = workers
        # Short: sockets have it in their paths, which have 107 bytes at most.
        self._mark = uuid4().hex[:12]
        self._guard: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Start the cluster, at the same address each time."""

    @abstractmethod
    def kill_head(self) -> None:
        """Kill what schedules the jobs of the cluster."""

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Wait until it takes jobs."""

    @abstractmethod
    def options(self, **settings: Any) -> ClusterOptions:
        """Options of a queue on this cluster."""

    def _run(self, *words: str) -> subprocess.Popen[bytes]:
        if self._guard is None:
            command = [sys.executable, "-c", _GUARD, self._mark]
            self._guard = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True
            )
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), _MARK: self._mark, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    @property
    def pids(self) -> list[int]:
        guard = [] if self._guard is None else [self._guard]
        return [process.pid for process in (*guard, *self._processes)]

    def close(self) -> None:
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None
        for process in self._processes:
            process.wait()
        self._processes.clear()


def end(mark: str) -> None:
    """Kill the processes with a mark in their command or environment, and their descendants."""
    while found := [
        process
        for process in psutil.process_iter(["pid", "cmdline", "environ"])
        if process.pid != os.getpid() and _has(process.info, mark)
    ]:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                for each in (*process.children(recursive=True), process):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
    shutil.rmtree(_folder(mark), ignore_errors=True)


def _has(info: Mapping[str, Any], mark: str) -> bool:
    words = (*(info["cmdline"] or ()), *(info["environ"] or {}).values())
    return any(mark in word for word in words)


def _folder(mark: str) -> Path:
    """The folder of a Ray cluster. Its daemons, which may have no environment, have it in their
    commands."""
    return Path(gettempdir()) / f"chancy-ray-{mark}"


class DaskProcesses(ClusterProcesses):
    """A scheduler, and workers with nannies, in processes of their own."""

    name, library = "dask", "distributed"

    def __init__(self, workers: int = 2) -> None:
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        super().__init__(workers)

    def start(self) -> None:
        port = str(self.port)
        self._scheduler = self._dask("scheduler", "--host", "127.0.0.1", "--port", port)
        self._dask("worker", self.address, "--nworkers", str(self._workers), "--nthreads", "1")

    def _dask(self, *words: str) -> subprocess.Popen[bytes]:
        return self._run("distributed.cli.dask_" + words[0], *words[1:], "--no-dashboard")

    def kill_head(self) -> None:
        self._scheduler.kill()

    def wait_until_ready(self) -> None:
        distributed: Any = import_module("distributed")
        with distributed.Client(self.address, timeout=120, set_as_default=False) as client:
            client.wait_for_workers(self._workers, timeout=120)

    def options(self, **settings: Any) -> DaskOptions:
        return DaskOptions(address=self.address, **settings)


class RayProcesses(ClusterProcesses):
    """The head of a Ray cluster, with as many cores as there are to be workers."""

    name = library = "ray"
    # The head forks a process for each client: with fork support of gRPC some of them die.
    environment: Mapping[str, str] = {
        "RAY_AUTH_MODE": "disabled",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }

    def __init__(self, workers: int = 2) -> None:
        self._ports = free_port(), free_port()
        super().__init__(workers)

    def start(self) -> None:
        port, client_port = self._ports
        self._run(
            "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
            f"--port={port}", f"--ray-client-server-port={client_port}",
            f"--num-cpus={self._workers}", "--include-dashboard=false", "--disable-usage-stats",
            f"--temp-dir={_folder(self._mark)}", f"--object-store-memory={100 * 2**20}",
            # It would refuse ports of the test that are among those of its workers.
            "--min-worker-port=0", "--max-worker-port=0",
        )  # fmt: skip

    def kill_head(self) -> None:
        self.close()

    def wait_until_ready(self) -> None:
        port = self._ports[1]
        eventually_sync(lambda: _answers(port), timeout=120)

    def options(self, **settings: Any) -> RayOptions:
        return RayOptions(address=f"ray://127.0.0.1:{self._ports[1]}", **settings)


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


KINDS: dict[str, type[ClusterProcesses]] = {"dask": DaskProcesses, "ray": RayProcesses}


#: The clusters that the tests of this process share, by executor.
_shared: dict[str, ClusterProcesses] = {}


def cluster_options(executor: str) -> ClusterOptions:
    """Options for a cluster that the tests of this process share, started at its first use."""
    cluster = _shared.get(executor)
    if cluster is None:
        cluster = KINDS[executor](workers=3)
        lasting.update(cluster.pids)
        cluster.wait_until_ready()
        _shared[executor] = cluster
    return cluster.options()


@atexit.register
def _close_shared() -> None:
    while _shared:
        _shared.popitem()[1].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Close the clusters after the last of their tests, which one process of several runs without
    others in between: idle, they take a fifth of a processor."""
    done = yield
    if _shared and hasattr(item.config, "workerinput"):
        mark = None if nextitem is None else nextitem.get_closest_marker("xdist_group")
        if mark is None or mark.args != TOGETHER.args:
            _close_shared()
    return done
