"""The job loop of an executor process for quarantined jobs.

It runs one job at a time as the worker would: with the executor of the queue, in an event loop in
which the application is open, and inside the `around` hooks.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from importlib import import_module
from types import TracebackType
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Cancelled, Outcome, TimedOut
from chancy.context.context import Progress
from chancy.errors import ConfigurationError, LeaseLost
from chancy.executors.base import AttemptCallbacks, Executor
from chancy.executors.process import answer as answers
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import MAX_CALL, ChildCall
from chancy.executors.process.child.job_loop import JobLoop
from chancy.executors.process.protocol import packed
from chancy.executors.process.settings import JobEnvironment
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.job.limits import Limit, encode_limits
from chancy.plugin.hooks import Hooks
from chancy.queue.executor_kind import decode_options, executor_kind
from chancy.queue.executor_options import ExecutorOptions, encode_options
from chancy.worker.middleware import AroundHooks

_NOBODY = UUID(int=0)


@runtime_checkable
class IsolatedApplication(Protocol):
    """The part of `chancy.app.Chancy` that an executor process uses."""

    import_path: str | None

    @property
    def hooks(self) -> Hooks: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def environment_of(
    application: IsolatedApplication, executor: str, options: ExecutorOptions | None
) -> JobEnvironment | None:
    """The environment of an application's jobs; None if another process cannot import it.

    It can if the application was named by ``--app``, or if a module other than ``__main__`` has it
    as an attribute.
    """
    path = application.import_path or _attribute_of(application)
    if path is None:
        return None
    return JobEnvironment(
        job_loop=f"{__name__}.{IsolatedJobLoop.__name__}",
        application=path,
        details=json.dumps({"executor": executor, "options": encode_options(options)}),
    )


def _attribute_of(application: object) -> str | None:
    for name, module in list(sys.modules.items()):
        if name != "__main__":
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is application:
                    return f"{name}:{attribute}"
    return None


class IsolatedJobLoop(JobLoop):
    """The main loop of an executor process that opens the application, and runs jobs of any
    executor."""

    def serve(self) -> None:
        """Run calls until the worker closes the channel."""
        self._stack = AsyncExitStack()
        self._claim: Claim | None = None
        self._stops: dict[int, Cancelled] = {}
        with asyncio.Runner() as self._runner:
            if self.prepare():
                self._runner.run(self._serve())

    def _initialized(self) -> bool:
        try:
            self._runner.run(self._open())
        except BaseException as error:
            self._log_handler.end()
            body = json.dumps(Failure.of(error).as_json()).encode()
            self._connection.send(packed(frames.UNREADY, body=body))
            return False
        return True

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        environment = self._kind.environment
        assert environment is not None
        application = _imported(environment.application)
        await self._stack.enter_async_context(application)
        details = json.loads(environment.details)
        name: str = details["executor"]
        setup = ExecutorSetup(
            concurrency=1,
            find=self._dispatcher.find,
            max_payload=self._kind.max_payload,
            options=decode_options(details["options"], name) or executor_kind(name).options(),
            callbacks=AttemptCallbacks(
                report=self._say,
                store=self._store,
                completing=self._completing,
                completion=self._requests.completion,
                plain_errors=self._kind.plain_errors,
            ),
        )
        executor = make_executor(name, setup)
        around = application.hooks.around
        plain = self._kind.plain_errors
        self._executor: Executor = (
            AroundHooks(executor, around, plain_errors=plain) if around else executor
        )
        await self._executor.start()
        self._stack.push_async_callback(self._executor.stop)

    async def _serve(self) -> None:
        async with self._stack:
            self._calls.setblocking(False)
            while message := await self._next_message():
                await self._perform(ChildCall(message))

    async def _next_message(self) -> bytes:
        try:
            return await self._loop.sock_recv(self._calls, MAX_CALL)
        except OSError:
            os._exit(1)  # a job has closed it

    async def _perform(self, call: ChildCall) -> None:
        self._busy = True
        self._number = call.number
        if not call.whole:
            self._fetch(call)
        self._load(call)
        self._call = call
        self._progress.begin(call)
        self._claim = _claim_of(call)
        outcome = self._stops.get(call.number) or await self._executor.run(self._claim)
        self._claim = None
        if self._connection.forked:
            os._exit(0)
        self._progress.end()
        self._log_handler.end()
        self._busy = False
        self._connection.send(self._reply(call, outcome))

    def _reply(self, call: ChildCall, outcome: Outcome) -> bytes:
        stop = self._stops.pop(call.number, None)
        if isinstance(outcome, TimedOut) or (isinstance(outcome, Cancelled) and outcome is stop):
            at_limit = isinstance(outcome, TimedOut)
            why = "" if stop is None else stop.why
            return answers.stopped(call, outcome.elapsed_s, why, at_limit)
        return answers.answer(call, outcome)

    def _stop(self, number: int, why: str) -> None:
        # In a signal handler: the job may be in the middle of a step.
        self._loop.call_soon_threadsafe(self._interrupt, number, Cancelled(why))

    def _interrupt(self, number: int, outcome: Cancelled) -> None:
        if number >= self._number and number not in self._stops:
            self._stops[number] = outcome
            if number == self._number and self._claim is not None:
                self._executor.interrupt(self._claim, outcome)

    # Callbacks of the executor. A job may leave a task behind, which uses them later.

    def _say(self, claim: Claim, progress: Progress) -> None:
        if self._runs(claim):
            self._requests.say(self._call, progress)

    async def _store(self, claim: Claim, meta: str) -> None:
        if not self._runs(claim):
            raise LeaseLost("the attempt has ended")
        await self._requests.keep(self._call, meta)

    def _completing(self, claim: Claim) -> None:
        if self._runs(claim):
            self._requests.completing(self._call)

    def _runs(self, claim: Claim) -> bool:
        """Whether an attempt is the current one."""
        current = self._claim
        return current is not None and (claim.id, claim.lease) == (current.id, current.lease)


def _imported(path: str) -> IsolatedApplication:
    """The application at a path. An attribute may be a function that makes it, or an object that
    has it as its ``chancy``."""
    module, _, attributes = path.partition(":")
    found: Any = import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute, None)
    if not isinstance(found, IsolatedApplication):
        inner = getattr(found, "chancy", None)
        found = inner if isinstance(inner, IsolatedApplication) else found
    if callable(found) and not isinstance(found, IsolatedApplication):
        found = found()
    if not isinstance(found, IsolatedApplication):
        raise ConfigurationError(
            f"there is no application at {path} when it is imported again: make the application at "
            "the top level of a module, so that jobs that crash can be isolated"
        )
    return found


def _claim_of(call: ChildCall) -> Claim:
    return Claim(
        id=call.id,
        lease=call.lease,
        worker_id=_NOBODY,
        queue=call.queue,
        func=call.func,
        arguments=call.arguments or None,
        attempt=call.attempt,
        max_attempts=call.max_attempts,
        crashes=call.crashes,
        priority=0,
        position=0,
        meta=call.meta,
        limits=encode_limits((Limit.time(call.time_s),)) if call.time_s else None,
    )
