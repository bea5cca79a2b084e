"""Tasks in Celery's calls, pushed by sync code and run by a worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from chancy import Chancy, JobFailed, JobFilter, Queue, State, Worker
from chancy.celery import AsyncResult, serve_tasks, shared_task
from chancy.errors import ConfigurationError, InvalidArguments, PushError
from tests.support.waiting import eventually_sync

tried: list[tuple[str, int]] = []


@shared_task
def add(x, y=1):  # type: ignore[no-untyped-def]
    return x + y


@shared_task(bind=True, max_retries=2, default_retry_delay=0)
def insist(self, text):  # type: ignore[no-untyped-def]
    tried.append((self.request.id, self.request.retries))
    if self.request.retries < 1:
        raise self.retry(exc=ValueError("not yet"))
    return [self.name, text]


@shared_task(bind=True)  # type: ignore[untyped-decorator]
def price(self: Any, net: Decimal) -> str:
    return str(net)


@shared_task(autoretry_for=(KeyError,), max_retries=1, retry_backoff=0.01)
def fetch(key):  # type: ignore[no-untyped-def]
    tried.append((key, 0))
    raise (KeyError if key == "missing" else ValueError)(key)


@shared_task
def leave(code):  # type: ignore[no-untyped-def]
    tried.append((str(code), 0))
    sys.exit(code)


@shared_task(autoretry_for=(Exception,), max_retries=1, retry_backoff=0.01)
def fetch_again(key):  # type: ignore[no-untyped-def]
    tried.append((key, 0))
    raise ValueError(key)


@shared_task(bind=True, max_retries=0, acks_late=True)
def give_up(self):  # type: ignore[no-untyped-def]
    try:
        raise KeyError("the last error")
    except KeyError:
        raise self.retry(countdown=0)  # noqa: B904 (as Celery allows)


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Chancy]:
    tried.clear()
    app = Chancy(dsn, queues=[Queue(name="default", executor="thread")])
    async with app, Worker(app):
        with app:
            serve_tasks(app)
            yield app
            serve_tasks(None)


async def test_a_task_is_called_pushed_and_found_by_its_id(app: Chancy) -> None:
    def use() -> None:
        assert add(1, 2) == 3
        pushed: AsyncResult = add.delay(1, y=2)
        assert pushed.get(timeout=60) == 3
        found = AsyncResult(pushed.id)
        assert (found.state, found.ready(), found.successful()) == ("SUCCESS", True, True)
        late = add.apply_async((1,), countdown=3_600, priority=5, expires=7_200)
        assert (late.state, late.ready()) == ("PENDING", False)
        at = datetime.now(UTC) + timedelta(hours=1)
        same = add.apply_async(None, {"x": 1}, eta=at, task_id=late.id)
        assert same.id == late.id
        with pytest.raises(TypeError, match="countdown= and eta="):
            add.apply_async((1,), countdown=60, eta=at)
        with pytest.raises(TypeError, match="countdown= and eta="):
            insist.retry(countdown=60, eta=at)
        for call in (lambda: add.apply_async((1,), task_id="report-7"), lambda: AsyncResult("r-7")):
            with pytest.raises(PushError, match="is not a UUID"):
                call()

    await asyncio.to_thread(use)
    [stored] = await app.find_jobs(JobFilter(states=frozenset({State.SCHEDULED})))
    assert (stored.priority, stored.expires_at is not None) == (5, True)


async def test_a_bound_task_has_the_types_of_its_own_module(app: Chancy) -> None:
    def use() -> str:
        found: str = price.delay(Decimal("0.10")).get(timeout=60)
        return found

    assert await asyncio.to_thread(use) == "0.10"


async def test_retries_are_those_of_the_task(app: Chancy) -> None:
    def use() -> None:
        insisted: AsyncResult = insist.delay("tea")
        assert insisted.get(timeout=60) == ["tests.integration.test_celery.insist", "tea"]
        assert tried == [(insisted.id, 0), (insisted.id, 1)]
        for task, key, attempts in (
            (fetch, "missing", 2),
            (fetch, "broken", 1),
            (fetch_again, "any", 2),
            (leave, "3", 1),
        ):
            failed: AsyncResult = task.delay(key)
            with pytest.raises(JobFailed):
                failed.get(timeout=60)
            eventually_sync(failed.failed)
            assert tried.count((key, 0)) == attempts

    await asyncio.to_thread(use)


async def test_the_error_that_is_handled_remains_when_the_retries_are_used_up(app: Chancy) -> None:
    def use() -> None:
        with pytest.raises(JobFailed, match="the last error"):
            give_up.delay().get(timeout=60)

    await asyncio.to_thread(use)


def test_a_direct_call_is_the_first_attempt() -> None:
    describe = shared_task(bind=True)(lambda self: (self.request.id, self.request.retries))
    assert describe() == (None, 0)


def test_options_and_calls_without_a_counterpart_say_what_to_use() -> None:
    anything: Any = shared_task
    for options, instead in (
        ({"ignore_result": True}, r"Queue\(keep_finished=False\)"),
        ({"name": "shop.send"}, "the path of its function"),
        ({"retry_kwargs": {"max_retries": 5}}, "max_retries="),
        ({"acks_late": False}, "always hold"),
        ({"nonsense": 1}, "nonsense= is not supported"),
    ):
        with pytest.raises(TypeError, match=instead):
            anything(**options)
    for call, instead in ((add.s, "chord"), (add.si, "chord"), (add.apply, "sandbox")):
        with pytest.raises(TypeError, match=instead):
            call(1)


def test_mismatched_values_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="serve_tasks"):
        add.delay(1)
    with pytest.raises(InvalidArguments, match="missing a required argument: 'x'"):
        add.delay()
    anything: Any = shared_task
    with pytest.raises(TypeError, match="ignore_result"):
        anything(ignore_result=True)

    async def later() -> None: ...

    with pytest.raises(TypeError, match="use chancy"):
        shared_task(later)
    with pytest.raises(TypeError, match="drop bind=True"):
        shared_task(bind=True)(lambda: None)
