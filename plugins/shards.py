"""Shards: additional Postgres servers that store the jobs of some queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import Capability
from chancy.checks import check_broker_name, check_instance
from chancy.errors import BrokerUnavailable, ConfigurationError, PushError
from chancy.job.definition import Job
from chancy.job.ids import new_id
from chancy.plugin.plugin import Plugin
from chancy.plugin.pushing import PushContext
from chancy.plugin.runtime import BrokerContext
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Connection
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.text import shown

__all__ = ["PostgresShards", "ShardBroker"]

#: The maximum shards of a queue. Each is a separate queue, with pullers in every worker.
MAX_SHARDS = 64


class ShardBroker(PostgresBroker):
    """One of several Postgres servers. It stores jobs. Plugins write only to the control broker, so
    its queues cannot have rules."""

    name = ""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability) - {Capability.SETTLING, Capability.SQL, Capability.RULES}

    def check_queue(self, queue: Queue) -> None:
        super().check_queue(replace(queue, broker=DEFAULT_BROKER))

    async def _connect(self) -> Connection:
        try:
            return await super()._connect()
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"the shard {self.name} is unavailable: {error}") from error

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        return await super().settle(settlements)


@dataclass(frozen=True, slots=True)
class _Spread:
    path: tuple[str, ...]
    shards: tuple[str, ...]


class PostgresShards(Plugin):
    """Stores the jobs of some queues on additional Postgres servers, each with the tables of
    chancy.

    A ``Queue(name, broker="pg2")`` has its jobs on one shard. `spread` creates a queue on each of
    several shards, and spreads jobs over them by a key. Rows of queues and workers, and the tables
    of plugins, stay in the application's own database.

    :param dsns: the DSN of each shard by the name of its broker: 1 to 48 of ``a-z 0-9 _ -``.
    :param listen_dsns: direct connections to servers whose DSN goes through a pooler.
    :param driver: ``asyncpg`` or ``psycopg``.
    :param pool_size: the maximum number of sessions for callers, for each shard.
    :raises ConfigurationError: a name is invalid.
    """

    def __init__(
        self,
        dsns: Mapping[str, str],
        *,
        listen_dsns: Mapping[str, str] | None = None,
        driver: Literal["asyncpg", "psycopg"] = "asyncpg",
        pool_size: int = 10,
    ) -> None:
        self._dsns = dict(dsns)
        self._listen_dsns = dict(listen_dsns or {})
        self._driver: Literal["asyncpg", "psycopg"] = driver
        self._pool_size = pool_size
        self._spreads: dict[str, _Spread] = {}
        if not self._dsns:
            raise ConfigurationError("PostgresShards: dsns has no shard")
        for name, dsn in (*self._dsns.items(), *self._listen_dsns.items()):
            check_broker_name(name, "PostgresShards")
            check_instance(dsn, str, f"PostgresShards: the DSN of {name}", "pass postgresql://…")
        if DEFAULT_BROKER in self._dsns:
            raise ConfigurationError(
                f"PostgresShards: {DEFAULT_BROKER!r} is the application's own database: name the "
                "shard otherwise"
            )
        if unknown := self._listen_dsns.keys() - self._dsns.keys():
            raise ConfigurationError(f"PostgresShards: listen_dsns has no shard {min(unknown)!r}")

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.shards"

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        def make(name: str) -> Callable[[], Broker]:
            def broker() -> Broker:
                made = ShardBroker(
                    self._dsns[name],
                    schema=context.schema,
                    listen_dsn=self._listen_dsns.get(name),
                    driver=self._driver,
                    pool_size=self._pool_size,
                )
                made.name = name
                return made

            return broker

        return {name: make(name) for name in self._dsns}

    def spread(
        self, queue: Queue, *, by: str | None = None, over: Sequence[str] | None = None
    ) -> list[Queue]:
        """Create a queue for each shard, ``mail/pg1``, ``mail/pg2`` …, to pass to the application.

        A job pushed to the queue ``mail`` goes to the shard of its key, by rendezvous hashing: jobs
        with the same key stay together. If you add a shard, it takes over its share of the keys
        from each of the others, for new jobs.

        :param by: the path of the key in the arguments, as in ``"order.customer"``. None: the id of
            the job is its key, for jobs that need not stay together and are not unique.
        :param over: the names of the shards for new jobs, which may include ``postgres``, the
            application's own database; default: all shards.
        """
        shards = tuple(self._dsns if over is None else over)
        known = (DEFAULT_BROKER, *self._dsns)
        where = f"spread({queue.name!r})"
        if not 1 <= len(shards) <= MAX_SHARDS or len(set(shards)) < len(shards):
            raise ConfigurationError(f"{where}: pass 1 to {MAX_SHARDS} different shards")
        if missing := [name for name in shards if name not in known]:
            raise ConfigurationError(
                f"{where}: there is no shard {shown(missing[0])}; there are {', '.join(known)}"
            )
        path = tuple(by.split(".")) if by is not None else ()
        if not all(path):
            raise ConfigurationError(f"{where}: by={shown(by)} is not a path of arguments")
        self._spreads[queue.name] = _Spread(path, shards)
        return [
            replace(queue, name=f"{queue.name}/{name}", broker=name)
            for name in dict.fromkeys((*shards, *self._dsns))
        ]

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        spread = self._spreads.get(job.queue)
        if spread is None:
            return job
        if spread.path:
            key = _key(job, spread.path)
        elif job.unique is not None:
            raise PushError(
                f"job {job.func} is unique, and queue {job.queue!r} is spread by the ids of jobs, "
                "so two shards could hold its key: spread the queue by an argument"
            )
        else:
            job = job if job.id is not None else job.with_id(new_id())
            key = str(job.id)
        return job.with_queue(f"{job.queue}/{shard_of(key, spread.shards)}")


def shard_of(key: str, shards: Sequence[str]) -> str:
    """The shard of a key: the one with the highest hash of both."""
    return max(shards, key=lambda name: blake2b(f"{name}\0{key}".encode(), digest_size=8).digest())


def _key(job: Job[Any], path: Sequence[str]) -> str:
    found: Any = job.arguments
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    if not isinstance(found, str | int | UUID):
        raise PushError(
            f"job {job.func}: queue {job.queue!r} is spread over shards by "
            f"{'.'.join(path)!r}, which must be a string, a whole number or a UUID, not "
            f"{shown(found)}"
        )
    return str(found)
