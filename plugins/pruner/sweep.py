"""Walking through the history by rules, in small steps, from where the last walk stopped."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import Any

from chancy.broker.optional import SqlStore
from chancy.plugin.patterns import exact, like, matches
from chancy.plugins.pruner.rule import Prune
from chancy.postgres.statements import load
from chancy.states import State

#: Jobs that one statement looks at, and removes at most. 1,000 take 10 to 20 ms.
STEP = 1_000
#: Pauses are this many times as long as the steps: a walk takes a quarter of one session's time.
_PAUSES = 3.0
_SHORTEST_PAUSE_S = 0.01
#: The most queues that a rule with a pattern is applied to.
MAX_QUEUES = 10_000
#: Jobs that finished within this time stay, whatever the rules say: somebody may be waiting for
#: them, and a settlement whose answer was lost is looked up among them.
YOUNG = timedelta(minutes=1)
#: The same where a rule means failed jobs, too: a sweep that finds out what has failed, such as
#: that of dead letters, comes by every 30 s, and without a leader every 6 minutes.
YOUNG_FAILED = timedelta(minutes=10)
#: Before every job.
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=64)
def statement(name: str, schema: str) -> str:
    """A statement of the folder ``sql``."""
    return load(resources.files("chancy.plugins.pruner") / "sql", name, schema)


@dataclass(slots=True)
class _Walk:
    """One walk of a rule through the history of a queue, from now back to where it is clean.

    :param before: jobs that finished later are too young.
    :param until: it has come so far.
    :param clean: before this nothing will be left for the rule once the walk is over.
    :param counted: jobs that it has met and the rule means.
    """

    before: datetime
    until: datetime
    clean: datetime | None = None
    counted: int = 0


@dataclass(slots=True)
class _RuleProgress:
    """What is known of a rule in a queue.

    :param clean: of what finished before this, nothing is left for the rule. Rows of finished
        jobs do not change, and none is added in the past.
    """

    clean: datetime
    walk: _Walk | None = None


class PrunerSweep:
    """Applies rules to the history of finished jobs.

    What it has looked at is memory of this process: another one begins at the beginning, which is
    as many steps as there are thousands of jobs.

    :param remove: False to count what would go.
    :param floor: jobs that finished before this are left out.
    """

    def __init__(
        self,
        store: SqlStore,
        rules: Sequence[Prune],
        *,
        remove: bool = True,
        floor: datetime = _BEGINNING,
        step: int = STEP,
    ) -> None:
        self._store = store
        self._rules = rules
        self._remove = remove
        self._floor = floor
        self._step = step
        self._places: dict[tuple[int, str], _RuleProgress] = {}
        self._stopped = (0, "")
        #: Jobs that each rule has removed, by its number; for whoever reads it to empty.
        self.removed: dict[int, int] = {}

    async def turn(
        self, pause: Callable[[float], Awaitable[None]], goes_on: Callable[[], bool]
    ) -> bool:
        """Apply every rule to every queue; returns whether it came to the end.

        :param pause: waits for so many seconds, between two statements.
        :param goes_on: asked before each statement. Where it says no, the next turn begins.
        :raises BrokerError: the next turn begins there as well.
        """
        ((now,),) = await self._fetch("now")
        work = await self._work()
        there = set(work)
        self._places = {key: place for key, place in self._places.items() if key in there}
        behind = [key for key in work if key >= self._stopped]
        for key in behind + work[: len(work) - len(behind)]:
            self._stopped = key
            while goes_on():
                began = time.monotonic()
                over = await self._advance(*key, now)
                took_s = time.monotonic() - began
                await pause(max(took_s * _PAUSES, _SHORTEST_PAUSE_S))
                if over:
                    break
            else:
                return False
        self._stopped = (0, "")
        return True

    async def _work(self) -> list[tuple[int, str]]:
        """Every rule, by its number, with every queue that it is applied to."""
        work: list[tuple[int, str]] = []
        found: list[str] | None = None
        for number, rule in enumerate(self._rules):
            if rule.queue is not None and exact(rule.queue):
                work.append((number, rule.queue))
                continue
            if found is None:
                found = sorted(str(name) for (name,) in await self._fetch("queues", MAX_QUEUES))
            work += [(number, queue) for queue in found if matches(rule.queue, queue)]
        return work

    async def _advance(self, number: int, queue: str, now: datetime) -> bool:
        """Make one step of a rule in a queue; returns whether its walk is over."""
        rule = self._rules[number]
        place = self._places.setdefault((number, queue), _RuleProgress(self._floor))
        walk = place.walk
        if walk is None:
            walk = place.walk = _begun(rule, now)
        kept = max((rule.keep_last or 0) - walk.counted, 0)
        ((seen, matched, removed, reached, latest),) = await self._fetch(
            "step",
            queue,
            place.clean,
            walk.until,
            walk.before,
            rule.state_number,
            like(rule.func),
            kept,
            self._step,
            self._remove,
        )
        self.removed[number] = self.removed.get(number, 0) + removed
        walk.counted += matched
        if walk.clean is None:
            walk.clean = latest
        if seen >= self._step:
            walk.until = reached
            return False
        if walk.clean is not None and self._remove:
            place.clean = max(place.clean, walk.clean)
        place.walk = None
        return True

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)


def _begun(rule: Prune, now: datetime) -> _Walk:
    young = YOUNG_FAILED if rule.state in (None, State.FAILED) else YOUNG
    before = now - max(rule.older_than or young, young)
    if rule.keep_last:
        # Those that are too young count among the last ones.
        return _Walk(before=before, until=now)
    return _Walk(before=before, until=before, clean=before)
