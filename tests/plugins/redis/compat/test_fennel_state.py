"""The state API of a program of fennel, and the few calls of an idle worker."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from chancy.plugins.redis.compat.fennel.client import AsyncResult, gather, state
from chancy.plugins.redis.compat.fennel.client.aio import state as aio_state
from chancy.plugins.redis.compat.fennel.exceptions import JobNotFound, TaskFailed
from chancy.plugins.redis.transport.scripts import script_of
from tests.plugins.redis.compat.fennel_worker import Shop
from tests.support.waiting import eventually_sync

NOBODY = "018f0000-0000-7000-8000-000000000000"


SETTINGS = {"retry_backoff": "tests.plugins.redis.compat.fennel_shop.late", "concurrency": "2"}


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(redis_url, protocol=2)) as made:
        yield made


def both(shop: Shop, name: str, *args: Any) -> Any:
    """The result of a call, which both clients must return."""
    app = shop.program.app
    found = getattr(state, name)(app, *args)
    assert asyncio.run(getattr(aio_state, name)(app, *args)) == found
    return found


def check_that_there_is_no(job: str, shop: Shop) -> None:
    assert both(shop, "get_status", job) == "UNKNOWN"
    assert both(shop, "get_result", job) is None
    with pytest.raises(JobNotFound):
        both(shop, "get_job", job)
    with pytest.raises(JobNotFound):
        AsyncResult(job, shop.program.app).status()


@pytest.mark.row("F12", "F45")
def test_all_that_is_kept_can_be_asked_for(shop: Shop, client: redis.Redis) -> None:
    """Before the first worker and after one has run, with both clients."""
    program = shop.program
    assert both(shop, "get_state")["queue"]["info"]["length"] == 0
    for nobody in (NOBODY, "TBdXyE2ARgKYzCE6wYkJTg"):
        check_that_there_is_no(nobody, shop)
    done, again = program.echo.delay(value="12"), program.count.delay(str(shop.folder / "notes"))
    dead = program.fail.delay("baz")
    with shop.serving():
        assert done.get() == "12"
        with pytest.raises(TaskFailed):
            dead.get()
        eventually_sync(lambda: again.status() == "RETRY")
        held = program.gate.delay(str(shop.folder / "gate"))
        eventually_sync(lambda: held.status() == "EXECUTING")
        group = {"name": "shop", "consumers": 1, "pending": 1}
        eventually_sync(lambda: state.get_groups(program.app) == [group])
        [message] = state.get_messages(program.app)
        assert (message.uuid, message.status) == (held.uuid, "EXECUTING")
        [(worker, beat)] = eventually_sync(lambda: state.get_heartbeats(program.app))
        assert abs(time.time() - beat) < 20
        assert len(worker) == 36
        (shop.folder / "gate.open").touch()
        held.get()
        eventually_sync(lambda: state.get_state(program.app)["dead"]["messages"])
    waiting = [program.echo.delay(value=n) for n in range(3)]
    client.config_resetstat()
    statuses = [both(shop, "get_status", x.uuid) for x in (done, again, dead, waiting[0])]
    assert statuses == ["SUCCESS", "RETRY", "DEAD", "SENT"]
    job = both(shop, "get_job", again.uuid)
    assert (job.tries, job.max_retries, job.status) == (1, 3, "RETRY")
    assert both(shop, "get_result", done.uuid) == "12"
    assert both(shop, "get_result", waiting[0].uuid) is None
    assert both(shop, "count_jobs") == 7
    assert both(shop, "count_results") == 2
    assert [job.uuid for job in both(shop, "get_messages")] == [x.uuid for x in waiting]
    assert [job.uuid for job in both(shop, "get_messages", 2)] == [x.uuid for x in waiting[:2]]
    wanted = {"length": 3, "waiting": 3, "running": 0, "scheduled": 1, "kept": 7}
    assert both(shop, "get_info") == wanted
    [(id, at)] = both(shop, "get_schedule")
    assert id == again.uuid
    assert 500 < at - time.time() < 601
    found = both(shop, "get_state", 2)
    assert found["queue"] == both(shop, "get_stream", 2)
    assert found["dead"]["info"] == {"length": 1}
    assert [one["uuid"] for one in found["dead"]["messages"]] == [dead.uuid]
    called = set(client.info("commandstats"))
    assert called & {"cmdstat_eval", "cmdstat_evalsha"}
    assert not called & {"cmdstat_keys", "cmdstat_scan"}, "nothing looks through the keys"


@pytest.mark.chaos
@pytest.mark.row("F44")
def test_an_idle_worker_asks_seldom(shop: Shop, client: redis.Redis) -> None:
    """A busy worker claims no more jobs than it may run."""
    before: Any = client.config_get("slowlog-*")
    claim = script_of("jobs.claim").digest.encode()

    def seldom() -> int:
        """Return the scripts of 2.5 s, unless more than one of them was a claim."""
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        time.sleep(2.5)  # the number of calls in this time is measured
        return claims(b"EVALSHA ") if claims() <= 1 else 0

    def claims(word: bytes = claim) -> int:
        told: Any = client.slowlog_get(1_000)
        return sum(word in one["command"] for one in told)

    with shop.worker("--heartbeat", "1", "--heartbeat-timeout", "5") as worker:
        assert shop.program.echo.delay(value=1).get(20) == 1
        client.config_set("slowlog-max-len", 1_000)
        try:
            # Just after a job it polls a few times, at growing intervals.
            scripts = eventually_sync(seldom, timeout=30)
        finally:
            for name, value in before.items():
                client.config_set(name, value)
        results = [shop.program.foo.delay(0.1) for _ in range(12)]
        most, left = 0, 12
        while left:
            info = state.get_info(shop.program.app)
            most, left = max(most, info["running"]), info["length"]
        gather(results)
        began = time.monotonic()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(10) == 0
    assert 2 <= scripts <= 20
    assert 2 <= most <= 8, "of 12; those whose end is being written count too"
    assert time.monotonic() - began < 8
