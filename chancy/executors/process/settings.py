"""The settings of an executor process. Imports no asyncio, which most processes never need."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

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
    """The settings of executor processes. Queues with equal settings share processes.

    :param max_payload: maximum size of an encoded result in bytes.
    :param environment: None for plain jobs.
    :param wrapper: see `chancy.job.registry.Registry`.
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

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        values["options"] = ProcessOptions(**values["options"])
        if values["completion"] is not None:
            values["completion"] = CompletionRef(*values["completion"])
        if values["environment"] is not None:
            values["environment"] = JobEnvironment(**values["environment"])
        return cls(**values)
