"""The job of fennel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chancy.job.definition import QueuedJob
from chancy.plugins.redis.compat.fennel.status import status_of

#: The key of a job's meta with the name that ``@app.task(name=…)`` has given to its function.
TASK = "fennel_task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A snapshot of a job.

    :param task: the name of the task; without one, the path of the function.
    :param args: always empty: arguments are bound to the names of the parameters.
    :param tries: attempts that were started.
    :param exception: ``original_type`` and ``original_args`` of the last failure.
    """

    task: str
    kwargs: Mapping[str, Any]
    tries: int
    max_retries: int
    status: str
    uuid: str
    return_value: Any = None
    args: list[Any] = field(default_factory=list[Any])
    exception: Mapping[str, Any] = field(default_factory=dict[str, Any])


def shown(job: QueuedJob) -> Job:
    """The fennel job for a job."""
    return Job(
        task=str(job.meta.get(TASK, job.func)),
        kwargs=dict(job.arguments or {}),
        tries=job.attempt,
        max_retries=job.max_attempts - 1,
        exception=exception_of(job.errors[-1]) if job.errors else {},
        return_value=job.result,
        status=status_of(job),
        uuid=str(job.id),
    )


def exception_of(error: Mapping[str, Any]) -> dict[str, Any]:
    """``original_type`` (without the module) and ``original_args`` of a stored failure."""
    types = error.get("types")
    name = str(types[0]) if isinstance(types, list) and types else "unknown"
    message, args = error.get("message"), error.get("args")
    if not isinstance(args, list):
        args = [message] if message else []
    return {"original_type": name.rpartition(".")[2], "original_args": args}
