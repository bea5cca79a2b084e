"""Executors are made by the name of their kind, with an `ExecutorSetup`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from chancy.executors.base import NO_CALLBACKS, AttemptCallbacks, Executor, FindFunction
from chancy.executors.process.settings import ChildKind, JobEnvironment
from chancy.job.limits import NO_LIMITS, Limits
from chancy.queue.executor_kind import executor_kind
from chancy.queue.executor_options import ExecutorOptions, ProcessOptions
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD

if TYPE_CHECKING:
    from chancy.executors.process.group import ChildPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSetup:
    """The parameters of an executor.

    :param concurrency: jobs at a time.
    :param find: looks up the function of a claim; raises `UnknownFunction`.
    :param max_payload: maximum size of an encoded result in bytes.
    :param options: of the class that its `ExecutorKind` names.
    :param limits: limits of claims that have none of their own.
    :param callbacks: called for reports of running jobs.
    :param environment: surroundings of the jobs in executor processes; None for plain jobs.
    :param wrapper: surrounds the functions in executor processes; see
        `chancy.job.registry.Registry`. ``find`` returns surrounded functions already.
    :param pool: executor processes to share with other queues; None: its own.
    :param around_in_child: see `chancy.plugin.plugin.Plugin.around_in_child`.
    """

    concurrency: int
    find: FindFunction
    max_payload: int = DEFAULT_MAX_PAYLOAD
    options: ExecutorOptions
    limits: Limits = NO_LIMITS
    callbacks: AttemptCallbacks = NO_CALLBACKS
    environment: JobEnvironment | None = None
    wrapper: str | None = None
    pool: ChildPool | None = None
    around_in_child: Sequence[str] = ()

    def child_kind(
        self, options: ProcessOptions, levels: tuple[int, int] | None = None
    ) -> ChildKind:
        """The executor processes that run such jobs."""
        return ChildKind(
            options=options,
            max_payload=self.max_payload,
            completion=self.callbacks.completion,
            environment=self.environment,
            wrapper=self.wrapper,
            around=tuple(self.around_in_child),
            levels=levels,
            plain_errors=self.callbacks.plain_errors,
        )


def make_executor(name: str, setup: ExecutorSetup) -> Executor:
    """Create an executor. Start it before it runs anything.

    :raises ConfigurationError: no executor of this name is installed.
    """
    factory = cast("Callable[[ExecutorSetup], Executor]", resolve_name(executor_kind(name).factory))
    return factory(setup)
