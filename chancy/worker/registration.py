"""What others see of a worker: its row, its beats, and the queues that it says it serves."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version

from chancy.broker.contract import Broker
from chancy.broker.values import WorkerRecord
from chancy.errors import BrokerError
from chancy.worker.heartbeat import HeartbeatThread
from chancy.worker.supervisor.link import SupervisorLink
from chancy.worker.tags import host, worker_tags

logger = logging.getLogger("chancy.worker")

#: Seconds by which a look may be late on a busy machine.
_HELD_UP_S = 0.2


class Registration:
    """Registers a worker, beats for it, and tells others and the supervisor what it serves.

    :param line: the line to the supervisor, if there is one.
    :param declared_dead: called in the loop when the store has forgotten the worker; `worker_id`
        is a new one by then, and is to be registered.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        tags: Iterable[str],
        heartbeat_s: float,
        line: SupervisorLink | None,
        declared_dead: Callable[[], None],
    ) -> None:
        self.worker_id = uuid.uuid4()
        self._broker = broker
        self._extra_tags = tuple(tags)
        self._heartbeat_s = heartbeat_s
        self._line = line
        self._tell_death = declared_dead
        self._heartbeat: HeartbeatThread | None = None
        self._announced: tuple[tuple[str, ...], dict[str, str]] | None = None

    @property
    def tags(self) -> frozenset[str]:
        return worker_tags(self.worker_id, self._extra_tags)

    async def register(self) -> None:
        """Add the row, and begin to beat."""
        await self._broker.register(
            WorkerRecord(
                id=self.worker_id,
                host=host(),
                pid=os.getpid(),
                tags=self.tags,
                queues=(),
                version=version("chancy"),
            )
        )
        self._announced = None
        if self._heartbeat is None:
            self._heartbeat = HeartbeatThread(
                self._broker.heartbeat(self.worker_id),
                interval_s=self._heartbeat_s,
                declared_dead=self._declared_dead,
            )
            self._heartbeat.start()
        self._tell_supervisor()

    async def announce(self, queues: tuple[str, ...], broken: Mapping[str, str]) -> None:
        """Say what is served and what cannot be, and why, unless it is said already."""
        said = queues, dict(broken)
        worker_id = self.worker_id
        if self._announced == said or self._heartbeat is None:
            return
        if await self._broker.announce(worker_id, queues, broken) and worker_id == self.worker_id:
            self._announced = said
            self._tell_supervisor()

    async def watch(self, timeout_s: float, cut_off: Callable[[str], None]) -> None:
        """Look whether beats are answered, until cancelled.

        :param timeout_s: seconds of silence after which others may take the worker for dead. The
            clock of the database counts from when the last beat came, this one from when it was
            sent, so what is stopped here has stopped when others begin it.
        :param cut_off: called once in each silence that lasts so long, with what to tell the jobs.
        """
        every_s = min(0.5, timeout_s / 20)
        told, looked = False, time.monotonic()
        while True:
            await asyncio.sleep(every_s)
            before, looked = looked, time.monotonic()
            unheard_s = self._heartbeat.unheard_s if self._heartbeat is not None else 0.0
            if unheard_s < timeout_s - 2 * every_s:
                told = False
            # Who was held up itself has had no time yet to read an answer that is there.
            elif not told and looked - before < 2 * every_s + _HELD_UP_S:
                told = True
                logger.error("worker_cut_off id=%s unheard_s=%.1f", self.worker_id, unheard_s)
                cut_off("the worker does not reach the server, and others may have taken the job")

    async def unregister(self) -> None:
        """Take the row away. Registered again it is another worker: what this one still holds is
        to be rescued."""
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.stop()
        try:
            await self._broker.unregister(self.worker_id)
            if self._line is not None:
                self._line.left()
        except BrokerError as error:
            logger.warning("unregister_failed id=%s error=%s", self.worker_id, error)
        finally:
            self.worker_id = uuid.uuid4()
        if heartbeat is not None:
            await heartbeat.ended(5.0)

    def _declared_dead(self) -> None:
        if self._heartbeat is None:
            # A beat that met the row's end, which was our own doing.
            return
        logger.error("worker_declared_dead id=%s: it was silent for too long", self.worker_id)
        self._heartbeat = None
        self.worker_id = uuid.uuid4()
        self._tell_death()

    def _tell_supervisor(self) -> None:
        if self._line is not None:
            queues, broken = self._announced or ((), {})
            self._line.serves(self.worker_id, self._heartbeat_s, queues, broken)
