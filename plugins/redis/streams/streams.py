"""The streams and processors of an application, and their execution beside a worker."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar, Unpack, overload

from chancy.clock import Backoff, SystemClock
from chancy.errors import BrokerError, ConfigurationError
from chancy.log_context import ORIGIN, LogContext, Origin
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.encoding.codecs import Codec, RecordT
from chancy.plugins.redis.streams.encoding.compression import Compressor
from chancy.plugins.redis.streams.encoding.hashing import HasherOption, Key, RecordRoute
from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding
from chancy.plugins.redis.streams.group.executor import StreamExecutor
from chancy.plugins.redis.streams.group.halts import Exit
from chancy.plugins.redis.streams.model.record import is_primitive
from chancy.plugins.redis.streams.model.target import Full
from chancy.plugins.redis.streams.processing.cancellation import cancel_all
from chancy.plugins.redis.streams.processing.child import locate
from chancy.plugins.redis.streams.processing.processor import (
    BlockingFunction,
    Choices,
    Function,
    Mode,
    Options,
    Processor,
    check_function,
)
from chancy.plugins.redis.streams.processing.settings import AllChoices, Defaults
from chancy.plugins.redis.streams.producing.outbox import EventOutboxWriter
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.schedules import Schedules
from chancy.plugins.redis.streams.timers import Timers
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD

logger = logging.getLogger("chancy.redis.streams")
# On the logger, so that every handler gets the context of the lines of this library.
logger.addFilter(LogContext())

R = TypeVar("R")


class Decorator(Protocol[R]):
    """Makes a processor of an async function."""

    def __call__(self, function: Function[R], /) -> Processor[R]: ...


class BlockingDecorator(Protocol[R]):
    """Makes a processor of a plain function."""

    def __call__(self, function: BlockingFunction[R], /) -> Processor[R]: ...


class Streams(Schedules):
    """Declares streams and processors, and runs the processors beside a worker."""

    def __init__(self, redis: RedisSettings | RedisClient) -> None:
        super().__init__()
        self.link = redis if isinstance(redis, RedisClient) else RedisClient(redis)
        self._shared = self.link is redis
        #: Stores events that are sent inside Postgres transactions.
        self.outbox = EventOutboxWriter()
        #: The class of the streams that are declared.
        self.stream_type: type[Stream[Any]] = Stream
        self._streams: dict[str, Stream[Any]] = {}
        self._processors: dict[str, Processor[Any]] = {}
        self._executors: dict[str, StreamExecutor] = {}
        self._defaults = Defaults()
        #: The exit that `Halt` may request.
        self.exit = Exit()

    def defaults(self, **choices: Unpack[AllChoices]) -> None:
        """Set the default options of streams and processors. Call it before declaring any.

        These override the environment, where ``CHANCY_STREAMS_LEASE_S=10`` sets ``lease_s=10``.
        Zero and False are values.

        :raises ConfigurationError: a stream is already declared, or a setting does not exist.
        """
        if self._streams:
            raise ConfigurationError(
                f"the stream {min(self._streams)} is already declared: call defaults() before it"
            )
        self._defaults.update(choices)

    def stream(
        self,
        name: str,
        *,
        record: type[RecordT],
        partition_by: str | Callable[[RecordT], Key],
        partitions: int | None = None,
        size: int | None = None,
        full: Full | None = None,
        codec: str | Codec | None = None,
        compressor: str | Compressor | None = None,
        reads: Iterable[Codec | Compressor] = (),
        hasher: HasherOption = None,
        max_bytes: int = DEFAULT_MAX_PAYLOAD,
    ) -> Stream[RecordT]:
        """Declare a stream: partitions of ordered events with one type of record.

        An option that is None is taken from `defaults`; without a default, a stream has 16
        partitions of 50,000 events that block when full, uncompressed JSON and the hasher crc32.

        :param partition_by: the key, a field or a function of the record; events with the same key
            keep their order.
        :raises ConfigurationError: the name is taken, or an option is invalid.
        """
        if name in self._streams:
            raise ConfigurationError(f"the stream {name!r} is declared twice: rename one")
        like = self._defaults.of_stream(
            {
                "partitions": partitions,
                "size": size,
                "full": full,
                "codec": codec,
                "compressor": compressor,
                "hasher": hasher,
            },
            primitive=is_primitive(record),
        )
        coding = RecordCoding(
            record,
            codec=like.pop("codec", None),
            compressor=like.pop("compressor", None),
            reads=reads,
            max_bytes=max_bytes,
        )
        route = RecordRoute(record, partition_by, like.pop("hasher", None))
        made: Stream[RecordT] = self.stream_type(
            name, link=self.link, coding=coding, route=route, outbox=self.outbox, **like
        )
        self._streams[name] = made
        return made

    @overload
    def processor(
        self,
        stream: Stream[R],
        *,
        name: str | None = None,
        mode: Literal["async"] = "async",
        **choices: Unpack[Choices],
    ) -> Decorator[R]: ...
    @overload
    def processor(
        self,
        stream: Stream[R],
        *,
        name: str | None = None,
        mode: Literal["thread", "process"],
        **choices: Unpack[Choices],
    ) -> BlockingDecorator[R]: ...
    def processor(
        self,
        stream: Stream[R],
        *,
        name: str | None = None,
        mode: Mode = "async",
        **choices: Unpack[Choices],
    ) -> Callable[[Any], Processor[R]]:
        """Declare a function that consumes a stream, called once for each owned partition.

        :param name: the name of the processor's group; the function's name unless given.
        :param mode: ``async`` for async functions; plain functions run in a ``thread`` or a
            ``process`` for each partition.
        :param choices: see `Options`.
        :raises ConfigurationError: the stream has a processor with this name, or an option is
            invalid.
        """
        if not isinstance(stream, Stream):
            raise ConfigurationError(f"{stream!r} is not a stream: pass the result of stream()")
        options = Options(mode=mode, **self._defaults.of_processor(choices))

        def declare(function: Any) -> Processor[R]:
            called = name or str(getattr(function, "__name__", ""))
            made = Processor(stream, function, name=called, options=options)
            check_function(made)
            if mode == "process":
                locate(made)
            if made.id in self._processors:
                raise ConfigurationError(
                    f"the stream {stream.name} has two processors {called!r}: rename one"
                )
            self._processors[made.id] = made
            return made

        return declare

    @property
    def streams(self) -> Sequence[Stream[Any]]:
        """The declared streams and those of processors, such as a sink of dead letters, by name."""
        of_processors = {made.stream.name: made.stream for made in self._processors.values()}
        found = of_processors | self._streams
        return [found[name] for name in sorted(found)]

    @property
    def processors(self) -> Sequence[Processor[Any]]:
        """The declared processors, by stream and name."""
        return [self._processors[id] for id in sorted(self._processors)]

    @property
    def executors(self) -> Sequence[StreamExecutor]:
        """The executors that run in this process now."""
        return [self._executors[id] for id in sorted(self._executors)]

    # Beside a worker

    async def serve(
        self,
        only: Iterable[str] | None = None,
        *,
        leader: LeaderGate | None = None,
        ending: asyncio.Event | None = None,
    ) -> None:
        """Run processors and timers until cancelled; then release the owned partitions.

        :param only: names of the processors to run; all unless given.
        :param leader: reports whether this worker is the leader; without it, every worker is.
        :param ending: when set, release the partitions and return.
        :raises ConfigurationError: a name is not declared.
        """
        wanted = self._selected(only)
        own = uuid.uuid4()
        # Beside a worker, log lines carry the id of the worker.
        before = ORIGIN.set(ORIGIN.get(Origin(lambda: own)))
        running = [
            asyncio.create_task(self._run(processor), name=f"executor {processor.id}")
            for processor in wanted
        ]
        if self.scheduled:
            timers = Timers(self.link, self.scheduled, leader or Unelected(), SystemClock())
            running.append(asyncio.create_task(timers.serve(), name="timers"))
        ORIGIN.reset(before)
        if not running:
            return
        stopping = asyncio.create_task((ending or asyncio.Event()).wait(), name="ending")
        left = {stopping, *running}
        try:
            # Startup tasks end, and the processors continue without them.
            while left != {stopping} and not stopping.done():
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                if any(task.cancelled() or task.exception() for task in done):
                    break
        finally:
            try:
                await cancel_all(running, early=stopping.done())
            finally:
                stopping.cancel()
                if not self._shared:
                    await self.link.close()
        for task in running:
            if not task.cancelled():
                task.result()

    def _selected(self, only: Iterable[str] | None) -> Sequence[Processor[Any]]:
        if only is None:
            return self.processors
        names = set(only)
        unknown = (
            names
            - {processor.name for processor in self.processors}
            - {processor.id for processor in self.processors}
        )
        if unknown:
            raise ConfigurationError(
                f"there is no processor {', '.join(sorted(unknown))}; declared are "
                f"{', '.join(processor.id for processor in self.processors) or 'none'}"
            )
        return [
            processor
            for processor in self.processors
            if processor.name in names or processor.id in names
        ]

    async def _run(self, processor: Processor[Any]) -> None:
        """Keep the executor of a processor running, as a new member after each failure."""
        backoff = Backoff(base_s=0.2, cap_s=10.0)
        while True:
            executor = StreamExecutor(self.link, processor, self.exit)
            self._executors[processor.id] = executor
            try:
                await executor.serve()
            except (ConfigurationError, BrokerError) as error:
                logger.error("processor_not_started processor=%s: %s", processor.id, error)
            except Exception:
                logger.exception("stream_executor_failed processor=%s", processor.id)
            finally:
                self._executors.pop(processor.id, None)
            await asyncio.sleep(backoff.next_s())
