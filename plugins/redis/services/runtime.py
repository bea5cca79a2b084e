"""The service worker: runs instances in one process and makes their calls to Redis."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from chancy.clock import Backoff
from chancy.containment import abandon
from chancy.errors import BrokerError, LeaseLost, StatementFailed
from chancy.plugins.redis.services.base import Service, ServiceState
from chancy.plugins.redis.services.instance import Instance
from chancy.plugins.redis.services.lease_renewal import HeldLease, LeaseRenewal
from chancy.plugins.redis.services.leases import Ending, Leases, Taken
from chancy.plugins.redis.services.run import in_thread
from chancy.plugins.redis.services.service_link import ServiceLink
from chancy.plugins.redis.services.settings import (
    Local,
    OnException,
    ServiceSettings,
    notify_handlers,
)
from chancy.plugins.redis.services.supervision import Cleaner, Supervision
from chancy.plugins.redis.services.values import message
from chancy.plugins.redis.transport.blocking_reads import watching

logger = logging.getLogger("chancy.redis.services")

T = TypeVar("T")

#: Threads that call Redis for the instances.
_THREADS = 4
#: Timeout in seconds of calls that are not urgent.
_PATIENCE_S = 5.0
#: Maximum seconds between two attempts while Redis is unavailable.
_AGAIN_S = 1.0
#: Requests that are read at once; about as many as their stream keeps.
_REQUESTS = 1_000


class ServiceRuntime:
    """Runs services in this process until it is cancelled. One for each event loop.

    :param kinds: the classes by name.
    :param handlers: called with each unexpected exception.
    """

    def __init__(
        self,
        link: ServiceLink,
        kinds: Mapping[str, type[Service]],
        settings: ServiceSettings,
        handlers: Sequence[OnException],
        locals_: Sequence[Local] = (),
    ) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._link = link
        self._kinds = kinds
        self._settings = settings
        self._handlers = handlers
        self._leases = Leases(link.within(_PATIENCE_S), self.owner, settings.lease_s)
        patient = link.within(LeaseRenewal.patience_s(settings.lease_s))
        self._renewal = LeaseRenewal(Leases(patient, self.owner, settings.lease_s))
        self._supervision = Supervision(
            self._leases,
            room=self._room,
            take=self._take,
            restore=self._restore,
            sweep=settings.monitor,
            keep_s=settings.keep_s,
        )
        self._cleaner = (
            Cleaner(self._leases, settings.handler, self.failed, lease_s=settings.handler_s)
            if settings.cleanup
            else None
        )
        self._store_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="service clerk")
        self._event_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="service events")
        self._lock = threading.Lock()
        #: Local services that should run but do not.
        self._missing = list(locals_)
        self._taken = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._live: dict[Instance, asyncio.Task[None]] = {}
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # Lifecycle

    async def serve(self) -> None:
        """Run services until cancelled; then stop and release them."""
        self._loop = asyncio.get_running_loop()
        self._renewal.start()
        self._supervision.start()
        if self._cleaner is not None:
            self._cleaner.start()
        try:
            await self._receive_requests()
        finally:
            await self._close()

    async def _receive_requests(self) -> None:
        """Renew leases as soon as there is a request, and claim what is queued.

        Renewals return all other requests, and a claim all other services, too.
        """
        redis, control = self._link.redis, self._link.keys.control
        backoff = Backoff(base_s=0.05, cap_s=_AGAIN_S)
        async with watching(redis, control) as watch:
            last = ""
            while True:
                try:
                    if not last:
                        found = await redis.command("XREVRANGE", control, "+", "-", "COUNT", 1)
                        last = found[0][0].decode() if found else "0-0"
                        self._renewal.check_all_soon()
                        self._supervision.wake()
                    await watch.arrived(control, last)
                    read = await redis.command(
                        "XREAD", "COUNT", _REQUESTS, "STREAMS", control, last
                    )
                    for xid, fields in read[0][1] if read else ():
                        last = xid.decode()
                        self._renewal.check_soon(fields.get(b"id", b"").decode(errors="replace"))
                    if read and len(read[0][1]) == _REQUESTS:
                        self._renewal.check_all_soon()  # some may have been trimmed
                    self._supervision.wake()
                    backoff.reset()
                except BrokerError:
                    last = ""
                    await asyncio.sleep(backoff.next_s())

    def add_local(self, local: Local) -> None:
        """Add a service that runs in this worker only."""
        with self._lock:
            self._missing.append(local)
        self._supervision.wake()

    async def _close(self) -> None:
        self._closing = True
        if self._cleaner is not None:
            self._cleaner.stop()
        self._supervision.stop()
        for instance in list(self._live):
            instance.close()
        # Services claimed before the thread ends are released with the others: their callbacks are
        # scheduled in the loop before the end of the thread is.
        await _uninterrupted(in_thread(self._supervision.close, "services end"))
        if self._live:
            # Time for ``stop``, an interruption and the call to Redis.
            patience_s = 2 * self._settings.grace_s + 2 * _AGAIN_S
            await _uninterrupted(asyncio.wait(list(self._live.values()), timeout=patience_s))
        if self._live:
            await _uninterrupted(self._abandon(dict(self._live)))
        await _uninterrupted(in_thread(self._end_threads, "services end"))
        for pool in (self._store_threads, self._event_threads):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _abandon(self, left: Mapping[Instance, asyncio.Task[None]]) -> None:
        """Leave instances to themselves that ignore their interruption."""
        for instance, task in left.items():
            logger.error(
                "service_left_running service=%s: it ignores its interruption; its lease is no "
                "longer renewed, and ends within %g s",
                instance.taken.id,
                self._settings.lease_s,
            )
            task.cancel()
        await asyncio.wait(left.values(), timeout=_AGAIN_S)
        for instance, task in left.items():
            if not task.done():  # in its ``stop``
                instance.abandon()
                abandon(task)

    def _end_threads(self) -> None:
        self._renewal.close()
        if self._cleaner is not None:
            self._cleaner.close(self._settings.grace_s)

    # Called by `Supervision`, in its thread

    def _room(self) -> int:
        with self._lock:
            return self._settings.concurrency - self._taken

    def _take(self, taken: Taken, asked: float) -> None:
        loop = self._loop
        assert loop is not None
        with self._lock:
            self._taken += 1
        until = asked + self._settings.lease_s
        loop.call_soon_threadsafe(self._start, taken, until)

    def _restore(self) -> None:
        with self._lock:
            missing, self._missing = self._missing, []
        for at, local in enumerate(missing):
            try:
                asked = time.monotonic()
                taken = self._leases.claim_local(local.id, local.name, local.data)
            except BrokerError:
                with self._lock:
                    self._missing += missing[at:]
                raise
            if taken is None:
                logger.error("local_service_refused service=%s", local.id)
            else:
                self._take(taken, asked)

    # In the loop

    def _start(self, taken: Taken, until: float) -> None:
        instance = Instance(taken, self._kinds, self, grace_s=self._settings.grace_s)
        self._renewal.hold(HeldLease(taken.id, taken.token, until, instance.request, instance.lose))
        before = self._tasks.get(taken.id)
        task = asyncio.create_task(
            self._run_instance(instance, before), name=f"instance {taken.id}"
        )
        self._tasks[taken.id] = self._live[instance] = task
        if self._closing:
            instance.close()
        elif time.monotonic() >= until:
            # The loop was blocked for so long that another worker may have the lease.
            instance.give_up()

    async def _run_instance(self, instance: Instance, before: asyncio.Task[None] | None) -> None:
        # At the end, an abandoned task has no loop.
        task = asyncio.current_task()
        try:
            if before is not None:
                # The instance of an older, lost lease may still be stopping.
                await asyncio.wait([before])
            await instance.serve()
        except Exception:
            logger.exception("service_copy_failed service=%s", instance.taken.id)
        finally:
            self._ended(instance, task)

    def _ended(self, instance: Instance, task: asyncio.Task[None] | None) -> None:
        taken = instance.taken
        self._renewal.drop(taken.id, taken.token)
        self._live.pop(instance, None)
        if self._tasks.get(taken.id) is task:
            del self._tasks[taken.id]
        with self._lock:
            self._taken -= 1
            lost = taken.local and instance.was_lost and not self._closing
            if lost:
                self._missing.append(Local(taken.id, taken.name, taken.data))
        self._supervision.wake()
        if self._cleaner is not None:
            self._cleaner.wake()

    # `InstanceStore`

    async def apply_request(self, taken: Taken) -> tuple[Ending, str, str]:
        found = await self._retry(lambda: self._leases.apply_request(taken.id, taken.token))
        return found or ("lost", "", "")

    async def finish(
        self, taken: Taken, state: ServiceState, output: str, event: str, *, patient: bool
    ) -> bool | None:
        work = partial(self._leases.finish, taken.id, taken.token, state.value, output, event)
        return await self._retry(work, patient=patient)

    async def release(self, taken: Taken, *, patient: bool) -> str:
        work = partial(self._leases.release, taken.id, taken.token)
        # If this fails, a sweep finds the service when its lease ends.
        return await self._retry(work, patient=patient) or "lost"

    async def emit(self, taken: Taken, event: str, data: object) -> None:
        work = partial(self._leases.emit, taken.id, taken.token, message(event, data))
        _check(taken, await asyncio.get_running_loop().run_in_executor(self._event_threads, work))

    def emit_now(self, taken: Taken, event: str, data: object) -> None:
        _check(taken, self._leases.emit(taken.id, taken.token, message(event, data)))

    def check_soon(self, id: str) -> None:
        self._renewal.check_soon(id)

    def failed(self, error: BaseException) -> None:
        notify_handlers(self._handlers, error)

    async def _retry(self, work: Callable[[], T], *, patient: bool = True) -> T | None:
        """Retry a call until Redis answers; return None if the worker stops, or not patient."""
        backoff = Backoff(base_s=0.1, cap_s=_AGAIN_S)
        till: float | None = None
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._store_threads, work)
            except BrokerError as error:
                if isinstance(error, StatementFailed) and not error.retryable:
                    raise
                if not patient:
                    return None
                if self._closing:
                    till = till or time.monotonic() + self._settings.grace_s
                    if time.monotonic() > till:
                        return None
                await asyncio.sleep(backoff.next_s())


def _check(taken: Taken, ours: bool) -> None:
    if not ours:
        raise LeaseLost(f"this worker no longer has the lease of the service {taken.id}: end it")


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> None:
    """Await bounded work even if the worker is cancelled a second time."""
    future = asyncio.ensure_future(work)
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            continue
