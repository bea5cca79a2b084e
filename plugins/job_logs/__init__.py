"""Job logs: stores the lines that jobs log, so that they can be read with the job."""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.checks import check_number
from chancy.clock import Clock, run_briefly
from chancy.errors import BrokerError
from chancy.plugin.leader import LeaderGate
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Runtime
from chancy.plugin.tables import PluginTables
from chancy.plugins.job_logs.lines import (
    SQL,
    STEP,
    LineBuffer,
    LogLine,
    attach,
    detach,
    plain,
    prune_step,
    read,
    store,
)
from chancy.postgres.schema.component import Migrations

if TYPE_CHECKING:
    import click

__all__ = ["JobLogs", "LogLine"]

logger = logging.getLogger("chancy.job_logs")
#: Seconds between two scans of the leader over the jobs with lines, the first wait, and the seconds
#: that storing the last lines may take when the worker stops.
_PRUNE_S, _FIRST_PRUNE_S, _LAST_S = 6 * 3600.0, 60.0, 5.0


class JobLogs(Plugin):
    """Stores the lines that jobs log with ``current_job().log(…)``, up to 1 MB for each job.

    A worker buffers the lines and stores them in batches, so jobs do not wait. If it is killed,
    buffered lines are lost. While the database is unavailable, it buffers up to 8 MB; further lines
    are dropped, and counted in its log. Lines are removed after their job.

    :param every_s: seconds between two batches of a worker, 0.05 to 60.
    :param level: the lowest level to store. The logger ``chancy.job`` is set to this level.
    """

    def __init__(self, *, every_s: float = 1.0, level: int = logging.INFO) -> None:
        check_number(every_s, "every_s", 0.05, 60, whole=False, unit="seconds")
        check_number(level, "level", 0, 1_000)
        self.every_s = every_s
        self._buffer = LineBuffer()
        self._buffer.setLevel(level)
        self._postponed = False
        # Before the first job of a worker, which may start before its services do.
        attach(self._buffer)
        weakref.finalize(self, detach, self._buffer)

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.job_logs"

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="job_logs", package="chancy.plugins.job_logs.migrations", head="0001"
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.job_logs.commands import logs

        return [logs]

    async def read(
        self, chancy: Application, id: UUID, *, after: int = 0, limit: int = STEP
    ) -> Sequence[LogLine]:
        """Read the lines of a job, in order.

        :param after: only lines with a higher number: the number of the last line of a page.
        :param limit: the maximum number of lines, 1 to 10,000.
        :raises ConfigurationError: the limit is out of range, or the broker does not offer SQL.
        :raises UnreadablePayload: a line is encrypted with a key that this process does not have.
        """
        check_number(limit, "limit", 1, 10_000)
        return plain(chancy, await read(SQL.on(chancy.broker), id, after, limit))

    async def serve(self, runtime: Runtime) -> None:
        if not isinstance(runtime.broker, SqlStore):
            return
        tables, clock = SQL.on(runtime.broker), runtime.clock
        prune_at = clock.monotonic() + _FIRST_PRUNE_S
        self._buffer.serve(runtime)
        try:
            while True:
                await clock.sleep(self.every_s * random.uniform(0.8, 1.2))
                await self._store(tables)
                if runtime.leader.leading and clock.monotonic() > prune_at:
                    await self._prune(tables, runtime.leader, clock)
                    prune_at = clock.monotonic() + _PRUNE_S
        finally:
            await run_briefly(self._store(tables), clock, _LAST_S)
            self._buffer.leave(runtime)

    async def _store(self, tables: PluginTables) -> None:
        while lines := self._buffer.take():
            try:
                await store(tables, lines)
            except BrokerError as error:
                self._buffer.give_back(lines)
                if not self._postponed:
                    logger.warning("job_logs_postponed lines=%d error=%s", len(lines), error)
                self._postponed = True
                return
            except BaseException:
                self._buffer.give_back(lines)
                raise
        self._postponed = False
        if dropped := self._buffer.take_dropped():
            logger.warning("job_logs_dropped lines=%d", dropped)

    async def _prune(self, tables: PluginTables, leader: LeaderGate, clock: Clock) -> None:
        """Remove lines of jobs that are no longer stored. Storing continues between the steps."""
        after: UUID | None = None
        while True:
            began = clock.monotonic()
            after = await prune_step(tables, after)
            await clock.sleep(3 * (clock.monotonic() - began))
            if after is None or not leader.leading:
                break
            await self._store(tables)
