"""The worker of services: what runs here, and what it says to Redis."""

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
from typing import Any, TypeVar

from chancy.clock import Backoff
from chancy.errors import BrokerError, LeaseLost, StatementFailed
from chancy.plugins.redis.services.base import Service, ServiceState
from chancy.plugins.redis.services.instance import Instance
from chancy.plugins.redis.services.lease_renewal import HeldLease, LeaseRenewal
from chancy.plugins.redis.services.leases import Ending, Leases, Taken
from chancy.plugins.redis.services.run import in_thread
from chancy.plugins.redis.services.settings import Local, OnException, ServiceSettings, tell
from chancy.plugins.redis.services.supervision import Cleaner, Supervision
from chancy.plugins.redis.services.values import message
from chancy.plugins.redis.transport.sync_client import SyncRedisClient

logger = logging.getLogger("chancy.redis.services")

T = TypeVar("T")

#: Threads that speak to Redis for the copies.
_CLERKS = 4
#: Seconds for an answer to what is not urgent.
_PATIENCE_S = 5.0
#: Between two tries to say something while Redis is away.
_AGAIN_S = 1.0


class ServiceRuntime:
    """Runs services in this process until it is closed. One for each event loop.

    :param kinds: the classes by name.
    :param handlers: called with each unexpected exception.
    """

    def __init__(
        self,
        link: SyncRedisClient,
        kinds: Mapping[str, type[Service]],
        terms: ServiceSettings,
        handlers: Sequence[OnException],
        locals_: Sequence[Local] = (),
    ) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._kinds = kinds
        self._terms = terms
        self._handlers = handlers
        self._brisk = link.within(LeaseRenewal.patience_s(terms.lease_s))
        self._patient = link.within(_PATIENCE_S)
        self._ledger = Leases(self._patient, self.owner, terms.lease_s)
        # Events wait for each other, and hold up nothing else.
        self._loud = link.within(_PATIENCE_S)
        self._events = Leases(self._loud, self.owner, terms.lease_s)
        self._keeper = LeaseRenewal(Leases(self._brisk, self.owner, terms.lease_s))
        self._attendant = Supervision(
            self._ledger,
            room=self._room,
            take=self._take,
            restore=self._restore,
            sweep=terms.monitor,
            keep_s=terms.keep_s,
        )
        self._cleaner = (
            Cleaner(self._ledger, terms.handler, self.failed, lease_s=terms.handler_s)
            if terms.cleanup
            else None
        )
        self._clerks = ThreadPoolExecutor(_CLERKS, thread_name_prefix="service clerk")
        self._speakers = ThreadPoolExecutor(_CLERKS, thread_name_prefix="service events")
        self._lock = threading.Lock()
        #: Local services that are to run and do not.
        self._missing = list(locals_)
        self._taken = 0
        self._copies: dict[str, asyncio.Task[None]] = {}
        self._live: set[Instance] = set()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # Its course

    async def serve(self) -> None:
        """Run services until cancelled; then stop them and give them back."""
        self._loop = asyncio.get_running_loop()
        self._keeper.start()
        self._attendant.start()
        if self._cleaner is not None:
            self._cleaner.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._close()

    def add_local(self, local: Local) -> None:
        """Run one more service that is for this worker only."""
        with self._lock:
            self._missing.append(local)

    async def _close(self) -> None:
        self._closing = True
        if self._cleaner is not None:
            self._cleaner.stop()
        self._attendant.stop()
        for copy in list(self._live):
            copy.close()
        # Whoever is taken until the thread has ended is given back with the others. Those that it
        # hands over are in the loop's line before its end is.
        await _unbroken(in_thread(self._attendant.close, "services end"))
        if self._copies:
            # Stop, interruption, and the word to Redis.
            patience_s = 2 * self._terms.grace_s + 2 * _AGAIN_S
            await _unbroken(asyncio.wait(list(self._copies.values()), timeout=patience_s))
        for copy in self._live:
            logger.error(
                "service_left_running service=%s: its lease ends with this process",
                copy.taken.id,
            )
        await _unbroken(in_thread(self._end_threads, "services end"))
        for pool in (self._clerks, self._speakers):
            pool.shutdown(wait=False, cancel_futures=True)

    def _end_threads(self) -> None:
        self._keeper.close()
        if self._cleaner is not None:
            self._cleaner.close(self._terms.grace_s)
        for link in (self._brisk, self._patient, self._loud):
            link.close()

    # Copies: called by the attendant, in its thread

    def _room(self) -> int:
        with self._lock:
            return self._terms.concurrency - self._taken

    def _take(self, taken: Taken, asked: float) -> None:
        loop = self._loop
        assert loop is not None
        with self._lock:
            self._taken += 1
        until = asked + self._terms.lease_s
        loop.call_soon_threadsafe(self._begin, taken, until)

    def _restore(self) -> None:
        with self._lock:
            missing, self._missing = self._missing, []
        for at, local in enumerate(missing):
            try:
                asked = time.monotonic()
                taken = self._ledger.claim_local(local.id, local.name, local.data)
            except BrokerError:
                with self._lock:
                    self._missing += missing[at:]
                raise
            if taken is None:
                logger.error("local_service_runs_elsewhere service=%s", local.id)
            else:
                self._take(taken, asked)

    # Copies: in the loop

    def _begin(self, taken: Taken, until: float) -> None:
        copy = Instance(taken, self._kinds, self, grace_s=self._terms.grace_s)
        self._live.add(copy)
        self._keeper.hold(HeldLease(taken.id, taken.token, until, copy.want, copy.lose))
        before = self._copies.get(taken.id)
        task = asyncio.create_task(self._live_out(copy, before), name=f"copy {taken.id}")
        self._copies[taken.id] = task
        if self._closing:
            copy.close()
        elif time.monotonic() >= until:
            # The loop was busy for so long that another may have it.
            copy.give_up()

    async def _live_out(self, copy: Instance, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                # The copy of a lease that was lost may still be about to stop.
                await asyncio.wait([before])
            await copy.live()
        except Exception:
            logger.exception("service_copy_failed service=%s", copy.taken.id)
        finally:
            self._over(copy)

    def _over(self, copy: Instance) -> None:
        taken = copy.taken
        self._keeper.drop(taken.id, taken.token)
        self._live.discard(copy)
        if self._copies.get(taken.id) is asyncio.current_task():
            del self._copies[taken.id]
        with self._lock:
            self._taken -= 1
            if taken.local and copy.was_lost and not self._closing:
                self._missing.append(Local(taken.id, taken.name, taken.data))
        self._attendant.freed.set()

    # What copies say to Redis

    async def obey(self, taken: Taken) -> tuple[Ending, str, str]:
        found = await self._say(lambda: self._ledger.obey(taken.id, taken.token))
        return found or ("lost", "", "")

    async def finish(
        self, taken: Taken, state: ServiceState, output: str, event: str, *, patient: bool
    ) -> bool | None:
        def work() -> bool:
            return self._ledger.finish(taken.id, taken.token, state.value, output, event)

        return await self._say(work, patient=patient)

    async def release(self, taken: Taken, *, patient: bool) -> str:
        def work() -> str:
            return self._ledger.release(taken.id, taken.token)

        # If nobody hears it, whoever sweeps finds it.
        return await self._say(work, patient=patient) or "lost"

    async def emit(self, taken: Taken, event: str, data: object) -> None:
        text = message(event, data)

        def work() -> bool:
            return self._events.emit(taken.id, taken.token, text)

        _check(taken, await asyncio.get_running_loop().run_in_executor(self._speakers, work))

    def emit_now(self, taken: Taken, event: str, data: object) -> None:
        _check(taken, self._events.emit(taken.id, taken.token, message(event, data)))

    def ask(self, id: str) -> None:
        self._keeper.ask(id)

    def failed(self, error: BaseException) -> None:
        tell(self._handlers, error)

    async def _say(self, work: Callable[[], T], *, patient: bool = True) -> T | None:
        """Say it until it is heard; None if the worker ends before, or at once if it cannot be."""
        backoff = Backoff(base_s=0.1, cap_s=_AGAIN_S)
        till: float | None = None
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._clerks, work)
            except BrokerError as error:
                if isinstance(error, StatementFailed) and not error.retryable:
                    raise
                if not patient:
                    return None
                if self._closing:
                    till = till or time.monotonic() + self._terms.grace_s
                    if time.monotonic() > till:
                        return None
                await asyncio.sleep(backoff.next_s())


def _check(taken: Taken, ours: bool) -> None:
    if not ours:
        raise LeaseLost(f"the service {taken.id} is no longer run by this worker: let it end")


async def _unbroken(work: Coroutine[Any, Any, T]) -> None:
    """Wait for it, also if the worker is cancelled a second time: its end is bounded."""
    future = asyncio.ensure_future(work)
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            continue
