"""One queue on one worker: its executor, runner and pullers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released, Snoozed
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Claims
from chancy.broker.notices import Notice
from chancy.broker.optional import for_upkeep
from chancy.clock import Clock
from chancy.context.context import Progress
from chancy.executors.base import AttemptCallbacks, Executor
from chancy.executors.batches import BatchedExecutor
from chancy.executors.process.group import ChildPool
from chancy.executors.process.settings import JobEnvironment
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.job.limits import Limits
from chancy.job.registry import Registry
from chancy.plugin.hooks import Hooks
from chancy.queue.executor_kind import executor_kind
from chancy.queue.executor_options import ExecutorOptions, ProcessOptions
from chancy.queue.queue import Queue
from chancy.queue.rules import GlobalConcurrency, Rule, Sequential
from chancy.worker.adoption import QueueAdoption
from chancy.worker.broker_session import BrokerSession
from chancy.worker.isolated_loop import IsolatedApplication, environment_of
from chancy.worker.meta_writer import MetaWriter
from chancy.worker.middleware import AroundHooks
from chancy.worker.payload_executor import PayloadExecutor
from chancy.worker.puller import Puller
from chancy.worker.quarantine import CHILDREN, QuarantineExecutor
from chancy.worker.runner import Runner
from chancy.worker.services import ServiceLoops
from chancy.worker.start_recorder import StartRecorder
from chancy.worker.unknown_functions import UnknownFunctions, look_up
from chancy.worker.worker_limits import WorkerLimits

#: Makes names of loops unique: a changed queue gets a new worker while the old one still stops.
_numbers = itertools.count(1)


class QueueWorker:
    """Claims and runs the jobs of one queue. A changed queue gets a new one.

    :param app: the application, which quarantined jobs find open.
    :param children: the executor processes that the queues of a worker share.
    :param on_freed: called when a job of a queue with rules has ended, so that another may start.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        app: IsolatedApplication,
        session: BrokerSession,
        control: BrokerSession,
        registry: Registry,
        hooks: Hooks,
        services: ServiceLoops,
        clock: Clock,
        max_payload: int,
        limits: WorkerLimits,
        children: ChildPool,
        on_freed: Callable[[], None],
    ) -> None:
        self.queue = queue
        self._on_freed = on_freed
        self._concurrency = limits.concurrency or queue.concurrency
        self._clock = clock
        self._services = services
        self._registry = registry
        self._max_payload = max_payload
        self._session = session
        self._adoption = None if session is control else self._make_adoption(control, session)
        self._app = app
        self._children = children
        self._hooks = hooks
        self._payloads = hooks.payloads
        self._executor = self._make_executor()
        claims = hooks.claiming(queue, for_upkeep(session.broker), self._claim_again)
        self._claims = claims
        settle: Callable[[Settlement], None] = (
            self._adoption.settle if self._adoption else self._settle
        )
        prefetch_limit = limits.prefetch_limit
        if claims is not None:
            settle = self._settle_and_claim
            prefetch_limit = ruled_prefetch(prefetch_limit, queue.rules, self._executor.slots)
        self.unknown = UnknownFunctions(
            queue.name, partial(look_up, registry), clock, after_s=limits.unknown_after_s
        )
        self.runner = Runner(
            self._executor, hooks.judge, settle, clock, self.unknown, prefetch_limit
        )
        source = session.broker if claims is None else claims
        self.puller = self._make_puller(session, source, self.runner.give, ruled=claims is not None)
        self._pullers = {session: self.puller}
        if self._adoption:
            give = self._adoption.receiver(self.runner)
            self._pullers[control] = self._make_puller(
                control, self._adoption, give, surveyed=not self._adoption.adopts
            )
        self._name = f"puller {queue.name} {next(_numbers)}"
        self._ended = asyncio.Event()

    def _make_adoption(self, control: BrokerSession, session: BrokerSession) -> QueueAdoption:
        return QueueAdoption(
            control,
            session,
            on_adopted=self._claim_adopted,
            on_more=lambda: self._pullers[control].wake(thorough=True),
        )

    def _make_puller(
        self,
        session: BrokerSession,
        claims: Claims,
        give: Callable[[Sequence[Claim]], None],
        *,
        surveyed: bool = True,
        ruled: bool = False,
    ) -> Puller:
        def listening() -> bool:
            return session.listener.receiving

        surveyed = surveyed and session.surveyor is not None
        return Puller(
            self.queue,
            self.runner,
            session.settler,
            self._clock,
            claims=claims,
            knows=self.unknown.knows,
            give=give,
            worker_id=lambda: session.registration.worker_id,
            in_contact=session.registration.in_contact,
            listening=None if surveyed else listening,
            ruled=ruled,
            call=partial(session.crowd.call, self.queue.name),
        )

    @property
    def broken(self) -> str | None:
        """Why no job of the queue can run here now; None if jobs can run."""
        return self._executor.broken

    async def start(self) -> None:
        """Warm up the executor, and start to claim. Everything is stopped again if this raises."""
        await self._session.declare(self.queue)
        try:
            await self._executor.start()
        except BaseException:
            await self._executor.stop()
            raise
        self._apply_pause()
        self._services.start(self._name, self._pull)

    def _make_executor(self) -> QuarantineExecutor | PayloadExecutor:
        queue = self.queue
        kind = executor_kind(queue.executor)
        options = queue.options or kind.options()
        concurrency = self._concurrency or kind.concurrency()
        usual = self._hooked(self._executor_of(queue.executor, concurrency, options))
        make_isolated: Callable[[], Executor | None] | None = None
        if kind.in_worker:
            grace_s = getattr(options, "grace_s", ProcessOptions().grace_s)
            make_isolated = self._surrounded(ProcessOptions(grace_s=grace_s))
        executor = QuarantineExecutor(
            usual,
            StartRecorder(self._store if self._adoption else self._session.meta.store),
            make_isolated,
            alone_here=kind.in_worker,
        )
        return executor if self._payloads is None else PayloadExecutor(executor, self._payloads)

    def _hooked(self, executor: Executor) -> Executor:
        if not self._hooks.around:
            return executor
        return AroundHooks(executor, self._hooks.around, plain_errors=self._payloads is None)

    def _surrounded(self, options: ProcessOptions) -> Callable[[], Executor | None]:
        """Creates executor processes that run jobs as this worker does, with the hooks in them.
        Returns None if they cannot import the application."""

        def make() -> Executor | None:
            environment = environment_of(self._app, self.queue.executor, self.queue.options)
            if environment is None:
                return None
            return self._executor_of("process", CHILDREN, options, environment)

        return make

    def _executor_of(
        self,
        name: str,
        concurrency: int,
        options: ExecutorOptions,
        environment: JobEnvironment | None = None,
    ) -> Executor:
        setup = ExecutorSetup(
            concurrency=concurrency,
            find=self._registry.find,
            max_payload=self._max_payload,
            options=options,
            limits=Limits.of(self.queue.limits),
            callbacks=AttemptCallbacks(
                report=self._report,
                store=self._store if self._adoption or self._payloads else self._session.meta.store,
                completing=self._session.meta.completing,
                completion=self._session.meta.completion,
                plain_errors=self._payloads is None,
            ),
            environment=environment,
            wrapper=self._registry.wrapper,
            # Quarantined jobs do not take the place of others.
            pool=self._children if environment is None else None,
            around_in_child=self._hooks.around_in_child if environment is None else (),
        )
        executor = make_executor(name, setup)
        return BatchedExecutor(executor, self._registry.find, self._max_payload)

    def _meta_writer(self, claim: Claim) -> MetaWriter:
        session = self._adoption.session_of(claim) if self._adoption else self._session
        return session.meta

    def _report(self, claim: Claim, progress: Progress) -> None:
        self._meta_writer(claim).report(claim, progress, self._executor.interrupt)

    async def _store(self, claim: Claim, meta: str) -> None:
        if self._payloads is not None:
            meta = self._payloads.meta(claim.func, meta)
        await self._meta_writer(claim).store(claim, meta)

    async def _pull(self) -> None:
        if not self._adoption:
            await self.puller.serve()
            self._ended.set()
            return
        async with asyncio.TaskGroup() as group:
            for puller in self._pullers.values():
                group.create_task(puller.serve())
        self._ended.set()

    def follow(self, queue: Queue) -> bool:
        """Continue with a changed declaration; False if that takes a new queue worker.

        Pausing affects claims only: running jobs continue.
        """
        if without_pause(queue) != without_pause(self.queue):
            return False
        if queue != self.queue:
            self.queue = queue
            self._apply_pause()
        return True

    def _apply_pause(self) -> None:
        if self.queue.paused:
            self._release_waiting("the queue is paused")
        for session, puller in self._pullers.items():
            # The control broker reads the paused state from the row with each claim.
            puller.pause(self.queue.paused and not session.control)

    def _release_waiting(self, why: str) -> None:
        """Release jobs that have not started, including those that the executor has prefetched."""
        self.runner.release_waiting(why)
        self._executor.release_waiting(Released(why))

    def _settle(self, settlement: Settlement) -> None:
        self._session.settler.add(settlement, urgent=not self.runner.backlogged)

    def _settle_and_claim(self, settlement: Settlement) -> None:
        if self._adoption:
            self._adoption.settle(settlement, self._on_freed)
        else:
            self._session.settler.add(settlement, self._on_freed)

    def _claim_again(self) -> None:
        """Claim now: jobs of a queue with claims of a plugin may be able to start."""
        self.puller.wake()

    def _claim_adopted(self) -> None:
        """Claim now: jobs of the queue have been moved to its own broker."""
        if not self.queue.paused:
            self.puller.drained.clear()
            self.puller.wake(thorough=True)

    @property
    def drained(self) -> bool:
        """Whether the last claim from every broker found no jobs."""
        return all(puller.drained.is_set() for puller in self._pullers.values())

    @property
    def waits(self) -> bool:
        """Whether jobs wait for a time that a rule sets, at which they are claimed."""
        return self._claims is not None and self._claims.waits and not self.queue.paused

    def wake(self, session: BrokerSession | None, *, thorough: bool) -> None:
        """Claim now from one broker, or from all (None)."""
        for other, puller in self._pullers.items():
            if session is None or session is other:
                puller.wake(thorough=thorough)

    def notify(self, session: BrokerSession, notice: Notice) -> None:
        """Claim from a broker for its notification of new jobs, if this worker is chosen."""
        puller = self._pullers.get(session)
        if puller is not None:
            delay_s = session.crowd.delay_s(notice)
            if delay_s is not None:
                puller.notify(notice.jobs, delay_s)
                if session.suppressor is not None and not puller.occupied:
                    seconds = session.crowd.suppress_s(notice)
                    session.suppressor.begin(self.queue.name, seconds, puller.wake)

    def stored_in(self, session: BrokerSession) -> bool:
        """Whether the jobs of the queue are claimed from a broker."""
        return session in self._pullers

    def occupied(self, session: BrokerSession) -> bool:
        """Whether there is no room for jobs of a broker."""
        puller = self._pullers.get(session)
        return puller is not None and puller.occupied

    def claim_waiting(self, session: BrokerSession, unheard: bool) -> None:
        """Claim from a broker that has jobs, unless that continues anyway; see
        `chancy.worker.puller.Puller.claim_found`."""
        puller = self._pullers.get(session)
        if puller is not None:
            puller.claim_found(unheard)

    def claim_no_more(self) -> None:
        """Stop claiming. A claim in progress is the last one."""
        for puller in self._pullers.values():
            puller.stop()

    async def _end_claims(self) -> None:
        if self._services.runs(self._name):
            await self._clock.wait(self._ended, 15.0)
        await self._services.stop(self._name)

    async def leave(self) -> None:
        """Stop claiming, release jobs that have not started, and wait for running jobs."""
        self.claim_no_more()
        await self._end_claims()
        self._release_waiting("the queue was changed or is no longer served here")
        await self.runner.idle.wait()

    async def stop(self, *, grace_s: float) -> None:
        """Stop claiming, release jobs that have not started, and wait for running jobs.

        Jobs that still run after ``grace_s`` seconds are stopped and released.
        """
        until = self._clock.monotonic() + grace_s
        self.claim_no_more()
        await self._end_claims()
        self._release_waiting("the worker is stopping")
        left_s = max(0.0, until - self._clock.monotonic())
        if not await self._clock.wait(self.runner.idle, left_s):
            self.interrupt("the worker stopped before the job ended")
            await self._clock.wait(self.runner.idle, 10.0)
        await self.runner.close()
        await self._executor.stop()

    def interrupt(self, why: str, session: BrokerSession | None = None) -> None:
        """Stop and release all running and waiting jobs of one broker, or of all (None)."""
        self._stop(why, Released(why), session)

    def put_off(self, why: str, session: BrokerSession) -> None:
        """Release waiting jobs, and stop those that can be stopped; they run again without
        counting an attempt.

        A job that ignores the request continues, and its own outcome counts. So a plain function in
        a thread does not overlap with its next run unless another worker has taken the job.
        """
        self._stop(why, Snoozed(timedelta(0)), session)

    def _stop(self, why: str, outcome: Outcome, session: BrokerSession | None) -> None:
        adoption = self._adoption

        def affected(claim: Claim) -> bool:
            return session in (
                None,
                self._session if adoption is None else adoption.session_of(claim),
            )

        self.runner.release_waiting(why, affected)
        self.runner.interrupt_all(outcome, affected)


def ruled_prefetch(limit: int | None, rules: Iterable[Rule], slots: int) -> int | None:
    """The prefetch limit of a queue with rules; None: that of the runner.

    With partition keys it is the number of jobs that run at a time: more of them kept so many keys
    occupied that the jobs behind them had to be held, which cost more than the larger claims saved.
    """
    if any(isinstance(rule, GlobalConcurrency | Sequential) and rule.by for rule in rules):
        return slots if limit is None else min(limit, slots)
    return limit


def without_pause(queue: Queue) -> Queue:
    """The queue without its paused state: a change of anything else needs a new queue worker."""
    return replace(queue, paused=False, resume_at=None)
