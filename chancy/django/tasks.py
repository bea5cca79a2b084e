"""The backend of ``django.tasks``: ``TASKS = {"default": {"BACKEND": "…tasks.ChancyBackend"}}``.

A task becomes a job of its function, with the arguments ``args`` and ``kwargs``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from inspect import BoundArguments, iscoroutinefunction, signature
from traceback import format_exception
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.utils import timezone

from chancy.attempt.control import Cancel, RateLimited
from chancy.attempt.failure import leaves
from chancy.checks import check_number
from chancy.context.context import JobContext, current_job
from chancy.django.current import app
from chancy.errors import ChancyError, InvalidCheckpoint, InvalidResult, PayloadTooLarge
from chancy.executors.invocation import CONTROL
from chancy.job.definition import BIND, DECORATED, DEFAULT_MAX_ATTEMPTS, Job, QueuedJob, job
from chancy.job.fields import ATTEMPTS
from chancy.serialization.signature import Signature
from chancy.states import State

#: Django 6 has the framework; for those before there is the package django-tasks.
_FRAMEWORK = "django.tasks" if find_spec("django.tasks") else "django_tasks"

base: Any = import_module(f"{_FRAMEWORK}.base")
exceptions: Any = import_module(f"{_FRAMEWORK}.exceptions")
signals: Any = import_module(f"{_FRAMEWORK}.signals")
#: The decorator of tasks, whichever package it comes from.
task: Any = import_module(_FRAMEWORK).task
BaseTaskBackend: Any = import_module(f"{_FRAMEWORK}.backends.base").BaseTaskBackend

_Missing: type[Exception] = exceptions.TaskResultDoesNotExist

_Status = base.TaskResultStatus
_STATUSES = {
    State.RUNNING: _Status.RUNNING,
    State.SUCCEEDED: _Status.SUCCESSFUL,
    State.FAILED: _Status.FAILED,
    State.CANCELLED: _Status.FAILED,
}
_CANCELLED = base.TaskError(
    exception_class_path="chancy.errors.JobCancelled", traceback="it was cancelled"
)
#: The classes for failures that a worker records without an exception.
_CLASSES = {
    "chancy.Cancelled": "chancy.errors.JobCancelled",
    "chancy.MemoryExceeded": "builtins.MemoryError",
    "chancy.TimedOut": "builtins.TimeoutError",
}
#: Errors of results and checkpoints, which are not retried.
_FINAL = (InvalidCheckpoint, InvalidResult, PayloadTooLarge)
#: The mark of functions that run a task.
_TASK = "__chancy_task__"


class ChancyBackend(BaseTaskBackend):
    """Enqueues tasks as jobs, on Django's connection and in its transaction.

    ``OPTIONS``: ``max_attempts``, of each task; the default is that of jobs.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.max_attempts: int = self.options.get("max_attempts", DEFAULT_MAX_ATTEMPTS)

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        """The system checks of the backend."""
        if not apps.is_installed("chancy.django"):
            yield Error(
                f"TASKS[{self.alias!r}] needs 'chancy.django' in INSTALLED_APPS", id="chancy.E010"
            )
        unknown = sorted(set(self.options) - {"max_attempts"})
        if unknown:
            yield Error(
                f"TASKS[{self.alias!r}]['OPTIONS'] has unknown keys: {', '.join(unknown)}; "
                "known keys: max_attempts",
                id="chancy.E011",
            )
        try:
            check_number(self.max_attempts, "max_attempts", ATTEMPTS[0], ATTEMPTS[-1])
        except ChancyError as error:
            yield Error(f"TASKS[{self.alias!r}]['OPTIONS']: {error}", id="chancy.E012")

    def validate_task(self, task: Any) -> None:
        """Check a task, and make its function known to workers of this process."""
        super().validate_task(task)
        path = task.module_path
        if getattr(DECORATED.get(path), _TASK, None) != (self.alias, task.func):
            _register(self, task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task in the transaction of Django's connection, or at once without one.

        :raises InvalidTask: the task does not fit the backend.
        :raises TypeError: the arguments do not fit the function, or JSON cannot hold one.
        :raises PushError: the job cannot be stored, for example because it is too large.
        """
        self.validate_task(task)
        try:
            _bound(task, args, kwargs)
        except TypeError as error:
            raise TypeError(f"{task.module_path}: {error}") from None
        result = _result(task, self.alias, args=list(args), kwargs=dict(kwargs))
        pushed = app().sync_push(
            Job(
                func=task.module_path,
                arguments={"args": result.args, "kwargs": result.kwargs},
                queue=task.queue_name,
                priority=task.priority,
                run_at=_aware(task.run_after),
                max_attempts=self.max_attempts,
            )
        )
        result = replace(result, id=str(pushed.id), enqueued_at=datetime.now(UTC))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The result of a task, read on Django's connection, in its transaction.

        :raises TaskResultDoesNotExist: there is no such task, or no longer.
        :raises UnreadablePayload: it is encrypted with a key that the application does not have.
        """
        chancy = app()
        try:
            found = chancy.sync_get_job(UUID(result_id))
        except ValueError:
            found = None
        if found is not None and (payloads := chancy.hooks.payloads) is not None:
            arguments = payloads.plain(found.func, found.arguments or {})
            found = replace(payloads.job(found), arguments=arguments)
        task = None if found is None else _task_of(found, self.alias)
        if found is None or task is None:
            raise _Missing(result_id)
        return _stored(found, task, self.alias)


def _bound(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
    return signature(task.func).bind(*[None] * task.takes_context, *args, **kwargs)


def _register(backend: ChancyBackend, task: Any) -> None:
    """Make the function of a task known as that of jobs."""
    path, function = task.module_path, task.func

    async def run_coroutine(args: list[Any], kwargs: dict[str, Any]) -> Any:
        with _running(backend, path, args, kwargs) as running:
            return running.returned(await function(*running.args, **kwargs))

    def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
        with _running(backend, path, args, kwargs) as running:
            return running.returned(function(*running.args, **kwargs))

    def bind(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        return _bound(task, args, kwargs).arguments

    chosen: Callable[..., Any] = run_coroutine if iscoroutinefunction(function) else run
    chosen.__module__, chosen.__qualname__ = function.__module__, function.__qualname__
    chosen.__name__, chosen.__doc__ = function.__name__, function.__doc__
    setattr(chosen, _TASK, (backend.alias, function))
    setattr(chosen, BIND, bind)
    job(queue=task.queue_name, priority=task.priority, max_attempts=backend.max_attempts)(chosen)


# While it runs


def _started(
    backend: ChancyBackend, path: str, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """The result of a task that starts, and the positional arguments of its function."""
    context = current_job()
    task = _loaded(path)
    own = _result(
        replace(task, queue_name=context.queue),
        backend.alias,
        args=args,
        kwargs=kwargs,
        id=str(context.id),
        status=_Status.RUNNING,
        enqueued_at=_pushed_at(context.id),
        started_at=datetime.now(UTC),
        worker_ids=_workers(context),
    )
    own = replace(own, last_attempted_at=own.started_at)
    signals.task_started.send(type(backend), task_result=own)
    return own, [base.TaskContext(task_result=own), *args] if task.takes_context else args


class _Run:
    """The call of a task.

    :ivar args: the positional arguments of its function.
    """

    def __init__(self, backend: ChancyBackend, result: Any, args: list[Any]) -> None:
        self.args = args
        self._backend = backend
        self._result = result
        self._value: Any = None
        self._stored: Any = None

    def returned(self, value: Any) -> Any:
        """Check what the function has returned, and return it.

        :raises InvalidResult, PayloadTooLarge: the job cannot store it.
        """
        self._value = value
        if not isinstance(value, CONTROL):
            path = self._result.task.module_path
            text = Signature.of(DECORATED[path], path).encode_result(value, app().max_payload)
            self._stored = json.loads(text)
        return value

    def ended(self) -> None:
        """Send the signal of a call that returned, unless the task runs again."""
        if isinstance(self._value, Cancel):
            self._send(_Status.FAILED, [_CANCELLED])
        elif not isinstance(self._value, CONTROL):
            self._send(_Status.SUCCESSFUL, [])

    def failed(self, error: BaseException) -> None:
        """Send the signal of a call that raised, unless the task is tried again."""
        context = current_job()
        raised = leaves(error)
        final = any(isinstance(one, _FINAL) for one in raised)
        last = context.attempt >= context.max_attempts or final
        limited = all(isinstance(one, RateLimited) for one in raised)
        if last and isinstance(error, Exception) and not limited:
            kind = type(error)
            own = base.TaskError(
                exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                traceback="".join(format_exception(error)),
            )
            self._send(_Status.FAILED, [own])

    def _send(self, status: Any, errors: list[Any]) -> None:
        done = replace(self._result, status=status, finished_at=datetime.now(UTC), errors=errors)
        _set_value(done, self._stored)
        signals.task_finished.send(type(self._backend), task_result=done)


@contextmanager
def _running(
    backend: ChancyBackend, path: str, args: list[Any], kwargs: dict[str, Any]
) -> Generator[_Run]:
    """Send the signals of a task around its call."""
    run = _Run(backend, *_started(backend, path, args, kwargs))
    try:
        yield run
    except BaseException as error:
        run.failed(error)
        raise
    run.ended()


def _workers(context: JobContext) -> list[str]:
    """One id for each attempt, of which only the last one is known here."""
    here = f"{socket.gethostname()}:{os.getpid()}"
    return [*("" for _ in range(1, context.attempt)), here]


def _pushed_at(id: UUID) -> datetime | None:
    """The time of the push, which an id of chancy contains."""
    return datetime.fromtimestamp((id.int >> 80) / 1000, UTC) if id.version == 7 else None


# As it is stored


def _loaded(path: str) -> Any:
    """The task that a module has at a path; None: it has none."""
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name, None)
    return found if isinstance(found, base.Task) else None


def _task_of(found: QueuedJob, alias: str) -> Any:
    """The task of a job, with the settings that it was enqueued with; None: it is not of a task."""
    arguments = found.arguments or {}
    if arguments.keys() != {"args", "kwargs"}:
        return None
    try:
        task = _loaded(found.func)
    except ImportError:
        return None
    if task is None:
        return None
    own = {"priority": found.priority, "queue_name": found.queue, "backend": alias}
    return replace(task, **own, run_after=found.run_at)


def _stored(found: QueuedJob, task: Any, alias: str) -> Any:
    arguments = found.arguments or {}
    workers = [str(failure.get("worker_id") or "") for failure in found.errors]
    if found.worker_id is not None and found.attempt > len(workers):
        workers.append(str(found.worker_id))
    result = _result(
        task,
        alias,
        args=arguments["args"],
        kwargs=arguments["kwargs"],
        id=str(found.id),
        status=_STATUSES.get(found.state, _Status.READY),
        enqueued_at=found.pushed_at,
        started_at=found.claimed_at,
        last_attempted_at=found.claimed_at,
        finished_at=found.finished_at,
        errors=_errors(found),
        worker_ids=workers,
    )
    if found.state is State.SUCCEEDED:
        _set_value(result, found.result)
    return result


def _set_value(result: Any, value: Any) -> None:
    # The field has no parameter, and the class is frozen.
    object.__setattr__(result, "_return_value", value)


def _errors(found: QueuedJob) -> list[Any]:
    errors = [
        base.TaskError(
            exception_class_path=_class_path(failure),
            traceback=str(failure.get("trace") or failure.get("message") or ""),
        )
        for failure in found.errors
    ]
    if found.state is State.CANCELLED and not (
        errors and errors[-1].exception_class_path == _CANCELLED.exception_class_path
    ):
        errors.append(_CANCELLED)
    return errors


def _class_path(failure: Mapping[str, Any]) -> str:
    """The class of a failure, which Django imports; a worker names some that are no classes."""
    name = str((failure.get("types") or ["builtins.Exception"])[0])
    module, _, _ = name.rpartition(".")
    return _CLASSES.get(name, "chancy.errors.JobError") if module == "chancy" else name


def _result(task: Any, alias: str, **known: Any) -> Any:
    blank: dict[str, Any] = {
        "id": "",
        "status": _Status.READY,
        "enqueued_at": None,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return base.TaskResult(task=task, backend=alias, **{**blank, **known})


def _aware(at: datetime | None) -> datetime | None:
    """A time of a project without time zones is in its default one, as Django stores it."""
    return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at
