"""Surveys: one statement finds what idle workers would otherwise ask for each queue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from chancy.broker.optional import Survey, Surveying
from chancy.clock import Clock
from chancy.worker.crowd import Crowd

#: While notifications arrive, looks only find jobs without a notification.
_RELAXED_FACTOR = 10.0
_RELAXED_MOST_S = 5.0
#: Most seconds between two surveys of a small crowd: while notifications arrive, and while they do
#: not.
SURVEY_EVERY_S, _UNHEARD_S = 5.0, 1.0
#: The surveys of all workers together take this share of the time of one core, at most, unless each
#: would be `_LONGEST_S` apart.
_SHARE = 1 / 4
_LONGEST_S = 60.0
#: Every survey counts the crowd; with this many workers every second one, with twice as many every
#: third.
_COUNTED = 200
#: Most queues that are reported as occupied.
_MOST_OCCUPIED = 64
#: Seconds for each worker over which a crowd spreads what all of its workers do at once.
SPREAD_S = 0.0005


def relaxed_s(poll_interval_s: float, *, listening: bool) -> float:
    """Seconds between two looks for jobs, for a poll interval."""
    if not listening:
        return poll_interval_s
    return max(poll_interval_s, min(poll_interval_s * _RELAXED_FACTOR, _RELAXED_MOST_S))


class SurveyedQueues(NamedTuple):
    """The queues that a worker serves from one broker."""

    #: The shortest poll interval in seconds.
    poll_interval_s: Callable[[], float]
    #: Returns the queues for whose jobs there is no room, sorted.
    occupied: Callable[[], Sequence[str]]
    #: Claims from those of these queues that rest. The second argument: whether notifications of
    #: their jobs may have been lost, so that poll intervals do not matter.
    claim: Callable[[Collection[str], bool], None]
    #: Stops a job on request, if it runs here, or the worker itself.
    stop: Callable[[UUID], object]
    #: Called when queues were declared, changed, paused, resumed or deleted.
    on_changed: Callable[[], None]


class Surveyor:
    """Surveys one broker of a worker at intervals.

    :param listening: whether notifications arrive now; surveys are then less frequent.
    """

    def __init__(
        self,
        broker: Surveying,
        crowd: Crowd,
        clock: Clock,
        *,
        worker_id: Callable[[], UUID],
        listening: Callable[[], bool],
    ) -> None:
        self._broker = broker
        self._crowd = crowd
        self._clock = clock
        self._worker_id = worker_id
        self._listening = listening
        self._version: str | None = None
        self._took_s = 0.0
        #: Surveys since the last one that counted the crowd, that one included.
        self._surveys = 0
        self._due = False
        #: Whether notifications may have been lost since the last survey.
        self._unheard = True
        self._stirred = asyncio.Event()
        crowd.on_call(self._stirred.set)

    def soon(self) -> None:
        """Survey now, or a little later in a large crowd: notifications may have been lost."""
        self._crowd.forget()
        self._surveys = 0
        self._unheard = True
        self.again()

    def again(self) -> None:
        """Survey now, or a little later in a large crowd."""
        self._due = True
        self._stirred.set()

    async def serve(self, queues: SurveyedQueues) -> None:
        """Survey until cancelled."""
        self._unheard = True
        while True:
            self._due = False
            occupied = queues.occupied()[:_MOST_OCCUPIED]
            # In a large crowd, in which another survey follows soon, an old place does no harm.
            count = self._surveys % (1 + self._crowd.size // _COUNTED) == 0
            self._surveys = 1 if count else self._surveys + 1
            unheard, self._unheard = self._unheard, False
            survey = await self._broker.survey(self._worker_id(), occupied, count=count)
            self._crowd.learn(survey)
            for id in survey.stopping:
                queues.stop(id)
            if survey.waiting:
                queues.claim(survey.waiting, unheard)
            if self._version != survey.queues_version:
                # The first one may have been read before the queues were.
                self._version = survey.queues_version
                queues.on_changed()
            pause_s = self._pause_s(survey, queues.poll_interval_s()) * random.uniform(0.8, 1.2)
            if survey.resumes_s is not None:
                pause_s = min(pause_s, survey.resumes_s + self._spread_s())
            await self._rest(pause_s)

    def _spread_s(self) -> float:
        return SPREAD_S * self._crowd.size * random.random()

    async def call_others(self) -> None:
        """Notify the other workers of the queues that `Crowd.call` has collected."""
        if calls := self._crowd.take_calls():
            await self._broker.call_all(calls)

    def _pause_s(self, survey: Survey, poll_interval_s: float) -> float:
        # A single slow one, as on a busy machine, must not delay the next one much.
        usual_s, self._took_s = min(survey.took_s, self._took_s), survey.took_s
        listening = self._listening()
        most_s = SURVEY_EVERY_S if listening else _UNHEARD_S
        wanted_s = min(relaxed_s(poll_interval_s, listening=listening), most_s)
        return max(wanted_s, min(usual_s * self._crowd.size / _SHARE, _LONGEST_S))

    async def _rest(self, pause_s: float) -> None:
        """Wait for the next survey, and call other workers meanwhile."""
        until = self._clock.monotonic() + pause_s
        while (left_s := until - self._clock.monotonic()) > 0:
            await self._clock.wait(self._stirred, left_s)
            self._stirred.clear()
            await self.call_others()
            if self._due:
                self._due = False
                until = min(until, self._clock.monotonic() + self._spread_s())
