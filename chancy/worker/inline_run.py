"""Runs a claim inside `around` hooks that are plain generators.

Such hooks cannot wait, so they need no time limit, no task and no cancellation. A run in a task of
its own costs ten times as much as the hooks of most plugins.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from inspect import isgeneratorfunction, unwrap
from typing import Any

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised, Returned
from chancy.containment import Containment, refuse
from chancy.context.context import CURRENT, JobContext
from chancy.plugin.hooks import AroundHook
from chancy.plugin.plugin import AroundContext

_Entered = list[tuple[Containment, AbstractContextManager[object]]]


def is_inline(hook: AroundHook) -> bool:
    """Whether a hook is a generator function decorated with ``contextlib.contextmanager``."""
    return hasattr(hook.around, "__wrapped__") and isgeneratorfunction(unwrap(hook.around))


async def run_inline(
    claim: Claim,
    job: JobContext,
    hooks: Sequence[AroundHook],
    run: Callable[[], Coroutine[Any, Any, Outcome]],
    close: Callable[[Outcome], Awaitable[Outcome]],
) -> Outcome:
    """Enter the hooks, run the claim, exit the hooks; in the task of the caller, and in a context
    of its own. Raises nothing but the cancellation of the caller.

    :param run: runs the claim.
    :param close: closes the stack of the job, if it has one, and returns the outcome.
    """
    context = copy_context()
    entered: _Entered = []
    error: BaseException | None = None
    try:
        context.run(_enter, claim, job, hooks, entered)
        outcome = await _in_context(context, context.run(run))
    except BaseException as raised:
        error, outcome = raised, Raised(Failure.of(raised), error=raised)
    job.outcome = outcome
    if job.has_stack:
        outcome = await close(outcome)
    left = context.run(_exit, claim, entered, error)
    if error is not None and len(entered) == len(hooks):
        raise error  # of the executor: the consumer is being torn down
    return outcome if left is None else failed_by(outcome, left)


def failed_by(outcome: Outcome, error: BaseException) -> Outcome:
    """The outcome of a run after which a hook has failed."""
    if isinstance(outcome, Returned):
        return Raised(Failure.of(error), outcome.elapsed_s, error=error)
    return outcome


def _enter(claim: Claim, job: JobContext, hooks: Sequence[AroundHook], entered: _Entered) -> None:
    CURRENT.set(job)
    for contained, around in hooks:
        try:
            manager = _checked(around(job))
            manager.__enter__()
        except BaseException as error:
            contained.failed(error, claim.id)
            raise
        entered.append((contained, manager))


def _checked(manager: AroundContext) -> AbstractContextManager[object]:
    if not isinstance(manager, AbstractContextManager):
        refuse(manager, "around()", "the context manager of a generator")
    return manager


def _exit(claim: Claim, entered: _Entered, error: BaseException | None) -> BaseException | None:
    """Exit the hooks, the last one first. Returns the error of the last hook that failed, unless a
    hook before it swallowed that."""
    for contained, manager in reversed(entered):
        try:
            trace = None if error is None else error.__traceback__
            if manager.__exit__(None if error is None else type(error), error, trace):
                error = None
        except BaseException as raised:
            if raised is not error:
                contained.failed(raised, claim.id)
            error = raised
    return error


@types.coroutine
def _in_context(
    context: Context, work: Coroutine[Any, Any, Outcome]
) -> Generator[Any, Any, Outcome]:
    """Await a coroutine in another context than that of the task. Costs 0.3 us if it never waits,
    and a task for it 4."""
    step: Any = work.send
    value: Any = None
    while True:
        try:
            awaited = context.run(step, value)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        try:
            value = yield awaited
            step = work.send
        except BaseException as error:
            value, step = error, work.throw
