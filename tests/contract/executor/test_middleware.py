"""Hooks around the runs of every executor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any, NoReturn, cast
from uuid import UUID

import pytest

from chancy.attempt.outcome import Cancelled, Outcome, Raised, Released, Returned
from chancy.containment import Containment
from chancy.context.context import JobContext, current_job
from chancy.errors import NoCurrentJob
from chancy.executors.base import Executor
from chancy.plugin.hooks import AroundHook
from chancy.worker.middleware import AroundHooks
from tests.contract.executor.calls import Place, claim_of, end_of, result, run, started
from tests.contract.executor.jobs import tenant
from tests.support.clusters import ANYWHERE, ISOLATED
from tests.support.waiting import eventually

Hook = Callable[[JobContext], AbstractAsyncContextManager[object] | AbstractContextManager[object]]
ASKED = Cancelled("somebody asked")
#: What hooks and jobs share depends on where the jobs run; the rest of the hooks does not.
EVERY = pytest.mark.parametrize("name", ANYWHERE)


@pytest.fixture
def name() -> str:
    return "async"


@pytest.fixture
def said() -> list[str]:
    """What the hooks say, in order."""
    return []


def speaking(said: list[str], name: str) -> Hook:
    """A hook that may wait."""

    @asynccontextmanager
    async def around(context: JobContext) -> AsyncGenerator[None]:
        await asyncio.sleep(0)
        said.append(f"{name} enters")
        try:
            yield
        finally:
            said.append(f"{name} leaves")

    return around


def about(it: Executor, *hooks: Hook, leave_s: float = 30.0, plain_errors: bool = True) -> Executor:
    contained = [
        AroundHook(Containment(f"shop.{n}", "around"), hook) for n, hook in enumerate(hooks)
    ]
    return AroundHooks(it, contained, leave_s, plain_errors=plain_errors)


def named(hook_tenant: str) -> Hook:
    @contextmanager
    def around(context: JobContext) -> Generator[None]:
        token = tenant.set(hook_tenant)
        yield
        tenant.reset(token)

    return around


def inline(said: list[str], name: str) -> Hook:
    """A hook that cannot wait, which costs less."""

    @contextmanager
    def around(context: JobContext) -> Generator[None]:
        said.append(f"{name} enters")
        try:
            yield
        finally:
            said.append(f"{name} leaves")

    return around


@pytest.mark.parametrize("hook", [speaking, inline])
async def test_hooks_are_entered_in_order_and_left_in_reverse(
    one: Executor, said: list[str], hook: Callable[[list[str], str], Hook]
) -> None:
    it = about(one, hook(said, "first"), hook(said, "second"))
    assert await result(it, "echo", value=1) == 1
    assert said == ["first enters", "second enters", "second leaves", "first leaves"]


@EVERY
async def test_only_the_job_sees_the_variables_of_its_hooks(name: str, one: Executor) -> None:
    """A child has none of them."""
    expected = "nobody" if name in ISOLATED else "shop"
    for function in 2 * ("say_tenant", "say_tenant_async", "say_tenant_later"):
        seen = await result(about(one, named("shop")), function, new="changed by the job")
        assert seen == ([expected, "changed by the job"] if "later" in function else expected)
        assert tenant.get() == "nobody"
        seen = await result(one, function, new="changed by the job")
        assert seen == (["nobody", "changed by the job"] if "later" in function else "nobody")


@pytest.mark.parametrize("name", ["thread", "async"])
async def test_concurrent_jobs_share_no_variables(name: str) -> None:
    tenants: dict[UUID, str] = {}

    @contextmanager
    def around(context: JobContext) -> Generator[None]:
        tenant.set(tenants[context.id])
        yield

    async with started(name, concurrency=8) as made:
        it = about(made, around)
        claims = [claim_of("say_tenant_later", new=str(number)) for number in range(50)]
        tenants.update({claim.id: f"tenant {number}" for number, claim in enumerate(claims)})
        outcomes = await asyncio.gather(*map(it.run, claims))
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, Returned)
        assert json.loads(outcome.result or "") == [f"tenant {number}", str(number)]


async def test_hooks_see_the_job_and_how_it_ended(one: Executor, place: Place) -> None:
    seen: list[object] = []

    @contextmanager
    def around(context: JobContext) -> Generator[None]:
        seen.append((context.id, context.func, current_job() is context, context.outcome))
        yield
        seen.append(context.outcome)

    it = about(one, around)
    claim = claim_of("raise_plain")
    outcome = await it.run(claim)
    assert isinstance(outcome, Raised)
    assert seen == [(claim.id, claim.func, True, None), outcome]
    with pytest.raises(NoCurrentJob):
        current_job()
    claim = place.waiting()
    running = asyncio.create_task(it.run(claim))
    await place.has_started()
    it.interrupt(claim, Released("the worker stops"))
    assert await end_of(running) == seen[-1] == Released("the worker stops")


async def test_a_hook_without_a_decorator_is_named(one: Executor) -> None:
    def around(context: JobContext) -> Generator[None]:
        yield

    outcome = await about(one, cast("Hook", around)).run(claim_of("nothing"))
    assert isinstance(outcome, Raised)
    assert "is contextlib.contextmanager missing?" in outcome.failure.message


@EVERY
@pytest.mark.parametrize("function", ["close_later", "close_later_async"])
async def test_the_stack_of_a_job_is_closed_in_the_event_loop(
    name: str, one: Executor, place: Place, said: list[str], function: str
) -> None:
    """The job's context is the hooks' own."""

    @contextmanager
    def around(context: JobContext) -> Generator[None]:
        loop = asyncio.get_running_loop()
        context.stack.callback(lambda: said.append(f"{loop is asyncio.get_running_loop()}"))
        yield
        said.append(f"file is there: {place.other.exists()}")

    claim = claim_of(function, path=str(place.other))
    outcome = await about(one, around).run(claim)
    if name in ISOLATED:
        assert isinstance(outcome, Raised)
        assert outcome.failure.is_a("chancy.errors.NoCurrentJob")
    else:
        assert isinstance(outcome, Returned)
        assert outcome.result == "false"
        assert said == ["True", "file is there: True"]
    bare = await one.run(claim)
    assert isinstance(bare, Raised)
    assert bare.failure.is_a("chancy.errors.NoCurrentJob")


def breaking(error: BaseException, *, entering: bool) -> Hook:
    @contextmanager
    def around(context: JobContext) -> Generator[None]:
        if entering:
            raise error
        yield
        raise error

    return around


@pytest.mark.parametrize(
    "error", [ValueError("broken"), SystemExit("broken"), asyncio.CancelledError("broken")]
)
@pytest.mark.parametrize("hook", [speaking, inline])
async def test_a_job_whose_hooks_cannot_be_entered_does_not_run(
    one: Executor,
    place: Place,
    said: list[str],
    error: BaseException,
    hook: Callable[[list[str], str], Hook],
) -> None:
    hooks = hook(said, "first"), breaking(error, entering=True), hook(said, "third")
    outcome = await run(about(one, *hooks), "mark", path=str(place.other))
    assert isinstance(outcome, Raised)
    assert outcome.failure.message == "broken"
    assert said == ["first enters", "first leaves"]
    assert not place.other.exists()


def nonsense(context: JobContext) -> Any:
    return "no context manager"


def refusing(context: JobContext) -> AbstractContextManager[None]:
    raise ValueError("no")


@pytest.mark.parametrize("hook", [nonsense, refusing])
async def test_a_hook_that_gives_no_context_manager_is_an_error(one: Executor, hook: Hook) -> None:
    outcome = await run(about(one, hook), "nothing")
    assert isinstance(outcome, Raised)


@pytest.mark.parametrize("hook", [speaking, inline])
async def test_an_error_on_leaving_is_the_jobs_only_if_it_has_none(
    one: Executor,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
    hook: Callable[[list[str], str], Hook],
) -> None:
    it = about(one, hook(said, "first"), breaking(ValueError("on leaving"), entering=False))
    outcome = await run(it, "echo", value=1)
    assert isinstance(outcome, Raised)
    assert outcome.failure.message == "on leaving"
    outcome = await run(it, "raise_plain")
    assert isinstance(outcome, Raised)
    assert outcome.failure.message == "the reason"
    assert said == ["first enters", "first leaves"] * 2
    assert caplog.text.count("hook_failed plugin=shop.1 hook=around failures=1") == 1


@pytest.mark.parametrize("hook", [speaking, inline])
async def test_a_surrounded_job_can_be_interrupted(
    one: Executor, place: Place, said: list[str], hook: Callable[[list[str], str], Hook]
) -> None:
    it = about(one, hook(said, "hook"))
    claim = place.waiting()
    running = asyncio.create_task(it.run(claim))
    await place.has_started()
    assert it.interrupt(claim, ASKED) is True
    assert await end_of(running) == ASKED
    assert said == ["hook enters", "hook leaves"]
    assert it.interrupt(claim, ASKED) is False


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_job_whose_hooks_are_being_entered_can_be_interrupted(
    one: Executor, place: Place, said: list[str], turns: int
) -> None:
    @asynccontextmanager
    async def waiting(context: JobContext) -> AsyncGenerator[None]:
        await asyncio.Event().wait()
        yield

    it = about(one, speaking(said, "first"), waiting)
    claim = claim_of("mark", path=str(place.other))
    running = asyncio.create_task(it.run(claim))
    await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert it.interrupt(claim, Released("the worker stops")) is True
    assert await end_of(running) == Released("the worker stops")
    assert said in ([], ["first enters", "first leaves"])
    assert not place.other.exists()


def hanging(until: asyncio.Event, *, swallowing: bool) -> Hook:
    @asynccontextmanager
    async def around(context: JobContext) -> AsyncGenerator[None]:
        yield
        while not until.is_set():
            with suppress(asyncio.CancelledError) if swallowing else nullcontext():
                await until.wait()

    return around


@pytest.mark.parametrize("swallowing", [False, True])
async def test_hooks_that_do_not_leave_are_left_behind(
    one: Executor, caplog: pytest.LogCaptureFixture, swallowing: bool
) -> None:
    until = asyncio.Event()
    it = about(one, hanging(until, swallowing=swallowing), leave_s=0.05)
    try:
        outcome = await run(it, "echo", value=1)
        assert isinstance(outcome, Raised)
        assert outcome.failure.is_a("builtins.TimeoutError")
        assert "did not exit within 0.05 s" in outcome.failure.message
        assert ("ignored its cancellation" in caplog.text) is swallowing
    finally:
        until.set()


@pytest.mark.parametrize("hook", [speaking, inline])
async def test_a_consumer_that_is_torn_down_takes_the_hooks_along(
    one: Executor, place: Place, said: list[str], hook: Callable[[list[str], str], Hook]
) -> None:
    it = about(one, hook(said, "hook"))
    running = asyncio.create_task(it.run(place.waiting()))
    await place.has_started()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: said == ["hook enters", "hook leaves"])
    assert await result(it, "echo", value="next") == "next"


async def test_the_executor_shows_through(one: Executor) -> None:
    it = about(one, lambda context: nullcontext())
    assert (it.slots, it.broken) == (one.slots, one.broken)
    outcomes: list[Outcome] = [await it.run(claim_of("nothing")) for _ in range(100)]
    assert {type(outcome) for outcome in outcomes} == {Returned}


@pytest.mark.parametrize("plain", [True, False])
async def test_an_error_of_the_stack_of_a_job_is_logged_plain_only_if_it_may_be(
    caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    def fail() -> NoReturn:
        raise ValueError("in the cleanup")

    @asynccontextmanager
    async def around(context: JobContext) -> AsyncGenerator[None]:
        context.stack.callback(fail)
        yield

    async with started("async") as inner:
        outcome = await about(inner, around, plain_errors=plain).run(claim_of("nothing"))
    assert isinstance(outcome, Raised)
    assert "job_cleanup_failed" in caplog.text
    assert "ValueError" in caplog.text
    assert ("in the cleanup" in caplog.text) is plain
