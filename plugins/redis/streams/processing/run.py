"""One run of a processor's function over a partition: in the loop, a thread or a child process."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

from chancy.clock import is_being_cancelled
from chancy.plugins.redis.streams.model.protocols import MiddlewareContext
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.cancellation import Escaped, finish
from chancy.plugins.redis.streams.processing.child import PartitionProcess
from chancy.plugins.redis.streams.processing.events import Chain, Events
from chancy.plugins.redis.streams.processing.failures import contained, described
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor

logger = logging.getLogger("chancy.redis.streams")


class NotRun(Exception):
    """An error outside the function: the policy does not apply to its events.

    :ivar why: what has failed.
    """

    def __init__(self, why: str, error: Exception) -> None:
        super().__init__(f"{why}: {error}")
        self.why = why
        self.error = error


class Invocation:
    """Runs the function of a processor over a partition in its mode."""

    def __init__(self, processor: Processor[Any], partition: OwnedPartition[Any]) -> None:
        self._processor = processor
        self._partition = partition
        self._child: PartitionProcess | None = None

    async def run(self) -> None:
        """Run the function once; raise what it raises.

        :raises NotRun: its thread or process cannot be started, or a middleware cannot handle a
            failure.
        """
        match self._processor.options.mode:
            case "async":
                await self._run_here()
            case "thread":
                await self._in_thread()
            case "process":
                if self._child is None or not self._child.alive:
                    await self.close()
                    try:
                        self._child = PartitionProcess(self._processor, self._partition)
                    except OSError as error:
                        raise NotRun("its process could not be started", error) from error
                await self._child.run()

    async def close(self) -> None:
        """Stop the child, if there is one; kill it if the current task was cancelled."""
        child, self._child = self._child, None
        if child is not None:
            await finish(child.close(at_once=is_being_cancelled()))

    async def _run_here(self) -> None:
        processor, partition = self._processor, self._partition
        options = processor.options
        place = MiddlewareContext(processor.stream.name, processor.name, partition.number)
        chain = Chain(options.middleware, place)
        events = Events(partition, chain, grace_s=options.grace_s)
        function = cast("Callable[[Events[Any]], Awaitable[None]]", processor.function)
        failure: Exception | None = None
        try:
            await function(events)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            failure = Escaped("the processor")
            failure.__cause__ = error
        except GeneratorExit:
            raise
        except BaseException as error:
            if partition.closing and is_being_cancelled():
                # An interruption that the function turned into another exception.
                self._ended_late(error)
                raise asyncio.CancelledError from error
            failure = contained(error, "the processor")
        finally:
            # After an interruption, close as at the end of the events: that is not a failure.
            try:
                await chain.close(failure)
            except Exception as error:
                raise NotRun("a middleware could not handle a failure", error) from failure
        if failure is not None:
            raise failure

    def _ended_late(self, error: BaseException | None) -> None:
        logger.warning(
            "processor_ended_late processor=%s partition=%d error=%s: it was interrupted, and its "
            "current events are delivered again",
            self._processor.id,
            self._partition.number,
            described(error) if error else "none",
            exc_info=error,
            extra={"partition": self._partition.number},
        )

    async def _in_thread(self) -> None:
        """Run the function in a new thread: a pool would need a thread for each partition anyway.

        A thread cannot be interrupted: after a cancellation it ends at its next event.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.cancelled():
                self._ended_late(error)
            elif error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            raised: Exception | None = None
            try:
                context.run(self._run_blocking)
            except BaseException as error:
                raised = contained(error, "the processor")
            try:
                loop.call_soon_threadsafe(settle, raised, context=context)
            except RuntimeError:
                return  # the loop ended before the thread

        context = contextvars.copy_context()
        try:
            threading.Thread(target=run, name="chancy stream", daemon=True).start()
        except RuntimeError as error:
            raise NotRun("its thread could not be started", error) from error
        await done

    def _run_blocking(self) -> None:
        processor = self._processor
        events = BlockingEvents(self._partition, grace_s=processor.options.grace_s)
        function = cast("Callable[[BlockingEvents[Any]], None]", processor.function)
        function(events)
