"""Redis queues, streams and services, beside Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

try:
    import redis as _  # noqa: F401  before the modules that need it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "chancy.plugins.redis requires the package 'redis': pip install 'chancy[redis]'",
        name="redis",
    ) from error

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.log_context import ORIGIN, Origin
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import BrokerContext, Runtime
from chancy.plugins.redis.jobs.broker import RedisBroker
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.relay.archive import Archive
from chancy.plugins.redis.relay.job_relay import JobRelay
from chancy.plugins.redis.services.services import Services
from chancy.plugins.redis.settings import History, RedisSettings
from chancy.plugins.redis.streams.producing.relay import EventRelay
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.clients import checked
from chancy.plugins.redis.transport.script_client import ScriptClient
from chancy.plugins.redis.transport.shard_client import linked
from chancy.postgres.schema.component import Migrations, RoleKind

if TYPE_CHECKING:
    import click

__all__ = ["RedisBroker", "RedisPlugin", "RedisSettings"]


class RedisPlugin(Plugin):
    """Connects an application to a Redis or Valkey server or cluster.

    Jobs of a ``Queue(name, broker="redis")`` are stored there. The server's configuration decides
    how durable a push is: with ``appendfsync everysec`` a power cut loses the last second.

    :param url: ``redis://[user:password@]host:port/db``, ``rediss://`` with TLS, or
        ``unix://path?db=0``; for a cluster the URL of any node.
    :param cluster: whether the server is a node of a Redis Cluster.
    :param prefix: prefix of every key: up to 64 of ``A-Z a-z 0-9 _ . : / -``.
    :param connect_timeout_s: seconds to establish a connection.
    :param timeout_s: seconds to wait for the reply to a command.
    :param max_connections: connections of one process to one server.
    :param replicas: replicas that must have a push before it returns (``WAIT``).
    :param keep_finished: finished jobs that Redis keeps, the newest ones.
    :param keep_failed: failed jobs that Redis keeps, counted separately.
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
        self.settings = checked(
            {
                "url": url,
                "cluster": cluster,
                "prefix": prefix,
                "connect_timeout_s": connect_timeout_s,
                "timeout_s": timeout_s,
                "max_connections": max_connections,
                "replicas": replicas,
                "keep_finished": keep_finished,
                "keep_failed": keep_failed,
                "keep_finished_s": keep_finished_s,
                "keep_failed_s": keep_failed_s,
                "history": history,
            }
        )

        #: Declares streams and processors; the processors run beside the worker.
        self.streams = Streams(self.settings)
        self._only: Collection[str] | None = None
        #: Declares and controls services; they run beside the worker.
        self.services = Services(self.settings)

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.redis"

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        outbox = context.schema if context.postgres else None
        self.streams.outbox.schema = outbox
        return {"redis": lambda: RedisBroker(self.settings, outbox=outbox)}

    def migrations(self) -> Migrations | None:
        return Migrations(
            name="redis",
            package="chancy.plugins.redis.migrations",
            head="0001",
            grants={RoleKind.PRODUCER: {"redis_outbox": "insert", "redis_events": "insert"}},
        )

    def commands(self) -> Sequence[click.Command]:
        from chancy.plugins.redis.cli.commands import commands

        return [commands(self.streams, self.services, self.settings)]

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
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_upkeep(), name="upkeep")
            group.create_task(self._run_streams(runtime), name="streams")
            group.create_task(self.services.serve(), name="services")
            if isinstance(runtime.broker, SqlStore):
                group.create_task(self._relay_jobs(runtime.broker, runtime), name="relay")
                group.create_task(self._relay_events(runtime.broker, runtime), name="event relay")
                group.create_task(self._archive_jobs(runtime.broker, runtime), name="archive")

    async def _run_streams(self, runtime: Runtime) -> None:
        # Partitions are handed over to other workers while the last jobs finish.
        await self.streams.serve(self._only, leader=runtime.leader, ending=runtime.ending)

    async def _run_upkeep(self) -> None:
        async with linked(self.settings) as client:
            await Upkeep(client).serve()

    async def _relay_jobs(self, store: SqlStore, runtime: Runtime) -> None:
        async with linked(self.settings) as client:
            await JobRelay(client, store, runtime).serve()

    async def _relay_events(self, store: SqlStore, runtime: Runtime) -> None:
        client = ScriptClient(self.settings)
        try:
            await EventRelay(client, store, runtime).serve()
        finally:
            await client.close()

    async def _archive_jobs(self, store: SqlStore, runtime: Runtime) -> None:
        async with linked(self.settings) as client:
            await Archive(client, store, runtime).serve()
