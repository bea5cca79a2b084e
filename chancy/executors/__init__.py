"""Executors run claims: in the worker's event loop, in threads, in processes, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, cast

from chancy.executors.base import (
    NO_CALLBACKS,
    AttemptCallbacks,
    Executor,
    FindFunction,
)
from chancy.executors.setup import ExecutorSetup
from chancy.job.limits import NO_LIMITS, Limits
from chancy.queue.executor_kind import executor_kind
from chancy.queue.executor_options import ExecutorOptions
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD

if TYPE_CHECKING:
    from chancy.executors.process.group import ChildPool
    from chancy.executors.process.settings import JobEnvironment


def executor(
    name: str,
    *,
    concurrency: int | None = None,
    find: FindFunction,
    max_payload: int = DEFAULT_MAX_PAYLOAD,
    options: ExecutorOptions | None = None,
    limits: Limits = NO_LIMITS,
    callbacks: AttemptCallbacks = NO_CALLBACKS,
    environment: JobEnvironment | None = None,
    wrapper: str | None = None,
    pool: ChildPool | None = None,
    around_in_child: Sequence[str] = (),
) -> Executor:
    """Create an executor. Start it before it runs anything. See `ExecutorSetup`.

    :param concurrency: jobs at a time; None takes the default of its kind.
    :param options: options of this executor; None takes the defaults.
    :raises ConfigurationError: no executor of this name is installed.
    """
    kind = executor_kind(name)
    factory = cast("Callable[[ExecutorSetup], Executor]", resolve_name(kind.factory))
    return factory(
        ExecutorSetup(
            concurrency=kind.concurrency() if concurrency is None else concurrency,
            find=find,
            max_payload=max_payload,
            options=options or kind.options(),
            limits=limits,
            callbacks=callbacks,
            environment=environment,
            wrapper=wrapper,
            pool=pool,
            around_in_child=around_in_child,
        )
    )
