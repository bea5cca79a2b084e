"""One instance of a service in this worker: from the lease it was given to the end of it."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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

#: Characters of a traceback that are kept: the last ones.
_TRACE = 65_536
#: Seconds between two interruptions, and for a thread that only asks whether it is to stop.
_AGAIN_S = 0.5


class InstanceStore(Protocol):
    """What a instance says to Redis: again and again while Redis is away, if it is ``patient``."""

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
    """Why a instance stops: ``wanted``, ``lost``, or ``closing``."""

    reason: str


_REQUESTED, _LOST, _CLOSING = _StopReason("wanted"), _StopReason("lost"), _StopReason("closing")


class Instance:
    """Runs one service, again with each reload.

    :param grace_s: between ``stop`` and an interruption.
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
        #: Of the last event that could not be published.
        self._publish_error: Exception | None = None
        self._ended = False

    # From any thread

    def request(self, wanted: str, asked: float) -> None:
        """Something is wanted of the service, as a renewal of that time has said."""
        self._loop.call_soon_threadsafe(self._on_request, asked)

    def lose(self) -> None:
        """The lease may be another's."""
        self._loop.call_soon_threadsafe(self._stop_for, _LOST)
        # Not only once the loop is free: a thread may look at it.
        self._stopping.flag.set()

    # In the loop

    def close(self) -> None:
        """The worker ends."""
        self._stop_for(_CLOSING)

    def give_up(self) -> None:
        """`lose`, before it has begun."""
        self._stop_for(_LOST)

    @property
    def was_lost(self) -> bool:
        """Whether it has ended because its lease was lost."""
        return self._final is _LOST and not self._ended

    async def serve(self) -> None:
        """Run it until it ends or is stopped, and write that down."""
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
        """The class and the data, or reason there is none of them."""
        kind = self._kinds.get(self.taken.name)
        if kind is None:
            known = ", ".join(sorted(self._kinds)) or "none"
            missing = UnknownService(
                f"this worker knows no service {self.taken.name!r}; it knows {known}"
            )
            return None, {}, Result(error=missing)
        try:
            return kind, data_of(self.taken.data), None
        except InvalidArguments as error:
            return None, {}, Result(error=error)

    async def _run(self, kind: type[Service], data: dict[str, Any]) -> Result | None:
        """The result of a run; None if it was stopped."""
        if self._final is not None:
            return None
        run = self._make(kind, data)
        ending = run.start()
        both: tuple[asyncio.Future[Any], ...] = (ending, self._stop_reason)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and not (self._stop_reason.done() and self._stop_reason.result() is _LOST):
            # It has ended before it could hear that it is to stop. Of a lost lease it may have.
            return ending.result()
        self._stopping.flag.set()
        self._stopping.event.set()
        await self._end(kind, run, ending)
        return None

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
        """Stop a run, however long that takes: another instance must not begin before."""
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
        while not ending.done():
            run.interrupt()
            await asyncio.wait([ending], timeout=_AGAIN_S)
            if not logged and not ending.done() and time.monotonic() > log_at:
                logged = True
                logger.error("service_does_not_stop service=%s", self.taken.id)

    async def _call_stop(self, run: ServiceRun) -> None:
        patience = asyncio.timeout(self._grace_s)
        try:
            async with patience:
                await run.stop()
        except Exception as error:
            if isinstance(error, TimeoutError) and patience.expired():
                logger.warning(
                    "service_stop_takes_long service=%s grace_s=%g", self.taken.id, self._grace_s
                )
                return
            logger.exception("service_stop_failed service=%s", self.taken.id)
            self._store.failed(error)

    async def _finish(self, kind: type[Service] | None, result: Result) -> None:
        state, output, error = self._outcome(kind, result)
        # What fails while Redis is away mostly fails for that, and begins anew when it is back.
        blamed = error is not None and error is self._publish_error
        ours: bool | None = None
        if not blamed:
            event = f'{{"event":"{state.value.lower()}","data":{output}}}'
            ours = await self._store.finish(
                self.taken, state, output, event, patient=state is not ServiceState.EXCEPTION
            )
        if ours is None:
            logger.info("service_fails_for_redis service=%s error=%r", self.taken.id, error)
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
                output = as_json(result.value, f"what {self.taken.name} returned")
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
        """Do what is wanted; whether to run it again."""
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
            # It may be what was done by now; if not, it is said again.
            self._store.check_soon(self.taken.id)
        else:
            self._stop_for(_REQUESTED)

    def _stop_for(self, reason: _StopReason) -> None:
        if reason is not _REQUESTED:
            self._final = self._final or reason
        if not self._stop_reason.done():
            self._stop_reason.set_result(reason)
