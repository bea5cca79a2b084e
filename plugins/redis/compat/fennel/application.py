"""The application class ``App``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from chancy.app.app import Chancy
from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.errors import ConfigurationError
from chancy.job.definition import JobFactory, job
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.compat.discovery import at, discover
from chancy.plugins.redis.compat.environment import prefix_of, settings_of
from chancy.plugins.redis.compat.fennel.job import TASK
from chancy.plugins.redis.compat.fennel.loop import Loop
from chancy.plugins.redis.compat.fennel.settings import Settings
from chancy.plugins.redis.settings import checked
from chancy.plugins.retry import Retries
from chancy.queue.queue import Queue
from chancy.retry import Fennel, Policy
from chancy.text import shown

T = TypeVar("T")
Function = Callable[..., Any]

#: Retention of failed jobs in seconds: ten years, the longest possible.
_FOR_EVER_S = 315_360_000.0
#: Seconds between two sweeps for dead letters: a failed job becomes one within this time.
_SWEEP_S = 1.0
#: The most dead letters, and the most finished or failed jobs in Redis: as many as possible.
_MOST = 100_000_000
#: Least seconds between two sweeps for jobs of dead workers: 0 would sweep constantly.
_LEAST_SWEEP_S = 0.1
#: Postgres sessions for the calls of one process.
_SESSIONS = 4


class App:
    """A chancy application with one Redis queue, named after the application.

    ``chancy worker --app module:app`` serves it.

    :param settings: fields of `Settings`.
    :ivar letters: the plugin that keeps dead letters.
    :ivar redis: the settings of the Redis connection.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        self.settings = ours = settings_of(Settings, "fennel", settings)
        if ours.schedule_interval != Settings.model_fields["schedule_interval"].default:
            warnings.warn(
                f"App({name!r}): schedule_interval={ours.schedule_interval:g} has no effect: a "
                "retry runs within a second of its due time. Remove the setting.",
                UserWarning,
                stacklevel=2,
            )
        self.letters = DeadLetters(keep_days=None, max_letters=_MOST, sweep_s=_SWEEP_S)
        self.redis = checked(
            {
                "url": ours.redis_url,
                "prefix": prefix_of(name),
                "keep_finished": _MOST,
                "keep_failed": _MOST,
                "keep_finished_s": ours.results_ttl,
                "keep_failed_s": _FOR_EVER_S,
            }
        )
        #: Functions by task name.
        self.task_map: dict[str, Function] = {}
        self._retry: Policy | Backoff
        self._retry = Fennel() if ours.retry_backoff is None else Backoff(ours.retry_backoff)
        self._queue = Queue(
            name=name,
            executor="thread",
            concurrency=ours.concurrency,
            poll_interval_s=max(0.01, ours.read_timeout / 1_000 or 1.0),
            broker="redis",
            keep_finished=ours.results_enabled,
        )
        #: The application of the worker. The calls of a program use another one, in `Loop`.
        self.chancy = self._make()
        self._loop = Loop(self._make)

    def __call__(self) -> Chancy:
        """Import the modules of ``autodiscover``; returns the application that a worker serves.

        ``chancy worker --app`` calls this.
        """
        if self.settings.autodiscover:
            discover(self.settings.autodiscover)
        if isinstance(self._retry, Backoff):
            _ = self._retry.function
        return self.chancy

    def _make(self) -> Chancy:
        ours = self.settings
        redis = RedisPlugin(**self.redis.model_dump())
        return Chancy(
            ours.dsn,
            schema=ours.db_schema,
            queues=[self._queue],
            plugins=[
                redis,
                Retries(self._retry, crashes_cost_attempts=True),
                Recovery(sweep_s=max(_LEAST_SWEEP_S, ours.maintenance_interval)),
                self.letters,
            ],
            max_payload=ours.max_payload,
            pool_size=_SESSIONS,
        )

    # Tasks

    @overload
    def task(self, func: Function, /) -> Any: ...
    @overload
    def task(
        self, func: None = None, /, *, name: str | None = None, retries: int | None = None
    ) -> Callable[[Function], Any]: ...
    def task(
        self,
        func: Function | None = None,
        /,
        *,
        name: str | None = None,
        retries: int | None = None,
    ) -> Any:
        """Make a function a `Task` of the sync or async client, by the setting ``interface``.

        :param name: by default ``module.name``. It is the name in `task_map` and of jobs; workers
            find the function by its path.
        :param retries: retries after the first run.
        :raises ConfigurationError: the name is taken, or `retries` is invalid.
        """
        from chancy.plugins.redis.compat.fennel import client
        from chancy.plugins.redis.compat.fennel.client import aio

        most = self.settings.default_retries if retries is None else retries
        if type(most) is not int or most < 0:
            raise ConfigurationError(f"retries={shown(most)} must be a whole number, 0 or more")
        kind: Any = aio.Task if self.settings.interface == "async" else client.Task

        def decorate(func: Function) -> Any:
            known = name or f"{func.__module__}.{func.__qualname__}"
            if not isinstance(known, str):
                raise ConfigurationError(f"name={shown(known)} must be a string")
            if known in self.task_map:
                raise ConfigurationError(f"there are two tasks {known}: give one a different name")
            named = {} if name is None else {TASK: name}
            decorated = job(queue=self.name, max_attempts=most + 1, meta=named)(func)
            factory: JobFactory[..., Any] = decorated.job
            self.task_map[known] = func
            return kind(known, func, most, self, factory)

        return decorate if func is None else decorate(func)

    # What the clients call

    def run(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the open application, and wait for its result."""
        return self._loop.run(work)

    async def wait(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        """`run` for a caller in an event loop."""
        return await self._loop.wait(work)

    def close(self) -> None:
        """Close the connections of the calls. They are also closed at exit."""
        self._loop.close()


class Backoff:
    """The setting ``retry_backoff`` as a policy of the retry plugin.

    A path is imported at the start of a worker, since it may name the module that creates the
    application.
    """

    def __init__(self, function: Callable[[int], float] | str) -> None:
        self._function = function

    def __call__(self, claim: Claim, outcome: Outcome) -> float:
        return float(self.function(claim.attempt))

    @property
    def function(self) -> Callable[[int], float]:
        """The back-off function.

        :raises ConfigurationError: the path cannot be imported.
        """
        if isinstance(self._function, str):
            found: Callable[[int], float] = at(self._function, "retry_backoff=")
            self._function = found
            return found
        return self._function
