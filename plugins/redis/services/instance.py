"""One instance of a service in this worker, from its lease to its end."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from chancy.clock import is_being_cancelled
from chancy.containment import abandon
from chancy.errors import BrokerUnavailable, ChancyError, InvalidArguments, LeaseLost
from chancy.plugins.redis.services.base import (
    BlockingContext,
    Context,
    Service,
    ServiceError,
    ServiceState,
    Stopping,
    UnknownService,
)
from chancy.plugins.redis.services.leases import Ending, Taken
from chancy.plugins.redis.services.run import (
    Result,
    ServiceLoopRun,
    ServiceRun,
    ServiceThreadRun,
    is_async,
)
from chancy.plugins.redis.services.values import as_json, data_of, printable

logger = logging.getLogger("chancy.redis.services")

#: Maximum characters of a stored traceback; the last ones are kept.
_TRACE = 65_536
#: Seconds between two interruptions, and the grace period of a thread without a ``stop``.
_AGAIN_S = 0.5


class InstanceStore(Protocol):
    """The calls of an instance to Redis; ``patient`` ones are retried while it is unavailable."""

    async def apply_request(self, taken: Taken) -> tuple[Ending, str, str]: ...
    async def finish(
        self, taken: Taken, state: ServiceState, output: str, event: str, *, patient: bool
    ) -> bool | None: ...
    async def release(self, taken: Taken, *, patient: bool) -> str: ...
    async def emit(self, taken: Taken, event: str, data: object) -> None: ...
    def emit_now(self, taken: Taken, event: str, data: object) -> None: ...
    def check_soon(self, id: str) -> None: ...
    def failed(self, error: BaseException) -> None: ...


@dataclass(frozen=True, slots=True)
class _StopReason:
    """Why an instance stops: ``wanted`` (requested by a command), ``lost`` or ``closing``."""

    reason: str


_REQUESTED, _LOST, _CLOSING = _StopReason("wanted"), _StopReason("lost"), _StopReason("closing")


class Instance:
    """Runs one service, and runs it again after each reload.

    :param grace_s: seconds between ``stop`` and an interruption.
    """

    def __init__(
        self,
        taken: Taken,
        kinds: Mapping[str, type[Service]],
        store: InstanceStore,
        *,
        grace_s: float,
    ) -> None:
        self.taken = taken
        self._kinds = kinds
        self._store = store
        self._grace_s = grace_s
        self._loop = asyncio.get_running_loop()
        self._stop_reason: asyncio.Future[_StopReason] = self._loop.create_future()
        self._stopping = Stopping()
        self._applied_at = 0.0
        self._final: _StopReason | None = None
        #: The error of the last event that could not be published.
        self._publish_error: Exception | None = None
        self._ended = False
        self._abandoned = False
        #: The service's ``start``.
        self._ending: asyncio.Future[Result] | None = None

    # From any thread

    def request(self, wanted: str, asked: float) -> None:
        """Handle a request that a lease renewal sent at the time ``asked`` returned."""
        self._loop.call_soon_threadsafe(self._on_request, asked)

    def lose(self) -> None:
        """Stop because another worker may have the lease."""
        self._loop.call_soon_threadsafe(self._stop_for, _LOST)
        # Set at once, for threads: the loop may be blocked.
        self._stopping.flag.set()

    # In the loop

    def close(self) -> None:
        """Stop because the worker stops."""
        self._stop_for(_CLOSING)

    def give_up(self) -> None:
        """`lose`, before it has started."""
        self._stop_for(_LOST)

    def abandon(self) -> None:
        """Leave ``start`` to itself if it has not ended: the worker ends without it."""
        self._abandoned = True
        if isinstance(self._ending, asyncio.Task) and not self._ending.done():
            abandon(self._ending)

    @property
    def was_lost(self) -> bool:
        """Whether it has ended because its lease was lost."""
        return self._final is _LOST and not self._ended

    async def serve(self) -> None:
        """Run the service until it ends or is stopped, and record that."""
        while True:
            kind, data, result = self._prepare()
            if kind is not None:
                result = await self._run(kind, data)
            if result is not None:
                await self._finish(kind, result)
                return
            reason = self._final or self._stop_reason.result()
            if reason is not _REQUESTED:
                await self._release(reason)
                return
            if not await self._apply_request():
                return

    def _prepare(self) -> tuple[type[Service] | None, dict[str, Any], Result | None]:
        """The class and the data, or an error result if one of them is not valid."""
        kind = self._kinds.get(self.taken.name)
        if kind is None:
            known = ", ".join(sorted(self._kinds)) or "none"
            missing = UnknownService(
                f"this worker declares no service {self.taken.name!r}; it declares {known}"
            )
            return None, {}, Result(error=missing)
        try:
            return kind, data_of(self.taken.data), None
        except InvalidArguments as error:
            return None, {}, Result(error=error)

    async def _run(self, kind: type[Service], data: dict[str, Any]) -> Result | None:
        """Run once; return the result, None if it was stopped."""
        if self._final is not None:
            return None
        run = self._make(kind, data)
        ending = self._ending = run.start()
        both: tuple[asyncio.Future[Any], ...] = (ending, self._stop_reason)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            lost = self._stop_reason.done() and self._stop_reason.result() is _LOST
            if ending.done() and not lost:
                # It ended before it was asked to stop. With a lost lease, it may have noticed that.
                return ending.result()
            self._stopping.flag.set()
            self._stopping.event.set()
            await self._end(kind, run, ending)
            return None
        finally:
            if not ending.done():
                self.abandon()

    def _make(self, kind: type[Service], data: dict[str, Any]) -> ServiceRun:
        taken, stopping, store = self.taken, self._stopping, self._store
        if is_async(kind):

            async def emit(event: str, data: object) -> None:
                try:
                    await store.emit(taken, event, data)
                except (BrokerUnavailable, LeaseLost) as error:
                    self._publish_error = error
                    raise

            return ServiceLoopRun(kind, Context(taken.id, int(taken.token), data, stopping, emit))

        def emit_now(event: str, data: object) -> None:
            try:
                store.emit_now(taken, event, data)
            except (BrokerUnavailable, LeaseLost) as error:
                self._publish_error = error
                raise

        return ServiceThreadRun(
            kind, BlockingContext(taken.id, int(taken.token), data, stopping, emit_now)
        )

    async def _end(
        self, kind: type[Service], run: ServiceRun, ending: asyncio.Future[Result]
    ) -> None:
        """Stop a run, however long that takes: another instance must not start before."""
        await self._call_stop(run)
        has_stop = kind.stop is not Service.stop
        if kind.abrupt or (not has_stop and is_async(kind)):
            patience_s = 0.0
        else:
            patience_s = self._grace_s if has_stop else _AGAIN_S
        if not ending.done() and patience_s:
            await asyncio.wait([ending], timeout=patience_s)
        log_at = time.monotonic() + self._grace_s
        logged = False
        while not ending.done() and not self._abandoned:
            run.interrupt()
            await asyncio.wait([ending], timeout=_AGAIN_S)
            if not logged and not ending.done() and time.monotonic() > log_at:
                logged = True
                logger.error("service_stop_ignored service=%s", self.taken.id)

    async def _call_stop(self, run: ServiceRun) -> None:
        patience = asyncio.timeout(self._grace_s)
        try:
            async with patience:
                await run.stop()
        except BaseException as error:
            if self._abandoned:
                raise GeneratorExit from error  # the loop is gone: nothing can be awaited
            # A `stop` that cancels a task and awaits it raises the CancelledError of that task.
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            if isinstance(error, TimeoutError) and patience.expired():
                logger.warning(
                    "service_stop_timed_out service=%s grace_s=%g", self.taken.id, self._grace_s
                )
                return
            logger.exception("service_stop_failed service=%s", self.taken.id)
            self._store.failed(error)

    async def _finish(self, kind: type[Service] | None, result: Result) -> None:
        state, output, error = self._outcome(kind, result)
        # An error while Redis is unavailable is mostly caused by that: run again when it is back.
        blamed = error is not None and error is self._publish_error
        ours: bool | None = None
        if not blamed:
            event = f'{{"event":"{state.value.lower()}","data":{output}}}'
            ours = await self._store.finish(
                self.taken, state, output, event, patient=state is not ServiceState.EXCEPTION
            )
        if ours is None:
            logger.info("service_interrupted service=%s error=%r", self.taken.id, error)
            self._stop_for(_LOST)
            await self._release(_LOST)
            return
        self._ended = True
        if not ours:
            logger.warning("service_ended_without_lease service=%s", self.taken.id)
        if state is ServiceState.EXCEPTION and error is not None:
            logger.error(
                "service_raised service=%s name=%s", self.taken.id, self.taken.name, exc_info=error
            )
            self._store.failed(error)

    def _outcome(
        self, kind: type[Service] | None, result: Result
    ) -> tuple[ServiceState, str, BaseException | None]:
        error = result.error
        if error is None:
            try:
                output = as_json(result.value, f"the return value of {self.taken.name}")
                return ServiceState.SUCCESS, output, None
            except ChancyError as refused:
                error = refused
        wanted = kind.Error if kind is not None else ServiceError
        if isinstance(error, wanted):
            return (
                ServiceState.ERROR,
                as_json(printable(str(error))[-_TRACE:], "the message"),
                error,
            )
        trace = "".join(traceback.format_exception(error))
        return ServiceState.EXCEPTION, as_json(printable(trace)[-_TRACE:], "the traceback"), error

    async def _release(self, reason: _StopReason) -> None:
        if reason is _LOST:
            logger.warning(
                "service_lost service=%s name=%s: its lease could not be renewed in time, or it "
                "was removed",
                self.taken.id,
                self.taken.name,
            )
        await self._store.release(self.taken, patient=reason is _CLOSING)

    async def _apply_request(self) -> bool:
        """Carry out the request; return whether to run the service again."""
        ending, name, data = await self._store.apply_request(self.taken)
        if ending == "lost":
            self._stop_for(_LOST)
        if ending != "reload":
            return False
        taken = self.taken
        self.taken = Taken(taken.id, taken.token, name, data, taken.local)
        self._applied_at = time.monotonic()
        self._stop_reason = self._loop.create_future()
        self._stopping = Stopping()
        if self._final is not None:
            self._stopping.flag.set()
            self._stop_reason.set_result(self._final)
        return True

    def _on_request(self, asked: float) -> None:
        if asked < self._applied_at:
            # It may be the request that was just carried out; if not, the check returns it again.
            self._store.check_soon(self.taken.id)
        else:
            self._stop_for(_REQUESTED)

    def _stop_for(self, reason: _StopReason) -> None:
        if reason is not _REQUESTED:
            self._final = self._final or reason
        if not self._stop_reason.done():
            self._stop_reason.set_result(reason)
