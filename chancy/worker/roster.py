"""The queues that a worker serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from chancy.attempt import Cancelled
from chancy.broker import Broker
from chancy.clock import Clock
from chancy.hooks import Hooks
from chancy.queue import Queue
from chancy.registry import Registry
from chancy.worker.services import Services
from chancy.worker.serving import Serving
from chancy.worker.settler import Settler

logger = logging.getLogger("chancy.worker")


class Application(Protocol):
    """What a worker needs of a `chancy.app.Chancy`."""

    @property
    def broker(self) -> Broker: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def hooks(self) -> Hooks: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def queues(self) -> Sequence[Queue]: ...
    @property
    def max_payload(self) -> int: ...
    async def check_tables(self) -> None: ...


class Member(Protocol):
    """What the roster needs of the worker that it belongs to."""

    @property
    def worker_id(self) -> UUID: ...
    @property
    def listening(self) -> bool: ...
    @property
    def shutdown_timeout_s(self) -> float: ...


class Roster:
    """Starts and ends the serving of queues as they are declared, changed and deleted."""

    def __init__(
        self, worker: Member, app: Application, services: Services, settler: Settler
    ) -> None:
        self._worker = worker
        self._app = app
        self._services = services
        self._settler = settler
        self._serving: dict[str, Serving] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        #: Set when what runs gets no more time.
        self.hurry = asyncio.Event()

    @property
    def names(self) -> tuple[str, ...]:
        """The queues that are served, sorted."""
        return tuple(sorted(self._serving))

    @property
    def drained(self) -> bool:
        """Whether every served queue was found empty, and nothing runs."""
        return not self._leaving and all(
            one.puller.drained.is_set() and one.runner.idle.is_set()
            for one in self._serving.values()
        )

    def confirm_drained(self) -> None:
        """Have idle queues looked at now, instead of with the next poll, seconds later."""
        for one in self._serving.values():
            if one.runner.idle.is_set() and not one.puller.drained.is_set():
                one.puller.wake(thorough=True)

    async def follow(self, queues: Iterable[Queue]) -> None:
        """Serve these queues, as they are, and no others."""
        wanted = {queue.name: queue for queue in queues}
        for name, serving in list(self._serving.items()):
            if wanted.get(name) != serving.queue:
                del self._serving[name]
                task = asyncio.create_task(self._end(serving), name=f"chancy leaving {name}")
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        for name, queue in wanted.items():
            if name not in self._serving:
                await self._begin(name, queue)

    async def _begin(self, name: str, queue: Queue) -> None:
        """Serve a queue. One that cannot be served is tried again with the next look."""
        try:
            serving = self._serve(queue)
            await serving.start()
        except Exception:
            logger.exception("queue_failed queue=%s executor=%s", name, queue.executor)
        else:
            self._serving[name] = serving

    def wake(self, name: str, *, thorough: bool) -> None:
        serving = self._serving.get(name)
        if serving is not None:
            serving.puller.wake(thorough=thorough)

    def wake_all(self) -> None:
        """Look at every queue from the front."""
        for serving in self._serving.values():
            serving.puller.wake(thorough=True)

    def stop_job(self, job_id: UUID) -> bool:
        """Stop a job that somebody asked to stop; False if it does not run here."""
        outcome = Cancelled("somebody asked for it")
        return any(one.runner.ask_to_stop(job_id, outcome) for one in self._serving.values())

    def interrupt(self, why: str) -> None:
        """Stop everything that runs; the serving goes on."""
        for serving in self._serving.values():
            serving.interrupt(why)

    async def stop(self) -> None:
        """End the serving of every queue."""
        leaving = [self._end(serving) for serving in self._serving.values()]
        self._serving.clear()
        await asyncio.gather(*leaving, *self._leaving)

    async def _end(self, serving: Serving) -> None:
        """In good time, or at once when that is asked for."""
        stopping = asyncio.create_task(serving.stop(grace_s=self._worker.shutdown_timeout_s))
        hurry = asyncio.create_task(self.hurry.wait())
        await asyncio.wait([stopping, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        while not stopping.done():
            # Again and again: a claim that was under way may still bring jobs.
            serving.interrupt("the worker was told to stop at once")
            await asyncio.wait([stopping], timeout=0.05)
        await stopping

    def _serve(self, queue: Queue) -> Serving:
        return Serving(
            queue,
            broker=self._app.broker,
            registry=self._app.registry,
            hooks=self._app.hooks,
            settler=self._settler,
            services=self._services,
            clock=self._app.clock,
            max_payload=self._app.max_payload,
            worker_id=lambda: self._worker.worker_id,
            listening=lambda: self._worker.listening,
        )
