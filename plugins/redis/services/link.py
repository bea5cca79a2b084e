"""The way of services to Redis: scripts from threads, which may share it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from redis import ConnectionPool, Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from chancy.plugins.redis.client import Client, command_sync, connect_sync, translated
from chancy.plugins.redis.scripts import Script, Value, load_folder
from chancy.plugins.redis.services.keys import ServiceKeys
from chancy.plugins.redis.settings import RedisSettings

#: What Redis answers: bytes, whole numbers, None, and lists of them.
Reply = Any
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
        options: dict[str, Any] = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name in (*_PLACE, *_IDENTITY)
        }
        return Redis.from_pool(
            ConnectionPool(
                connection_class=pool.connection_class,
                max_connections=64,
                retry=Retry(NoBackoff(), 0),
                **(options | ours),
            )
        )

    return connect


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


class Link:
    """Runs the scripts of services; it connects at the first use.

    :param timeout_s: for an answer; what the settings say unless given.
    """

    def __init__(
        self, connect: Connect, keys: ServiceKeys, *, timeout_s: float | None = None
    ) -> None:
        self.keys = keys
        self._connect = connect
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._lock = threading.Lock()

    def within(self, timeout_s: float) -> Link:
        """Another one, with connections of its own, that waits so long for an answer."""
        return Link(self._connect, self.keys, timeout_s=timeout_s)

    def run(self, script: str, *args: Value) -> Reply:
        """Run ``lua/<script>.lua``.

        :raises BrokerUnavailable: Redis is away; the outcome is unknown.
        :raises StatementFailed: it refused.
        """
        with translated():
            return scripts()[script].run_sync(
                self._open(), self.keys.given, (self.keys.hashes, *args)
            )

    def command(self, *parts: Value) -> Reply:
        """Send a plain command; its first key decides the server."""
        with translated():
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

    def _open(self) -> Client:
        # One of a cluster connects as it is made: two threads must not make one each.
        with self._lock:
            if self._client is None:
                self._client = self._connect(self._timeout_s)
            return self._client
