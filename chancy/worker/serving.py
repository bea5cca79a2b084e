"""One queue on one worker: its executor, runner and puller."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from uuid import UUID

from chancy.attempt import Released
from chancy.broker import Broker
from chancy.clock import Clock
from chancy.executors import executor
from chancy.hooks import Hooks
from chancy.limits import Limits
from chancy.queue import Queue
from chancy.registry import Registry
from chancy.worker.puller import Puller
from chancy.worker.runner import Runner
from chancy.worker.services import Services
from chancy.worker.settler import Settler

#: A queue that is changed is served anew while the old serving still comes to its end.
_numbers = itertools.count(1)


class Serving:
    """Starts, wakes and ends what serves a queue. A changed queue gets a new one."""

    def __init__(
        self,
        queue: Queue,
        *,
        broker: Broker,
        registry: Registry,
        hooks: Hooks,
        settler: Settler,
        services: Services,
        clock: Clock,
        max_payload: int,
        worker_id: Callable[[], UUID],
        listening: Callable[[], bool],
    ) -> None:
        self.queue = queue
        self._clock = clock
        self._services = services
        self._executor = executor(
            queue.executor,
            concurrency=queue.concurrency,
            find=registry.find,
            max_payload=max_payload,
            options=queue.options,
            limits=Limits.of(queue.limits),
        )
        self.runner = Runner(self._executor, hooks.judge, settler.add, clock)
        self.puller = Puller(
            queue,
            self.runner,
            broker,
            settler,
            clock,
            worker_id=worker_id,
            listening=listening,
        )
        self._name = f"puller {queue.name} {next(_numbers)}"
        self._started = False
        self._ended = asyncio.Event()

    async def start(self) -> None:
        await self._executor.start()
        self._started = True
        self._services.start(self._name, self._pull)

    async def _pull(self) -> None:
        await self.puller.serve()
        self._ended.set()

    async def stop(self, *, grace_s: float) -> None:
        """Claim no more, give back what has not started, and let what runs come to its end.

        After the grace what still runs is stopped and given back.
        """
        if not self._started:
            return
        self.puller.stop()
        await self._clock.wait(self._ended, 15.0)
        await self._services.stop(self._name)
        self.runner.release_waiting("the worker stops")
        if not await self._clock.wait(self.runner.idle, grace_s):
            self.interrupt("the worker stopped before the job ended")
            await self._clock.wait(self.runner.idle, 10.0)
        await self.runner.close()
        await self._executor.stop()

    def interrupt(self, why: str) -> None:
        """Stop everything that runs or waits here, and give it back."""
        self.runner.release_waiting(why)
        self.runner.interrupt_all(Released(why))
