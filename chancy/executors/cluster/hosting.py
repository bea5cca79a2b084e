"""The host of one attempt: a task of the cluster that runs the job in an executor process.

Tasks of Dask are threads, which cannot be stopped. In an executor process a job can be interrupted
and killed, has its limits, and leaves nothing behind in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Lost, Outcome, Released
from chancy.context.host import Progress
from chancy.executors.base import AttemptCallbacks
from chancy.executors.cluster.messages import (
    CheckpointStored,
    CompletionBegun,
    HostedCall,
    HostMessage,
    HostReady,
    ProgressReported,
    RecordLogged,
    StartRun,
    StillWanted,
    StopRun,
    StoreRequested,
    WorkerMessage,
)
from chancy.executors.process.answer import decode_error
from chancy.executors.process.executor import ProcessExecutor
from chancy.executors.setup import ExecutorSetup

#: Sends a message to the worker, from any thread.
Send = Callable[[HostMessage], None]

_lock = threading.Lock()
#: The runs of this process of the cluster.
_runs: dict[str, HostedRun] = {}


def host(call: HostedCall, place: str, send: Send) -> Outcome:
    """Run an attempt to its end, in a thread that has no event loop."""
    return asyncio.run(HostedRun(call, send).outcome(place))


def deliver(messages: Sequence[bytes]) -> None:
    """Pass messages of the worker to the runs of this process. From any thread."""
    for data in messages:
        message: WorkerMessage = pickle.loads(data)
        with _lock:
            run = _runs.get(message.run)
        if run is not None:
            with contextlib.suppress(RuntimeError):  # its loop has been closed
                run.loop.call_soon_threadsafe(run.receive, message)


class HostedRun:
    """One attempt in one executor process of its own.

    The job starts once the worker has confirmed that it wants it: a cluster may run a task again
    when it loses a machine, and the worker may have lost its lease while the task waited.
    """

    def __init__(self, call: HostedCall, send: Send) -> None:
        self._call = call
        self._send = send
        self._confirmed = asyncio.Event()
        self._stopped: Outcome | None = None
        self._numbers = itertools.count(1)
        self._storing: dict[int, asyncio.Future[None]] = {}
        self._executor: ProcessExecutor | None = None

    async def outcome(self, place: str) -> Outcome:
        self.loop = asyncio.get_running_loop()
        self._heard_at = self.loop.time()
        executor = self._executor = self._make_executor()
        with _lock:
            _runs[self._call.run] = self
        try:
            await executor.start()
            if executor.broken:
                return Released(f"on {place}: {executor.broken}")
            self._send(HostReady(self._call.run, place))
            return await self._watched(executor, place)
        finally:
            with _lock:
                if _runs.get(self._call.run) is self:
                    del _runs[self._call.run]
            await executor.stop()

    def _make_executor(self) -> ProcessExecutor:
        call = self._call
        setup = ExecutorSetup(
            concurrency=1,
            find=_unused,
            options=call.kind.options,
            limits=call.limits,
            callbacks=AttemptCallbacks(
                report=self._report,
                store=self._store,
                completing=lambda claim: self._send(CompletionBegun(call.run)),
            ),
        )
        return ProcessExecutor(setup, self._relay, call.kind)

    async def _watched(self, executor: ProcessExecutor, place: str) -> Outcome:
        """Run the job once the worker has confirmed it; stop it if no more messages arrive."""
        try:
            async with asyncio.timeout(self._call.contact_timeout_s):
                await self._confirmed.wait()
        except TimeoutError:
            return Released("its worker is gone")
        if self._stopped is not None:
            return self._stopped
        running = self.loop.create_task(executor.run(self._call.claim))
        while not running.done():
            unheard_s = self.loop.time() - self._heard_at
            if unheard_s >= self._call.contact_timeout_s:
                executor.interrupt(self._call.claim, Released("its worker is gone"))
            left = max(self._call.contact_timeout_s - unheard_s, 0.05)
            await asyncio.wait([running], timeout=left)
        outcome = await running
        if isinstance(outcome, Lost):
            return replace(outcome, why=f"{outcome.why}, on {place}", host=platform.node())
        return outcome

    def receive(self, message: WorkerMessage) -> None:
        """In the loop."""
        self._heard_at = self.loop.time()
        match message:
            case StillWanted():
                pass
            case StartRun():
                self._confirmed.set()
            case StopRun(_, outcome):
                if not self._confirmed.is_set():
                    self._stopped = outcome
                    self._confirmed.set()
                elif self._executor is not None:
                    self._executor.interrupt(self._call.claim, outcome)
            case CheckpointStored(_, number, error):
                self._settle(number, decode_error(error))
            case _:
                assert_never(message)

    def _settle(self, number: int, error: BaseException | None) -> None:
        stored = self._storing.pop(number, None)
        if stored is None or stored.done():
            return
        if error is None:
            stored.set_result(None)
        else:
            stored.set_exception(error)

    def _report(self, claim: Claim, progress: Progress) -> None:
        self._send(ProgressReported(self._call.run, progress.fraction, progress.text))

    def _relay(self, claim: Claim | None, level: int, body: bytes) -> None:
        self._send(RecordLogged(self._call.run, level, body))

    async def _store(self, claim: Claim, meta: str) -> None:
        number = next(self._numbers)
        stored = self._storing[number] = self.loop.create_future()
        self._send(StoreRequested(self._call.run, number, meta))
        await stored


def _unused(path: str) -> Callable[..., Any]:
    """Stand for the lookup of functions: the worker has looked it up before."""
    return _unused
