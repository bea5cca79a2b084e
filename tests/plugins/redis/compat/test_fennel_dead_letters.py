"""Dead letters of a program of fennel, by its calls and by the command line."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import redis
from click.testing import CliRunner

from chancy import Chancy, State
from chancy.attempt.failure import Failure
from chancy.plugins.redis.compat.fennel import App
from chancy.plugins.redis.compat.fennel import __main__ as command_line
from chancy.plugins.redis.compat.fennel.client import (
    AsyncResult,
    purge_dead,
    read_dead,
    replay_dead,
    state,
)
from chancy.plugins.redis.compat.fennel.exceptions import JobNotFound, TaskFailed, Timeout
from chancy.plugins.redis.compat.fennel.job import Job
from chancy.routing.router import RoutedBroker
from chancy.testing.conformance.bench import record, settlement
from tests.plugins.redis.compat.fennel_worker import APP, Shop
from tests.support.command import inside
from tests.support.ports import free_port
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

SETTINGS = {"retry_backoff": "tests.plugins.redis.compat.fennel_shop.at_once"}


def said(shop: Shop, *words: object, code: int = 0, group: str = "redis") -> Any:
    dsn = shop.environment["CHANCY_DSN"]
    return inside(group, *words, "--app", f"{APP}:app", code=code, dsn=dsn).json


def dead_letters(shop: Shop, *words: object) -> Any:
    return said(shop, *words, "--json", group="dead")


@pytest.mark.row("F25", "F26", "F27", "F28")
def test_dead_letters_are_read_and_replayed_once(shop: Shop) -> None:
    program = shop.program
    switch = shop.folder / "switch"
    x = program.until.delay(str(shop.folder / "notes"), str(switch))
    other = program.fail.delay("baz")

    def about(job: Job) -> bool:
        return job.task.endswith(".until")

    with shop.serving():
        with pytest.raises(TaskFailed, match="not yet"):
            x.get()
        with pytest.raises(TaskFailed, match="baz"):
            other.get()
        eventually_sync(lambda: len(read_dead(program.app)) == 2)
        forget(shop, x.uuid)
        [(id, job)] = read_dead(program.app, filter=about)
        assert (id, job.tries, job.max_retries, job.status) == (x.uuid, 4, 3, "DEAD")
        assert job.exception == {"original_type": "ValueError", "original_args": ["not yet"]}
        assert job.kwargs == {"file": str(shop.folder / "notes"), "succeeds": str(switch)}
        switch.touch()
        replayed: list[int] = []

        def replay() -> None:
            replayed.append(len(replay_dead(program.app, filter=about)))

        threads = [threading.Thread(target=replay) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(replayed) == 1
        again = type(x)(x.uuid, program.app)
        assert again.get() == "at last", "the old handle tells of the new one"
        assert again.status() == "SUCCESS"
        assert [id for id, _ in read_dead(program.app)] == [other.uuid]
        assert len(shop.notes("notes")) == 5
        assert kept(shop, other.uuid)
        assert len(purge_dead(program.app)) == 1
        assert read_dead(program.app) == []
        assert kept(shop, other.uuid) == []
        with pytest.raises(JobNotFound):
            other.status()
    check_what_it_became(shop, x)


def fail_all(shop: Shop) -> None:
    """Run a worker that fails the waiting jobs, and ends before they are archived or filed."""

    async def work(chancy: Chancy) -> None:
        assert isinstance(chancy.broker, RoutedBroker)
        for queue in chancy.queues:
            await chancy.declare(queue)
        broker = await chancy.broker.brokers.ready("redis")
        worker = record()
        await broker.register(worker)
        claims = await broker.claim("shop", worker_id=worker.id, limit=10)
        failure = Failure.named("builtins.ValueError", "no luck")
        await broker.settle([settlement(c, State.FAILED)._replace(failure=failure) for c in claims])
        await broker.unregister(worker.id)

    shop.program.app.run(work)


@pytest.mark.row("F26", "F40")
def test_a_dead_job_is_read_and_replayed_before_a_worker_has_swept(shop: Shop) -> None:
    app = shop.program.app
    first = shop.program.fail.delay("one")
    fail_all(shop)
    assert first.status() == "DEAD"
    assert [id for id, _ in read_dead(app)] == [first.uuid]
    second = shop.program.fail.delay("two")
    fail_all(shop)
    assert [letter["id"] for letter in dead_letters(shop, "list")] == [second.uuid, first.uuid]
    third = shop.program.fail.delay("three")
    fail_all(shop)
    assert {id for id, _ in replay_dead(app)} == {first.uuid, second.uuid, third.uuid}
    assert third.status() == "SENT"
    fourth = shop.program.fail.delay("four")
    fail_all(shop)
    assert [id for id, _ in purge_dead(app)] == [fourth.uuid]


@pytest.mark.row("F18")
def test_dead_letters_do_not_expire(shop: Shop, dsn: str) -> None:
    app = shop.program.app
    dead = shop.program.fail.delay("baz")
    fail_all(shop)
    assert len(read_dead(app)) == 1
    ask(dsn, "update chancy.dead_letters set died_at = died_at - interval '30 years'")
    ask(dsn, "delete from chancy.finished_jobs")

    async def retain(chancy: Chancy) -> None:
        await app.letters._sweep(chancy.broker, chancy.clock).turn()

    app.run(retain)
    assert [id for id, _ in read_dead(app)] == [dead.uuid]


@pytest.mark.row("F26", "F27")
def test_dead_letters_are_selected_by_the_name_of_the_task(shop: Shop) -> None:
    app = shop.program.app
    named, other = shop.program.named.delay(), shop.program.fail.delay("baz")
    assert state.get_job(app, named.uuid).task == "short"
    fail_all(shop)
    found = replay_dead(app, filter=lambda job: job.task == "short")
    assert [(id, job.task) for id, job in found] == [(named.uuid, "short")]
    assert state.get_job(app, named.uuid).task == "short", "the new job has the name, too"
    [(id, job)] = read_dead(app)
    assert (id, job.task) == (other.uuid, f"{APP}.fail")


@pytest.mark.row("F27", "F28")
@pytest.mark.parametrize("call", [replay_dead, purge_dead])
def test_a_purge_leaves_what_was_replayed_after_it_was_read(shop: Shop, call: Any) -> None:
    program, other = shop.program, App(name="shop", autodiscover="")
    jobs = [program.fail.delay(str(n)) for n in range(3)]
    fail_all(shop)
    others: list[tuple[str, Job]] = []

    def beside(job: Job) -> bool:
        if not others:
            others.extend(call(other, filter=lambda one: one.uuid == job.uuid))
        return True

    purged = [id for id, _ in purge_dead(program.app, filter=beside, batchsize=1)]
    other.close()
    assert sorted([*purged, others[0][0]]) == sorted(job.uuid for job in jobs)
    assert read_dead(program.app) == []
    kept = AsyncResult(others[0][0], program.app)
    if call is replay_dead:
        assert kept.status() == "SENT", "the old handle has the state of the new job"
        with pytest.raises(Timeout):
            kept.get(0.1)
    else:
        with pytest.raises(JobNotFound):
            kept.status()


@pytest.mark.row("F40")
def test_the_command_line_reads_all_dead_letters(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "_PAGE", 2)
    expected: list[str] = []
    for count in (0, 2, 3):
        expected[:0] = reversed([shop.program.fail.delay("baz").uuid for _ in range(count)])
        fail_all(shop)
        done = CliRunner().invoke(command_line.fennel, ["dlq", "read", "-a", f"{APP}:app"])
        assert sorted(one["id"] for one in json.loads(done.stdout)) == sorted(expected)


def forget(shop: Shop, id: str) -> None:
    """Delete a job from Redis."""
    with closing(redis.Redis.from_url(shop.environment["FENNEL_REDIS_URL"])) as client:
        assert client.delete(b"{shop:jobs:0}:j:" + UUID(id).bytes) == 1


def check_what_it_became(shop: Shop, x: AsyncResult) -> None:
    """The new job is kept no longer than any other succeeded job."""
    app = shop.program.app
    became = state.get_job(app, x.uuid)
    assert (became.status, became.return_value) == ("SUCCESS", "at last")
    assert (became.tries, became.max_retries) == (1, 3), "with fresh tries"
    forget(shop, became.uuid)
    for gone in (x.status, x.get, partial(state.get_job, app, x.uuid)):
        with pytest.raises(JobNotFound, match="no longer kept"):
            gone()
    assert state.get_status(app, x.uuid) == "UNKNOWN"


def kept(shop: Shop, id: str) -> list[str]:
    """The names of all Redis keys that contain a job."""
    raw: Any = UUID(id).bytes
    found: list[str] = []
    with closing(redis.Redis.from_url(shop.environment["FENNEL_REDIS_URL"])) as client:
        keys: Any = client.keys("*")
        for key in keys:
            kind = client.type(key)
            there = raw in key
            if kind == b"zset":
                there = there or client.zscore(key, raw) is not None
            elif kind == b"set":
                there = there or bool(client.sismember(key, raw))
            if there:
                found.append(key.decode(errors="replace"))
    return found


@pytest.mark.row("F29", "F40")
def test_the_command_line(shop: Shop) -> None:
    """Before the first worker, and with one."""
    assert said(shop, "info") == {"queues": [], "heartbeats": []}
    assert dead_letters(shop, "list") == []
    nobody = "018f0000-0000-7000-8000-000000000000"
    for id in (nobody, "TBdXyE2ARgKYzCE6wYkJTg"):
        assert f"job {id} does not exist" in said(shop, "task", id, code=1)["error"]
    dead = shop.program.fail.delay("baz")
    assert said(shop, "task", dead.uuid)["state"] == "pending"
    with shop.serving():
        eventually_sync(lambda: len(read_dead(shop.program.app)) == 1)
        found = eventually_sync(lambda: _with_heartbeats(said(shop, "info")))
        assert [queue["name"] for queue in found["queues"]] == ["shop"]
        assert [beat["heartbeat_age_s"] < 20 for beat in found["heartbeats"]] == [True]
        [letter] = dead_letters(shop, "list")
        assert letter["id"] == dead.uuid
        assert said(shop, "task", dead.uuid)["errors"][0]["message"] == "baz"
        assert dead_letters(shop, "replay", "--queue", "other")["replayed"] == 0
        assert dead_letters(shop, "replay", "--queue", "shop")["replayed"] == 1
        eventually_sync(lambda: len(read_dead(shop.program.app)) == 1)
        assert dead_letters(shop, "purge", "--all", "--yes") == {"purged": 1}


def _with_heartbeats(info: Any) -> Any:
    """The report after the worker has announced its queues."""
    return info if info["heartbeats"] else None


@pytest.mark.row("F40")
def test_the_command_line_reports_that_redis_is_unavailable(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres alone would report the queue without jobs."""
    monkeypatch.setenv("FENNEL_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    dsn = shop.environment["CHANCY_DSN"]
    answer = inside("redis", "info", "--app", f"{APP}:app", code=4, dsn=dsn)
    assert "chancy: Redis is unavailable" in answer.err
    assert not answer.out
