"""Steps whose jobs another broker keeps: what has become of those whose end nobody has told."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker import Broker
from chancy.codec import encode
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.job import QueuedJob
from chancy.plugins.workflow.ends import End, Place, end_of, gone
from chancy.plugins.workflow.flows import Flows
from chancy.plugins.workflow.record import WorkflowState
from chancy.plugins.workflow.store import statement, store_of
from chancy.queue import Queue
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Steps of one turn: ten scripts of Redis, each of which holds up everybody else for 3 ms.
LOOKED_AT = 2_500
#: Ends of which it is remembered that they were seen: more are told a round later.
_MOST_SEEN = 50_000
#: Ends of one statement.
_BATCH = 500
#: How the other broker is called.
_BROKER = "redis"


class Away(NamedTuple):
    """A row of ``sql/away.sql``.

    :param flow: the state of the workflow; None: it is forgotten.
    :param open: whether the step has not ended in this run.
    """

    workflow: UUID
    job: UUID
    name: str
    run: int
    flow: int | None
    open: bool

    @property
    def place(self) -> Place:
        return Place(self.workflow, self.name, self.run, False)


class Elsewhere:
    """Walks over them, some in each turn, and begins at the front when it has come to the end."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = store_of(broker)
        self._flows = Flows(broker)
        self._after: tuple[UUID | None, UUID | None] = (None, None)
        # Jobs that have ended, as far as it is known, the oldest first.
        self._seen: dict[UUID, None] = {}

    async def turn(self) -> int:
        """Tell of those that had ended in the turn before, too, and stop those of cancelled
        workflows; gives how many ends that told. Nothing while the other broker is away, or where
        it is not supplied."""
        try:
            self._broker.check_queue(Queue(name="steps", broker=_BROKER))
        except ConfigurationError:
            return 0
        rows = [Away(*row) for row in await self._fetch("away", *self._after, LOOKED_AT)]
        last = rows[-1] if len(rows) == LOOKED_AT else None
        try:
            told = await self._look(rows)
        except BrokerUnavailable as error:
            logger.warning("workflow_steps_unknown jobs=%d error=%s", len(rows), error)
            return 0
        self._after = (None, None) if last is None else (last.workflow, last.job)
        return told

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def _look(self, rows: Sequence[Away]) -> int:
        over = [row for row in rows if not row.open]
        if over:
            ids = [row.workflow for row in over], [row.job for row in over]
            await self._fetch("back", *ids)
        waiting = {row.job: row for row in rows if row.open}
        found = await self._find(list(waiting))
        ends = self._twice([end for id, job in found.items() if (end := _end(waiting[id], job))])
        for at in range(0, len(ends), _BATCH):
            await self._flows.advance_each(ends[at : at + _BATCH])
        stopped = [
            id
            for id, job in found.items()
            if job is not None and not job.state.final
            if waiting[id].flow == WorkflowState.CANCELLED and job.stop_asked_at is None
        ]
        if stopped:
            await self._broker.cancel(stopped)
        return len(ends)

    def _twice(self, ends: Sequence[End]) -> list[End]:
        """Those that were seen before: most of the others are about to be told where they ran."""
        found = [end for end in ends if end.job in self._seen]
        self._seen |= dict.fromkeys(end.job for end in ends)
        for end in found:
            del self._seen[end.job]
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return found

    async def _find(self, ids: list[UUID]) -> Mapping[UUID, QueuedJob | None]:
        """Jobs by id; None is there for those that are gone, and nothing for those on their way.

        What is in the outbox no more has come to the other broker. So that is asked again after it.
        """
        found: dict[UUID, QueuedJob | None] = {**await self._broker.get(ids)} if ids else {}
        missing = [id for id in ids if id not in found]
        if missing:
            unsent = {row[0] for row in await self._fetch("unsent", missing)}
            sent = [id for id in missing if id not in unsent]
            found |= dict.fromkeys(sent)
            found |= await self._broker.get(sent) if sent else {}
        return found


def _end(row: Away, job: QueuedJob | None) -> End | None:
    """How a step has ended whose job is there, or gone."""
    if job is None:
        if row.flow == WorkflowState.CANCELLED:
            return end_of(row.place, row.job, int(State.CANCELLED), None, None, None)
        return gone(row.place, row.job)
    if not job.state.final:
        return None
    result = None if job.result is None else encode(job.result, what=f"the result of {job.func}")
    last = job.errors[-1] if job.errors else {}
    types = last.get("types") or ("",)
    message = str(last.get("message", ""))
    return end_of(row.place, row.job, int(job.state), result, message, str(types[0]))
