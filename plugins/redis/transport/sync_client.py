"""The Redis client of services: runs their scripts from threads, which may share it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import resources
from typing import Any

from redis import ConnectionPool, Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import SSLConnection
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.keys import ServiceKeys
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.clients import Client, command_sync, connect_sync, translated
from chancy.plugins.redis.transport.replicas import heard
from chancy.plugins.redis.transport.scripts import Script, ScriptCall, Value, load_folder

#: A reply of Redis: bytes, integers, None, and lists of them.
Reply = Any
#: Twice the seconds in which replicas should receive a write; usually they take a millisecond.
_HEARD_S = 2.0
#: Seconds to wait for a free connection, unless the client has its own timeout.
_TURN_S = 10.0
#: Connections of one client to a server, unless the settings override it.
CONNECTIONS = 64
#: Makes a client with a timeout in seconds for replies; None for the default.
Connect = Callable[[float | None], Client]


@functools.cache
def scripts() -> Mapping[str, Script]:
    """The scripts of services by name."""
    return load_folder(resources.files("chancy.plugins.redis.services") / "lua")


def connecting(settings: RedisSettings) -> Connect:
    """A factory of clients with these settings."""

    def connect(timeout_s: float | None) -> Client:
        if timeout_s is None:
            return connect_sync(settings)
        return connect_sync(
            settings,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, settings.connect_timeout_s),
        )

    return connect


def connecting_as(given: Client, usual_s: float = 10.0) -> Connect:
    """A factory of clients for the same server as an existing client.

    They have their own connections, so blocking commands do not delay the existing client.
    """

    def connect(timeout_s: float | None) -> Client:
        patience_s = usual_s if timeout_s is None else timeout_s
        ours: dict[str, Any] = {
            "socket_timeout": patience_s,
            "socket_connect_timeout": min(patience_s, 5.0),
            "decode_responses": False,
            "protocol": 2,
            "client_name": "chancy",
        }
        untyped: Any = given
        if isinstance(given, RedisCluster):
            node_of: Any = ClusterNode
            nodes = [node_of(node.host, node.port) for node in untyped.get_nodes()]
            taken: dict[str, Any] = untyped.nodes_manager.connection_kwargs
            kept = {name: value for name, value in taken.items() if name in ("ssl", *_IDENTITY)}
            return RedisCluster(
                startup_nodes=nodes,
                retry=Retry(NoBackoff(), 1),
                require_full_coverage=False,
                **(kept | ours),
            )
        pool = untyped.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            return _through_sentinel(pool, ours)
        options: dict[str, Any] = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name in (*_PLACE, *_IDENTITY)
        }
        return Redis.from_pool(
            ConnectionPool(
                connection_class=pool.connection_class,
                max_connections=CONNECTIONS,
                retry=Retry(NoBackoff(), 0),
                **(options | ours),
            )
        )

    return connect


def _through_sentinel(given: Any, ours: dict[str, Any]) -> Client:
    """A client that asks Sentinel for the current primary when it connects."""
    taken: dict[str, Any] = given.connection_kwargs
    kept = {name: value for name, value in taken.items() if name in ("db", *_IDENTITY)}
    pool_of: Any = SentinelConnectionPool
    return Redis.from_pool(
        pool_of(
            given.service_name,
            given.sentinel_manager,
            is_master=given.is_master,
            ssl=issubclass(given.connection_class, SSLConnection),
            max_connections=CONNECTIONS,
            retry=Retry(NoBackoff(), 0),
            **(kept | ours),
        )
    )


#: Options copied from an existing client: the address of the server, and the credentials.
_PLACE = ("host", "port", "path", "db")
_IDENTITY = (
    "username",
    "password",
    "credential_provider",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_check_hostname",
    "ssl_password",
)


class SyncRedisClient:
    """Runs the scripts of services; connects at first use.

    :param connections: most connections to a server; further calls wait for a free one.
    :param timeout_s: seconds to wait for a reply, and for a free connection; by default that of the
        settings.
    :ivar replicas: replicas that must have received the writes of a script before it succeeds.
    """

    def __init__(
        self,
        connect: Connect,
        keys: ServiceKeys,
        *,
        connections: int = CONNECTIONS,
        timeout_s: float | None = None,
        replicas: int = 0,
    ) -> None:
        self.keys = keys
        self.replicas = replicas
        self._connect = connect
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._connections = connections
        # One connection is reserved for the client itself, which asks a cluster for its nodes.
        self._turns = threading.BoundedSemaphore(connections - 1)

    def within(self, timeout_s: float) -> SyncRedisClient:
        """Another client with its own connections and this timeout."""
        return SyncRedisClient(
            self._connect,
            self.keys,
            connections=self._connections,
            timeout_s=timeout_s,
            replicas=self.replicas,
        )

    def run(self, script: str, *args: Value, lasting: bool = True) -> Reply:
        """Run ``lua/<script>.lua``.

        :param lasting: whether its writes must reach replicas.
        :raises BrokerUnavailable: Redis is unavailable, or too few replicas have received the
            writes; the outcome is unknown.
        :raises StatementFailed: Redis refused the script.
        """
        given = (self.keys.hashes, *args)
        with self._turn(), translated():
            if not (lasting and self.replicas):
                return scripts()[script].run_sync(self._open(), self.keys.script_keys, given)
            # Half of the timeout, so that the reply itself still arrives in time.
            wait_s = min(self._timeout_s or _HEARD_S, _HEARD_S) / 2
            return heard(
                self._open(),
                ScriptCall(scripts()[script], self.keys.script_keys, given),
                self.replicas,
                wait_s,
            )

    def command(self, *parts: Value) -> Reply:
        """Send a plain command; its first key selects the server."""
        with self._turn(), translated():
            return command_sync(self._open(), *parts)

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        with self._lock:
            client: Any = self._client
            self._client = None
        if isinstance(client, RedisCluster):
            # Untyped; close() leaves the connections of the nodes open.
            pools: Any = client.disconnect_connection_pools
            pools()
        if client is not None:
            client.close()

    @contextmanager
    def _turn(self) -> Generator[None]:
        patience_s = self._timeout_s or _TURN_S
        if not self._turns.acquire(timeout=patience_s):
            raise BrokerUnavailable(
                f"all {self._connections} connections to Redis were in use for {patience_s:g} s: "
                "raise max_connections, or find out why Redis responds so slowly"
            )
        try:
            yield
        finally:
            self._turns.release()

    def _open(self) -> Client:
        # A cluster client connects when it is made: two threads must not make one each.
        with self._lock:
            if self._client is None:
                self._client = self._connect(self._timeout_s)
            return self._client
