"""Jobs: what is pushed, and what is read back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload
from uuid import UUID

from chancy.checks import check_queue_name
from chancy.errors import InvalidArguments, PushError
from chancy.job.limits import Limit, check_limits
from chancy.job.unique import Unique
from chancy.states import State
from chancy.text import shown

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    #: What a job returns. A bare `Job` is a ``Job[Any]``.
    R_co = DefaultingTypeVar("R_co", covariant=True, default=Any)
else:
    R_co = TypeVar("R_co", covariant=True)

P = ParamSpec("P")
R = TypeVar("R")

#: Attempts a job gets unless it says otherwise: one, and two retries.
DEFAULT_MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[R_co]):
    """A function to run, its arguments, and how to run it. A value: `with_…` makes variants.

    ``Job[R]`` is one whose function returns an R: type checkers know it, nothing else does.

    :param func: the path of a function at the top level of a module, ``package.module.function``.
    :param arguments: keyword arguments, of types that JSON has.
    :param priority: from -100 to 100; higher runs first. Equal priorities run in push order.
    :param run_at: an aware datetime, or how long after the push by the clock of the database;
        None and times gone by mean at once.
    :param max_attempts: attempts that may fail before the job fails for good.
    :param meta: data for plugins, one key each; kept with the job.
    :param limits: what one attempt may take, at most one `Limit` of a type; over those of the
        queue.
    :param id: makes a repeated push of the same job a no-op while the job is unfinished;
        a UUIDv7 is made at push if there is none.
    :param unique: which other jobs are the same as this one, and what then becomes of a push.
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

    if not TYPE_CHECKING:  # what Generic makes sets an attribute that a frozen slotted class lacks
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
        """A job that calls a function with keyword arguments.

        A function decorated with `job` brings its settings along.
        :raises InvalidArguments: the function does not take these arguments.
        """
        factory = getattr(func, "job", None)
        if not isinstance(factory, JobFactory):
            factory = JobFactory[..., Any](func, cls(func=path_of(func)))
        return factory(**arguments)

    def with_arguments(self, **arguments: Any) -> Self:
        """The same job with these keyword arguments put over the ones it has."""
        return replace(self, arguments={**self.arguments, **arguments})

    def with_queue(self, queue: str) -> Self:
        return replace(self, queue=queue)

    def with_priority(self, priority: int) -> Self:
        return replace(self, priority=priority)

    def with_run_at(self, run_at: datetime | timedelta | float | None) -> Self:
        """The same job at an aware datetime, or so long (timedelta, seconds) after its push."""
        return replace(self, run_at=_moment(run_at))

    def with_max_attempts(self, max_attempts: int) -> Self:
        return replace(self, max_attempts=max_attempts)

    def with_meta(self, **meta: Any) -> Self:
        """The same job with these keys put over the meta it has."""
        return replace(self, meta={**self.meta, **meta})

    def with_limits(self, *limits: Limit) -> Self:
        """The same job with these limits instead of those it has."""
        return replace(self, limits=check_limits(limits, f"job {self.func}"))

    def with_id(self, id: UUID) -> Self:
        return replace(self, id=id)

    def with_unique(self, unique: Unique | None) -> Self:
        return replace(self, unique=unique)


# The setters of the fields: what a frozen dataclass makes of itself takes four times as long.
_SLOTS = tuple(Job.__dict__[field.name] for field in fields(Job) if field.name != "arguments")
_set_arguments = Job.__dict__["arguments"].__set__


def _moment(run_at: datetime | timedelta | float | None) -> datetime | timedelta | None:
    if isinstance(run_at, int | float):
        try:
            return timedelta(seconds=run_at)
        except (OverflowError, ValueError) as error:
            raise PushError(f"run_at={run_at!r} seconds is not a delay: {error}") from None
    return run_at


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as the database has it at one moment. Times are aware, in UTC."""

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


class JobFactory(Generic[P, R_co]):
    """Makes jobs of one function; hangs on the function as ``.job``.

    Called with the function's own arguments it gives a `Job`; type checkers hold the call
    against the signature. ``with_…`` gives a factory with other settings.
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
                    f"{template.func} takes {parameter} by position only: jobs are called by "
                    "keyword, so give the parameter a name that can be used"
                )
        self._names = frozenset(self._signature.parameters)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """A job with these arguments. Raises `InvalidArguments` if the function takes others."""
        if args or kwargs.keys() != self._names:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidArguments(f"{self.template.func}: {error}") from None
            arguments: dict[str, Any] = {}
            for name, value in bound.arguments.items():
                kind = self._signature.parameters[name].kind
                arguments |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
            return self._made(arguments)
        return self._made(kwargs)

    def _made(self, arguments: Mapping[str, Any]) -> Job[R_co]:
        job: Job[R_co] = object.__new__(Job)
        _set_arguments(job, arguments)
        for put, value in self._settings:
            put(job, value)
        return job

    def _with(self, template: Job[R_co]) -> Self:
        return type(self)(self.func, template)

    def with_queue(self, queue: str) -> Self:
        return self._with(self.template.with_queue(queue))

    def with_priority(self, priority: int) -> Self:
        return self._with(self.template.with_priority(priority))

    def with_run_at(self, run_at: datetime | timedelta | float | None) -> Self:
        return self._with(self.template.with_run_at(run_at))

    def with_max_attempts(self, max_attempts: int) -> Self:
        return self._with(self.template.with_max_attempts(max_attempts))

    def with_meta(self, **meta: Any) -> Self:
        return self._with(self.template.with_meta(**meta))

    def with_limits(self, *limits: Limit) -> Self:
        return self._with(self.template.with_limits(*limits))

    def with_unique(self, unique: Unique | None) -> Self:
        return self._with(self.template.with_unique(unique))


class JobFunction(Protocol[P, R_co]):
    """A function decorated with `job`: still the function, with a factory at ``.job``."""

    __name__: str
    __qualname__: str
    __module__: str

    @property
    def job(self) -> JobFactory[P, R_co]: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class AsyncJobFunction(Protocol[P, R_co]):
    """The same for an async function: its jobs return what awaiting it gives."""

    __name__: str
    __qualname__: str
    __module__: str

    @property
    def job(self) -> JobFactory[P, R_co]: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class JobDecorator(Protocol):
    """What `job` gives when it is called with settings."""

    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> JobFunction[P, R]: ...


#: Every function decorated in this process, by path.
DECORATED: dict[str, Callable[..., Any]] = {}


def path_of(func: object) -> str:
    """The path under which a worker finds a function."""
    module = getattr(func, "__module__", None)
    name = getattr(func, "__qualname__", None)
    if not module or not name:
        raise InvalidArguments(f"{shown(func)} is not a function that a worker could import")
    return f"{module}.{name}"


@overload
def job(func: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...
@overload
def job(func: Callable[P, R], /) -> JobFunction[P, R]: ...
@overload
def job(
    *,
    queue: str = ...,
    priority: int = ...,
    run_at: datetime | timedelta | float | None = ...,
    max_attempts: int = ...,
    meta: Mapping[str, Any] | None = ...,
    limits: Iterable[Limit] = ...,
    unique: Unique | None = ...,
) -> JobDecorator: ...
def job(
    func: Callable[..., Any] | None = None,
    /,
    *,
    queue: str = "default",
    priority: int = 0,
    run_at: datetime | timedelta | float | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    meta: Mapping[str, Any] | None = None,
    limits: Iterable[Limit] = (),
    unique: Unique | None = None,
) -> Any:
    """Make a function a job: it stays callable, and ``func.job(...)`` makes jobs of it.

    Sync and async functions alike. Settings are the defaults of its jobs; see `Job`.
    """

    def decorate(func: Callable[..., Any]) -> Any:
        template = Job(
            func=path_of(func),
            queue=check_queue_name(queue),
            priority=priority,
            run_at=_moment(run_at),
            max_attempts=max_attempts,
            meta=dict(meta or {}),
            limits=check_limits(limits, f"job {path_of(func)}"),
            unique=unique,
        )
        DECORATED[template.func] = func
        cast("Any", func).job = JobFactory(func, template)
        return func

    return decorate if func is None else decorate(func)
