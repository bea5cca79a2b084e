"""Jobs that work in production work in a sandbox: limits, steps, progress, shipped plugins."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator

import pytest

from chancy import Chancy, Limit, Queue, State, current_job, job
from chancy.errors import ConfigurationError
from chancy.job.definition import JobFunction
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.cron import Cron
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.dead_letter.store import Letters
from chancy.plugins.retry import Retries
from chancy.plugins.workflow import Workflows, chain
from chancy.retry import Constant, Jitter
from chancy.testing.sandbox import Sandbox

flows, batches, letters = Workflows(), Batches(), DeadLetters()
app = Chancy(
    "postgresql://nowhere.invalid/none",
    queues=[
        Queue(name="tasks", executor="async"),
        Queue(name="threads", executor="thread"),
        Queue(name="children", executor="process", limits=(Limit.time(30), Limit.memory(2**30))),
        Queue(name="hasty", executor="process", limits=(Limit.time(0.05),)),
    ],
    plugins=[Retries(Constant(60, jitter=Jitter.NONE)), flows, batches, letters, Cron()],
)
paid: list[str] = []


@job
def where() -> bool:
    return threading.current_thread() is threading.main_thread()


@job
async def where_async() -> bool:
    return threading.current_thread() is threading.main_thread()


@job
def endless() -> None:
    """Looks whether it should stop."""
    while not current_job().cancelled:
        time.sleep(0.001)


@job
def late() -> str:
    """Takes longer than it may, and does not look."""
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        time.sleep(0.001)
    return "late"


@job(max_attempts=2)
async def order() -> list[str]:
    here = current_job()
    first = await here.checkpoint("pay", pay, "card")
    here.progress(0.5, "paid")
    if here.attempt == 1:
        raise ConnectionError("the shipper hung up")
    return [first, await here.checkpoint("ship", pay, "parcel")]


@job(max_attempts=2)
def sync_order() -> str:
    here = current_job()
    first = here.sync_checkpoint("pay", pay, "cash")
    if here.attempt == 1:
        raise ConnectionError("the shipper hung up")
    return first


def pay(what: str) -> str:
    paid.append(what)
    return f"paid {what}"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    paid.clear()
    async with Sandbox(app) as made, app:
        yield made


async def test_a_memory_limit_of_a_process_queue_is_left_out(sandbox: Sandbox) -> None:
    limited = where.job().with_queue("children").with_limits(Limit.memory(2**28), Limit.time(20))
    assert await (await app.push(limited)).result() is False


@pytest.mark.parametrize("queue", ["tasks", "threads", "children", "elsewhere"])
async def test_a_coroutine_function_runs_in_the_loop_of_the_test(
    sandbox: Sandbox, queue: str
) -> None:
    assert await (await app.push(where_async.job().with_queue(queue))).result() is True


@pytest.mark.parametrize("queue", ["children", "hasty"])
@pytest.mark.parametrize("function", [endless, late])
async def test_a_plain_function_has_timed_out(
    sandbox: Sandbox, queue: str, function: JobFunction[[], object]
) -> None:
    limits = () if queue == "hasty" else (Limit.time(0.05),)
    pushed = function.job().with_queue(queue).with_limits(*limits).with_max_attempts(1)
    await app.push(pushed)
    [stopped] = await sandbox.drain(raises=False)
    assert stopped.state is State.FAILED
    assert "time limit of 0.05 s" in stopped.errors[0]["message"]


async def test_a_limit_that_production_refuses_is_refused_here(sandbox: Sandbox) -> None:
    limited = where.job().with_queue("tasks").with_limits(Limit.time(20)).with_max_attempts(1)
    await app.push(limited, validate=False)
    [refused] = await sandbox.drain(raises=False)
    assert "chancy.errors.UnsupportedLimit" in refused.errors[0]["types"]


@pytest.mark.parametrize("queue", ["tasks", "threads", "children"])
async def test_a_retry_keeps_the_steps(sandbox: Sandbox, queue: str) -> None:
    reference = await app.push(order.job().with_queue(queue))
    [done] = await sandbox.drain(ahead=60)
    assert done.result == ["paid card", "paid parcel"]
    assert paid == ["card", "parcel"]
    assert done.meta["progress"]["text"] == "paid"
    assert (await reference.wait()).attempt == 2


@pytest.mark.parametrize("queue", ["threads", "children"])
async def test_a_retry_keeps_the_steps_of_plain_functions(sandbox: Sandbox, queue: str) -> None:
    await app.push(sync_order.job().with_queue(queue))
    [done] = await sandbox.drain(ahead=60)
    assert (done.result, paid) == ("paid cash", ["cash"])


async def test_commands_without_tables_fail_with_advice(sandbox: Sandbox) -> None:
    tables = "Postgres.*SandboxBroker.*use an application on Postgres"
    with pytest.raises(ConfigurationError, match=tables):
        await app.push(chain("orders", where.job()))
    with pytest.raises(ConfigurationError, match=tables):
        await batches.push(app, Batch(name="b"), [where.job()])
    with pytest.raises(ConfigurationError, match=tables):
        Letters(app.broker)
    assert sandbox.pushed == []


@job(queue="tasks", max_attempts=1)
async def complete() -> None:
    await current_job().complete_in(object())


async def test_completion_in_a_transaction_reports_that_it_needs_postgres(sandbox: Sandbox) -> None:
    await app.push(complete.job())
    [failed] = await sandbox.drain(raises=False)
    assert "needs a job that is stored in Postgres" in failed.errors[0]["message"]


@job(batch=10, max_attempts=1)
def store(rows: list[int]) -> list[object]:
    return [ValueError("no") if row < 0 else row + 1 for row in rows]


@pytest.mark.parametrize("queue", ["tasks", "children"])
async def test_jobs_of_a_batch_function_have_an_outcome_each(sandbox: Sandbox, queue: str) -> None:
    await app.push_many(store.job(rows=[row]).with_queue(queue) for row in (1, -1))
    done = {job.state: job for job in await sandbox.drain(raises=False)}
    assert done[State.SUCCEEDED].result == [2]
    assert done[State.FAILED].errors[0]["message"] == "no"
