"""One queue on one worker: its executor, runner and puller."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released, Snoozed
from chancy.clock import Clock
from chancy.context.context import Progress
from chancy.executors import executor
from chancy.executors.base import AttemptCallbacks, Executor
from chancy.job.limits import Limits
from chancy.job.registry import Registry
from chancy.plugin.hooks import Hooks
from chancy.queue.executor_options import (
    AsyncOptions,
    ExecutorName,
    Options,
    ProcessOptions,
    ThreadOptions,
    default_options,
)
from chancy.queue.queue import Queue
from chancy.worker.adoption import QueueAdoption
from chancy.worker.broker_session import BrokerSession
from chancy.worker.meta_writer import MetaWriter
from chancy.worker.middleware import AroundHooks
from chancy.worker.puller import Claiming, Puller
from chancy.worker.quarantine import CHILDREN, QuarantineExecutor
from chancy.worker.runner import Runner
from chancy.worker.services import ServiceLoops
from chancy.worker.worker_limits import WorkerLimits

#: A queue that is changed is served anew while the old serving still comes to its end.
_numbers = itertools.count(1)


class QueueWorker:
    """Starts, wakes and ends what serves a queue. A changed queue gets a new one."""

    def __init__(
        self,
        queue: Queue,
        *,
        plane: BrokerSession,
        control: BrokerSession,
        registry: Registry,
        hooks: Hooks,
        services: ServiceLoops,
        clock: Clock,
        max_payload: int,
        bounds: WorkerLimits,
    ) -> None:
        self.queue = queue
        self._concurrency = bounds.concurrency or queue.concurrency
        self._clock = clock
        self._services = services
        self._registry = registry
        self._max_payload = max_payload
        self._plane = plane
        self._strays = None if plane is control else self._make_strays(control, plane)
        made = self._make_executor()
        self._executor = AroundHooks(made, hooks.around) if hooks.around else made
        settle = self._strays.settle if self._strays else plane.settler.add
        self.runner = Runner(self._executor, hooks.judge, settle, clock, bounds.most_ahead)
        self.puller = self._puller(plane, plane.broker.claim, self.runner.give)
        self._pullers = {plane: self.puller}
        if self._strays:
            give = self._strays.to(self.runner)
            self._pullers[control] = self._puller(control, self._strays.claim, give)
        self._name = f"puller {queue.name} {next(_numbers)}"
        self._ended = asyncio.Event()

    def _make_strays(self, control: BrokerSession, plane: BrokerSession) -> QueueAdoption:
        return QueueAdoption(
            control,
            plane,
            adopted=self._look_again,
            again=lambda: self._pullers[control].wake(thorough=True),
        )

    def _puller(
        self, plane: BrokerSession, claim: Claiming, give: Callable[[Sequence[Claim]], None]
    ) -> Puller:
        return Puller(
            self.queue,
            self.runner,
            plane.settler,
            self._clock,
            claim=claim,
            give=give,
            worker_id=lambda: plane.presence.worker_id,
            listening=lambda: plane.listener.hears,
        )

    @property
    def broken(self) -> str | None:
        """Why no job of the queue can run here now; None if they can."""
        return self._executor.broken

    async def start(self) -> None:
        """Warm up, and begin to claim. What had begun is ended again if it raises."""
        await self._plane.serves(self.queue)
        try:
            await self._executor.start()
        except BaseException:
            await self._executor.stop()
            raise
        self._heed_pause()
        self._services.start(self._name, self._pull)

    def _make_executor(self) -> Executor:
        queue = self.queue
        options = queue.options or default_options(queue.executor)
        made = self._executor_of(queue.executor, self._concurrency, options)
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
        return QuarantineExecutor(made, lambda: self._executor_of("process", CHILDREN, apart))

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
            ties=AttemptCallbacks(
                report=self._report,
                keep=self._keep if self._strays else self._plane.notes.keep,
                completing=self._plane.notes.completing,
                completion=self._plane.notes.completion,
            ),
        )

    def _notes(self, claim: Claim) -> MetaWriter:
        return self._strays.plane_of(claim).notes if self._strays else self._plane.notes

    def _report(self, claim: Claim, progress: Progress) -> None:
        self._notes(claim).take(claim, progress, self._executor.interrupt)

    async def _keep(self, claim: Claim, meta: str) -> None:
        await self._notes(claim).keep(claim, meta)

    async def _pull(self) -> None:
        if not self._strays:
            await self.puller.serve()
            self._ended.set()
            return
        async with asyncio.TaskGroup() as group:
            for puller in self._pullers.values():
                group.create_task(puller.serve())
        self._ended.set()

    def follow(self, queue: Queue) -> bool:
        """Go on with the queue as it stands now; False if that takes another serving.

        Whether it is paused concerns what is claimed, and nothing that runs.
        """
        if going(queue) != going(self.queue):
            return False
        if queue != self.queue:
            self.queue = queue
            self._heed_pause()
        return True

    def _heed_pause(self) -> None:
        if self.queue.paused:
            self.runner.release_waiting("the queue is paused")
        for plane, puller in self._pullers.items():
            # The row says it. The control broker reads that with each claim.
            puller.pause(self.queue.paused and not plane.control)

    def _look_again(self) -> None:
        """Jobs of the queue have come to its own broker."""
        if not self.queue.paused:
            self.puller.drained.clear()
            self.puller.wake(thorough=True)

    @property
    def drained(self) -> bool:
        """Whether the last look at it found nothing."""
        return all(puller.drained.is_set() for puller in self._pullers.values())

    def wake(self, plane: BrokerSession | None, *, thorough: bool) -> None:
        """Look now at what one broker has of the queue, or at all of it."""
        for one, puller in self._pullers.items():
            if plane is None or plane is one:
                puller.wake(thorough=thorough)

    def claim_no_more(self) -> None:
        """A claim that is under way is the last one."""
        for puller in self._pullers.values():
            puller.stop()

    async def leave(self) -> None:
        """Claim no more, give back what has not started, and let what runs come to its end."""
        self.claim_no_more()
        await self._clock.wait(self._ended, 15.0)
        await self._services.stop(self._name)
        self.runner.release_waiting("the queue is served no more as it was")
        await self.runner.idle.wait()

    async def stop(self, *, grace_s: float) -> None:
        """Claim no more, give back what has not started, and let what runs come to its end.

        After the grace what still runs is stopped and given back.
        """
        self.claim_no_more()
        await self._clock.wait(self._ended, 15.0)
        await self._services.stop(self._name)
        self.runner.release_waiting("the worker stops")
        if not await self._clock.wait(self.runner.idle, grace_s):
            self.interrupt("the worker stopped before the job ended")
            await self._clock.wait(self.runner.idle, 10.0)
        await self.runner.close()
        await self._executor.stop()

    def interrupt(self, why: str, plane: BrokerSession | None = None) -> None:
        """Stop everything that runs or waits here, of one broker or of all, and give it back."""
        self._stop(why, Released(why), plane)

    def put_off(self, why: str, plane: BrokerSession) -> None:
        """Give back what waits, and stop what can be stopped, to be run again without an attempt.

        What heeds nothing goes on, and ends as what it returns: a plain function in a thread does
        not run beside its next run if nobody took the job meanwhile.
        """
        self._stop(why, Snoozed(timedelta(0)), plane)

    def _stop(self, why: str, outcome: Outcome, plane: BrokerSession | None) -> None:
        strays = self._strays

        def its(claim: Claim) -> bool:
            return plane in (None, self._plane if strays is None else strays.plane_of(claim))

        self.runner.release_waiting(why, its)
        self.runner.interrupt_all(outcome, its)


def going(queue: Queue) -> Queue:
    """What has to be served anew when it changes: all but whether it is paused."""
    return replace(queue, paused=False, resume_at=None)
