"""Common parts of every executor's call: the function, its arguments and the outcome."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, NamedTuple

from chancy.attempt.claim import Claim
from chancy.attempt.control import Cancel, RateLimited, Retry, Snooze
from chancy.attempt.failure import MAX_MESSAGE, Failure, leaves
from chancy.attempt.outcome import (
    Cancelled,
    Lost,
    Outcome,
    Raised,
    Released,
    Returned,
    Snoozed,
    TimedOut,
)
from chancy.errors import InvalidArguments, InvalidResult, UnsupportedLimit
from chancy.executors.base import FindFunction
from chancy.executors.items import encode_items
from chancy.job.definition import check_not_generator
from chancy.job.limits import Limits, LimitType, decode_limits
from chancy.queue.executor_kind import unsupported
from chancy.queue.executor_options import ExecutorOptions
from chancy.serialization.annotations import BATCHING
from chancy.serialization.signature import Signature
from chancy.text import shown, storable

#: Control results: a function may return one instead of a result.
CONTROL = (Snooze, Cancel, Retry, RateLimited)
_new = tuple.__new__
#: The packages and modules whose frames are not part of a job's traceback.
_EXECUTORS = f"{__package__}."


class Callee(NamedTuple):
    """The function of a claim.

    :param coroutine: whether it runs only when its result is awaited.
    :param item: encodes the result of one item, if it takes the items of several jobs.
    """

    path: str
    function: Callable[..., Any]
    coroutine: bool
    signature: Signature
    item: Signature | None = None


def callee(path: str, find: FindFunction) -> Callee:
    """Look a function up.

    :raises UnknownFunction: it is neither registered nor allowed.
    :raises InvalidArguments: it is a generator function, whose call would run none of it.
    """
    function = find(path)
    check_not_generator(function, path)
    coroutine = inspect.iscoroutinefunction(function)
    signature = Signature.of(function, path)
    item = signature.of_item() if hasattr(function, BATCHING) else None
    return Callee(path, function, coroutine, signature, item)


async def awaited(value: Awaitable[Any]) -> Any:
    """Any awaitable as a coroutine, as tasks and runners need it."""
    return await value


def returned(called: Callee, value: object, limit: int, began: float) -> Outcome:
    """The outcome of a call that returned.

    :param limit: maximum size of the encoded result in bytes.
    """
    elapsed_s = perf_counter() - began
    if value is None and (called.item is not None or called.signature.none_fits):
        # Without the constructor: 0.1 µs less.
        return _new(Returned, (None, elapsed_s))
    if isinstance(value, CONTROL):
        return _controlled(value, elapsed_s)
    try:
        if called.item is not None:
            text = encode_items(_item_outcomes(value, called.item, limit))
        else:
            text = called.signature.encode_result(value, limit)
    except BaseException as error:
        return raised(error, began)
    return Returned(text, elapsed_s)


def _item_outcomes(values: object, item: Signature, limit: int) -> Iterable[Outcome]:
    """The outcome of each item, from the return value of a batch function.

    :raises InvalidResult: it is not a list.
    """
    if not isinstance(values, list | tuple):
        raise InvalidResult(
            f"{item.path} returned {shown(values)}: a batch function returns None, or a list with "
            "a result or an exception for each item"
        )
    return [_item_outcome(value, item, limit) for value in values]


def _item_outcome(value: object, item: Signature, limit: int) -> Outcome:
    if value is None and item.none_fits:
        return Returned()
    if isinstance(value, CONTROL):
        return _controlled(value, 0.0)
    if isinstance(value, Exception):
        return Raised(Failure.of(value))
    try:
        return Returned(item.encode_result(value, limit))
    except Exception as error:
        return raised(error, perf_counter())


def _controlled(value: Snooze | Cancel | Retry | RateLimited, elapsed_s: float) -> Outcome:
    match value:
        case Snooze():
            return Snoozed(value.moment, elapsed_s, asked=True)
        case Cancel(reason):
            return Cancelled(storable(reason, MAX_MESSAGE), elapsed_s)
        case Retry():
            return Raised(Failure.of(value), elapsed_s, value.moment)
        case RateLimited():
            return Snoozed(value.moment, elapsed_s, asked=True, rate_limited=True)


def raised(error: BaseException, began: float) -> Raised | Snoozed:
    """The outcome of a call that raised. A group of nothing but `Retry` and `RateLimited` counts
    as one of them, a `Retry` if it has any, with the latest of their times.

    The exception loses the frames of executors, which have the outcome among their variables: the
    cycle would keep the variables of the job alive until the garbage collector runs.
    """
    elapsed_s = perf_counter() - began
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith(_EXECUTORS):
        frame = frame.tb_next
    # Not by assignment: an exception may be a frozen dataclass.
    BaseException.with_traceback(error, frame)
    found = leaves(error)
    asked = [one for one in found if isinstance(one, Retry | RateLimited)]
    if len(asked) < len(found):
        return Raised(Failure.of(error), elapsed_s, None, error)
    now = datetime.now(UTC)
    asked.sort(key=lambda one: one.moment if isinstance(one.moment, datetime) else now + one.moment)
    again = asked[-1].moment
    for one in reversed(asked):
        if isinstance(one, Retry):
            return Raised(Failure.of(one), elapsed_s, again, one)
    return Snoozed(again, elapsed_s, asked=True, rate_limited=True)


def time_limit(
    claim: Claim, defaults: Limits, executor: str, options: ExecutorOptions
) -> float | None:
    """Time limit of an attempt in seconds; None if it has no limit.

    :raises UnsupportedLimit: the executor cannot enforce one of its limits.
    """
    limits = decode_limits(claim.limits).over(defaults)
    for value, kind in (
        (limits.time_s, LimitType.TIME),
        (limits.memory_bytes, LimitType.MEMORY),
    ):
        if value is not None and (why := unsupported(kind, executor, options)):
            raise UnsupportedLimit(why)
    return limits.time_s


def reason_of(outcome: Outcome) -> str:
    """The reason that a job gets when it is stopped with this outcome."""
    match outcome:
        case Cancelled(reason) | Released(reason) | Lost(reason):
            return reason
        case TimedOut(limit_s):
            return f"its time limit of {limit_s:g} s has passed"
        case Snoozed():
            return "it will run again later"
        case _:
            return type(outcome).__name__


def call_error(called: Callee, arguments: dict[str, Any], error: BaseException) -> BaseException:
    """The error to report when the call itself raised.

    A TypeError of arguments that do not fit becomes `InvalidArguments`; one from inside the
    function stays. Checked only after a failure: binding the arguments first takes longer than the
    rest of a short job.
    """
    if not isinstance(error, TypeError):
        return error
    try:
        inspect.signature(called.function).bind(**arguments)
    except TypeError as mismatch:
        if not _entered(called.function, error):
            return InvalidArguments(f"{called.path}: {mismatch}")
    except Exception:
        return error
    return error


def _entered(function: Callable[..., Any], error: BaseException) -> bool:
    """Whether the traceback contains the body of the function, without its decorators."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is code:
            return True
        frame = frame.tb_next
    return False


def called_here(
    called: Callee, arguments: dict[str, Any], context: Context, limit: int
) -> Outcome | Awaitable[Any]:
    """The outcome of a call in this thread, or the awaitable that it returned.

    :param limit: maximum size of the encoded result in bytes.
    """
    began = perf_counter()
    try:
        value = context.run(called.function, **arguments)
    except BaseException as error:
        return raised(call_error(called, arguments, error), began)
    return value if isinstance(value, Awaitable) else returned(called, value, limit, began)
