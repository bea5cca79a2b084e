"""Applies pruner rules to the history in small steps and resumes where the last turn stopped."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from chancy.broker.optional import SqlStore
from chancy.broker.values import YOUNG, YOUNG_FAILED
from chancy.errors import StatementFailed
from chancy.plugin.patterns import exact, like, matches
from chancy.plugin.tables import PluginSql
from chancy.plugins.pruner.rule import Prune
from chancy.states import State

#: The most jobs that one statement reads and deletes. 1,000 take 10 to 20 ms.
STEP = 1_000
#: Length of a pause in multiples of the step before it: a walk uses a quarter of one session.
_PAUSES = 3.0
_SHORTEST_PAUSE_S = 0.01
#: The most queues to which a rule with a pattern applies.
MAX_QUEUES = 10_000
#: Earlier than every job.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


SQL = PluginSql("chancy.plugins.pruner", "finished jobs")


@dataclass(slots=True)
class _Walk:
    """One walk of a rule through the history of a queue, from now back to the clean part.

    :param before: jobs that finished later are too young.
    :param until: the position reached so far.
    :param clean: once the walk is complete, no job that finished before this matches the rule.
    :param counted: matching jobs seen so far.
    """

    before: datetime
    until: datetime
    clean: datetime | None = None
    counted: int = 0


@dataclass(slots=True)
class _RuleProgress:
    """The progress of a rule in a queue.

    :param clean: no job that finished before this matches the rule. Rows of finished jobs do not
        change, and none is added in the past.
    """

    clean: datetime
    walk: _Walk | None = None


class PrunerSweep:
    """Applies rules to the history of finished jobs.

    Progress is kept in memory: a new process starts from the beginning, which takes one step for
    every 1,000 jobs.

    :param remove: pass False to only count matching jobs.
    :param floor: jobs that finished before this are left out.
    """

    def __init__(
        self,
        store: SqlStore,
        rules: Sequence[Prune],
        *,
        remove: bool = True,
        floor: datetime = _EPOCH,
        step: int = STEP,
    ) -> None:
        self._tables = SQL.on(store)
        self._rules = rules
        self._remove = remove
        self._floor = floor
        self._step = step
        self._progress: dict[tuple[int, str], _RuleProgress] = {}
        #: The rule and queue at which the last turn stopped.
        self._stopped = (0, "")
        #: Deleted jobs by the number of the rule; the caller clears it.
        self.removed: dict[int, int] = {}

    async def turn(
        self, pause: Callable[[float], Awaitable[None]], should_continue: Callable[[], bool]
    ) -> bool:
        """Apply every rule to every queue; returns whether the turn is complete.

        :param pause: sleeps the given number of seconds; called after each statement.
        :param should_continue: called before each statement. If it returns False, the turn stops
            and the next one resumes there.
        :raises BrokerError: a statement failed; the next turn resumes there. After a retryable
            failure, such as a lock or statement timeout, the turn first does the rest of its work.
        """
        ((now,),) = await self._tables.fetch("now")
        failed: StatementFailed | None = None
        work = await self._work()
        current = set(work)
        self._progress = {
            key: progress for key, progress in self._progress.items() if key in current
        }
        remaining = [key for key in work if key >= self._stopped]
        for key in remaining + work[: len(work) - len(remaining)]:
            self._stopped = key
            while should_continue():
                started = time.monotonic()
                try:
                    done = await self._advance(*key, now)
                except StatementFailed as error:
                    if not error.retryable:
                        raise
                    failed, done = error, True  # the others do not wait for it
                took_s = time.monotonic() - started
                await pause(max(took_s * _PAUSES, _SHORTEST_PAUSE_S))
                if done:
                    break
            else:
                return False
        self._stopped = (0, "")
        if failed is not None:
            raise failed
        return True

    async def _work(self) -> list[tuple[int, str]]:
        """Every rule, by its number, with every queue to which it applies."""
        work: list[tuple[int, str]] = []
        queues: list[str] | None = None
        for number, rule in enumerate(self._rules):
            if rule.queue is not None and exact(rule.queue):
                work.append((number, rule.queue))
                continue
            if queues is None:
                queues = sorted(
                    str(name) for (name,) in await self._tables.fetch("queues", MAX_QUEUES)
                )
            work += [(number, queue) for queue in queues if matches(rule.queue, queue)]
        return work

    async def _advance(self, number: int, queue: str, now: datetime) -> bool:
        """Run one step of a rule in a queue; returns whether its walk is complete."""
        rule = self._rules[number]
        progress = self._progress.setdefault((number, queue), _RuleProgress(self._floor))
        walk = progress.walk
        if walk is None:
            walk = progress.walk = _start(rule, now)
        kept = max((rule.keep_last or 0) - walk.counted, 0)
        ((seen, matched, removed, reached, latest),) = await self._tables.fetch(
            "step",
            queue,
            progress.clean,
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
            progress.clean = max(progress.clean, walk.clean)
        progress.walk = None
        return True


def _start(rule: Prune, now: datetime) -> _Walk:
    young = YOUNG_FAILED if rule.state in (None, State.FAILED) else YOUNG
    before = now - max(rule.older_than or young, young)
    if rule.keep_last:
        # Jobs that are too young to delete count among the last ones.
        return _Walk(before=before, until=now)
    return _Walk(before=before, until=before, clean=before)
