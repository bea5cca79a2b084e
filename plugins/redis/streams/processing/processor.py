"""A processor: a function that consumes a stream, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, get_args

from chancy.checks import check_choice, check_number
from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.policy import Halt, Policy
from chancy.plugins.redis.streams.model.protocols import Middleware
from chancy.plugins.redis.streams.producing.stream import Stream, check_name

if TYPE_CHECKING:
    from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
    from chancy.plugins.redis.streams.processing.events import Events

R = TypeVar("R")

Function = Callable[["Events[R]"], Awaitable[None]]
BlockingFunction = Callable[["BlockingEvents[R]"], None]

#: Where the function runs: in the worker's event loop, a thread or a process for each partition.
Mode = Literal["async", "thread", "process"]
#: How partitions are assigned: with the fewest moves, or in contiguous ranges.
Strategy = Literal["sticky", "contiguous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a processor. All times are in seconds.

    :param policy: the failure policy.
    :param middleware: middleware around the function, outermost first; only in mode ``async``.
    :param mode: where the function runs.
    :param start: where a new processor starts: ``0`` at the oldest stored event, ``$`` at the first
        event after a worker first acquires the partition. Only Redis records that a processor has
        started: if Redis loses its data while no worker runs, the processor is new again.
    :param prefetch: maximum events of a partition in memory; in mode ``process``, up to as many
        more, at most 64, wait in the child.
    :param lease_s: time without a heartbeat after which a partition goes to another worker.
    :param grace_s: time to finish the current event when a partition is released or the worker
        stops.
    :param join_delay_s: time between joining and acquiring partitions, so that a fleet that starts
        settles with few rebalances.
    :param check_s: interval at which the plan is read without a notification.
    :param alarm_s: time after which a partition that cannot be acquired is logged as an error.
    :param strategy: how partitions are assigned.
    """

    policy: Policy = field(default_factory=Halt)
    middleware: Sequence[Middleware] = ()
    mode: Mode = "async"
    start: str = "0"
    prefetch: int = 64
    lease_s: float = 30.0
    grace_s: float = 8.0
    join_delay_s: float = 0.5
    check_s: float = 2.0
    alarm_s: float = 120.0
    strategy: Strategy = "sticky"

    def __post_init__(self) -> None:
        bounds: Sequence[tuple[str, float, float, float]] = (
            ("prefetch", self.prefetch, 1, 10_000),
            ("lease_s", self.lease_s, 0.2, 3600),
            ("grace_s", self.grace_s, 0, 3600),
            ("join_delay_s", self.join_delay_s, 0, 3600),
            ("check_s", self.check_s, 0.01, 60),
            ("alarm_s", self.alarm_s, 0.1, 86_400),
        )
        for name, value, least, most in bounds:
            check_number(value, name, least, most, whole=name == "prefetch")
        check_choice(self.strategy, "strategy", get_args(Strategy))
        if self.middleware and self.mode != "async":
            raise ConfigurationError(f"middleware needs a processor of mode async, not {self.mode}")


class Choices(TypedDict, total=False):
    """The keyword arguments of `Streams.processor`; see `Options`."""

    policy: Policy
    middleware: Sequence[Middleware]
    start: str
    prefetch: int
    lease_s: float
    grace_s: float
    join_delay_s: float
    check_s: float
    alarm_s: float
    strategy: Strategy


class Processor(Generic[R]):
    """A function that is called once for each partition of a stream that this worker owns.

    Created by `Streams.processor`. Calling it calls the function, for tests.
    """

    def __init__(
        self,
        stream: Stream[R],
        function: Function[R] | BlockingFunction[R],
        *,
        name: str,
        options: Options,
    ) -> None:
        check_name("processor", name)
        self.stream = stream
        self.function = function
        self.name = name
        self.options = options

    @property
    def id(self) -> str:
        """The id in logs: ``stream/processor``."""
        return f"{self.stream.name}/{self.name}"

    def __call__(self, events: Events[R]) -> Awaitable[None]:
        function: Any = self.function
        called: Awaitable[None] = function(events)
        return called

    def __repr__(self) -> str:
        return f"Processor({self.id})"


def check_function(processor: Processor[Any]) -> None:
    """Raise `ConfigurationError` unless the function can run in its processor's mode."""
    mode, function = processor.options.mode, processor.function
    called = getattr(function, "__call__", None)  # noqa: B004, an object may be a function
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
    if is_async != (mode == "async"):
        raise ConfigurationError(
            f"{processor.id}: {'async' if is_async else 'plain'} functions cannot run in mode "
            f"{mode}: " + ("use mode='async'" if is_async else "use mode='thread' or 'process'")
        )
