"""The workers that serve the same queues, and which of them claim when jobs are pushed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

from chancy.broker.notices import Notice
from chancy.broker.optional import Survey, Surveying
from chancy.clock import Clock

#: Of a crowd up to this size every worker claims.
_FEW = 4
#: Spare workers, which claim a little later in case the workers before them cannot: in a crowd of
#: up to `_MODERATE` workers, whose surveys are seconds apart, and in a larger one.
_MODERATE, _MANY_SPARES, _SPARES = 20, 2, 1
#: Seconds between a spare worker and the one before it.
_SPARE_S = 0.01
#: Seconds for each worker of a large crowd, and at most, for which a notification stands for those
#: of the pushes that follow.
_SUPPRESS_S, _MOST_SUPPRESS_S = 0.0002, 0.2
#: Seconds between two calls of all workers to one queue.
_CALL_EVERY_S = 1.0
#: The golden ratio in 64 bits: multiples of it spread evenly over the crowd, at any stride.
_GOLDEN = 0x9E3779B97F4A7C15


class Crowd:
    """The live workers that serve the same queues, and this worker's place among them.

    The number of a notification is a point on a circle around which the workers stand. Those behind
    it claim: as many as there are new jobs, and spare ones. Workers that see the crowd a little
    differently, since one has just come or gone, still agree on nearly all points.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._place = 0
        #: Number of workers, this one included; 0 while it is unknown.
        self.size = 0
        self._full: Mapping[str, float] = {}
        self._called_at: dict[str, float] = {}
        #: Queues to which all workers are to be called.
        self._calls: set[str] = set()
        self._on_call: Callable[[], None] = lambda: None

    def learn(self, survey: Survey) -> None:
        if survey.place is not None and survey.crowd is not None:
            self._place, self.size, self._full = survey.place, survey.crowd, survey.full

    def forget(self) -> None:
        """Claim for every notification until the next survey: the place may be outdated."""
        self.size = 0

    def delay_s(self, notice: Notice) -> float | None:
        """Seconds after which this worker claims for a notification of new jobs; None: never.

        Workers without room do not claim, so more are chosen in a crowd in which some have none.
        """
        size = self.size
        if notice.number is None:
            self._called_at[notice.token] = self._clock.monotonic()
            return 0.0
        if size <= 1:
            return 0.0
        behind = self._behind(notice.number)
        roomy = max(1.0 - self._full.get(notice.token, 0.0), 1.0 / size)
        first = math.ceil(notice.jobs / roomy)
        if behind < first:
            return 0.0
        spares = _MANY_SPARES if size <= _MODERATE else _SPARES
        if size <= _FEW or behind < math.ceil((notice.jobs + spares) / roomy):
            return (behind - first + 1) * _SPARE_S
        return None

    def _behind(self, number: int) -> int:
        """How many workers stand between the point of a notification and this worker."""
        point = number * _GOLDEN % 2**64 / 2**64
        return (self._place - math.floor(point * self.size)) % self.size

    def suppress_s(self, notice: Notice) -> float:
        """Seconds for which this worker suppresses the notifications that follow this one.

        Only the first of those that claim for it does, and only in a large crowd; 0 for the others.
        """
        if notice.number is None or self.size <= _MODERATE or self._behind(notice.number):
            return 0.0
        return min(self.size * _SUPPRESS_S, _MOST_SUPPRESS_S)

    def call(self, queue: str, *, later: bool = False) -> None:
        """Call all workers to a queue with more jobs than this one can take, unless this or another
        one has just done so.

        :param later: if one has just done so, make the call with the next ones, at the latest when
            this worker stops.
        """
        now = self._clock.monotonic()
        due = now >= self._called_at.get(queue, -math.inf) + _CALL_EVERY_S
        if self.size > 1 and (due or later):
            self._calls.add(queue)
            if due:
                self._called_at[queue] = now
                self._on_call()

    def on_call(self, callback: Callable[[], None]) -> None:
        """Set the callback for when `take_calls` has queues to return."""
        self._on_call = callback

    def take_calls(self) -> Sequence[str]:
        """The queues to which all workers are to be called now."""
        calls = sorted(self._calls)
        self._calls.clear()
        return calls


class Suppressor:
    """Suppresses further notifications of a queue once this worker claims for one.

    Postgres wakes every listening session for each notification, which takes some 20 µs of
    processor time for each worker. With 200 workers on two cores, a client that awaited each push
    made 90 pushes a second, and 240 with this; the jobs of 100 pushes a second started after 70 ms
    in the median, and after 7 with this.
    """

    def __init__(self, broker: Surveying) -> None:
        self._broker = broker
        self._wanted = asyncio.Event()
        self._queue = ""
        self._seconds = 0.0
        self._then: Callable[[], None] = lambda: None

    def begin(self, queue: str, seconds: float, then: Callable[[], None]) -> None:
        """Suppress the notifications of a queue, unless those of one are suppressed already.

        :param seconds: for how long; 0: not at all.
        :param then: called at the end, to claim jobs that were pushed meanwhile.
        """
        if seconds and not self._wanted.is_set():
            self._queue, self._seconds, self._then = queue, seconds, then
            self._wanted.set()

    async def serve(self) -> None:
        """Suppress until cancelled, one queue at a time."""
        while True:
            await self._wanted.wait()
            try:
                await self._broker.suppress(self._queue, self._seconds)
            finally:
                self._wanted.clear()
                self._then()
