"""Celery's calls for jobs, to move one function at a time: `shared_task`, ``delay``, ``retry``.

    from chancy.celery import serve_tasks, shared_task

    serve_tasks(chancy)

    @shared_task(bind=True, max_retries=4)
    def send(self, to):
        try:
            return deliver(to)
        except ConnectionError as error:
            raise self.retry(exc=error, countdown=60)

    send.delay("ann@example.com").get(timeout=30)

A task is also a job: ``send.job(…)`` works, and workers find it by the same path. Options and calls
of Celery that have no counterpart raise TypeError, so that none is silently ignored.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import Any, NoReturn
from uuid import UUID

from chancy.app.app import Chancy
from chancy.attempt.control import Retry
from chancy.context.context import CURRENT
from chancy.errors import ConfigurationError, PushError
from chancy.job.definition import Job, JobFactory, job
from chancy.job.limits import Limit
from chancy.results.reference import Reference
from chancy.retry import Constant, Exponential, Jitter, Policy, PolicyOrFalse
from chancy.states import State
from chancy.text import shown

__all__ = ["AsyncResult", "Task", "TaskRequest", "serve_tasks", "shared_task"]

_STATES = {
    State.RUNNING: "STARTED",
    State.SUCCEEDED: "SUCCESS",
    State.FAILED: "FAILURE",
    State.CANCELLED: "REVOKED",
}
#: The attempts of a task with an unlimited number of retries.
_MOST_ATTEMPTS = 10_000
#: What to use instead of options of `shared_task` that have no counterpart.
_INSTEAD = {
    "base": "use a hook of a plugin, such as around or settled",
    "ignore_result": "use Queue(keep_finished=False)",
    "name": "a task is found by the path of its function, so leave name= out",
    "rate_limit": "use Queue(rules=(RateLimit(…),))",
    "retry_kwargs": "use max_retries= and default_retry_delay=",
    "serializer": "arguments and results are JSON, so leave serializer= out",
    "soft_time_limit": "use time_limit=, which interrupts the task before it is killed",
    "track_started": "it always holds, so leave track_started= out",
}
#: What to use instead of calls of a task and of its result.
_CALLS_INSTEAD = {
    **dict.fromkeys(
        ("s", "si", "signature", "subtask", "map", "starmap", "chunks"),
        "use chain, group and chord of chancy.plugins.workflow",
    ),
    "apply": "call the function, or use a sandbox of chancy.testing",
    "revoke": "use chancy.cancel(id)",
}
_app: Chancy | None = None


def serve_tasks(chancy: Chancy | None) -> None:
    """Make ``delay`` and ``apply_async`` push to this application from now on."""
    global _app
    _app = chancy


def _current() -> Chancy:
    if _app is None:
        raise ConfigurationError("tasks have no application: call chancy.celery.serve_tasks(…)")
    return _app


def _as_uuid(id: str) -> UUID:
    try:
        return UUID(id)
    except ValueError:
        raise PushError(
            f"the task id {shown(id)} is not a UUID; to push a task once for a name of your own, "
            "use a job with Unique(key=…)"
        ) from None


def _check_times(countdown: float | None, eta: datetime | None) -> None:
    if countdown is not None and eta is not None:
        raise TypeError("countdown= and eta= both set the start of the task: pass one of them")


class AsyncResult:
    """A pushed task; ``AsyncResult(id)`` finds one that another process pushed."""

    def __init__(self, id: UUID | str) -> None:
        self.id = str(id)
        self._reference: Reference[Any] = Reference(_as_uuid(self.id), _current())

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the result.

        :raises JobFailed: the task has failed for good.
        :raises JobCancelled: it was cancelled.
        :raises WaitTimeout: it has not finished within ``timeout`` seconds.
        """
        return self._reference.sync_result(timeout)

    @property
    def state(self) -> str:
        """PENDING (also if there is no such task), RETRY, STARTED, SUCCESS, FAILURE or REVOKED."""
        found = self._reference.sync_get()
        if found is None:
            return "PENDING"
        waits = "RETRY" if found.attempt else "PENDING"
        return _STATES.get(found.state, waits)

    status = state

    def ready(self) -> bool:
        """Whether it has finished."""
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        """Whether it has succeeded."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Whether it has failed for good."""
        return self.state == "FAILURE"

    def revoke(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported.

        :raises TypeError: always; it says what to use.
        """
        _refuse("revoke")


class TaskRequest:
    """Information about the running task."""

    @property
    def id(self) -> str | None:
        """None if the function was called directly."""
        job = CURRENT.get(None)
        return None if job is None else str(job.id)

    @property
    def retries(self) -> int:
        """The number of attempts before this one; 0 if the function was called directly."""
        job = CURRENT.get(None)
        return 0 if job is None else job.attempt - 1


class Task:
    """The calls of a task; ``self`` with ``bind=True``.

    :param default_retry_delay: seconds after which `retry` runs it again.
    """

    request = TaskRequest()

    def __init__(self, default_retry_delay: float) -> None:
        self.default_retry_delay = default_retry_delay
        #: The factory of its jobs; set with the function.
        self.job: JobFactory[..., Any]

    @property
    def name(self) -> str:
        """The path of the function, by which workers find it."""
        return self.job.template.func

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Push a job with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        task_id: str | None = None,
    ) -> AsyncResult:
        """Push a job.

        :param countdown: seconds until it may start.
        :param eta: the aware datetime from which it may start.
        :param expires: the aware datetime, or the seconds, by which it starts or is cancelled.
        :param priority: from -100 to 100; higher runs first.
        :param task_id: a UUID.
        :raises TypeError: both ``countdown`` and ``eta`` are given.
        """
        _check_times(countdown, eta)
        pushed: Job[Any] = self.job(*(args or ()), **(kwargs or {}))
        if countdown is not None:
            pushed = pushed.with_delay(countdown)
        if eta is not None:
            pushed = pushed.with_run_at(eta)
        if expires is not None:
            pushed = pushed.with_expires_at(expires)
        if queue is not None:
            pushed = pushed.with_queue(queue)
        if priority is not None:
            pushed = pushed.with_priority(priority)
        if task_id is not None:
            pushed = pushed.with_id(_as_uuid(task_id))
        return AsyncResult(_current().sync_push(pushed).id)

    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
    ) -> NoReturn:
        """Fail this attempt and start the next one after ``countdown`` seconds, or at ``eta``.

        If no attempts are left, the task fails for good, with the error ``exc``; the default is the
        one that is being handled.

        :raises TypeError: both ``countdown`` and ``eta`` are given.
        """
        _check_times(countdown, eta)
        exc = exc or sys.exception()
        delay_s = self.default_retry_delay if countdown is None else countdown
        raise Retry(delay_s if eta is None else eta, "" if exc is None else str(exc)) from exc


def shared_task(
    function: Callable[..., Any] | None = None,
    *,
    bind: bool = False,
    queue: str = "default",
    priority: int = 0,
    max_retries: int | None = 3,
    default_retry_delay: float = 180.0,
    autoretry_for: Sequence[type[Exception]] = (),
    retry_backoff: bool | float = False,
    retry_backoff_max: float = 600.0,
    retry_jitter: bool = True,
    time_limit: float | None = None,
    expires: float | None = None,
    acks_late: bool = True,
    reject_on_worker_lost: bool = True,
    **others: Any,
) -> Any:
    """Decorate a function as a Celery task: you can call it, push it with ``delay``, and use it as
    a job.

    Only errors of ``autoretry_for``, and calls of ``self.retry``, run a task again.

    :param bind: pass the `Task` as the first argument.
    :param max_retries: attempts after the first one; None: 10,000 attempts in total.
    :param retry_backoff: the seconds before the first retry, doubled each time; True means 1.
    :param acks_late: True, as it always holds; ``reject_on_worker_lost``, too.
    :param others: options of Celery that have no counterpart.
    :raises TypeError: such an option is given.
    """
    if not (acks_late and reject_on_worker_lost):
        raise TypeError(
            "acks_late and reject_on_worker_lost always hold: a job ends when its outcome is stored"
        )
    _check_others(others)

    def decorate(function: Callable[..., Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is a coroutine function: use chancy.job")
        task = Task(default_retry_delay)
        run = _bound(function, task) if bind else function
        policy = _policy(default_retry_delay, retry_backoff, retry_backoff_max, retry_jitter)
        retry: dict[type[BaseException] | str, PolicyOrFalse] = dict.fromkeys(autoretry_for, policy)
        decorated: Any = job(
            queue=queue,
            priority=priority,
            max_attempts=_MOST_ATTEMPTS if max_retries is None else max_retries + 1,
            retry={BaseException: False, **retry},
            limits=() if time_limit is None else (Limit.time(time_limit),),
            expires_at=expires,
        )(run)
        task.job = decorated.job
        for name in ("delay", "apply_async", "retry", "request", "name"):
            setattr(decorated, name, getattr(task, name))
        for name in _CALLS_INSTEAD:
            setattr(decorated, name, partial(_refuse, name))
        return decorated

    return decorate if function is None else decorate(function)


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(f"{name}() of a task is not supported: {_CALLS_INSTEAD[name]}")


def _check_others(options: Mapping[str, Any]) -> None:
    for name in options:
        instead = _INSTEAD.get(name, "chancy.celery has no counterpart")
        raise TypeError(f"shared_task: {name}= is not supported: {instead}")


def _bound(function: Callable[..., Any], task: Task) -> Callable[..., Any]:
    """The function without its first parameter, which receives the task."""
    signature = inspect.signature(function)
    if not signature.parameters:
        raise TypeError(f"{function.__qualname__} has no parameter for the task: drop bind=True")

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(task, *args, **kwargs)

    rest = [*signature.parameters.values()][1:]
    vars(run)["__signature__"] = signature.replace(parameters=rest)
    return run


def _policy(delay_s: float, backoff: bool | float, most_s: float, jitter: bool) -> Policy:
    if not backoff:
        return Constant(delay_s, jitter=Jitter.NONE)
    base_s = 1.0 if backoff is True else float(backoff)
    chosen = Jitter.FULL if jitter else Jitter.NONE
    return Exponential(base_s=base_s, cap_s=most_s, jitter=chosen)
