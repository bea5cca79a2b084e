"""Settings of an executor process. Imports no asyncio, which most of these processes never need."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from chancy.context.host import CompletionRef
    from chancy.queue.executor_options import ProcessOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """The surroundings of jobs that an executor process runs as the worker would.

    :param job_loop: path of the class that replaces the job loop.
    :param application: the application or stream processor to import, as ``module:attribute``.
    :param details: JSON string for that class.
    """

    job_loop: str
    application: str
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildKind:
    """What executor processes are started with. Queues of the same kind share them.

    :param around: paths of functions that wrap each job, outermost first.
    :param levels: lowest levels of the log records of jobs, and of ``chancy.job``; None takes those
        of this process at start.
    :param plain_errors: see `chancy.executors.base.AttemptCallbacks`.
    """

    options: ProcessOptions
    max_payload: int
    completion: CompletionRef | None = None
    environment: JobEnvironment | None = None
    wrapper: str | None = None
    around: tuple[str, ...] = ()
    levels: tuple[int, int] | None = None
    plain_errors: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """Settings that an executor process gets at its start.

    :param calls: descriptor of its end of the channel.
    :param shared: descriptor of a file whose memory it shares with the worker; None for none.
    :param max_payload: maximum size of an encoded result in bytes.
    :param initializer: path of a function to call first.
    :param log_level: lowest level of records that the worker logs.
    :param job_log_level: the same for the lines of jobs, of the logger ``chancy.job``.
    :param completion: the two fields of a `CompletionRef`.
    :param environment: None for plain jobs.
    :param around: paths of functions that wrap each job, outermost first.
    :param wrapper: see `chancy.job.registry.Registry`.
    :param plain_errors: see `chancy.executors.base.AttemptCallbacks`.
    """

    calls: int
    max_payload: int
    shared: int | None = None
    initializer: str | None = None
    log_level: int = logging.WARNING
    job_log_level: int = logging.WARNING
    completion: Sequence[str] | None = None
    environment: JobEnvironment | None = None
    around: Sequence[str] = ()
    wrapper: str | None = None
    plain_errors: bool = True

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        environment = values.pop("environment")
        if environment is not None:
            environment = JobEnvironment(**environment)
        return cls(**values, environment=environment)
