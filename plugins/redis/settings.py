"""The settings of the Redis plugin."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from chancy.checks import check_choice, reasons
from chancy.errors import ConfigurationError
from chancy.queue.queue import Queue

Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
#: Which finished jobs of a queue are written to the history in Postgres.
History = Literal["all", "failed", "none"]

_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{0,64}")
_SCHEMES = ("redis", "rediss", "unix")


class RedisSettings(BaseModel):
    """The validated, immutable settings of a `RedisPlugin`, which describes them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(default="redis://127.0.0.1:6379/0", repr=False)
    cluster: bool = False
    sentinel: str | None = None
    sentinel_password: str | None = Field(default=None, repr=False)
    prefix: str = "chancy:"
    connect_timeout_s: Seconds = 5.0
    timeout_s: Seconds = 10.0
    max_connections: int = Field(default=64, ge=2, le=10_000)
    replicas: int = Field(default=0, ge=0, le=100)
    keep_finished: int = Field(default=100_000, ge=0, le=100_000_000)
    keep_failed: int = Field(default=100_000, ge=1, le=100_000_000)
    keep_finished_s: Annotated[float, Field(gt=0, le=315_360_000)] = 86_400.0
    keep_failed_s: Annotated[float, Field(gt=0, le=315_360_000)] = 2_592_000.0
    history: History = "failed"

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError(
                f"the URL must begin with one of {', '.join(f'{name}://' for name in _SCHEMES)}"
            )
        if parts.scheme == "unix" and not parts.path:
            raise ValueError("a unix:// URL requires the path of a socket")
        try:
            for host in parts.netloc.rpartition("@")[2].split(","):
                _ = urlsplit(f"//{host}").port
        except ValueError:
            raise ValueError("the port of the URL must be a number from 1 to 65535") from None
        return url

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        # Braces would start another hash tag and spread a shard over several nodes.
        if not _PREFIX.fullmatch(prefix):
            raise ValueError("use up to 64 of the characters A-Z a-z 0-9 _ . : / -")
        return prefix

    @model_validator(mode="after")
    def _check_cluster(self) -> RedisSettings:
        parts = urlsplit(self.url)
        if self.cluster and (parts.scheme == "unix" or parts.path.strip("/") not in ("", "0")):
            raise ValueError("a cluster requires a URL with host and port, and only has database 0")
        if self.sentinel and (parts.scheme == "unix" or self.cluster):
            raise ValueError("sentinel requires a URL with host and port, and no cluster")
        return self

    @property
    def shown_url(self) -> str:
        """The URL without credentials, for messages."""
        parts = urlsplit(self.url)
        _, at, place = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{'…@' if at else ''}{place}{parts.path}"


def history_of(queue: Queue, settings: RedisSettings) -> History:
    """Which finished jobs of a queue are written to the history.

    :raises ConfigurationError: the queue's option ``history`` has an unknown value.
    """
    wanted = queue.broker_options.get("history", settings.history)
    found: History = check_choice(wanted, f"queue {queue.name!r}: history", get_args(History))
    return found


def checked(values: dict[str, Any]) -> RedisSettings:
    """Validated settings from values.

    :raises ConfigurationError: a value is invalid; the message names it, but not the password.
    """
    try:
        return RedisSettings(**values)
    except ValidationError as error:
        raise ConfigurationError(f"RedisPlugin: {reasons(error)}") from None
