"""Redis beside Postgres: queues whose jobs are kept there, streams and services."""

from __future__ import annotations

from chancy.plugin import Plugin
from chancy.plugins.redis.client import checked
from chancy.plugins.redis.settings import RedisSettings

__all__ = ["RedisPlugin", "RedisSettings"]


class RedisPlugin(Plugin):
    """Connects an application to a Redis or Valkey server, or to a cluster of them.

    :param url: ``redis://[user:password@]host:port/db``, ``rediss://`` with TLS, or
        ``unix://path?db=0``; of a cluster any node.
    :param cluster: whether the server is a node of a Redis Cluster.
    :param prefix: before every key: up to 64 of ``A-Z a-z 0-9 _ . : / -``.
    :param connect_timeout_s: for a connection to be made.
    :param timeout_s: for the answer to a command.
    :param max_connections: of one process to one server.
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
    ) -> None:
        self.settings = checked(
            {
                "url": url,
                "cluster": cluster,
                "prefix": prefix,
                "connect_timeout_s": connect_timeout_s,
                "timeout_s": timeout_s,
                "max_connections": max_connections,
            }
        )
