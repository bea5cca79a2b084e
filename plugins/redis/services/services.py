"""The services of an application, and their execution beside a worker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from chancy.checks import check_number
from chancy.errors import ConfigurationError
from chancy.plugins.redis.keys import ServiceKeys, own_keys
from chancy.plugins.redis.services.base import Listing, Service, ServiceReport, ServiceState
from chancy.plugins.redis.services.client import ServiceStore
from chancy.plugins.redis.services.leases import Leases
from chancy.plugins.redis.services.runtime import ServiceRuntime
from chancy.plugins.redis.services.service_link import ServiceLink
from chancy.plugins.redis.services.settings import (
    Local,
    OnException,
    ServiceSettings,
    notify_handlers,
)
from chancy.plugins.redis.services.supervision import Cleaner, Handler, handler_at, sweep
from chancy.plugins.redis.services.values import as_json, check_name
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.location import Client
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.text import shown

S = TypeVar("S", bound=type[Service])


class Services:
    """Declares services, sends commands to them, and runs them beside a worker.

    :param redis: the settings of Redis, or a client; or a redis-py client, whose server is used
        through separate connections.
    :param keys: key names other than ``{PREFIXservices}:…``.
    :ivar blocking: the same commands for threads.
    """

    def __init__(
        self, redis: RedisSettings | RedisClient | Client, *, keys: ServiceKeys | None = None
    ) -> None:
        if isinstance(redis, RedisSettings):
            redis = RedisClient(redis)
        elif not isinstance(redis, RedisClient):
            redis = RedisClient(RedisSettings(), redis)
        self.link = ServiceLink(redis, keys or own_keys(redis.prefix))
        self.blocking = ServiceStore(self.link)
        self._kinds: dict[str, type[Service]] = {}
        self._settings = ServiceSettings()
        self._handlers: list[OnException] = []
        self._locals: list[Local] = []
        self._runtimes: list[ServiceRuntime] = []

    # Declarations

    @property
    def keys(self) -> ServiceKeys:
        """The Redis keys."""
        return self.link.keys

    @property
    def kinds(self) -> Mapping[str, type[Service]]:
        """The declared classes, by name."""
        return dict(self._kinds)

    def service(self, kind: S) -> S:
        """Declare a service class under its ``name``; also usable as a decorator.

        :raises ConfigurationError: the name is taken, or the class is not a valid service.
        """
        if not (isinstance(kind, type) and issubclass(kind, Service)):
            raise ConfigurationError(f"{shown(kind)} is not a subclass of Service")
        name = kind.name
        if not name:
            raise ConfigurationError(f'{kind.__name__} has no name: define name = "…"')
        check_name(name)
        if kind.start is Service.start:
            raise ConfigurationError(f"{kind.__name__} does not define start: implement it")
        if name in self._kinds:
            raise ConfigurationError(f"the service {name!r} is declared twice: rename one")
        self._kinds[name] = kind
        return kind

    def configure(
        self,
        *,
        lease_s: float | None = None,
        concurrency: int | None = None,
        grace_s: float | None = None,
        monitor: bool | None = None,
        cleanup: bool | None = None,
        handler: str | Handler | None = None,
        handler_s: float | None = None,
        keep_s: float | None = None,
        replicas: int | None = None,
    ) -> None:
        """Configure how workers run services; omitted settings keep their values.

        :param lease_s: seconds without a renewal after which another worker may run a service:
            default 10, at least 1.
        :param concurrency: maximum services in each process: default 1,000.
        :param grace_s: seconds for ``stop``, and then for ``start`` to return: default 10.
        :param monitor: whether workers sweep for services whose lease has ended.
        :param cleanup: whether workers remove services that have ended.
        :param handler: called in a thread with the id and the fields of each service before its
            removal; a callable or its ``module:attribute``.
        :param handler_s: seconds until another worker may call the handler for the same service:
            default 60.
        :param keep_s: seconds for which an ended service started with ``cleanup=False`` is kept:
            default 30 days.
        :param replicas: replicas that must acknowledge a renewal, a claim or a command: default
            none. With it, an old primary without replicas can grant no leases; if too few replicas
            are reachable, no service runs.
        :raises ConfigurationError: a value is invalid.
        """
        settings = {
            "lease_s": _within("lease_s", lease_s, 1.0, 3600.0),
            "concurrency": _within("concurrency", concurrency, 1, 100_000),
            "grace_s": _within("grace_s", grace_s, 0.0, 3600.0),
            "monitor": monitor,
            "cleanup": cleanup,
            "handler": handler_at(handler),
            "handler_s": _within("handler_s", handler_s, 0.1, 86_400.0),
            "keep_s": _within("keep_s", keep_s, 0.0, 315_360_000.0),
        }
        _within("replicas", replicas, 0, 100)
        changed: dict[str, Any] = {
            name: value for name, value in settings.items() if value is not None
        }
        self._settings = replace(self._settings, **changed)
        if replicas is not None:
            self.link.replicas = replicas

    def on_exception(self, handler: OnException) -> OnException:
        """Declare a function that is called with each exception that ends a service as EXCEPTION.

        It is also called with exceptions of ``stop`` and of the cleanup handler.
        """
        self._handlers.append(handler)
        return handler

    def start_local(self, name: str, /, **data: Any) -> str:
        """Run a service in each worker process of this program, local to it; return its id.

        It never moves to another worker: it is removed when its worker stops, and recreated after
        an outage of Redis.
        """
        local = Local(
            str(uuid.uuid4()),
            check_name(name),
            as_json(data, f"the data of the service {name!r}"),
        )
        self._locals.append(local)
        for runtime in self._runtimes:
            runtime.add_local(local)
        return local.id

    # Commands

    async def start(
        self, name: str, /, id: str | None = None, cleanup: bool = True, **data: Any
    ) -> str:
        """`ServiceStore.start`."""
        return await asyncio.to_thread(self.blocking.begin, name, data, id=id, cleanup=cleanup)

    async def stop(self, id: str) -> ServiceState:
        """`ServiceStore.stop`."""
        return await asyncio.to_thread(self.blocking.stop, id)

    async def reload(self, id: str) -> ServiceState:
        """`ServiceStore.reload`."""
        return await asyncio.to_thread(self.blocking.reload, id)

    async def restart(self, id: str) -> ServiceState:
        """`ServiceStore.restart`."""
        return await asyncio.to_thread(self.blocking.restart, id)

    async def restart_if(self, id: str, states: Iterable[ServiceState | str]) -> bool:
        """`ServiceStore.restart_if`."""
        return await asyncio.to_thread(self.blocking.restart_if, id, states)

    async def remove(self, id: str) -> ServiceState | None:
        """`ServiceStore.remove`."""
        return await asyncio.to_thread(self.blocking.remove, id)

    async def get(self, id: str) -> ServiceReport | None:
        """`ServiceStore.get`."""
        return await asyncio.to_thread(self.blocking.get, id)

    async def set(self, id: str, /, **data: Any) -> None:
        """`ServiceStore.set`."""
        return await asyncio.to_thread(self.blocking.set, id, **data)

    async def list(self) -> Listing:
        """`ServiceStore.list`."""
        return await asyncio.to_thread(self.blocking.list)

    def close(self) -> None:
        """Close the connections of the commands; the next command opens new ones."""
        self.link.redis.background.close()

    # Maintenance, for applications that schedule it themselves

    def sweep(self, *, timeout_s: float = 0.0) -> None:
        """Requeue up to 10,000 services whose lease has ended.

        :param timeout_s: seconds since the last renewal, or the end of the lease if that is later.
        """
        sweep(self._own_leases, keep_s=self._settings.keep_s, timeout_s=timeout_s)

    def cleaner(self, handler: str | Handler | None = None) -> Cleaner:
        """Return a cleaner of ended services; its ``serve`` runs until its ``stop``."""
        return Cleaner(
            self._own_leases, handler_at(handler), self._failed, lease_s=self._settings.handler_s
        )

    @property
    def _own_leases(self) -> Leases:
        return Leases(self.link, "", self._settings.lease_s)

    def _failed(self, error: BaseException) -> None:
        notify_handlers(self._handlers, error)

    # Beside a worker

    async def serve(self) -> None:
        """Run services until cancelled; then stop them and release them as WAIT.

        Returns at once if no service is declared.
        """
        if not self._kinds:
            return
        runtime = ServiceRuntime(
            self.link,
            self._kinds,
            self._settings,
            self._handlers,
            [local.of_this_process() for local in self._locals],
        )
        self._runtimes.append(runtime)
        try:
            await runtime.serve()
        finally:
            self._runtimes.remove(runtime)
            await self.link.redis.disconnect()
            self.close()


def _within(name: str, value: Any, least: float, most: float) -> Any:
    if value is not None:
        check_number(value, f"services: {name}", least, most, whole=isinstance(least, int))
    return value
