"""The settings of an application of fennel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.record import reasons

Seconds = Annotated[float, Field(ge=0)]


class Settings(BaseModel):
    """What ``App(name, …)`` takes by keyword, over ``FENNEL_…`` in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: str = "redis://127.0.0.1:6379"
    #: Of Postgres, where queues and workers are; ``CHANCY_DSN`` unless given. Not one of fennel's.
    dsn: str | None = None
    #: Of the tables. Not one of fennel's.
    db_schema: str = "chancy"
    #: Whether the methods of tasks and results are coroutines.
    interface: Literal["sync", "async"] = "sync"
    #: Workers under a supervisor, of ``python -m chancy.plugins.redis.compat.fennel worker``.
    processes: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    #: Jobs that one worker runs at a time. With ``chancy worker`` it is that of the queue, once it
    #: is declared.
    concurrency: int = Field(default=8, ge=1)
    #: Runs of a task after the first one.
    default_retries: int = Field(default=10, ge=0)
    #: A function of the number of tries to seconds, or ``module.attribute``; None: the policy
    #: ``fennel`` of the retry plugin.
    retry_backoff: Callable[[int], float] | str | None = None
    #: In milliseconds, of a worker that has nothing to do: between two looks at the queue while it
    #: is not told of new jobs. 0: as chancy does.
    read_timeout: int = Field(default=4_000, ge=0, le=3_600_000)
    #: Claims that one worker holds at most for each job that it may run at a time; None: as many
    #: more as its pace makes worth it.
    prefetch_count: Annotated[int, Field(ge=1)] | None = None
    #: In seconds: after so long without a beat the jobs of a worker run elsewhere.
    heartbeat_timeout: Annotated[float, Field(gt=0)] = 60
    #: In seconds, between two beats.
    heartbeat_interval: Annotated[float, Field(gt=0)] = 6
    #: In seconds. It has no effect, and another than this is warned of: workers know when the next
    #: retry is due, and look each second for those that others have put off.
    schedule_interval: Seconds = 4
    #: In seconds, between two sweeps for jobs of workers that are gone, at least a tenth of one. A
    #: worker that is seen to be gone is swept after at once.
    maintenance_interval: Seconds = 8
    #: In seconds, for ``get()`` that says no other; 0: for ever.
    task_timeout: Seconds = 10
    #: In seconds, for what runs when a worker is told to stop.
    grace_period: Seconds = 30
    #: Whether what succeeded is kept, with its result.
    results_enabled: bool = True
    #: In seconds, of what succeeded.
    results_ttl: Annotated[float, Field(gt=0)] = 3_600
    #: Of what a worker logs, where the program has no handlers of its own.
    log_format: Literal["console", "json"] = "console"
    #: The least level of it.
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "debug"
    #: A pattern of files to import at the start of a worker; the empty text: none.
    autodiscover: str = "**/tasks.py"

    @field_validator("interface", "log_format", "log_level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("autodiscover")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        if value and not value.endswith(".py"):
            raise ValueError("a pattern of files must end with .py")
        return value


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings of keywords, and of the environment for what they leave out.

    :raises ConfigurationError: one of them cannot be, or there is none of its name.
    """
    found = {
        name: os.environ[variable]
        for name in Settings.model_fields
        if (variable := f"FENNEL_{name.upper()}") in os.environ
    }
    try:
        return Settings.model_validate(found | dict(given))
    except ValidationError as error:
        raise ConfigurationError(f"the settings of fennel: {reasons(error)}") from None
