"""Redis beside Postgres: queues whose jobs are kept there, streams and services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

try:
    import redis as _  # noqa: F401  before whatever needs it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "chancy.plugins.redis needs the package 'redis': pip install 'chancy[redis]'",
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
from chancy.plugins.redis.transport.script_client import ScriptClient as StreamLink
from chancy.plugins.redis.transport.shard_client import linked
from chancy.postgres.schema.component import Migrations, RoleKind

if TYPE_CHECKING:
    import click

__all__ = ["RedisBroker", "RedisPlugin", "RedisSettings"]


class RedisPlugin(Plugin):
    """Connects an application to a Redis or Valkey server, or to a cluster of them.

    Jobs of a ``Queue(name, broker="redis")`` are kept there. How long a push outlasts the server
    is the server's business: with ``appendfsync everysec`` a power cut costs the last second.

    :param url: ``redis://[user:password@]host:port/db``, ``rediss://`` with TLS, or
        ``unix://path?db=0``; of a cluster any node.
    :param cluster: whether the server is a node of a Redis Cluster.
    :param prefix: before every key: up to 64 of ``A-Z a-z 0-9 _ . : / -``.
    :param connect_timeout_s: for a connection to be made.
    :param timeout_s: for the answer to a command.
    :param max_connections: of one process to one server.
    :param keep_finished: finished jobs that are kept there, the last ones.
    :param keep_failed: failed ones, apart from those.
    :param keep_finished_s: seconds for which finished jobs are kept at most.
    :param keep_failed_s: the same for failed ones.
    :param history: which finished jobs are written into the history in Postgres: ``all``,
        ``failed``, or ``none``. A queue may say otherwise: ``broker_options={"history": "all"}``.
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

        #: Streams and processors are declared here; the processors run beside the worker.
        self.streams = Streams(self.settings)
        self._only: Collection[str] | None = None
        #: Services are declared and commanded here; they run beside the worker.
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
        ours = [name for one in self.streams.processors for name in (one.name, one.id)]
        self._only = [name for name in processors if name in ours]
        return ours

    @property
    def exit_code(self) -> int:
        return self.streams.exit.code

    async def serve(self, runtime: Runtime) -> None:
        ORIGIN.set(Origin(lambda: runtime.worker_id))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_up(), name="upkeep")
            group.create_task(self._stream(runtime), name="streams")
            group.create_task(self.services.serve(), name="services")
            if isinstance(runtime.broker, SqlStore):
                group.create_task(self._relay(runtime.broker, runtime), name="relay")
                group.create_task(self._relay_events(runtime.broker, runtime), name="event relay")
                group.create_task(self._archive(runtime.broker, runtime), name="archive")

    async def _stream(self, runtime: Runtime) -> None:
        # What others wait for is handed over while the last jobs have their time.
        await self.streams.serve(self._only, leader=runtime.leader, ending=runtime.ending)

    async def _keep_up(self) -> None:
        async with linked(self.settings) as link:
            await Upkeep(link).serve()

    async def _relay(self, store: SqlStore, runtime: Runtime) -> None:
        async with linked(self.settings) as link:
            await JobRelay(link, store, runtime).serve()

    async def _relay_events(self, store: SqlStore, runtime: Runtime) -> None:
        link = StreamLink(self.settings)
        try:
            await EventRelay(link, store, runtime).serve()
        finally:
            await link.close()

    async def _archive(self, store: SqlStore, runtime: Runtime) -> None:
        async with linked(self.settings) as link:
            await Archive(link, store, runtime).serve()
