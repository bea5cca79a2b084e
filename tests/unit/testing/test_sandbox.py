"""Applications without their database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from chancy import Chancy, JobFailed, JobSelection, Queue, State, Unique, WaitTimeout, gather, job
from chancy.errors import BrokerUnavailable, ConfigurationError, InvalidArguments, JobError
from chancy.plugins.retry import Retries
from chancy.retry import Constant, Jitter
from chancy.testing.sandbox import Sandbox
from tests.support.presence import present

pytest_plugins = ["pytester"]

QUIET = ("-p", "no:randomly", "-o", "asyncio_default_fixture_loop_scope=function")

app = Chancy(
    "postgresql://nowhere.invalid/none", plugins=[Retries(Constant(60, jitter=Jitter.NONE))]
)
sent: list[str] = []


@job(queue="mail")
async def send(to: str, copies: int = 1) -> str:
    sent.append(to)
    return f"sent to {to}"


@job
def count(to: int) -> int:
    return sum(range(to))


@job(max_attempts=3)
async def fail() -> None:
    raise ConnectionError("no line")


@job
async def order(number: int) -> int:
    """Pushes others."""
    await app.push(count.job(number))
    await app.push(send.job(to=f"buyer {number}"))
    return number + 1


@job
async def again() -> None:
    await app.push(again.job())


@job
async def twice(number: int) -> int:
    """Waits for another."""
    return 2 * await (await app.push(count.job(number))).result()


@pytest.fixture(autouse=True)
def forget() -> None:
    sent.clear()


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(app) as made:
        yield made


@pytest.fixture
def blocking() -> Iterator[Sandbox]:
    with Sandbox(app) as made:
        yield made


async def test_pushes_are_seen_and_nothing_runs(sandbox: Sandbox) -> None:
    async with app:
        await app.push(send.job(to="ann"))
        await app.push_many(send.job(to="bob", copies=n) for n in range(3))
    assert sandbox.assert_pushed(send, to="ann").state is State.PENDING
    assert sandbox.assert_pushed(send, to="bob", copies=1).arguments == {"to": "bob", "copies": 1}
    sandbox.assert_pushed(send, times=4)
    sandbox.assert_pushed("tests.unit.testing.test_sandbox.send", times=3, to="bob")
    sandbox.assert_not_pushed(send, to="eve")
    sandbox.assert_not_pushed(count)
    assert [job.arguments["to"] for job in sandbox.pushed if job.arguments] == ["ann"] + ["bob"] * 3
    assert sent == []


async def test_unpushed_steps_fail_with_the_pushed_ones(sandbox: Sandbox) -> None:
    await app.push(send.job(to="ann"))
    with pytest.raises(AssertionError) as caught:
        sandbox.assert_pushed(send, to="bob")
    assert str(caught.value) == (
        "tests.unit.testing.test_sandbox.send(to='bob') should have been pushed at least "
        "once, and was pushed 0 times. Pushed jobs: tests.unit.testing.test_sandbox.send(to='ann')"
    )
    with pytest.raises(AssertionError, match="should have been pushed 2 times, and was pushed 1"):
        sandbox.assert_pushed(send, times=2)
    with pytest.raises(AssertionError, match=r"send\(to='ann'\) was pushed, and should not have"):
        sandbox.assert_not_pushed(send)


async def test_wrong_arguments_are_refused_as_ever(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArguments):
        await app.push(send.job(to=object()))  # type: ignore[arg-type]
    assert sandbox.pushed == []


async def test_draining_runs_what_is_due_and_what_that_pushes(sandbox: Sandbox) -> None:
    reference = await app.push(order.job(5))
    finished = await sandbox.drain()
    assert [one.func.rpartition(".")[2] for one in finished] == ["order", "count", "send"]
    assert {one.state for one in finished} == {State.SUCCEEDED}
    assert await reference.result() == 6
    assert sent == ["buyer 5"]
    assert await sandbox.drain() == []


async def test_waiting_runs_the_job(sandbox: Sandbox) -> None:
    references = await app.push_many(count.job(n) for n in range(5))
    assert await gather(references) == [sum(range(n)) for n in range(5)]
    assert await (await app.push(twice.job(3))).result() == 6
    later = await app.push(count.job.with_delay(3600)(3))
    with pytest.raises(WaitTimeout, match="is scheduled: all due jobs have run"):
        await later.result()


@job
async def thrice(number: int) -> int:
    """Waits for several at the same time, and for another that waits."""
    references = [await app.push(count.job(number)), await app.push(twice.job(number))]
    return sum(await asyncio.gather(*(reference.result() for reference in references)))


async def test_draining_returns_the_jobs_that_ran_because_others_waited_for_them(
    sandbox: Sandbox,
) -> None:
    await app.push(thrice.job(3))
    finished = await sandbox.drain()
    assert sorted(one.func.rpartition(".")[2] for one in finished) == [
        "count",
        "count",
        "thrice",
        "twice",
    ]


async def test_draining_raises_for_a_job_that_failed_while_another_one_waited(
    sandbox: Sandbox,
) -> None:
    await app.push(twice.job(3))
    await app.push(fail.job().with_max_attempts(1))
    with pytest.raises(JobFailed, match="no line"):
        await sandbox.drain()


async def test_retries_run_ahead_of_their_time(sandbox: Sandbox) -> None:
    reference = await app.push(fail.job())
    assert await sandbox.drain() == []
    assert await reference.status() is State.SCHEDULED
    with pytest.raises(JobFailed, match="no line"):
        await sandbox.drain(ahead=timedelta(hours=1))
    found = present(await reference.get())
    assert (found.state, found.attempt, len(found.errors)) == (State.FAILED, 3, 3)
    assert sandbox.clock.monotonic() == 3600
    await app.push(fail.job())
    [failed] = await sandbox.drain(ahead=3600, raises=False)
    assert (failed.state, failed.attempt) == (State.FAILED, 3)


async def test_paused_queues_wait(sandbox: Sandbox) -> None:
    await app.declare(Queue(name="mail", executor="async", paused=True))
    await app.push(send.job(to="ann"))
    assert await sandbox.drain() == []
    await app.resume_queue("mail")
    await sandbox.drain()
    assert sent == ["ann"]


async def test_unbounded_input_is_an_error(sandbox: Sandbox) -> None:
    await app.push(again.job())
    with pytest.raises(JobError, match="reached its limit of attempts"):
        await sandbox.drain(attempts=50)


async def test_inline_runs_at_the_push() -> None:
    async with Sandbox(app, inline=True) as sandbox:
        await app.push(order.job(1))
        assert sent == ["buyer 1"]
        with pytest.raises(JobFailed, match="no line"):
            await app.push(fail.job().with_max_attempts(1))
        assert len(sandbox.pushed) == 4


async def test_faults_are_made_to_happen(sandbox: Sandbox) -> None:
    sandbox.fail_next("push", BrokerUnavailable("gone"), BrokerUnavailable("still gone"))
    for text in ("gone", "still gone"):
        with pytest.raises(BrokerUnavailable, match=text):
            await app.push(count.job(1))
    assert sandbox.pushed == []
    await app.push(count.job(1))
    sandbox.assert_pushed(count, times=1)
    with pytest.raises(JobError, match="a broker has no call 'shove'"):
        sandbox.fail_next("shove", BrokerUnavailable("gone"))


async def test_jobs_are_selected_by_the_clock_of_the_sandbox(sandbox: Sandbox) -> None:
    hour = timedelta(hours=1)
    await app.push(count.job(1))
    sandbox.clock.advance(7_200)
    await app.push(count.job(2))
    for wanted in (JobSelection(older_than=hour), JobSelection(newer_than=hour)):
        assert (await app.select_jobs(wanted).cancel(dry_run=True)).matched == 1


async def test_a_push_within_a_transaction_is_there_at_once(sandbox: Sandbox) -> None:
    await app.push(count.job(1), within=object())
    sandbox.assert_pushed(count)


async def test_a_transaction_keeps_its_jobs_unless_it_raises(sandbox: Sandbox) -> None:
    rule = Unique(key="total", period=timedelta(hours=1))
    await app.push(count.job(1))

    async def push_and_raise() -> None:
        async with app.transaction() as transaction:
            await app.push(count.job.with_unique(rule)(2), within=transaction)
            assert len(sandbox.pushed) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await push_and_raise()
    async with app.transaction() as transaction:
        await app.push_many([count.job.with_unique(rule)(3)], within=transaction)
        with pytest.raises(ConfigurationError, match="a sandbox has no database"):
            await transaction.fetch("select 1")
    assert [job.arguments for job in sandbox.pushed] == [{"to": 1}, {"to": 3}]


async def test_afterwards_the_application_is_as_before() -> None:
    before = (app.broker, app.clock)
    async with Sandbox(app):
        assert app.broker is not before[0]
    assert (app.broker, app.clock) == before
    with pytest.raises(BrokerUnavailable, match="is not open"):
        await app.push(count.job(1))


def test_sync_code_is_tested_alike(blocking: Sandbox) -> None:
    with app:
        reference = app.sync_push(count.job(4))
        app.sync_push_many(send.job(to=name) for name in ("ann", "bob"))
    blocking.assert_pushed(count, to=4)
    assert [job.func for job in blocking.sync_drain()] == [
        "tests.unit.testing.test_sandbox.count",
        "tests.unit.testing.test_sandbox.send",
        "tests.unit.testing.test_sandbox.send",
    ]
    with app:
        assert reference.sync_result() == 6
        assert app.sync_push(count.job(3)).sync_result() == 3
        assert app.sync_get_job(reference.id) is not None
    assert sent == ["ann", "bob"]


async def test_sync_calls_in_async_code(sandbox: Sandbox) -> None:
    with app:
        assert app.sync_push(count.job(3)).sync_result() == 3
    await asyncio.sleep(0)


async def test_draining_without_awaiting_is_refused_in_async_code(sandbox: Sandbox) -> None:
    with pytest.raises(JobError, match=r"use `await sandbox\.drain\(\)`"):
        sandbox.sync_drain()


async def test_a_sandbox_is_open_in_every_event_loop(sandbox: Sandbox) -> None:
    """As for a test client, whose application runs in a thread of its own."""

    async def elsewhere() -> None:
        await app.push(send.job("ann"))

    async with app:
        await asyncio.to_thread(asyncio.run, elsewhere())
    assert len(sandbox.pushed) == 1


def test_the_fixture_needs_an_application(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(chancy_sandbox): pass")
    result = pytester.runpytest_inprocess(*QUIET)
    result.stdout.fnmatch_lines(["*define a fixture chancy_app in conftest.py*"])


def test_the_fixture_gives_each_test_a_sandbox(pytester: pytest.Pytester) -> None:
    """Also without a plugin for coroutines."""
    pytester.makeconftest(
        """
        import pytest
        from tests.unit.testing.test_sandbox import app

        @pytest.fixture
        def chancy_app():
            return app
        """
    )
    pytester.makepyfile(
        """
        from tests.unit.testing.test_sandbox import app, count

        def test_push(chancy_sandbox):
            with app:
                app.sync_push(count.job(3))
            chancy_sandbox.assert_pushed(count, to=3)
            [done] = chancy_sandbox.sync_drain()
            assert done.result == 3

        def test_nothing_is_left_of_the_other(chancy_sandbox):
            chancy_sandbox.assert_not_pushed(count)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:asyncio")
    result.assert_outcomes(passed=2)
    pytester.makepyfile(
        """
        from tests.unit.testing.test_sandbox import app, count

        async def test(chancy_sandbox):
            async with app:
                reference = await app.push(count.job(3))
            assert await reference.result() == 3
        """
    )
    result = pytester.runpytest_inprocess(*QUIET, "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=1)
