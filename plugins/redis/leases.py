"""The leases of workers: renewed from a thread, which a busy event loop does not hold up."""

from __future__ import annotations

import asyncio
import logging
import threading
from uuid import UUID

from chancy.clock import Backoff
from chancy.errors import ChancyError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.standing import RedisPulse

logger = logging.getLogger("chancy.redis")

#: Renewals within the time of one lease.
_RENEWALS = 4


class Leases:
    """Says that the workers of this process live, from the first claim of each to its end.

    :param tag: the hash tag of the shard.
    """

    def __init__(self, settings: RedisSettings, tag: str) -> None:
        self._settings = settings
        self._tag = tag
        self._workers: dict[UUID, RedisPulse] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def renew(self, worker_id: UUID) -> None:
        """Renew the lease of a worker from now on."""
        if worker_id in self._workers:
            return
        with self._lock:
            self._workers[worker_id] = RedisPulse(self._settings, self._tag, worker_id)
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="chancy leases", daemon=True)
            self._thread.start()

    def forget(self, worker_id: UUID) -> None:
        """Renew it no longer."""
        with self._lock:
            self._workers.pop(worker_id, None)

    async def close(self) -> None:
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, self._settings.timeout_s + 1.0)

    def _run(self) -> None:
        every_s = self._settings.lease_s / _RENEWALS
        backoff = Backoff(base_s=0.1, cap_s=every_s)
        pulses: dict[UUID, RedisPulse] = {}
        pause_s = 0.0
        try:
            while not self._stopping.wait(pause_s):
                pause_s = every_s
                with self._lock:
                    wanted = dict(self._workers)
                for worker_id in pulses.keys() - wanted.keys():
                    pulses.pop(worker_id).close()
                pulses = wanted
                try:
                    for worker_id, pulse in pulses.items():
                        self._beat(worker_id, pulse)
                    backoff.reset()
                except ChancyError as error:
                    pause_s = backoff.next_s()
                    logger.warning("renewal_failed next_try_s=%.1f error=%s", pause_s, error)
        finally:
            for pulse in pulses.values():
                pulse.close()

    def _beat(self, worker_id: UUID, pulse: RedisPulse) -> None:
        known, _ = pulse.renew(again=True)
        if not known:
            # Its first, or others took what it had: those settlements will be stale.
            logger.debug("lease_begun worker=%s", worker_id)
