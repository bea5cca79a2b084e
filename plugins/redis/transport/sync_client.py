"""The way of services to Redis: scripts from threads, which may share it."""

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

#: What Redis answers: bytes, whole numbers, None, and lists of them.
Reply = Any
#: Twice the seconds in which replicas are to hear of a change: mostly they need a millisecond.
_HEARD_S = 2.0
#: For a turn, unless a link has another patience.
_TURN_S = 10.0
#: Of one client to a server, unless the settings say otherwise.
CONNECTIONS = 64
#: Makes a client; it is given the seconds to wait for an answer, None for what is usual.
Connect = Callable[[float | None], Client]


@functools.cache
def scripts() -> Mapping[str, Script]:
    """The scripts of services by name."""
    return load_folder(resources.files("chancy.plugins.redis.services") / "lua")


def connecting(settings: RedisSettings) -> Connect:
    """Makes clients of settings."""

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
    """Makes clients that reach the server which another client does.

    They have connections of their own: what waits here holds up nobody there.
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
    """A client of whatever is the primary as it connects."""
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


#: What is taken over from a client that was given: where the server is, and who we are.
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
    """Runs the scripts of services; it connects at the first use.

    :param connections: that its client may have to a server; more calls wait for their turn.
    :param timeout_s: for an answer, and for a turn; what the settings say unless given.
    :ivar replicas: that must have what a script has changed, before it counts.
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
        # One is left for the client itself, which asks a cluster for its nodes.
        self._turns = threading.BoundedSemaphore(connections - 1)

    def within(self, timeout_s: float) -> SyncRedisClient:
        """Another one, with connections of its own, that waits so long for an answer."""
        return SyncRedisClient(
            self._connect,
            self.keys,
            connections=self._connections,
            timeout_s=timeout_s,
            replicas=self.replicas,
        )

    def run(self, script: str, *args: Value, lasting: bool = True) -> Reply:
        """Run ``lua/<script>.lua``.

        :param lasting: whether it changes what a replica must have.
        :raises BrokerUnavailable: Redis is away, or too few of its replicas have heard of it; the
            outcome is unknown.
        :raises StatementFailed: it refused.
        """
        given = (self.keys.hashes, *args)
        with self._turn(), translated():
            if not (lasting and self.replicas):
                return scripts()[script].run_sync(self._open(), self.keys.given, given)
            # Half of the patience, so that the answer itself is not given up.
            wait_s = min(self._timeout_s or _HEARD_S, _HEARD_S) / 2
            return heard(
                self._open(),
                ScriptCall(scripts()[script], self.keys.given, given),
                self.replicas,
                wait_s,
            )

    def command(self, *parts: Value) -> Reply:
        """Send a plain command; its first key decides the server."""
        with self._turn(), translated():
            return command_sync(self._open(), *parts)

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
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
                "raise max_connections, or find out why Redis answers so late"
            )
        try:
            yield
        finally:
            self._turns.release()

    def _open(self) -> Client:
        # One of a cluster connects as it is made: two threads must not make one each.
        with self._lock:
            if self._client is None:
                self._client = self._connect(self._timeout_s)
            return self._client
