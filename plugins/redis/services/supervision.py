"""The threads that take services from the line, find those nobody runs, and clean up."""

from __future__ import annotations

import importlib
import logging
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

#: Seconds that a wait for the line takes; the end of the worker waits for it.
_RING_S = 0.25
#: Of one script.
_CLAIMED_AT_ONCE = 50
_FORGOTTEN_AT_ONCE = 50
#: Sweeps in a row: 10,000 services, before the line is looked at again.
_SWEEPS = 100
#: Seconds between two looks for what has ended.
_TIDY_EVERY_S = 0.25
#: Times that a handler may fail, before its service is forgotten without it.
_TIDY_TRIES = 5
#: Until something that runs without a lease is taken for dead.
ADOPT_S = 60.0


class Supervision:
    """Takes what waits while there is room, and sweeps five times in each lease.

    :param room: how many more may run here now.
    :param take: is given each service that was taken, with the time it was asked for; called in
        the thread.
    :param restore: called after each success, to make local services again.
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
        #: Set by whoever makes room.
        self.freed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="service claims", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more than is on its way."""
        self._closing.set()
        self.freed.set()

    def close(self) -> None:
        """`stop`; blocks until the thread has ended, a quarter of a second or two answers."""
        self.stop()
        self._thread.join()

    def _serve(self) -> None:
        backoff = Backoff(base_s=0.05, cap_s=1.0)
        while not self._closing.is_set():
            try:
                self._restore()
                self._sweep()
                # After a failure one: what was taken and not heard of waits for its lease to end.
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
        try:
            # What this thread has moved aside goes back into the line.
            self._leases.claim(0)
        except BrokerError:
            logger.debug("service_line_not_ordered owner=%s", self._leases.owner)

    def _claim(self, most: int) -> None:
        room = self._room()
        if room <= 0:
            self.freed.wait(_RING_S)
            self.freed.clear()
            return
        asked = time.monotonic()
        found = self._leases.claim(min(room, most))
        for one in found:
            match one:
                case Taken():
                    self._take(one, asked)
                case Passed(why="missing"):
                    logger.warning("service_without_record service=%s", one.id)
                case Passed():
                    logger.info("service_passed service=%s why=%s", one.id, one.why)
        if not found:
            self._leases.ring(_RING_S)

    def _sweep(self) -> None:
        if self._sweeps and time.monotonic() >= self._due:
            sweep(self._leases, keep_s=self._keep_s)
            self._due = time.monotonic() + self._leases.lease_s / 5


def sweep(leases: Leases, *, keep_s: float, timeout_s: float = 0.0) -> None:
    """`Leases.sweep` until less is found than it looks for; say what was found."""
    for _ in range(_SWEEPS):
        swept = leases.sweep(keep_s=keep_s, adopt_s=ADOPT_S, timeout_s=timeout_s)
        for id, what in swept.over:
            logger.warning("service_found_dead service=%s now=%s", id, what)
        for id in swept.ghosts:
            logger.warning("service_without_record service=%s", id)
        if len(swept.over) < SWEPT_AT_ONCE:
            return


class Cleaner:
    """Forgets services that have ended, after their handler was called.

    It is called at least once for each: again if the worker dies within it, and up to five times
    if it raises. After that its service is forgotten all the same.

    :param handler: called in the thread; None: there is nothing to call.
    :param failed: told of what the handler raises.
    :param lease_s: for the handler, before another worker may call it.
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
        self._thread = threading.Thread(target=self.serve, name="service cleanup", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, patience_s: float) -> None:
        """Take no more; blocks while the handler works on one, but no longer than that."""
        self._closing.set()
        self._thread.join(patience_s)

    def stop(self) -> None:
        """Have `serve` return."""
        self._closing.set()

    def serve(self) -> None:
        """Work in this thread, until stopped."""
        backoff = Backoff(base_s=0.05, cap_s=1.0)
        while not self._closing.is_set():
            try:
                # With a handler one by one: the lease is for each.
                alone = self._handler is None
                most = _FORGOTTEN_AT_ONCE if alone else 1
                found = self._leases.tidy(most, self._lease_s, drop=alone)
                if self._handler is not None:
                    self._call(found, self._handler)
            except BrokerError as error:
                logger.debug("service_cleanup_waits owner=%s: %s", self._leases.owner, error)
                self._closing.wait(backoff.next_s())
            except Exception:
                logger.exception("service_cleanup_failed owner=%s", self._leases.owner)
                self._closing.wait(backoff.next_s())
            else:
                backoff.reset()
                if not found:
                    self._closing.wait(_TIDY_EVERY_S)

    def _call(self, found: Sequence[EndedService], handler: Handler) -> None:
        for one in found:
            fields = {name: value for name, value in one.fields.items() if name != "cleanups"}
            try:
                handler(one.id, fields)
            except (Exception, SystemExit) as error:
                logger.exception("service_handler_failed service=%s try=%d", one.id, one.times)
                self._failed(error)
                if one.times < _TIDY_TRIES:
                    continue
            self._leases.clean(one)


def handler_at(given: str | Handler | None) -> Handler | None:
    """The handler itself, or the one at ``module:attribute``.

    :raises ConfigurationError: there is none.
    """
    if not isinstance(given, str):
        return given
    module, _, attribute = given.replace(":", ".").rpartition(".")
    if not module:
        raise ConfigurationError(f"the handler {shown(given)} is no module:attribute")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"the handler {shown(given)} cannot be imported: {error}"
        ) from None
    if not callable(found):
        raise ConfigurationError(f"the handler {shown(given)} cannot be called")
    handler: Handler = found
    return handler
