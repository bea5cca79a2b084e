"""Contains the failures of plugins: the one failure rule of their hooks.

Whatever a hook raises fails that call alone: an exception, an exit, or a cancellation that the
caller was not asked for. Other plugins, jobs and loops continue. Only a cancellation of the calling
task passes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from asyncio.tasks import _unregister_task
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar, TypeVarTuple
from uuid import UUID

from chancy.attempt.failure import Failure
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.text import shown

logger = logging.getLogger("chancy.hooks")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds between two log entries about one hook of one plugin.
LOG_EVERY_S = 10.0
#: Seconds that a hook gets to return after it was cancelled, unless its caller gives it more.
LEAVE_S = 1.0


class HookFailed(Exception):
    """A hook failed, and the failure was logged. Its cause is the error of the hook."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(describe(error))
        self.__cause__ = error


class Containment:
    """Calls one hook of one plugin, and contains and logs its failures.

    A hook that keeps failing is logged once in `LOG_EVERY_S` seconds, with the number of its
    failures so far.

    :param plugin: the plugin's identifier.
    :param hook: the hook's name.
    """

    __slots__ = ("_log_at", "failures", "hook", "plugin")

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin = plugin
        self.hook = hook
        #: Number of failures so far.
        self.failures = 0
        self._log_at = 0.0

    def call(
        self,
        fallback: T,
        about: UUID | int | None,
        function: Callable[[*Ts], T],
        *args: *Ts,
    ) -> T:
        """Call a sync hook. If it fails, log that and return the fallback."""
        try:
            return function(*args)
        except BaseException as error:  # a sync call cannot be cancelled
            self.failed(error, about)
            return fallback

    async def run(
        self,
        about: UUID | int | None,
        function: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        limit_s: float | None = None,
        leave_s: float = LEAVE_S,
    ) -> T:
        """Run an async hook in a task of its own, at most ``limit_s`` seconds.

        A hook that continues ``leave_s`` seconds after its cancellation is abandoned: its task is
        left to itself.

        :raises HookFailed: the hook failed or took too long, and that was logged.
        """
        work = _outcome(function, *args)
        task = asyncio.create_task(work, name=f"chancy {self.plugin} {self.hook}")
        try:
            await asyncio.wait([task], timeout=limit_s)
        except asyncio.CancelledError:
            if not await _cancelled(task, leave_s):
                self.failed(TimeoutError(f"it ignored its cancellation for {leave_s:g} s"), about)
            raise
        error: BaseException
        if not task.done():
            left = await _cancelled(task, leave_s)
            why = "" if left else ", and ignored its cancellation"
            error = TimeoutError(f"it did not return within {limit_s:g} s{why}")
        elif task.cancelled():  # before its first step
            error = asyncio.CancelledError()
        else:
            value, raised = task.result()
            if raised is None:
                return value[0]
            error = raised
        self.failed(error, about)
        raise HookFailed(error)

    def failed(self, error: BaseException, about: UUID | int | None = None) -> None:
        """Count a failure, and log it unless one was logged a moment ago.

        :param about: the id of the job, or the number of settlements, that the hook was called for.
        """
        self.failures += 1
        now = time.monotonic()
        if now < self._log_at:
            return
        self._log_at = now + LOG_EVERY_S
        subject = "" if about is None else f" job={about}"
        if isinstance(about, int):
            subject = f" settlements={about}"
        logger.error(
            "hook_failed plugin=%s hook=%s failures=%d%s error=%s",
            self.plugin,
            self.hook,
            self.failures,
            subject,
            describe(error),
            # The trace of an outage adds nothing to its message.
            exc_info=None if isinstance(error, BrokerUnavailable) else error,
        )


def provided(plugin: str, hook: str, function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a hook whose failure is an error of its caller: of the start, or a declaration.

    :raises ConfigurationError: the hook failed; names the plugin and the hook.
    """
    try:
        return function(*args)
    except ConfigurationError:
        raise
    except BaseException as error:
        raise ConfigurationError(
            f"the plugin {plugin!r} failed in {hook}: {describe(error)}"
        ) from error


def refuse(value: object, hook: str, expected: str) -> NoReturn:
    """Raise `TypeError` for the return value of a hook."""
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"{hook} must not be a coroutine function")
    raise TypeError(f"{hook} returned {shown(value)}, which is not {expected}")


def abandon(task: asyncio.Task[T]) -> None:
    """Leave a task that ignores its cancellation to itself."""
    # asyncio.run waits without limit for every registered task, and asyncio reports a task that is
    # pending when the loop is gone; the caller has reported this one.
    _unregister_task(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001


def describe(error: BaseException) -> str:
    """The type and the message of an exception, whatever its methods do."""
    return f"{type(error).__name__}: {Failure.of(error).message}"


async def _outcome(
    function: Callable[[*Ts], Awaitable[T]], *args: *Ts
) -> tuple[tuple[T, ...], BaseException | None]:
    # An exit that left a task would end the event loop.
    try:
        return (await function(*args),), None
    except BaseException as error:
        return (), error


async def _cancelled(task: asyncio.Task[T], leave_s: float) -> bool:
    """Cancel a task, and wait until it has ended. False if it does not, and was abandoned."""
    task.cancel()
    await asyncio.wait([task], timeout=leave_s)
    if task.done():
        return True
    abandon(task)
    return False
