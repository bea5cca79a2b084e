"""The settings of an application of runnel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import tzinfo
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.record import reasons

Seconds = Annotated[float, Field(ge=0)]


class Settings(BaseModel):
    """What ``App(name, …)`` takes by keyword, over ``RUNNEL_…`` in the environment.

    Those marked † are taken and have no effect: here one read serves all partitions of a worker,
    and logging is the program's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    redis_url: str = "redis://127.0.0.1:6379"
    #: Whether the server is a node of a Redis Cluster. runnel knew none.
    redis_cluster: bool = False
    #: †
    log_format: Literal["console", "json"] = "console"
    #: †
    log_level: str = "info"
    #: A pattern of files to import at the start of a worker.
    autodiscover: str | None = None
    #: Of crontabs.
    timezone: tzinfo | str = "UTC"
    #: In milliseconds; a leader that is silent for four times that is none.
    leadership_poll_interval: int = Field(default=4_000, ge=10)
    #: †
    testing: bool = False
    default_partition_count: int = 16
    #: Events.
    default_partition_size: int = 50_000
    #: An object, or ``module:attribute``; None: JSON.
    default_serializer: Any = None
    #: The name of a hasher, a function of a key, or ``module:attribute`` of one; None: ``crc32``.
    default_hasher: Any = None
    default_exception_policy: Literal["halt", "quarantine", "ignore"] = "halt"
    #: In seconds: a partition whose owner is silent for so long goes to another.
    default_lock_expiry: Seconds = 120
    #: † In milliseconds; at most the grace period.
    default_read_timeout: int = 2_000
    #: Events of a partition in memory.
    default_prefetch_count: int = 8
    #: Times the sleep: after so long a partition that cannot be had is an error in the log.
    default_assignment_attempts: int = 32
    #: In seconds, between looks at the plan when nobody told of a change.
    default_assignment_sleep: Seconds = 2
    #: In seconds, for what is being worked on when a partition is handed over.
    default_grace_period: Seconds = 8
    #: †
    default_pool_size: int = 16
    #: In seconds, between the join of a worker and its first partitions.
    default_join_delay: Seconds = 2


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings of keywords, and of the environment for what they leave out.

    :raises ConfigurationError: one of them cannot be, or there is none of its name.
    """
    found = {
        name: os.environ[variable]
        for name in Settings.model_fields
        if (variable := f"RUNNEL_{name.upper()}") in os.environ
    }
    try:
        return Settings.model_validate(found | dict(given))
    except ValidationError as error:
        raise ConfigurationError(f"the settings of runnel: {reasons(error)}") from None
