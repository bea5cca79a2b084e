"""The threads that renew a worker's leases, and give up leases in time.

They are threads so that a CPU-bound service does not lose its lease. The thread that gives up
leases never calls Redis, so that a missing reply cannot delay it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugins.redis.services.leases import Leases

logger = logging.getLogger("chancy.redis.services")


@dataclass(slots=True)
class HeldLease:
    """A lease of this worker.

    :ivar until: its end by `time.monotonic` unless it is renewed.
    :ivar request: called with a requested action and the time at which Redis was queried.
    :ivar lose: called when another worker may have the lease.
    """

    id: str
    token: str
    until: float
    request: Callable[[str, float], None]
    lose: Callable[[], None]


class LeaseRenewal:
    """Renews all leases in one script, five times per lease.

    If a lease cannot be renewed, its instance is stopped when a fifth of it is left, even while a
    renewal waits for its reply.

    :param leases: with a client that waits for a reply no longer than `patience_s`.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._every_s = leases.lease_s / 5
        self._held: dict[str, HeldLease] = {}
        self._asked: set[str] = set()
        #: Guards `_held` and `_asked`; notified of a lease that may be the first to end.
        self._lock = threading.Condition()
        self._closing = threading.Event()
        self._soon = threading.Event()
        self._threads = (
            threading.Thread(target=self._serve, name="service leases", daemon=True),
            threading.Thread(target=self._watch, name="service lease ends", daemon=True),
        )
        self._away = False

    @staticmethod
    def patience_s(lease_s: float) -> float:
        """Return the timeout of a call in seconds: a reply after the lease would be too late."""
        return lease_s / 5

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads; block until a pending reply."""
        self._closing.set()
        self._soon.set()
        with self._lock:
            self._lock.notify()
        for thread in self._threads:
            thread.join()

    def hold(self, held: HeldLease) -> None:
        """Renew a lease from now on; an older lease of the same id is lost."""
        with self._lock:
            before = self._held.get(held.id)
            self._held[held.id] = held
            self._lock.notify()
        if before is not None:
            # A failover that lost the last writes can grant a lease that is still held here.
            before.lose()

    def drop(self, id: str, token: str) -> None:
        """Stop renewing a lease."""
        with self._lock:
            held = self._held.get(id)
            if held is not None and held.token == token:
                del self._held[id]

    def check_soon(self, id: str) -> None:
        """Check soon for a request, as after a notification."""
        with self._lock:
            self._asked.add(id)
        self._soon.set()

    def check_all_soon(self) -> None:
        """Check soon for requests of all services, as after an outage."""
        with self._lock:
            self._asked |= self._held.keys()
        self._soon.set()

    # The thread that calls Redis

    def _serve(self) -> None:
        due = time.monotonic() + self._every_s
        backoff = Backoff(base_s=0.05, cap_s=1.0)
        while not self._closing.is_set():
            try:
                named = self._wait(due)
                if time.monotonic() >= due:
                    due = time.monotonic() + self._every_s
                    self._renew(None)
                elif named:
                    self._renew(named)
            except BrokerError as error:
                self._log_unavailable(error)
                due = 0.0
                self._closing.wait(min(backoff.next_s(), self._every_s / 2))
            except Exception:
                logger.exception("service_renewal_failed owner=%s", self._leases.owner)
                self._closing.wait(backoff.next_s())
            else:
                backoff.reset()
                self._log_recovered()

    def _wait(self, due: float) -> set[str]:
        """Wait until the next renewal or a notification; return the ids that it names."""
        self._soon.wait(max(0.0, due - time.monotonic()))
        self._soon.clear()
        with self._lock:
            named = self._asked & self._held.keys()
            self._asked.clear()
            return named

    def _renew(self, named: set[str] | None) -> None:
        with self._lock:
            held = [lease for lease in self._held.values() if named is None or lease.id in named]
        if not held:
            return
        asked = time.monotonic()
        answers = self._leases.renew([(lease.id, lease.token) for lease in held])
        for lease, answer in zip(held, answers, strict=True):
            if answer == "lost":
                self._lose(lease)
            else:
                lease.until = asked + self._leases.lease_s
                if answer:
                    lease.request(answer, asked)

    def _lose(self, held: HeldLease) -> None:
        self.drop(held.id, held.token)
        held.lose()

    def _log_unavailable(self, error: BrokerError) -> None:
        if not self._away:
            self._away = True
            logger.warning("service_leases_not_renewed owner=%s: %s", self._leases.owner, error)

    def _log_recovered(self) -> None:
        if self._away:
            self._away = False
            logger.info("service_leases_recovered owner=%s", self._leases.owner)

    # The thread that does not call Redis

    def _watch(self) -> None:
        """Give up leases that could not be renewed, before another worker can claim them."""
        while not self._closing.is_set():
            for lease in self._over():
                try:
                    self._lose(lease)
                except Exception:
                    # Continue with the other leases.
                    logger.exception("service_renewal_failed owner=%s", self._leases.owner)

    def _over(self) -> list[HeldLease]:
        """Wait until a lease reaches its last fifth; return those that have."""
        with self._lock:
            edge = time.monotonic() + self._every_s
            over = [lease for lease in self._held.values() if lease.until <= edge]
            if not over and not self._closing.is_set():
                # A renewal in between only causes one needless check.
                first = min((lease.until for lease in self._held.values()), default=None)
                self._lock.wait(None if first is None else first - edge)
            return over
