"""Where Redis is: one server, a primary that Sentinel names, or the servers of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool

from chancy.plugins.redis.settings import RedisSettings

Client = Redis | RedisCluster
#: Host and port of a server.
Place = tuple[str, int]

#: Options that are taken from a client of redis-py: the socket or database, and the credentials.
_TAKEN = ("path", "db", "username", "password", "credential_provider")


@dataclass(frozen=True, slots=True)
class Location:
    """How to reach Redis.

    :ivar kind: the connection class of redis-py, which parses the options; it is never connected.
    :ivar places: known servers of the cluster, Sentinels, or the one server; empty for a socket.
    :ivar sentinel: the name by which Sentinels know the primary.
    :ivar sentinel_options: the options for connections to Sentinels.
    """

    kind: type[Any]
    options: Mapping[str, Any]
    places: Sequence[Place]
    cluster: bool = False
    sentinel: str | None = None
    sentinel_options: Mapping[str, Any] | None = None

    def server(self, place: Place | None) -> Any:
        """The parsed options of one server."""
        at = {} if place is None else {"host": place[0], "port": place[1]}
        return self.kind(**{**self.options, **at})

    def of_sentinel(self, place: Place) -> Location:
        """The location of one Sentinel."""
        return Location(self.kind, self.sentinel_options or {}, [place])


def location_of(settings: RedisSettings) -> Location:
    """The location that settings describe."""
    parts = urlsplit(settings.url)
    login, at, hosts = parts.netloc.rpartition("@")
    first = parts._replace(netloc=f"{login}{at}{hosts.split(',')[0]}").geturl()
    pool: Any = AsyncRedis.from_url(first).connection_pool
    usual = 26379 if settings.sentinel else 6379
    places = [
        (each.hostname or "localhost", each.port or usual)
        for each in (urlsplit(f"//{host}") for host in hosts.split(","))
    ]
    options: dict[str, Any] = pool.connection_kwargs
    of_sentinel = {
        name: value for name, value in options.items() if name not in ("username", "password", "db")
    } | {"password": settings.sentinel_password}
    return Location(
        pool.connection_class,
        options,
        [] if parts.scheme == "unix" else places,
        settings.cluster,
        settings.sentinel,
        of_sentinel,
    )


def location_of_client(client: Client) -> Location:
    """The location of the server, the cluster or the Sentinels of a client of redis-py."""
    untyped: Any = client
    if isinstance(client, RedisCluster):
        nodes = [(str(node.host), int(node.port)) for node in untyped.get_nodes()]
        options: dict[str, Any] = untyped.nodes_manager.connection_kwargs
        kind: Any = SSLConnection if options.get("ssl") else Connection
        return Location(kind, _taken(options), nodes, cluster=True)
    pool = untyped.connection_pool
    options, sync_kind = pool.connection_kwargs, pool.connection_class
    kind = UnixDomainSocketConnection if "path" in options else Connection
    if any("SSL" in base.__name__ for base in sync_kind.__mro__):
        kind = SSLConnection
    if isinstance(pool, SentinelConnectionPool):
        manager: Any = pool.sentinel_manager
        asked = [each.connection_pool.connection_kwargs for each in manager.sentinels]
        return Location(
            kind,
            _taken(options),
            [(each["host"], int(each["port"])) for each in asked],
            sentinel=pool.service_name,
            sentinel_options=_taken(asked[0]),
        )
    places = [] if "path" in options else [(options["host"], int(options["port"]))]
    return Location(kind, _taken(options), places)


def _taken(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in options.items() if name in _TAKEN or name.startswith("ssl_")
    }
