"""A program of fennel, with only its imports changed, its settings, and a worker that serves it."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import redis

from chancy import Chancy
from chancy.errors import InvalidArguments
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis.compat.fennel import App
from chancy.plugins.redis.compat.fennel.client import AsyncResult, aio, gather, wait
from chancy.plugins.redis.compat.fennel.exceptions import (
    FennelException,
    JobNotFound,
    ResultsDisabled,
    TaskFailed,
    Timeout,
)
from chancy.plugins.redis.compat.fennel.worker import options_of
from chancy.plugins.retry import Retries
from chancy.retry import Fennel
from tests.plugins.redis.compat.fennel_worker import Shop, with_settings
from tests.support.waiting import eventually_sync


def check_that_bad_jobs_hurt_no_other(shop: Shop) -> None:
    app = shop.program.app
    with pytest.raises(TaskFailed, match="InvalidResult"):
        shop.program.odd.delay().get()
    with pytest.raises(TaskFailed, match="Unprintable"):
        shop.program.odd_failure.delay().get()

    # A task that the worker does not have: it is released for others, for a while.
    def unknown(a: int) -> None:
        """Never called."""

    unknown.__module__, unknown.__qualname__ = "nowhere", "unknown"
    strange = app.task(retries=0)(unknown).delay(1)
    assert shop.program.echo.delay(value=2).get() == 2
    eventually_sync(lambda: handed_on(app, strange.uuid))


@pytest.mark.row("F05", "F12", "F13", "F14", "F16", "F25", "F32")
def test_the_example_of_its_documentation(shop: Shop) -> None:
    held = shop.program.gate.delay(str(shop.folder / "gate"))
    assert held.status() == "SENT"
    with shop.worker():
        seen = {eventually_sync(lambda: held.status() != "SENT" and held.status())}
        assert shop.counts() == {"shop": 1}
        (shop.folder / "gate.open").touch()
        held.get()
        assert shop.counts() == {}
        assert (seen, held.status()) == ({"EXECUTING"}, "SUCCESS")
        x = shop.program.foo.delay(0.3)
        assert x.get() == 0.3
        assert AsyncResult(x.uuid, shop.program.app).get() == 0.3, "many may read it"
        dead = shop.program.fail.delay("baz")
        with pytest.raises(TaskFailed, match="RuntimeError: baz") as error:
            dead.get()
        assert (error.value.original_type, error.value.original_args) == ("RuntimeError", ["baz"])
        assert dead.status() == "DEAD"
        check_that_bad_jobs_hurt_no_other(shop)
    with pytest.raises(JobNotFound):
        AsyncResult("018f0000-0000-7000-8000-000000000000", shop.program.app).status()


@pytest.mark.row("F01", "F06", "F07", "F08", "F16", "F19", "F20")
def test_values_and_many_results(shop: Shop) -> None:
    echo, foo = shop.program.echo, shop.program.foo
    other = App(name="shop", interface="async", autodiscover="")
    nested = {"a": [1.5, "ü", None, {"b": True}], "c": ""}
    values: list[Any] = ["123", "null", "{}", None, True, nested, 2**70]

    async def awaited() -> None:
        bar = other.task(shop.program.bar.func)
        x = await bar.delay(0.01)
        assert await x.status() in ("SENT", "EXECUTING", "SUCCESS")
        assert await x.get() == 0.01
        assert await aio.gather([x, await bar.delay(0)], task_timeout=30) == [0.01, 0]
        done, pending = await aio.wait([x], timeout=30)
        assert [one.result() for one in done] == [0.01]
        assert not pending

    with shop.serving():
        results = [echo.delay(value=value) for value in values]
        assert gather(results) == values
        assert echo.delay(value=1, more=nested).get() == [1, nested]
        asyncio.run(awaited())
        other.close()
        late = [foo.delay(30.0) for _ in range(2)]
        done, pending = wait(late, timeout=0.1)
        assert (len(done), len(pending)) == (0, 2)
        done, pending = wait([results[0], *late], timeout=20, return_when="FIRST_COMPLETED")
        assert ([one.result() for one in done], len(pending)) == (["123"], 2)
        failed = shop.program.fail.delay("baz")
        with pytest.raises(TaskFailed):
            failed.get()
        with pytest.raises(TaskFailed) as error:
            shop.program.odd_words.delay().get()
        assert error.value.original_args == [1, {"a": [None, "two"]}, "b'3'"]
        found = gather([results[0], failed, *late], task_timeout=1.5)
        assert found[0] == "123"
        assert [type(one) for one in found[1:]] == [TaskFailed, Timeout, Timeout]
    with pytest.raises(InvalidArguments, match="unexpected keyword argument 'no'"):
        echo.delay(no=1)


@pytest.mark.row("F15", "F19")
@with_settings(task_timeout="0.2")
def test_waiting_ends_in_time(shop: Shop) -> None:
    """Without a worker."""
    results = [shop.program.foo.delay(1) for _ in range(30)]
    began = time.monotonic()
    with pytest.raises(Timeout, match=r"not finished within 0\.2 s"):
        results[0].get()
    found = gather(results, task_timeout=0.4)
    took_s = time.monotonic() - began
    assert {type(one) for one in found} == {Timeout}
    assert 0.6 <= took_s < 10, "for all of them together: one after the other they take 12 s"


@pytest.mark.row("F21", "F22", "F23")
@with_settings(retry_backoff="tests.plugins.redis.compat.fennel_shop.late")
def test_a_retry_waits(shop: Shop) -> None:
    x = shop.program.count.delay(str(shop.folder / "notes"))
    with shop.serving():
        eventually_sync(lambda: x.status() == "RETRY")
        assert shop.program.echo.delay(value=1).get() == 1, "it holds up nobody"
        with pytest.raises(Timeout):
            x.get(0.1)
    assert len(shop.notes("notes")) == 1


@pytest.mark.row("F22", "F23", "F25")
@with_settings(retry_backoff="tests.plugins.redis.compat.fennel_shop.at_once")
def test_tries_are_counted(shop: Shop) -> None:
    x = shop.program.count.delay(str(shop.folder / "notes"))
    with shop.serving(), pytest.raises(TaskFailed, match="ValueError: again"):
        x.get()
    assert len(shop.notes("notes")) == 4, "three retries"
    assert x.status() == "DEAD"


@pytest.mark.row("F17")
@with_settings(results_enabled="false")
def test_without_results(shop: Shop) -> None:
    x = shop.program.echo.delay(value=1)
    with pytest.raises(ResultsDisabled):
        x.get()
    with shop.serving():

        def gone() -> bool:
            try:
                return not x.status()
            except JobNotFound:
                return True

        eventually_sync(gone)


@pytest.mark.row("F32")
@with_settings(retry_backoff="tests.plugins.redis.compat.fennel_shop.at_once")
def test_a_result_that_is_too_large_is_not_retried(shop: Shop) -> None:
    x = shop.program.much.delay(str(shop.folder / "notes"))
    with shop.serving(), pytest.raises(TaskFailed, match=r"PayloadTooLarge.*raise max_payload"):
        x.get()
    assert len(shop.notes("notes")) == 1


@pytest.mark.row("F32")
@with_settings(max_payload="3000000")
def test_a_setting_allows_large_results(shop: Shop) -> None:
    with shop.serving():
        assert len(shop.program.much.delay(str(shop.folder / "notes")).get()) == 2_000_000


@pytest.mark.row("F18")
def test_results_are_kept_for_their_time_beside_many_others(shop: Shop, redis_url: str) -> None:
    echo = shop.program.echo
    with shop.serving():
        first = echo.delay(value=1)
        assert first.get() == 1
        later = {f"other {n}": time.time() + 1 for n in range(20_000)}
        with closing(redis.Redis.from_url(redis_url)) as client:
            client.zadd("{shop:jobs:0}:done", later)
        assert echo.delay(value=2).get() == 2
    assert (first.status(), AsyncResult(first.uuid, shop.program.app).get()) == ("SUCCESS", 1)


@pytest.mark.parametrize("name", ["my app", "a{b}", "", "x" * 64])
def test_a_name_that_keys_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(FennelException, match=r"^App\(.*a name has 1 to 63 of the characters"):
        App(name)


def handed_on(app: App, id: str) -> bool:
    async def look(chancy: Chancy) -> bool:
        job = await chancy.get_job(UUID(id))
        return job is not None and "unknown_function" in job.meta

    return app.run(look)


@pytest.mark.row("F32")
def test_a_record_that_is_gone_hurts_no_other(shop: Shop, redis_url: str) -> None:
    """Its record was deleted, and its id is still queued."""
    lost, other = [shop.program.echo.delay(value=n) for n in range(2)]
    with closing(redis.Redis.from_url(redis_url)) as client:
        assert client.delete(b"{shop:jobs:0}:j:" + UUID(lost.uuid).bytes) == 1
    with pytest.raises(JobNotFound):
        lost.status()
    with shop.serving():
        assert other.get(20) == 1
        eventually_sync(lambda: shop.counts() == {})
        assert shop.program.echo.delay(value=3).get() == 3


@pytest.mark.row("F03", "F04")
def test_the_decorator(shop: Shop) -> None:
    app, program = shop.program.app, shop.program
    assert (program.bar.name, program.bar.max_retries) == (
        "tests.plugins.redis.compat.fennel_shop.bar",
        10,
    )
    assert (program.echo.name, program.count.max_retries) == ("echo", 3)
    assert program.echo(value=5) == 5, "called here"
    assert shop.counts() == {}, "nothing was sent"
    program.count.delay("notes")
    assert shop.counts() == {"shop": 1}
    for retries in (-1, 1.5, True, "1"):
        with pytest.raises(FennelException, match="whole number"):
            app.task(retries=retries)
    for name in ("echo", 7):
        with pytest.raises(FennelException, match=r"two tasks echo|must be a string"):
            app.task(name=name)(test_the_decorator)


@pytest.mark.row("F38")
def test_modules_are_found_by_a_pattern(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package, hidden = tmp_path / "fennel_found", tmp_path / ".hidden"
    for folder in (package, hidden):
        folder.mkdir()
        (folder / "tasks.py").write_text(f"NAME = {folder.name!r}\n")
    App("a", autodiscover="")()
    assert "fennel_found.tasks" not in sys.modules
    App("a")()
    assert sys.modules.pop("fennel_found.tasks").NAME == "fennel_found"


@pytest.mark.row("F23", "F24")
@with_settings(retry_backoff="tests.plugins.redis.compat.fennel_shop.soon")
def test_due_jobs_run_in_time_and_not_before(shop: Shop) -> None:
    """One second after the first attempt: as many seconds as attempts."""
    program = shop.program
    x = program.count.delay(str(shop.folder / "notes"))
    with shop.serving():
        eventually_sync(lambda: len(shop.notes("notes")) == 1)
        first = (shop.folder / "notes").stat().st_mtime
        while len(shop.notes("notes")) == 1:
            assert program.echo.delay(value=1).get() == 1, "the others go on"
        assert 0.98 <= (shop.folder / "notes").stat().st_mtime - first < 15
    assert x.status() in ("RETRY", "EXECUTING")


def sweep_of(app: App) -> float:
    """The interval of sweeps for jobs of dead workers."""
    [recovery] = [one for one in app.chancy.hooks.plugins if isinstance(one, Recovery)]
    return recovery.sweep_s


def retry_of(app: App) -> Retries:
    [retry] = [one for one in app.chancy.hooks.plugins if isinstance(one, Retries)]
    return retry


@pytest.mark.row("F23", "F31")
def test_the_policy(shop: Shop) -> None:
    assert retry_of(App("a")).policy == Fennel()
    assert retry_of(App("a")).crashes_cost_attempts, "one that kills its workers dies in the end"


@pytest.mark.row("F02", "F18", "F35", "F44")
def test_settings(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FENNEL_CONCURRENCY", "3")
    monkeypatch.setenv("FENNEL_RESULTS_TTL", "7")
    assert [queue.concurrency for queue in App("a")().queues] == [3]
    assert App("a", concurrency=5, autodiscover="").settings.concurrency == 5
    assert App("a", interface="ASYNC").settings.results_ttl == 7
    timed = App("a", read_timeout=2_500, concurrency=3, prefetch_count=4, log_level="WARNING")
    assert [queue.poll_interval_s for queue in timed().queues] == [2.5]
    options = options_of(timed)
    assert (options.concurrency, options.prefetch_limit, options.log_level) == (3, 9, "warning")
    assert (options.shutdown_timeout, options.heartbeat, options.heartbeat_timeout) == (30, 6, 60)
    patient = App("a", grace_period=2, heartbeat_interval=2, heartbeat_timeout=3)
    options = options_of(patient)
    assert (options.shutdown_timeout, options.heartbeat, options.heartbeat_timeout) == (2, 1, 3)
    assert (timed.redis.keep_finished_s, timed.redis.keep_failed_s) == (7, 315_360_000)
    assert options_of(App("a")).prefetch_limit is None, "its pace says it"
    assert sweep_of(App("a")) == 8
    assert sweep_of(App("a", maintenance_interval=2.5)) == 2.5
    assert sweep_of(App("a", maintenance_interval=0)) == 0.1, "not all the time"
    with pytest.warns(UserWarning, match=r"schedule_interval=0\.5 has no effect") as warned:
        App("a", schedule_interval=0.5)
    assert [one.filename for one in warned] == [__file__]
    for wrong in (
        {"interface": "x"},
        {"log_format": "x"},
        {"log_level": "x"},
        {"autodiscover": "tasks.txt"},
    ):
        with pytest.raises(FennelException, match="the settings of fennel"):
            App("a", **wrong)
    with pytest.raises(FennelException, match="no_such"):
        App("a", retry_backoff="tests.plugins.redis.compat.fennel_shop.no_such", autodiscover="")()
