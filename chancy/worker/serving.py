"""One queue on one worker: its executor, runner and puller."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import assert_never
from uuid import UUID

from chancy.attempt import Claim, Released, Snoozed
from chancy.broker import Broker
from chancy.clock import Clock
from chancy.context import Progress
from chancy.executors import executor
from chancy.executors.base import Executor, Ties
from chancy.hooks import Hooks
from chancy.limits import Limits
from chancy.options import (
    AsyncOptions,
    ExecutorName,
    Options,
    ProcessOptions,
    ThreadOptions,
    default_options,
)
from chancy.queue import Queue
from chancy.registry import Registry
from chancy.worker.around import Surroundings
from chancy.worker.notes import Notes
from chancy.worker.puller import Puller
from chancy.worker.quarantine import CHILDREN, Quarantine
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
        notes: Notes,
        services: Services,
        clock: Clock,
        max_payload: int,
        worker_id: Callable[[], UUID],
        listening: Callable[[], bool],
    ) -> None:
        self.queue = queue
        self._clock = clock
        self._services = services
        self._registry = registry
        self._max_payload = max_payload
        self._notes = notes
        made = self._make_executor()
        self._executor = Surroundings(made, hooks.around) if hooks.around else made
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
        self._ended = asyncio.Event()

    @property
    def broken(self) -> str | None:
        """Why no job of the queue can run here now; None if they can."""
        return self._executor.broken

    async def start(self) -> None:
        """Warm up, and begin to claim. What had begun is ended again if it raises."""
        try:
            await self._executor.start()
        except BaseException:
            await self._executor.stop()
            raise
        self._services.start(self._name, self._pull)

    def _make_executor(self) -> Executor:
        queue = self.queue
        options = queue.options or default_options(queue.executor)
        made = self._executor_of(queue.executor, queue.concurrency, options)
        match options:
            case ProcessOptions(jobs_per_child=1):
                return made
            case ProcessOptions():
                apart = replace(options, jobs_per_child=1)
            case AsyncOptions(grace_s=grace_s):
                apart = ProcessOptions(grace_s=grace_s)
            case ThreadOptions():
                apart = ProcessOptions()
            case _:
                assert_never(options)
        return Quarantine(made, lambda: self._executor_of("process", CHILDREN, apart))

    def _executor_of(
        self, name: ExecutorName, concurrency: int | None, options: Options
    ) -> Executor:
        return executor(
            name,
            concurrency=concurrency,
            find=self._registry.find,
            max_payload=self._max_payload,
            options=options,
            limits=Limits.of(self.queue.limits),
            ties=Ties(
                report=self._report,
                keep=self._notes.keep,
                completing=self._notes.completing,
                completion=self._notes.completion,
            ),
        )

    def _report(self, claim: Claim, progress: Progress) -> None:
        self._notes.take(claim, progress, self._executor.interrupt)

    async def _pull(self) -> None:
        await self.puller.serve()
        self._ended.set()

    async def stop(self, *, grace_s: float) -> None:
        """Claim no more, give back what has not started, and let what runs come to its end.

        After the grace what still runs is stopped and given back.
        """
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

    def put_off(self, why: str) -> None:
        """Give back what waits, and stop what can be stopped, to be run again without an attempt.

        What heeds nothing goes on, and ends as what it returns: a plain function in a thread does
        not run beside its next run if nobody took the job meanwhile.
        """
        self.runner.release_waiting(why)
        self.runner.interrupt_all(Snoozed(timedelta(0)))
