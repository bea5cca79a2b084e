"""The executor ``dask``: jobs run on the workers of a Dask cluster.

Messages of hosts go through the scheduler as events of a topic. Messages to a host are functions
that its Dask worker runs in its event loop.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from uuid import uuid4

from chancy.attempt.outcome import Outcome
from chancy.errors import ConfigurationError
from chancy.executors.cluster.executor import Cluster, ClusterExecutor, ClusterLost, Room, RunLost
from chancy.executors.cluster.hosting import deliver, host
from chancy.executors.cluster.messages import HostedCall, WorkerMessage
from chancy.executors.setup import ExecutorSetup
from chancy.queue.executor_options import DaskOptions

try:
    # Not by a plain import: it has no types, and most installations lack it.
    distributed: Any = import_module("distributed")
except ImportError as error:
    raise ConfigurationError(
        f"the executor dask needs the extra dask: pip install 'chancy-queue[dask]' ({error})"
    ) from error

#: Keys of our tasks begin with it. Dask groups the tasks of a prefix, by how long they take.
PREFIX = "chancy-"


def dask_executor(setup: ExecutorSetup) -> ClusterExecutor:
    """See `ExecutorKind.factory`."""
    assert isinstance(setup.options, DaskOptions)
    return ClusterExecutor(setup, DaskCluster(setup.options))


class RunOnce(distributed.SchedulerPlugin):  # type: ignore[misc]
    """Keeps the scheduler from running our tasks again when it loses the worker that runs them: an
    attempt runs once, and chancy decides what follows."""

    name = "chancy-run-once"
    idempotent = True

    def start(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing" and str(key).startswith(PREFIX):
            task = self._scheduler.tasks[key]
            task.suspicious = self._scheduler.allowed_failures


class DaskCluster(Cluster):
    """A connection to the scheduler of a Dask cluster."""

    def __init__(self, options: DaskOptions) -> None:
        self._options = options
        self._client: Any = None
        self._topic = ""

    async def connect(self, received: Callable[[bytes], None]) -> None:
        self._client = distributed.Client(
            self._options.address, asynchronous=True, set_as_default=False
        )
        client = await self._client
        self._topic = f"{PREFIX}{uuid4().hex}"
        client.subscribe_topic(self._topic, lambda event: received(event[1]))
        await client.register_plugin(RunOnce())

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close(timeout=2)

    async def put(self, arguments: str) -> object:
        return await self._connected.scatter(arguments, hash=False)

    async def submit(self, call: HostedCall, arguments: object) -> Outcome:
        future = self._connected.submit(
            host_task,
            pickle.dumps(call),
            arguments,
            self._topic,
            key=f"{PREFIX}{self._topic[-8:]}-{call.run}",
            resources=self._options.resources,
            retries=0,
            pure=False,
        )
        try:
            outcome: Outcome = await future
        except distributed.KilledWorker as error:
            raise RunLost(f"the Dask worker {error.last_worker.address} died") from None
        except distributed.client.FutureCancelledError as error:
            if error.reason in ("scheduler-connection-lost", "scheduler-restart", "unknown"):
                raise ClusterLost(f"the Dask scheduler is lost: {error}") from None
            raise RunLost(str(error)) from None
        finally:
            future.release()  # withdraws the task, or frees its result
        return outcome

    async def send(self, run: str, place: str, message: WorkerMessage) -> None:
        await self._connected.run(deliver, [pickle.dumps(message)], workers=[place])

    async def room(self, started: int) -> Room:
        found: tuple[int, str | None] = await self._connected.run_on_scheduler(
            room_of, dict(self._options.resources or {}), PREFIX + self._topic[-8:]
        )
        return Room(*found)

    @property
    def _connected(self) -> Any:
        if self._client is None:
            raise ClusterLost("the connection to the Dask scheduler is closed")
        return self._client


def host_task(call: bytes, arguments: str | None, topic: str) -> Outcome:
    """Host a run, in a thread of a Dask worker."""
    hosted: HostedCall = pickle.loads(call)
    if arguments is not None:
        hosted = hosted.with_arguments(arguments)
    worker = distributed.get_worker()
    return host(
        hosted, worker.address, lambda message: worker.log_event(topic, pickle.dumps(message))
    )


def room_of(
    needs: Mapping[str, float], ours: str, dask_scheduler: Any = None
) -> tuple[int, str | None]:
    """Count the jobs of one executor that the cluster can run at once. In the scheduler.

    :param needs: the resources that each takes up.
    :param ours: beginning of the keys of its tasks.
    """
    most = room = 0
    workers = list(dask_scheduler.workers.values())
    for worker in workers:
        fitting = min(
            [
                worker.nthreads,
                *(math.floor(worker.resources.get(name, 0) / need) for name, need in needs.items()),
            ]
        )
        most += fitting
        others = [task for task in worker.processing if not str(task.key).startswith(ours)]
        free = worker.nthreads - len(others)
        for name, need in needs.items():
            used = sum((task.resource_restrictions or {}).get(name, 0) for task in others)
            free = min(free, math.floor((worker.resources.get(name, 0) - used) / need))
        room += max(0, free)
    if workers and not most:
        return 0, f"no worker of the Dask cluster has {dict(needs)}"
    return room, None
