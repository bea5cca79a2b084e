"""The settings of an application of runnel."""

from __future__ import annotations

from datetime import tzinfo
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]


class Settings(BaseModel):
    """The keyword arguments of ``App(name, …)``, which override ``RUNNEL_…`` variables.

    Settings marked † are accepted and have no effect: one read serves all partitions of a worker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    redis_url: str = "redis://127.0.0.1:6379"
    #: Whether the server is a node of a Redis Cluster. Not a setting of runnel.
    redis_cluster: bool = False
    #: The log format of the command ``worker``; other programs configure logging themselves.
    log_format: Literal["console", "json"] = "console"
    #: The lowest level that the command logs.
    log_level: str = "info"
    #: A pattern of files to import at the start of a worker.
    autodiscover: str | None = None
    #: The timezone of crontabs.
    timezone: tzinfo | str = "UTC"
    #: Milliseconds; leadership expires after four times this without renewal.
    leadership_poll_interval: int = Field(default=4_000, ge=10)
    #: †
    testing: bool = False
    default_partition_count: int = 16
    #: Most events of a partition.
    default_partition_size: int = 50_000
    #: A serializer, or its ``module:attribute``; None: JSON.
    default_serializer: Any = None
    #: The name of a hasher, a function of a key, or its ``module:attribute``; None: ``crc32``.
    default_hasher: Any = None
    default_exception_policy: Literal["halt", "quarantine", "ignore"] = "halt"
    #: Seconds without a heartbeat after which a partition goes to another worker.
    default_lock_expiry: Seconds = 120
    #: † Milliseconds; at most the grace period.
    default_read_timeout: int = 2_000
    #: Events of a partition that are held in memory.
    default_prefetch_count: int = 8
    #: An unavailable partition is logged as an error after this times `default_assignment_sleep`.
    default_assignment_attempts: int = 32
    #: Seconds between two polls of the assignment without a notification.
    default_assignment_sleep: Seconds = 2
    #: Seconds for events in progress when a partition is handed over.
    default_grace_period: Seconds = 8
    #: †
    default_pool_size: int = 16
    #: Seconds between the join of a worker and its first partitions.
    default_join_delay: Seconds = 2
