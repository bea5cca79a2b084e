"""``App`` and ``Worker``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import tzinfo
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, TypeVar, cast, overload

from chancy.app.app import Chancy
from chancy.errors import ConfigurationError
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.compat.discovery import at, discover
from chancy.plugins.redis.compat.environment import prefix_of, settings_of
from chancy.plugins.redis.compat.runnel.parts import Stream, codec_of, middleware_of
from chancy.plugins.redis.compat.runnel.settings import Settings
from chancy.plugins.redis.streams import standalone as alone
from chancy.plugins.redis.streams.encoding.codecs import RecordT
from chancy.plugins.redis.streams.encoding.hashing import Key
from chancy.plugins.redis.streams.model.policy import Halt, Ignore, Policy, Quarantine
from chancy.plugins.redis.streams.model.record import is_primitive
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.processor import Processor

R = TypeVar("R")
T = TypeVar("T")

Work = Callable[[], Awaitable[None]]


class ExceptionPolicy(StrEnum):
    """The policy for failures of a processor."""

    HALT = "halt"
    QUARANTINE = "quarantine"
    IGNORE = "ignore"


_POLICIES: dict[str, Callable[[], Policy]] = {
    "halt": Halt,
    "quarantine": Quarantine,
    "ignore": Ignore,
}


class App:
    """`Streams` with the name of the application as key prefix.

    :param settings: fields of `Settings`.
    :ivar streams: the underlying `Streams`.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        self.settings = ours = settings_of(Settings, "runnel", settings)
        self._plugin = RedisPlugin(
            url=ours.redis_url, cluster=ours.redis_cluster, prefix=prefix_of(name)
        )
        self.streams = self._plugin.streams
        self.streams.stream_type = Stream

    @cached_property
    def chancy(self) -> Chancy:
        """The application for ``chancy redis`` commands; it has no database, and needs none."""
        if self.settings.autodiscover:
            discover(self.settings.autodiscover)
        return Chancy("postgresql://", plugins=[self._plugin])

    def stream(
        self,
        name: str,
        record: type[RecordT],
        partition_by: str | Callable[[RecordT], Key],
        serializer: Any = None,
        partition_count: int | None = None,
        partition_size: int | None = None,
        hasher: Any = None,
    ) -> Stream[RecordT]:
        """`Streams.stream`."""
        ours = self.settings
        if serializer is None and not is_primitive(record):
            serializer = ours.default_serializer
        codec, compressor = codec_of(serializer)
        hasher = _or(hasher, ours.default_hasher)
        made = self.streams.stream(
            name,
            record=record,
            partition_by=partition_by,
            partitions=_or(partition_count, ours.default_partition_count),
            size=_or(partition_size, ours.default_partition_size),
            full="block",
            codec=codec,
            compressor=compressor,
            hasher=at(hasher) if isinstance(hasher, str) and ":" in hasher else hasher,
        )
        return cast("Stream[RecordT]", made)

    def processor(
        self,
        stream: Stream[R],
        *,
        name: str | None = None,
        exception_policy: ExceptionPolicy | str | None = None,
        middleware: Sequence[Any] = (),
        lock_expiry: float | None = None,
        read_timeout: int | None = None,
        prefetch_count: int | None = None,
        assignment_attempts: int | None = None,
        assignment_sleep: float | None = None,
        grace_period: float | None = None,
        pool_size: int | None = None,
        join_delay: float | None = None,
    ) -> Callable[[Callable[[Events[R]], Awaitable[None]]], Processor[R]]:
        """`Streams.processor`; ``read_timeout`` is only checked, ``pool_size`` has no effect."""
        ours = self.settings
        grace_s = _or(grace_period, ours.default_grace_period)
        wait_ms = _or(read_timeout, ours.default_read_timeout)
        if wait_ms > grace_s * 1000:
            raise ConfigurationError(
                f"read_timeout={wait_ms} ms must not exceed the grace period of {grace_s:g} s"
            )
        check_s = _or(assignment_sleep, ours.default_assignment_sleep)
        attempts = _or(assignment_attempts, ours.default_assignment_attempts)
        policy = ExceptionPolicy(_or(exception_policy, ours.default_exception_policy))
        return self.streams.processor(
            stream,
            name=name,
            policy=_POLICIES[policy.value](),
            middleware=middleware_of(middleware),
            lease_s=_or(lock_expiry, ours.default_lock_expiry),
            prefetch=_or(prefetch_count, ours.default_prefetch_count),
            check_s=check_s,
            alarm_s=max(0.1, attempts * check_s),
            grace_s=grace_s,
            join_delay_s=_or(join_delay, ours.default_join_delay),
            strategy="contiguous",
        )

    @overload
    def task(self, work: Work) -> Work: ...
    @overload
    def task(self, work: None = None, *, on_leader: bool = False) -> Callable[[Work], Work]: ...
    def task(self, work: Work | None = None, *, on_leader: bool = False) -> Any:
        """`Streams.task`."""
        declare = self.streams.task(on_leader=on_leader)
        return declare if work is None else declare(work)

    def timer(self, interval: float, on_leader: bool = False) -> Callable[[Work], Work]:
        """`Streams.timer`; ``interval`` in seconds."""
        return self.streams.timer(every_s=interval, on_leader=on_leader)

    def crontab(
        self, spec: str, timezone: tzinfo | str | None = None, on_leader: bool = False
    ) -> Callable[[Work], Work]:
        """`Streams.crontab`."""
        zone = _or(timezone, self.settings.timezone)
        return self.streams.crontab(spec, zone=str(zone), on_leader=on_leader)


class Worker:
    """A worker for the processors of an application."""

    def __init__(self, app: App) -> None:
        self._app = app

    def start(self, processors: Literal["all"] | Iterable[str] = "all") -> None:
        """Run until SIGINT or SIGTERM.

        :param processors: names of the processors to run.
        :raises ConfigurationError: a name is unknown.
        """
        ours = self._app.settings
        if ours.autodiscover:
            discover(ours.autodiscover)
        alone.run(
            self._app.streams,
            None if processors == "all" else processors,
            lease_s=4 * ours.leadership_poll_interval / 1000,
        )


def _or(value: T | None, default: T) -> T:
    """The value, or the default if it is None; zero and the empty string are values."""
    return default if value is None else value
