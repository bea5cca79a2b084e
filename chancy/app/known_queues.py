"""`KnownQueues`: detects pushes to a queue that does not exist, for example a misspelled one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.checks import check_flag
from chancy.clock import Clock
from chancy.errors import BrokerError, ConfigurationError, PushError, StatementFailed
from chancy.text import nearest

logger = logging.getLogger("chancy.push")

#: Seconds between two reads of the queues because of an unknown name. A strict application reads
#: them more often, because it must not refuse a queue that was just declared.
REFRESH_S = 60.0
STRICT_REFRESH_S = 1.0
#: The maximum number of names about which a process warns.
_MAX_WARNED = 1_000

#: The names about which this process has warned.
_warned: set[str] = set()


class KnownQueues:
    """The queues that an application declares, and the queues that are stored.

    A push to a known queue costs a lookup in a set, and no database call.

    :param own: the queues that the application declares; read at each push.
    :param strict: refuse jobs for other queues. Otherwise they are stored, and logged once.
    """

    def __init__(self, own: Collection[str], clock: Clock, *, strict: bool) -> None:
        self._own = own
        self._clock = clock
        self.strict = check_flag(strict, "strict_queues")
        #: None: not read.
        self._rows: frozenset[str] | None = None
        self._read_at: float | None = None
        self._refused = False

    def unknown(self, jobs: Iterable[PreparedJob]) -> list[str]:
        """The unknown queues of these jobs about which there was no warning yet, in order."""
        own, rows = self._own, self._rows or ()
        names = dict.fromkeys(
            job.queue for job in jobs if job.queue not in own and job.queue not in rows
        )
        if self.strict:
            return list(names)
        return [] if self._refused else [name for name in names if name not in _warned]

    async def check(self, names: Iterable[str], broker: Broker) -> None:
        """`refresh`, and `report` these names."""
        await self.refresh(broker)
        self.report(names)

    async def refresh(self, broker: Broker) -> None:
        """Read the queues, unless they were read a short time ago.

        :raises BrokerError: with ``strict``, they cannot be read.
        """
        now = self._clock.monotonic()
        wait_s = STRICT_REFRESH_S if self.strict else REFRESH_S
        if self._read_at is not None and now - self._read_at < wait_s:
            return
        try:
            queues = await broker.queues()
        except (BrokerError, ConfigurationError) as error:
            if self.strict:
                raise
            # The role of a producer may not read queues; a push `within` may be in another loop.
            self._refused = isinstance(error, StatementFailed)
            return
        self._rows = frozenset(queue.name for queue in queues)
        self._read_at = now

    def report(self, names: Iterable[str]) -> None:
        """Warn about unknown names, if the queues have been read.

        :raises PushError: a name is unknown, with ``strict``.
        """
        if self._rows is None:
            return
        known = {*self._own, *self._rows}
        for name in names:
            if name in known:
                continue
            near = nearest(name, known)
            if self.strict:
                hint = f" (did you mean {near!r}?)" if near else ""
                raise PushError(
                    f"queue {name!r} is not declared{hint}: declare it, or push with an "
                    "application without strict_queues"
                )
            if len(_warned) < _MAX_WARNED:
                _warned.add(name)
                logger.warning("queue_undeclared queue=%s nearest=%s", name, near)
