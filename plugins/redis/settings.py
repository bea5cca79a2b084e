"""Where Redis is, and how it is spoken to."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chancy.errors import ConfigurationError
from chancy.queue.queue import Queue
from chancy.text import shown

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
#: Of which finished jobs of a queue the history in Postgres is kept.
History = Literal["all", "failed", "none"]

_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{0,64}")
_SCHEMES = ("redis", "rediss", "unix")


class RedisSettings(BaseModel):
    """The settings of a `RedisPlugin`: checked, and never changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: ``redis://[user:password@]host:port/db``, ``rediss://`` with TLS, ``unix://path?db=0``.
    #: Of a cluster any node; the others are found through it.
    url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    #: Whether the server is a node of a Redis Cluster.
    cluster: bool = False
    #: Before the name of every key: what keeps applications on one server apart.
    prefix: str = "chancy:"
    connect_timeout_s: Seconds = 5.0
    #: For the answer to a command, beyond the time that a blocking one was asked to wait.
    timeout_s: Seconds = 10.0
    #: Of one process to one server; more callers than these wait for their turn.
    max_connections: int = Field(default=64, ge=2, le=10_000)
    #: Of the server of the jobs, that must have a push before it returns, by ``WAIT``.
    replicas: int = Field(default=0, ge=0, le=100)
    #: Finished jobs that are kept in Redis, the last ones; failed ones apart.
    keep_finished: int = Field(default=100_000, ge=0, le=100_000_000)
    keep_failed: int = Field(default=100_000, ge=1, le=100_000_000)
    #: Seconds for which they are kept at the most.
    keep_finished_s: Annotated[float, Field(gt=0, le=315_360_000)] = 86_400.0
    keep_failed_s: Annotated[float, Field(gt=0, le=315_360_000)] = 2_592_000.0

    #: Which finished jobs are written into the history in Postgres, unless a queue says otherwise.
    history: History = "failed"

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError(
                f"the url must begin with one of {', '.join(f'{name}://' for name in _SCHEMES)}"
            )
        if parts.scheme == "unix" and not parts.path:
            raise ValueError("the url unix:// needs the path of a socket")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("the port of the url must be a number from 1 to 65535") from None
        return url

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        # Braces would begin a hash tag of their own, and spread a shard over the nodes.
        if not _PREFIX.fullmatch(prefix):
            raise ValueError("use up to 64 of the characters A-Z a-z 0-9 _ . : / -")
        return prefix

    @model_validator(mode="after")
    def _check_cluster(self) -> RedisSettings:
        parts = urlsplit(self.url)
        if self.cluster and (parts.scheme == "unix" or parts.path.strip("/") not in ("", "0")):
            raise ValueError("a cluster is reached by host and port, and has only the database 0")
        return self

    @property
    def shown_url(self) -> str:
        """The url without password, for people."""
        parts = urlsplit(self.url)
        _, at, place = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{'…@' if at else ''}{place}{parts.path}"


def history_of(queue: Queue, settings: RedisSettings) -> History:
    """Which jobs of a queue are for the history.

    :raises ConfigurationError: the queue says something else.
    """
    wanted = queue.broker_options.get("history", settings.history)
    for one in get_args(History):
        if wanted == one:
            found: History = one
            return found
    raise ConfigurationError(
        f"queue {queue.name!r}: history={shown(wanted)} must be one of "
        f"{', '.join(map(repr, get_args(History)))}"
    )
