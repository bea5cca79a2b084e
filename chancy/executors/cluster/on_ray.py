"""The executor ``ray``: jobs run on the machines of a Ray cluster.

Each run has an actor of its own, a process that Ray places where its resources are. Messages of
hosts are fetched from their actors, and those to a host are calls of its actor.

The worker is a client of the cluster (``ray://``). A driver would be part of the cluster instead,
and its process would end with the cluster's head.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
import queue
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from chancy.attempt.outcome import Outcome
from chancy.errors import ConfigurationError
from chancy.executors.cluster.executor import Cluster, ClusterExecutor, ClusterLost, Room, RunLost
from chancy.executors.cluster.hosting import deliver, host
from chancy.executors.cluster.messages import HostedCall, WorkerMessage
from chancy.executors.setup import ExecutorSetup
from chancy.executors.thread.loop_threads import LoopThreads
from chancy.queue.executor_options import RayOptions

try:
    # Not by a plain import: most installations lack it.
    ray: Any = import_module("ray")
    import_module("grpc")  # of ray[client]
except ImportError as error:
    raise ConfigurationError(
        f"the executor ray needs the extra ray: pip install 'chancy-queue[ray]' ({error})"
    ) from error

T = TypeVar("T")
#: Threads of an actor: for the host, for its messages, and for those of the worker.
_THREADS = 3
#: Seconds that a connection may take: the head starts a process for each client.
_CONNECT_S = 60.0


def ray_executor(setup: ExecutorSetup) -> ClusterExecutor:
    """See `ExecutorKind.factory`."""
    assert isinstance(setup.options, RayOptions)
    return ClusterExecutor(setup, RayCluster(setup.options), connect_s=_CONNECT_S)


class HostActor:
    """Hosts one run, in a process of a Ray cluster."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def host(self, call: bytes, arguments: str | None) -> Outcome:
        """Host a run to its end."""
        hosted: HostedCall = pickle.loads(call)
        if arguments is not None:
            hosted = hosted.with_arguments(arguments)
        place = f"node {ray.get_runtime_context().get_node_id()}"
        try:
            return host(hosted, place, lambda message: self._messages.put(pickle.dumps(message)))
        finally:
            self._messages.put(None)

    def messages(self) -> list[bytes | None]:
        """Wait for messages of the host; None follows the last one."""
        found = [self._messages.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._messages.get_nowait())
        return found

    def deliver(self, message: bytes) -> None:
        """Pass a message to the host."""
        deliver([message])


class RayCluster(Cluster):
    """A client of a Ray cluster."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        #: Calls of Ray block, and the connection that they use is that of their thread.
        self._thread: LoopThreads | None = None
        self._client: Any = None
        self._actor_class: Any = None
        self._received: Callable[[bytes], None]
        self._actors: dict[str, Any] = {}

    async def connect(self, received: Callable[[bytes], None]) -> None:
        self._received = received
        thread = self._thread = LoopThreads("chancy ray", most=1)
        await self._in_thread(lambda: self._connect(thread))

    def _connect(self, thread: LoopThreads) -> None:
        client = ray.init(self._options.address, allow_multiple=True, log_to_driver=False)
        if self._thread is not thread:
            client.disconnect()  # it has taken too long, and another attempt is made
            return
        self._client = client
        client.__enter__()
        self._actor_class = ray.remote(HostActor).options(
            num_cpus=self._options.num_cpus,
            num_gpus=self._options.num_gpus,
            resources=self._options.resources,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=_THREADS,
        )

    async def close(self) -> None:
        client, self._client = self._client, None
        thread, self._thread = self._thread, None
        self._actors.clear()
        if thread is None:
            return
        try:
            if client is not None:
                await asyncio.get_running_loop().run_in_executor(thread, _disconnect, client)
        finally:
            thread.shutdown(wait=False)

    async def put(self, arguments: str) -> object:
        return await self._in_thread(lambda: ray.put(arguments))

    async def submit(self, call: HostedCall, arguments: object) -> Outcome:
        fetching: asyncio.Task[None] | None = None
        try:
            actor = self._actors[call.run] = await self._in_thread(self._actor_class.remote)
            data = pickle.dumps(call)
            ending = await self._future(lambda: actor.host.remote(data, arguments))
            fetching = asyncio.create_task(self._fetch(actor), name="chancy ray messages")
            outcome: Outcome = await ending
            await fetching  # the last messages of the host come before its outcome
        except ray.exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise
            raise RunLost(f"the process of Ray is lost: {error}".partition("\n")[0]) from None
        except ConnectionError as error:
            raise ClusterLost(f"the Ray cluster is lost: {error}") from None
        finally:
            if fetching is not None:
                fetching.cancel()
                await asyncio.gather(fetching, return_exceptions=True)
            actor = self._actors.pop(call.run, None)
            if actor is not None and self._thread is not None:
                # Withdraws it while it waits for resources, and returns those it has.
                self._thread.submit(_kill, actor)
        return outcome

    async def _fetch(self, actor: Any) -> None:
        while True:
            for data in await (await self._future(actor.messages.remote)):
                if data is None:
                    return
                self._received(data)

    async def send(self, run: str, place: str, message: WorkerMessage) -> None:
        data, actor = pickle.dumps(message), self._actors.get(run)
        if actor is not None:
            await (await self._future(lambda: actor.deliver.remote(data)))

    async def room(self, started: int) -> Room:
        return await self._in_thread(lambda: self._room(started))

    def _room(self, started: int) -> Room:
        needs = self._options.needs
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if nodes and not any(_fitting(node, needs) for node in nodes):
            return Room(0, f"no machine of the Ray cluster has {dict(needs)}")
        return Room(started + _fitting(ray.available_resources(), needs))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        if self._thread is None:
            raise ClusterLost("the connection to the Ray cluster is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _future(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """The value of the reference that a call returns, once it has one.

        Ray must not find its own future cancelled.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()
        theirs = await self._in_thread(lambda: call().future())

        def ended(done: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_copy, done, found)

        theirs.add_done_callback(ended)
        return found


def _copy(done: Any, found: asyncio.Future[Any]) -> None:
    if found.done():
        return
    if (error := done.exception()) is not None:
        found.set_exception(error)
    else:
        found.set_result(done.result())


def _disconnect(client: Any) -> None:
    client.__exit__(None, None, None)
    client.disconnect()


def _kill(actor: Any) -> None:
    with contextlib.suppress(Exception):  # it is dead, or the cluster is lost
        ray.kill(actor)


def _fitting(free: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many jobs fit into free resources."""
    return min(math.floor(free.get(name, 0) / need + 1e-6) for name, need in needs.items())
