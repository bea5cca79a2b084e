"""Jobs: `Job`, which is pushed, and `QueuedJob`, which is read back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload
from uuid import UUID

from chancy.checks import check_instance, check_number, check_queue_name
from chancy.errors import InvalidArguments, PushError
from chancy.job.batching import Batching
from chancy.job.limits import Limit, check_limits
from chancy.job.unique import Unique
from chancy.retry import KEY, PolicyChoice, chosen
from chancy.serialization.annotations import BATCHING
from chancy.serialization.versions import ATTRIBUTE, ArgumentsVersion, Upgrade
from chancy.states import State
from chancy.text import shown

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    #: The return type of a job's function. A bare `Job` is a ``Job[Any]``.
    R_co = DefaultingTypeVar("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)

P = ParamSpec("P")
R = TypeVar("R")

#: The key of a job's meta with the value that `Chancy.release` takes to release the job.
HOLD = "hold"

PRIORITIES = range(-100, 101)
ATTEMPTS = range(1, 10_001)
#: The default number of attempts of a job. With the default delays, they take about three weeks.
DEFAULT_MAX_ATTEMPTS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[R_co]):
    """A function to run, its arguments, and its settings. Immutable: `with_…` returns a copy.

    ``Job[R]`` is a job whose function returns an R; only type checkers use this.

    :param func: the path of a function at the top level of a module, ``package.module.function``.
    :param arguments: keyword arguments, with values that JSON can hold.
    :param priority: from -100 to 100; higher runs first. Equal priorities run in push order.
    :param run_at: an aware datetime, or a delay after the push by the clock of the database. None
        or a past time means at once.
    :param max_attempts: attempts that may fail before the job fails for good.
    :param meta: data for plugins, one key for each; stored with the job.
    :param limits: limits of one attempt, at most one `Limit` of each type. They override those of
        the queue.
    :param id: a repeated push with this id is a no-op while the job is unfinished. By default the
        push generates a UUIDv7.
    :param unique: which other jobs are duplicates of this one, and how a duplicate push is handled.
    :param expires_at: when the job is cancelled unless it has started: an aware datetime, or a
        delay after the push by the clock of the database. None: never.
    """

    func: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queue: str = "default"
    priority: int = 0
    run_at: datetime | timedelta | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: tuple[Limit, ...] = ()
    id: UUID | None = None
    unique: Unique | None = None
    expires_at: datetime | timedelta | None = None

    if not TYPE_CHECKING:  # that of Generic sets an attribute, which frozen slotted classes lack
        __class_getitem__ = classmethod(GenericAlias)

    @overload
    @classmethod
    def from_func(
        cls, func: Callable[..., Coroutine[Any, Any, R]], /, **arguments: Any
    ) -> Job[R]: ...
    @overload
    @classmethod
    def from_func(cls, func: Callable[..., R], /, **arguments: Any) -> Job[R]: ...
    @classmethod
    def from_func(cls, func: Callable[..., Any], /, **arguments: Any) -> Job[Any]:
        """Return a job that calls a function with keyword arguments.

        For a function decorated with `job`, its settings apply.

        :raises InvalidArguments: the function does not take these arguments.
        """
        factory = getattr(func, "job", None)
        if not isinstance(factory, JobFactory):
            path = path_of(func)
            _check_not_method(func, path)
            factory = JobFactory[..., Any](func, cls(func=path))
        return factory(**arguments)

    def with_arguments(self, /, **arguments: Any) -> Self:
        """Return a copy with these keyword arguments merged into the existing ones."""
        return replace(self, arguments={**self.arguments, **arguments})

    def with_queue(self, queue: str) -> Self:
        """Return a copy for another queue."""
        return replace(self, queue=queue)

    def with_priority(self, priority: int) -> Self:
        """Return a copy with a priority from -100 to 100; higher runs first."""
        return replace(self, priority=priority)

    def with_run_at(self, run_at: datetime | None) -> Self:
        """Return a copy due at an aware datetime."""
        return replace(self, run_at=run_at)

    def with_delay(self, delay: timedelta | float | None) -> Self:
        """Return a copy due a timedelta or seconds after its push, by the clock of the database."""
        return replace(self, run_at=as_time(delay, "delay"))

    def with_max_attempts(self, max_attempts: int) -> Self:
        """Return a copy that fails for good after this many attempts."""
        return replace(self, max_attempts=max_attempts)

    def with_retry(self, retry: PolicyChoice) -> Self:
        """Return a copy with this retry policy, or one for each type of error; False: no retry.

        The policy is stored in the job's ``meta["retry"]``. Its ``max_attempts``, or the largest of
        several policies, becomes that of the job.
        """
        stored, most = chosen(retry, self.max_attempts)
        return replace(self, meta={**self.meta, KEY: stored}, max_attempts=most)

    def with_meta(self, /, **meta: Any) -> Self:
        """Return a copy with these keys merged into its meta."""
        return replace(self, meta={**self.meta, **meta})

    def with_hold(self, key: str) -> Self:
        """Return a copy that is held from its push until `Chancy.release` is called with this key,
        of 1 to 200 characters, or with the id of the job."""
        return self.with_meta(**{HOLD: key})

    def with_limits(self, *limits: Limit) -> Self:
        """Return a copy with these limits instead of the existing ones."""
        return replace(self, limits=check_limits(limits, f"job {self.func}"))

    def with_id(self, id: UUID) -> Self:
        """Return a copy with an id of your own; a job with that id is stored once."""
        return replace(self, id=id)

    def with_unique(self, unique: Unique | None) -> Self:
        """Return a copy with this unique rule; None removes it."""
        return replace(self, unique=unique)

    def with_expires_at(self, expires_at: datetime | timedelta | float | None) -> Self:
        """Return a copy that is cancelled unless it starts by an aware datetime, or within a
        timedelta or seconds after its push."""
        return replace(self, expires_at=as_time(expires_at, "expires_at"))


# The setters of the fields: the __init__ of a frozen dataclass takes four times as long.
_SLOTS = tuple(Job.__dict__[field.name] for field in fields(Job) if field.name != "arguments")
_set_arguments = Job.__dict__["arguments"].__set__


def as_time(at: datetime | timedelta | float | None, name: str) -> datetime | timedelta | None:
    """Convert a number of seconds to a timedelta; return other values unchanged.

    :raises PushError: the value is a bool, or too large for a timedelta, or a delay that is neither
        a number nor a time.
    """
    if isinstance(at, bool):
        raise PushError(f"{name}={at} is not a number of seconds")
    if isinstance(at, int | float):
        try:
            return timedelta(seconds=at)
        except (OverflowError, ValueError) as error:
            raise PushError(f"{name}={shown(at)} seconds is not a delay: {error}") from None
    if name == "delay" and not isinstance(at, datetime | timedelta | None):
        raise PushError(f"delay={shown(at)} must be a timedelta or a number of seconds")
    return at


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A snapshot of a job as stored in the database. Datetimes are aware, in UTC."""

    id: UUID
    func: str
    arguments: Mapping[str, Any] | None
    queue: str
    priority: int
    state: State
    attempt: int
    max_attempts: int
    crashes: int
    run_at: datetime | None
    worker_id: UUID | None
    meta: Mapping[str, Any]
    errors: tuple[Mapping[str, Any], ...]
    result: Any
    pushed_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    stop_asked_at: datetime | None
    limits: tuple[Limit, ...]
    #: None once the job is finished.
    expires_at: datetime | None = None


class JobFactory(Generic[P, R_co]):
    """Creates the jobs of one function; available on a decorated function as ``.job``.

    Calling it with the function's arguments returns a `Job`; type checkers check the call against
    the signature. ``with_…`` returns a factory with other settings.
    """

    __slots__ = ("_names", "_settings", "_signature", "func", "template")

    def __init__(self, func: Callable[..., object], template: Job[R_co]) -> None:
        self.func = func
        self.template = template
        self._settings = tuple((slot.__set__, slot.__get__(template)) for slot in _SLOTS)
        self._signature = inspect.signature(func)
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise InvalidArguments(
                    f"{template.func} takes {parameter} by position only: jobs are called with "
                    "keyword arguments, so make it a parameter that can be passed by name"
                )
        self._names = frozenset(self._signature.parameters)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Return a job with these arguments; raises `InvalidArguments` if they do not fit."""
        if args or kwargs.keys() != self._names:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidArguments(f"{self.template.func}: {error}") from None
            arguments: dict[str, Any] = {}
            for name, value in bound.arguments.items():
                kind = self._signature.parameters[name].kind
                arguments |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
            return self._create(arguments)
        return self._create(kwargs)

    def _create(self, arguments: Mapping[str, Any]) -> Job[R_co]:
        job: Job[R_co] = object.__new__(Job)
        _set_arguments(job, arguments)
        for set_field, value in self._settings:
            set_field(job, value)
        return job

    def _with(self, template: Job[R_co]) -> Self:
        return type(self)(self.func, template)

    def with_queue(self, queue: str) -> Self:
        return self._with(self.template.with_queue(queue))

    def with_priority(self, priority: int) -> Self:
        return self._with(self.template.with_priority(priority))

    def with_run_at(self, run_at: datetime | None) -> Self:
        return self._with(self.template.with_run_at(run_at))

    def with_delay(self, delay: timedelta | float | None) -> Self:
        return self._with(self.template.with_delay(delay))

    def with_max_attempts(self, max_attempts: int) -> Self:
        return self._with(self.template.with_max_attempts(max_attempts))

    def with_retry(self, retry: PolicyChoice) -> Self:
        return self._with(self.template.with_retry(retry))

    def with_meta(self, /, **meta: Any) -> Self:
        return self._with(self.template.with_meta(**meta))

    def with_hold(self, key: str) -> Self:
        return self._with(self.template.with_hold(key))

    def with_limits(self, *limits: Limit) -> Self:
        return self._with(self.template.with_limits(*limits))

    def with_unique(self, unique: Unique | None) -> Self:
        return self._with(self.template.with_unique(unique))

    def with_expires_at(self, expires_at: datetime | timedelta | float | None) -> Self:
        return self._with(self.template.with_expires_at(expires_at))


class _DecoratedFunction(Protocol[P, R_co]):
    __name__: str
    __qualname__: str
    __module__: str

    @property
    def job(self) -> JobFactory[P, R_co]: ...


class JobFunction(_DecoratedFunction[P, R_co], Protocol[P, R_co]):
    """A function decorated with `job`: callable as before, with a factory as ``.job``."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class AsyncJobFunction(_DecoratedFunction[P, R_co], Protocol[P, R_co]):
    """An async function decorated with `job`; its jobs have the awaited result."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class JobDecorator(Protocol):
    """The decorator that `job` returns when it is called with settings."""

    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> JobFunction[P, R]: ...


#: Every function decorated in this process, by path.
DECORATED: dict[str, Callable[..., Any]] = {}
#: The attribute of such a function with another function, which returns the arguments by the name
#: of their parameter when it is called with those of a job.
BIND = "__chancy_bind__"
#: The queues that these functions name.
NAMED_QUEUES: set[str] = set()


def path_of(func: object) -> str:
    """Return the path by which a worker finds a function, ``package.module.function``."""
    module = getattr(func, "__module__", None)
    name = getattr(func, "__qualname__", None)
    if not module or not name:
        raise InvalidArguments(f"{shown(func)} is not a function that a worker could import")
    return f"{module}.{name}"


def _check_not_method(func: object, path: str) -> None:
    """Raise `InvalidArguments` for a function of a class, which a worker could not import."""
    owner = getattr(func, "__qualname__", "").rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        raise InvalidArguments(
            f"{path} is defined in the class {owner}: a method, also a static or class method, "
            "cannot be a job; write a function of the module that calls it"
        )


def check_not_generator(func: Callable[..., Any], path: str) -> None:
    """Raise `InvalidArguments` for a generator function, because calling it would not run it."""
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        kind = "an async generator" if inspect.isasyncgenfunction(func) else "a generator"
        raise InvalidArguments(
            f"{path} is {kind} function: calling it would run none of it, so it cannot be a job; "
            "write a function that loops over it"
        )


def _check_function(func: Callable[..., Any]) -> str:
    """The path of a function to decorate; raises `InvalidArguments` if it cannot be a job."""
    path = path_of(func)
    check_not_generator(func, path)
    if isinstance(func, staticmethod):
        raise InvalidArguments(
            f"{path} is a static method below @job, so there would be no {func.__qualname__}.job: "
            "make @staticmethod the topmost decorator"
        )
    method = inspect.ismethod(func) or isinstance(func, classmethod)
    if method or inspect.isclass(func) or inspect.isbuiltin(func):
        kind = "a method" if method else "a class or built-in function"
        raise InvalidArguments(
            f"{path} is {kind}, which cannot be a job: decorate a function that calls it"
        )
    return path


def _with_attempts(template: Job, retry: PolicyChoice | None, max_attempts: int | None) -> Job:
    """The template of a function's jobs with its retry policy, capped by ``max_attempts``.

    :raises ConfigurationError: every push of such a job would be refused.
    """
    if retry is not None:
        template = template.with_retry(retry)
    if max_attempts is not None:
        template = template.with_max_attempts(max_attempts)
    where = f"job {template.func}"
    check_number(template.priority, f"{where}: priority", PRIORITIES[0], PRIORITIES[-1])
    check_number(template.max_attempts, f"{where}: max_attempts", ATTEMPTS[0], ATTEMPTS[-1])
    if template.unique is not None:
        check_instance(template.unique, Unique, f"{where}: unique", "pass Unique(…)")
    return template


@overload
def job(func: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...
@overload
def job(func: Callable[P, R], /) -> JobFunction[P, R]: ...
@overload
def job(
    *,
    queue: str = ...,
    priority: int = ...,
    delay: timedelta | float | None = ...,
    max_attempts: int | None = ...,
    retry: PolicyChoice | None = ...,
    meta: Mapping[str, Any] | None = ...,
    limits: Iterable[Limit] = ...,
    unique: Unique | None = ...,
    expires_at: datetime | timedelta | float | None = ...,
    version: int = ...,
    upgrade: Upgrade | None = ...,
    batch: int | None = ...,
    within: timedelta | float | None = ...,
) -> JobDecorator: ...
def job(
    func: Callable[..., Any] | None = None,
    /,
    *,
    queue: str = "default",
    priority: int = 0,
    delay: timedelta | float | None = None,
    max_attempts: int | None = None,
    retry: PolicyChoice | None = None,
    meta: Mapping[str, Any] | None = None,
    limits: Iterable[Limit] = (),
    unique: Unique | None = None,
    expires_at: datetime | timedelta | float | None = None,
    version: int = 1,
    upgrade: Upgrade | None = None,
    batch: int | None = None,
    within: timedelta | float | None = None,
) -> Any:
    """Decorate a function, sync or async, so that ``func.job(...)`` creates jobs of it.

    The function stays callable. The settings are the defaults of its jobs; see `Job`. Decorators
    above this one do not run in a worker.

    :param delay: a timedelta or seconds after the push, by the clock of the database.
    :param max_attempts: the default is that of ``retry``, or 25.
    :param retry: when a failed job runs again: a policy of `chancy.retry`, or a dict that maps
        exception types to policies. The default is the policy of the worker's application.
    :param version: the version of the function's arguments, stored with each job. A worker leaves
        jobs of a later version to workers that know it.
    :param upgrade: converts the stored arguments of a job, plain JSON values, from an older
        version: ``upgrade(arguments, version)`` returns the current arguments.
    :param batch: the maximum items of one call, unless a job has more. The first parameter of the
        function is a list; a worker calls it with the items of several jobs whose other arguments
        are equal. The function returns None, or a list with a result or an exception for each item.
    :param within: seconds for which a job of a batch waits for others, at most 60; default 1.
    """

    def decorate(func: Callable[..., Any]) -> Any:
        path = _check_function(func)
        if (declared := ArgumentsVersion.of(version, upgrade, path)) is not None:
            setattr(func, ATTRIBUTE, declared)
        if (batching := Batching.of(func, path, batch, within)) is not None:
            setattr(func, BATCHING, batching)
        template = Job(
            func=path,
            queue=check_queue_name(queue),
            priority=priority,
            run_at=as_time(delay, "delay"),
            meta=dict(meta or {}),
            limits=check_limits(limits, f"job {path}"),
            unique=unique,
            expires_at=as_time(expires_at, "expires_at"),
        )
        template = _with_attempts(template, retry, max_attempts)
        DECORATED[template.func] = func
        NAMED_QUEUES.add(template.queue)
        cast("Any", func).job = JobFactory(func, template)
        return func

    return decorate if func is None else decorate(func)
