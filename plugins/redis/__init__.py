"""Redis queues, streams and services, in addition to Postgres."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

try:
    import redis as _  # noqa: F401  before the modules that need it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "chancy.plugins.redis requires the package 'redis': pip install 'chancy-queue[redis]'",
        name="redis",
    ) from error

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.clock import Backoff
from chancy.errors import BrokerUnavailable
from chancy.job.definition import QueuedJob
from chancy.log_context import ORIGIN, Origin
from chancy.plugin.finding import Finding
from chancy.plugin.processor_plugin import ProcessorPlugin
from chancy.plugin.runtime import Application, BrokerContext, Panel, Runtime
from chancy.plugins.redis.jobs.broker import RedisBroker
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.panels import panels
from chancy.plugins.redis.relay.adoption import refusal, refused_jobs
from chancy.plugins.redis.relay.archive import Archive
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.settings import History, RedisSettings, checked
from chancy.plugins.redis.streams.dead_letters import EventLetters
from chancy.plugins.redis.streams.producing.relay import EventRelay
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.postgres.schema.component import Migrations, RoleKind

if TYPE_CHECKING:
    import click

logger = logging.getLogger("chancy.redis")

#: Seconds for a connection and for a reply in `RedisPlugin.examine`, which has 5 s.
_EXAMINED_S = 1.5

__all__ = ["RedisBroker", "RedisPlugin", "RedisSettings"]


class RedisPlugin(ProcessorPlugin):
    """Connects an application to a Redis or Valkey server or cluster.

    Jobs of a ``Queue(name, broker="redis")`` are stored there. The server's configuration decides
    how durable a push is: with ``appendfsync everysec`` a power cut loses the last second.

    :param url: ``redis://[user:password@]host:port/db``, ``rediss://`` with TLS, or
        ``unix://path?db=0``; for a cluster the URL of any node, which is used to find the others.
    :param cluster: whether the server is a node of a Redis Cluster.
    :param sentinel: the name of the primary in Sentinel; the URL then has the addresses of
        Sentinels, ``redis://10.0.0.7:26379,10.0.0.8:26379/0``, with the user of the primary.
    :param sentinel_password: the password of the Sentinels.
    :param prefix: prefix of every key: up to 64 of ``A-Z a-z 0-9 _ . : / -``.
    :param connect_timeout_s: seconds to establish a connection.
    :param timeout_s: seconds to wait for a reply, in addition to the time that a command blocks.
    :param max_connections: the maximum concurrent calls of one event loop; further callers wait.
    :param replicas: replicas that must have a push or an event before the call returns
        (``WAIT``).
    :param keep_finished: the number of finished jobs that Redis keeps, the newest ones.
    :param keep_failed: the number of failed jobs that Redis keeps, counted separately.
    :param keep_finished_s: seconds after which a finished job is removed.
    :param keep_failed_s: seconds after which a failed job is removed.
    :param history: which finished jobs are written to the history in Postgres: ``all``,
        ``failed`` or ``none``. A queue overrides it with ``broker_options={"history": "all"}``.
    """

    Settings = RedisSettings

    def __init__(
        self,
        *,
        url: str = "redis://127.0.0.1:6379/0",
        cluster: bool = False,
        sentinel: str | None = None,
        sentinel_password: str | None = None,
        prefix: str = "chancy:",
        connect_timeout_s: float = 5.0,
        timeout_s: float = 10.0,
        max_connections: int = 64,
        replicas: int = 0,
        keep_finished: int = 100_000,
        keep_failed: int = 100_000,
        keep_finished_s: float = 86_400.0,
        keep_failed_s: float = 2_592_000.0,
        history: History = "failed",
    ) -> None:
        given = locals()
        self.settings = checked({name: given[name] for name in RedisSettings.model_fields})
        #: Shared by jobs, streams and services.
        self.redis = RedisClient(self.settings)
        #: Declares streams and processors; the processors run together with the worker.
        self.streams = Streams(self.redis)
        self._letters = EventLetters(
            self.redis,
            lambda: [(processor.stream, processor.name) for processor in self.streams.processors],
            lambda: self.streams.streams,
        )
        self._only: Collection[str] | None = None
        #: Declares and controls services; they run together with the worker.
        self.services = Services(self.redis)

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.redis"

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        self.streams.outbox.schema = context.schema if context.postgres else None
        return {"redis": lambda: RedisBroker(self.settings, redis=self.redis, events=self._letters)}

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="redis",
            package="chancy.plugins.redis.migrations",
            head="0001",
            grants={RoleKind.PRODUCER: {"redis_events": "insert"}},
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.redis.cli.commands import commands

        return [commands(self.streams, self.services, self.settings)]

    def panels(self) -> Sequence[Panel]:
        return panels(self.streams, self.services)

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        return await refusal(app.broker, job.id) if isinstance(app.broker, SqlStore) else None

    async def examine(self, app: Application) -> Sequence[Finding]:
        from chancy.plugins.redis.maintenance.doctor import examine

        settings = self.settings
        limits = {
            name: min(getattr(settings, name), _EXAMINED_S)
            for name in ("connect_timeout_s", "timeout_s")
        }
        found = await examine(settings.model_copy(update=limits))
        if isinstance(app.broker, SqlStore):
            found.append(await refused_jobs(app.broker))
        return [one._replace(about=f"redis {one.about}") for one in found]

    def choose(self, processors: Collection[str]) -> Collection[str]:
        known = [
            name for processor in self.streams.processors for name in (processor.name, processor.id)
        ]
        self._only = [name for name in processors if name in known]
        return known

    @property
    def exit_code(self) -> int:
        return self.streams.exit.code

    async def serve(self, runtime: Runtime) -> None:
        ORIGIN.set(Origin(lambda: runtime.worker_id))
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "upkeep": Upkeep(ShardClient(self.redis)).serve,
            "streams": partial(self._run_streams, runtime),
            "services": self.services.serve,
        }
        if isinstance(runtime.broker, SqlStore):
            store = runtime.broker
            loops["event relay"] = EventRelay(self.redis, store, runtime).serve
            loops["archive"] = partial(Archive(ShardClient(self.redis), store).serve, runtime)
        try:
            async with asyncio.TaskGroup() as group:
                for name, loop in loops.items():
                    group.create_task(_keep_running(name, loop), name=name)
        finally:
            await self.redis.close()

    async def _run_streams(self, runtime: Runtime) -> None:
        # Partitions are handed over to other workers while the last jobs finish.
        await self.streams.serve(self._only, leader=runtime.leader, ending=runtime.ending)


async def _keep_running(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop until it returns. A loop that raises does not end the others."""
    backoff = Backoff(base_s=0.2, cap_s=10.0)
    while True:
        began = time.monotonic()
        try:
            return await loop()
        except Exception as error:
            if time.monotonic() - began > backoff.cap_s:
                backoff.reset()
            pause_s = backoff.next_s()
            logger.error(
                "redis_loop_failed name=%s next_try_s=%.1f error=%s: %s",
                name,
                pause_s,
                type(error).__name__,
                error,
                exc_info=not isinstance(error, BrokerUnavailable),
            )
            await asyncio.sleep(pause_s)
