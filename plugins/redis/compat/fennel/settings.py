"""The settings of an application of fennel."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD

Seconds = Annotated[float, Field(ge=0)]


class Settings(BaseModel):
    """The keyword arguments of ``App(name, …)``, which override ``FENNEL_…`` variables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: str = "redis://127.0.0.1:6379"
    #: The Postgres with queues and workers; by default ``CHANCY_DSN``. Not a setting of fennel.
    dsn: str | None = None
    #: The schema of the tables. Not a setting of fennel.
    db_schema: str = "chancy"
    #: Whether the methods of tasks and results are coroutines.
    interface: Literal["sync", "async"] = "sync"
    #: Supervised workers of ``python -m chancy.plugins.redis.compat.fennel worker``.
    processes: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    #: Jobs that one worker runs at a time. ``chancy worker`` uses that of the queue, once it is
    #: declared.
    concurrency: int = Field(default=8, ge=1)
    #: Retries of a task after its first run.
    default_retries: int = Field(default=10, ge=0)
    #: A function from the number of tries to seconds, or its ``module.attribute``; None: the policy
    #: ``fennel`` of the retry plugin.
    retry_backoff: Callable[[int], float] | str | None = None
    #: Milliseconds between two polls of an idle worker that gets no notifications of new jobs.
    #: 0: chancy's default.
    read_timeout: int = Field(default=4_000, ge=0, le=3_600_000)
    #: Most claims that a worker holds per job that it can run at a time; None: adapted to its
    #: throughput.
    prefetch_count: Annotated[int, Field(ge=1)] | None = None
    #: Seconds without a heartbeat after which the jobs of a worker run elsewhere.
    heartbeat_timeout: Annotated[float, Field(gt=0)] = 60
    #: Seconds between two heartbeats.
    heartbeat_interval: Annotated[float, Field(gt=0)] = 6
    #: Seconds. No effect; other values emit a warning: a worker has the time of the next retry, and
    #: polls every second for retries scheduled by other workers.
    schedule_interval: Seconds = 4
    #: Seconds between two sweeps for jobs of dead workers, at least 0.1. When a worker is found
    #: dead, the sweep runs immediately.
    maintenance_interval: Seconds = 8
    #: Seconds that ``get()`` waits by default; 0: forever.
    task_timeout: Seconds = 10
    #: Seconds for running jobs to finish when a worker stops.
    grace_period: Seconds = 30
    #: Whether succeeded jobs are kept, with their results.
    results_enabled: bool = True
    #: Seconds for which succeeded jobs are kept.
    results_ttl: Annotated[float, Field(gt=0)] = 3_600
    #: The most bytes of the arguments or of the result of a job. Not a setting of fennel.
    max_payload: int = DEFAULT_MAX_PAYLOAD
    #: Log format of a worker, if the program has no log handlers.
    log_format: Literal["console", "json"] = "console"
    #: The lowest level that is logged.
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "debug"
    #: A pattern of files to import at the start of a worker; empty: none.
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
