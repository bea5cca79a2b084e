"""The threads that claim queued services, sweep for ended leases, and clean up."""

from __future__ import annotations

import importlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from chancy.clock import Backoff
from chancy.errors import BrokerError, ConfigurationError
from chancy.plugins.redis.services.leases import SWEPT_AT_ONCE, EndedService, Leases, Passed, Taken
from chancy.text import shown

logger = logging.getLogger("chancy.redis.services")

#: Called with the id of a service that has ended and the fields of its hash.
Handler = Callable[[str, dict[str, str]], object]

#: Maximum seconds between two calls of an idle worker. A queued service ends the wait at once, but
#: not one that another program has queued without an entry in the stream.
_IDLE_S = 4.0
#: Seconds between two checks for room of a worker that has none.
_FULL_S = 0.25
#: Maximum services of one script.
_CLAIMED_AT_ONCE = 50
_FORGOTTEN_AT_ONCE = 50
#: Maximum sweeps in a row, so 10,000 services, before services are claimed again.
_SWEEPS = 100
#: The part of the interval in which a sweep of one worker replaces those of others: less than all,
#: so that a worker that is alone sweeps each time.
_SWEPT = 0.9
#: The intervals until a worker whose sweep was skipped tries again: only the last that swept must
#: be on time, and the others replace it within one lease.
_SKIPPED = (1.5, 2.0)
#: Maximum seconds to a check for ended services after one has ended here; doubled up to `_IDLE_S`
#: by each check that finds none.
_TIDY_EVERY_S = 0.9
#: Failures of a handler after which its service is removed anyway.
_TIDY_TRIES = 5
#: Seconds until a service RUNNING without a lease is presumed dead.
ADOPT_S = 60.0


class Supervision:
    """Claims queued services while there is room, and sweeps, five times per lease of all workers.

    :param room: returns how many more services may run here now.
    :param take: called in the thread with each claimed service and the time of the request.
    :param restore: called before each claim, to recreate local services.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        room: Callable[[], int],
        take: Callable[[Taken, float], None],
        restore: Callable[[], None],
        sweep: bool,
        keep_s: float,
    ) -> None:
        self._leases = leases
        self._room = room
        self._take = take
        self._restore = restore
        self._sweeps = sweep
        self._keep_s = keep_s
        self._due = 0.0
        self._closing = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="service claims", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Claim no more services; a claim in flight is completed."""
        self._closing.set()
        self.wake()

    def wake(self) -> None:
        """End the wait: a service was queued or has ended, or a local one is to be created."""
        self._woken.set()

    def close(self) -> None:
        """`stop`, then block until the thread ends: at most two replies."""
        self.stop()
        self._thread.join()

    def _serve(self) -> None:
        backoff = Backoff(base_s=0.05, cap_s=1.0)
        while not self._closing.is_set():
            self._woken.clear()
            try:
                self._restore()
                self._sweep()
                # After a failure claim one: services of a lost reply wait for their leases to end.
                self._claim(1 if backoff.failures else _CLAIMED_AT_ONCE)
            except BrokerError as error:
                if not backoff.failures:
                    logger.warning("services_not_taken owner=%s: %s", self._leases.owner, error)
                self._closing.wait(backoff.next_s())
            except Exception:
                logger.exception("service_claim_failed owner=%s", self._leases.owner)
                self._closing.wait(backoff.next_s())
            else:
                backoff.reset()

    def _claim(self, most: int) -> None:
        room = self._room()
        if room <= 0:
            self._woken.wait(_FULL_S)
            return
        asked = time.monotonic()
        found = self._leases.claim(min(room, most))
        for service in found:
            match service:
                case Taken():
                    self._take(service, asked)
                case Passed(why="missing"):
                    logger.warning("service_without_record service=%s", service.id)
                case Passed():
                    logger.info("service_passed service=%s why=%s", service.id, service.why)
        if not found:
            self._wait()

    def _wait(self) -> None:
        """Wait until a service is queued, the next sweep is due, or `wake` is called."""
        if self._sweeps:
            wait_s = min(_IDLE_S, max(0.0, self._due - time.monotonic()))
        else:
            wait_s = _IDLE_S * random.uniform(0.5, 1.0)
        if not self._closing.is_set():
            self._woken.wait(wait_s)

    def _sweep(self) -> None:
        if self._sweeps and time.monotonic() >= self._due:
            every_s = self._leases.lease_s / 5
            swept = sweep(self._leases, keep_s=self._keep_s, every_s=every_s * _SWEPT)
            factor = 1.0 if swept else random.uniform(*_SKIPPED)
            self._due = time.monotonic() + every_s * factor


def sweep(leases: Leases, *, keep_s: float, timeout_s: float = 0.0, every_s: float = 0.0) -> bool:
    """Repeat `Leases.sweep` until it finds less than its limit; return whether it swept.

    :param every_s: do nothing if a worker has swept in so many seconds.
    """
    for number in range(_SWEEPS):
        swept = leases.sweep(
            keep_s=keep_s,
            adopt_s=ADOPT_S,
            timeout_s=timeout_s,
            every_s=0.0 if number else every_s,
        )
        for id, state in swept.over:
            logger.warning("service_found_dead service=%s now=%s", id, state)
        for id in swept.ghosts:
            logger.warning("service_without_record service=%s", id)
        if swept.skipped or len(swept.over) < SWEPT_AT_ONCE:
            return not swept.skipped
    return True


class Cleaner:
    """Removes ended services after calling their handler.

    The handler is called at least once for each service: again if the worker dies during the call,
    and up to five times if it raises. After that the service is removed anyway.

    :param handler: called in the thread; None: no handler.
    :param failed: called with exceptions of the handler.
    :param lease_s: seconds before another worker may call the handler.
    """

    def __init__(
        self,
        leases: Leases,
        handler: Handler | None,
        failed: Callable[[BaseException], None],
        *,
        lease_s: float,
    ) -> None:
        self._leases = leases
        self._handler = handler
        self._failed = failed
        self._lease_s = lease_s
        self._closing = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self.serve, name="service cleanup", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, patience_s: float) -> None:
        """Stop; block until a running handler ends, at most ``patience_s`` seconds."""
        self.stop()
        self._thread.join(patience_s)

    def stop(self) -> None:
        """Make `serve` return."""
        self._closing.set()
        self._woken.set()

    def wake(self) -> None:
        """Check soon, since a service has ended."""
        self._woken.set()

    def serve(self) -> None:
        """Run in the current thread until stopped."""
        backoff, every_s = Backoff(base_s=0.05, cap_s=1.0), _TIDY_EVERY_S
        while not self._closing.is_set():
            try:
                # With a handler, one at a time: the lease covers one call.
                alone = self._handler is None
                most = _FORGOTTEN_AT_ONCE if alone else 1
                found = self._leases.tidy(most, self._lease_s, drop=alone)
                if self._handler is not None:
                    self._call(found, self._handler)
            except BrokerError as error:
                logger.debug("service_cleanup_postponed owner=%s: %s", self._leases.owner, error)
                self._closing.wait(backoff.next_s())
            except Exception:
                logger.exception("service_cleanup_failed owner=%s", self._leases.owner)
                self._closing.wait(backoff.next_s())
            else:
                backoff.reset()
                if found:
                    every_s = _TIDY_EVERY_S
                elif self._woken.wait(every_s * random.uniform(0.5, 1.0)):
                    self._woken.clear()
                    every_s = _TIDY_EVERY_S
                    # Not at once: the outcome can be read until then.
                    self._closing.wait(every_s * random.uniform(0.5, 1.0))
                else:
                    every_s = min(2 * every_s, _IDLE_S)

    def _call(self, found: Sequence[EndedService], handler: Handler) -> None:
        for service in found:
            fields = {name: value for name, value in service.fields.items() if name != "cleanups"}
            try:
                handler(service.id, fields)
            except BaseException as error:
                logger.exception(
                    "service_handler_failed service=%s try=%d", service.id, service.times
                )
                self._failed(error)
                if service.times < _TIDY_TRIES:
                    continue
            self._leases.clean(service)


def handler_at(reference: str | Handler | None) -> Handler | None:
    """Return the handler itself, or the one at ``module:attribute``.

    :raises ConfigurationError: it cannot be imported or called.
    """
    if not isinstance(reference, str):
        return reference
    module, _, attribute = reference.replace(":", ".").rpartition(".")
    if not module:
        raise ConfigurationError(
            f"the handler {shown(reference)} is not of the form module:attribute"
        )
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"the handler {shown(reference)} cannot be imported: {error}"
        ) from None
    if not callable(found):
        raise ConfigurationError(f"the handler {shown(reference)} is not callable")
    handler: Handler = found
    return handler
