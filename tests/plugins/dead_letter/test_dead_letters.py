"""What becomes a dead letter, beside a worker, and what of it runs again."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from chancy import Chancy, ConfigurationError, Job, Limit, Queue, State, Worker
from chancy.errors import StatementFailed
from chancy.plugins.dead_letter import DeadLetter, DeadLetters, LetterFilter
from chancy.plugins.dead_letter.store import BATCH, REPLAY_BYTES, SQL, Letters
from chancy.plugins.pruner import Pruner
from chancy.plugins.retry import Retries
from chancy.retry import Constant, Jitter
from chancy.testing.memory import MemoryBroker
from tests.faults import jobs as perils
from tests.plugins.dead_letter.letters import ASYNC, DEAD, failed, filed, letters, working
from tests.plugins.recovery.test_recovery import orphan
from tests.support import jobs
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

SOON = Retries(Constant(delay_s=0.01, jitter=Jitter.NONE))


async def letter(chancy: Chancy, id: UUID) -> DeadLetter:
    return present(await DEAD.get(chancy, id))


async def test_a_job_whose_retries_are_used_up_is_kept_with_the_evidence(dsn: str) -> None:
    async with working(dsn, SOON) as chancy:
        job = jobs.fail.job("no luck").with_max_attempts(2).with_priority(3)
        job = job.with_meta(shop={"a": 1}).with_limits(Limit.time(60))
        reference = await chancy.push(job)
        assert (await reference.wait(10)).state is State.FAILED
        one = await letter(chancy, reference.id)
    assert (one.reason, one.error, one.message) == ("failed", "builtins.ValueError", "no luck")
    assert (one.attempt, one.max_attempts, one.crashes, one.priority) == (2, 2, 0, 3)
    assert (one.queue, one.func, one.limits) == ("async", "tests.support.jobs.fail", {"time_s": 60})
    assert (one.arguments, one.meta["shop"]) == ({"message": "no luck"}, {"a": 1})
    assert [error["attempt"] for error in one.errors] == [1, 2]
    assert "raise ValueError(message)" in one.errors[-1]["trace"]
    assert str(one.worker_id) == one.errors[-1]["worker_id"]
    assert one.host
    assert one.pushed_at < one.died_at
    assert (one.replayed_at, one.replayed_as, one.replays, one.replay_of) == (None, None, 0, None)


async def test_a_page_after_a_purged_dead_letter_is_refused(dsn: str) -> None:
    """It began with the newest one again."""
    ids = letters(dsn, 3)
    async with Chancy(dsn, plugins=[DEAD]) as chancy:
        assert [one.id for one in await DEAD.find(chancy, before=ids[1])] == ids[:1]
        assert await DEAD.purge(chancy, ids[1])
        with pytest.raises(ConfigurationError, match=f"no dead letter {ids[1]}"):
            await DEAD.find(chancy, before=ids[1])


async def test_succeeded_and_cancelled_jobs_are_no_dead_letters(dsn: str) -> None:
    async with working(dsn) as chancy:
        await (await chancy.push(jobs.note.job(1))).wait(10)
        stuck = await chancy.push(jobs.wait_for_ever.job())
        await eventually(lambda: ask(dsn, "select 1 from chancy.jobs where state = 1"))
        await chancy.cancel(stuck.id)
        assert (await stuck.wait(10)).state is State.CANCELLED
    assert filed(dsn) == set()


async def test_a_queue_without_history_has_dead_letters(dsn: str) -> None:
    plain = Queue(name="async", executor="async", keep_finished=False)
    async with working(dsn, Retries(False), queue=plain) as chancy:
        reference = await chancy.push(jobs.fail.job())
        assert (await reference.wait(10)).state is State.FAILED
        assert (await letter(chancy, reference.id)).reason == "failed"


async def test_a_job_that_kills_its_process_is_kept_with_the_signal(
    dsn: str, tmp_path: Path
) -> None:
    queue = Queue(name="async", executor="process", concurrency=1)
    async with working(dsn, queue=queue) as chancy:
        job = perils.die.job(book=str(tmp_path / "book"), number=1).with_queue("async")
        reference = await chancy.push(job)
        done = await reference.wait(60)
        one = await letter(chancy, reference.id)
    assert (done.state, one.crashes, one.reason) == (State.FAILED, 3, "crashed")
    assert one.error == "chancy.Lost"
    assert len(one.errors) == 3
    assert "SIGKILL" in one.message
    assert one.host


async def test_a_job_whose_workers_die_names_the_worker_and_its_machine(dsn: str) -> None:
    async with Chancy(dsn) as chancy:
        reference = await chancy.push(jobs.note.job("lost"))
        ask(dsn, "update chancy.jobs set crashes = 2")
        dead = orphan(dsn, silent="0 s", started=True)
        async with Worker(chancy, queues=[], heartbeat_s=0.1, heartbeat_timeout_s=0.3):
            assert (await reference.wait(10)).state is State.FAILED
        one = await letter(chancy, reference.id)
    assert (one.reason, one.crashes, one.worker_id, one.host) == ("crashed", 3, dead, "gone")
    assert f"worker {dead} on gone died" in one.message


@pytest.mark.parametrize(
    ("arguments", "func", "reason"),
    [
        ({"valu": 1}, "tests.support.jobs.note", "invalid_arguments"),
        ({}, "tests.support.jobs.nothing", "unknown_function"),
    ],
)
async def test_a_job_that_cannot_be_called_fails_with_the_reason(
    dsn: str, arguments: dict[str, int], func: str, reason: str
) -> None:
    async with (
        Chancy(dsn, queues=[ASYNC]) as chancy,
        Worker(chancy, unknown_after_s=0.1),
    ):
        job = Job(func=func, arguments=arguments, queue="async")
        reference = await chancy.push(job, validate=False)
        assert (await reference.wait(10)).state is State.FAILED
        one = await letter(chancy, reference.id)
        assert (one.reason, one.attempt) == (reason, 1)
        assert str(one.error).startswith("chancy.errors.")


async def test_limits_are_reasons(dsn: str) -> None:
    async with working(dsn, Retries(False)) as chancy:
        reference = await chancy.push(jobs.nap.job(60).with_limits(Limit.time(0.1)))
        await reference.wait(10)
        assert (await letter(chancy, reference.id)).reason == "timed_out"


async def test_after_a_fix_a_replay_succeeds_with_a_fresh_budget(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("shop_to_fix")
    monkeypatch.setitem(sys.modules, "shop_to_fix", module)

    def broken(a: int) -> int:
        return a

    def fixed(a: int, b: int) -> int:
        return a + b

    for function in (broken, fixed):
        function.__module__, function.__qualname__ = "shop_to_fix", "add"
    module.add = broken  # type: ignore[attr-defined]
    job = Job(func="shop_to_fix.add", arguments={"a": 1, "b": 2}, queue="async", max_attempts=1)
    async with Chancy(dsn, queues=[ASYNC], allow=["shop_to_fix.*"]) as chancy:
        async with Worker(chancy):
            old = await chancy.push(job, validate=False)
            assert (await old.wait(10)).state is State.FAILED
        assert (await letter(chancy, old.id)).reason == "invalid_arguments"
    module.add = fixed  # type: ignore[attr-defined]
    async with Chancy(dsn, queues=[ASYNC], allow=["shop_to_fix.*"]) as chancy:
        id = present(await DEAD.replay(chancy, old.id))
        waiting = present(await chancy.get_job(id))
        assert (waiting.attempt, waiting.crashes, waiting.errors) == (0, 0, ())
        async with Worker(chancy):
            await eventually(lambda: ask(dsn, "select 1 from chancy.jobs") == [])
        done, before = await chancy.get_job(id), await chancy.get_job(old.id)
        one = await letter(chancy, old.id)
    assert done is not None
    assert (done.state, done.result, done.errors) == (State.SUCCEEDED, 3, ())
    assert done.meta == {"dead_letters": {"replay_of": str(old.id), "replays": 1}}
    assert before is not None
    assert before.state is State.FAILED
    assert (one.replayed_as, one.replays) == (id, 1)
    assert one.replayed_at is not None


async def test_a_replay_that_dies_is_a_letter_that_names_the_one_before(dsn: str) -> None:
    async with working(dsn, Retries(False)) as chancy:
        first = await chancy.push(jobs.fail.job())
        await first.wait(10)
        id = present(await DEAD.replay(chancy, first.id))
        await eventually(lambda: len(filed(dsn)) == 2)
        assert (await letter(chancy, id)).replay_of == first.id


async def test_an_id_that_is_pushed_again_and_dies_again_is_the_letter_of_its_last_death(
    dsn: str,
) -> None:
    id = uuid4()
    job = Job(func="tests.support.jobs.fail", arguments={"message": "one"}, queue="async", id=id)
    async with working(dsn, Retries(False)) as chancy:
        await (await chancy.push(job)).wait(10)
        assert await DEAD.replay(chancy, id)
        again = Job(
            func="tests.support.jobs.fail", arguments={"message": "two"}, queue="async", id=id
        )
        await chancy.push(again)
        await eventually(
            lambda: (
                ask(dsn, "select 1 from chancy.finished_jobs where id = %s", [id]) == [(1,), (1,)]
            )
        )
        one = await letter(chancy, id)
    assert (one.message, one.replayed_at, one.replays) == ("two", None, 1)


async def test_dead_letters_outlive_the_history(dsn: str) -> None:
    async with Chancy(dsn, plugins=[Pruner(keep_days=1)]) as chancy:
        (id,) = letters(dsn)
        ask(dsn, "delete from chancy.finished_jobs")
        ask(
            dsn,
            "create table chancy.finished_jobs_20200101 partition of chancy.finished_jobs"
            " for values from ('2020-01-01') to ('2020-01-02')",
        )
        async with Worker(chancy, queues=[]):
            await eventually(
                lambda: (
                    not ask(dsn, "select 1 from pg_class where relname = 'finished_jobs_20200101'")
                )
            )
        assert (await letter(chancy, id)).id == id


async def test_a_hook_that_fails_is_repaired_by_the_sweep(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the table is away the jobs settle; once it is back the letters are written."""
    ask(dsn, "alter table chancy.dead_letters rename to away")
    async with working(dsn, Retries(False)) as chancy:
        one, two = await chancy.push(jobs.fail.job()), await chancy.push(jobs.fail.job())
        for reference in (one, two):
            assert (await reference.wait(10)).state is State.FAILED
    assert any("hook_failed" in record.message for record in caplog.records)
    ask(dsn, "alter table chancy.away rename to dead_letters")
    async with working(dsn) as chancy:
        await eventually(lambda: filed(dsn) == {one.id, two.id})
        assert (await letter(chancy, one.id)).reason == "failed"
        # The sweep tells of them after its commit.
        await eventually(lambda: "dead_letters_repaired count=2" in caplog.text)


@pytest.mark.chaos
async def test_a_table_that_is_locked_holds_nothing_up_for_long(dsn: str) -> None:
    async with working(dsn, Retries(False), DeadLetters(sweep_s=0.2)) as chancy:
        with psycopg.connect(dsn) as holder:
            # In a thread: the worker of this loop may hold a lock that this waits for.
            await asyncio.to_thread(holder.execute, "lock table chancy.dead_letters")
            reference = await chancy.push(jobs.fail.job())
            assert (await reference.wait(15)).state is State.FAILED
        await eventually(lambda: filed(dsn) == {reference.id})


async def test_replayed_and_purged_dead_letters_do_not_return(dsn: str) -> None:
    replayed, purged, gone, left = letters(dsn, 4)
    (missing,) = failed(dsn)
    async with Chancy(dsn, plugins=[DeadLetters(sweep_s=0.05)]) as chancy:
        await DEAD.replay(chancy, replayed)
        assert await DEAD.purge(chancy, purged)
        assert not await DEAD.purge(chancy, purged)
        assert await DEAD.purge_all(chancy, LetterFilter(ids=[gone])) == 1
        async with Worker(chancy, queues=[]):
            await eventually(lambda: missing in filed(dsn))
            (late,) = failed(dsn, ago="0")
            await eventually(lambda: late in filed(dsn))
    assert filed(dsn) == {replayed, left, missing, late}


async def test_a_broker_without_tables_has_none() -> None:
    async with Chancy(broker=MemoryBroker(), queues=[ASYNC]) as chancy:
        async with Worker(chancy):
            reference = await chancy.push(jobs.fail.job().with_max_attempts(1))
            assert (await reference.wait(10)).state is State.FAILED
        with pytest.raises(Exception, match="kept in Postgres"):
            await DEAD.find(chancy)


async def test_concurrent_replays_of_the_same_dead_letters_replay_each_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each leaves out what others hold for longer than 0.1 s, as they do on a busy machine.
    monkeypatch.setattr("chancy.plugins.dead_letter.replaying.MOST_HELD", 2_000)
    ids = letters(dsn, 1_200)
    async with Chancy(dsn) as chancy:
        counts = await asyncio.gather(*(DEAD.replay_all(chancy) for _ in range(4)))
        assert sum(counts) + await DEAD.replay_all(chancy) == 1_200
        assert await DEAD.replay_all(chancy) == 0
    of = ask(dsn, "select meta->'dead_letters'->>'replay_of' from chancy.jobs")
    assert sorted(row[0] for row in of) == sorted(map(str, ids))


async def test_a_purge_leaves_what_was_replayed_after_it_was_found(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = letters(dsn, 3)
    page = Letters.page

    async def then_replayed(*given: Any) -> Any:
        found = await page(*given)
        monkeypatch.undo()
        assert await DEAD.replay(chancy, ids[0])
        return found

    async with Chancy(dsn) as chancy:
        monkeypatch.setattr(Letters, "page", then_replayed)
        assert await DEAD.purge_all(chancy, LetterFilter(replayed=False)) == 2
        assert filed(dsn) == {ids[0]}
        assert not await DEAD.purge(chancy, ids[0], replayed=False)
        assert await DEAD.purge_all(chancy, LetterFilter(replayed=True)) == 1


async def test_a_letter_whose_unique_key_is_taken_waits_for_it(dsn: str) -> None:
    ids = letters(dsn, 3)
    ask(dsn, "update chancy.dead_letters set unique_key = 'k' where id <> %s", [ids[2]])
    async with Chancy(dsn) as chancy:
        # The first one takes it.
        assert await DEAD.replay_all(chancy) == 2
        assert await DEAD.replay(chancy, ids[1]) is None
        assert (await letter(chancy, ids[1])).replayed_at is None
        ask(dsn, "delete from chancy.jobs")
        assert await DEAD.replay(chancy, ids[1])
    assert ask(dsn, "select unique_key from chancy.jobs") == [(b"k",)]


async def test_a_replay_fails_if_another_transaction_holds_all(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.dead_letter.replaying.MOST_HELD", 2)
    letters(dsn, 9)
    async with Chancy(dsn) as chancy:
        with psycopg.connect(dsn) as holder:
            ask(holder, "select from chancy.dead_letters for update")
            with pytest.raises(StatementFailed, match="lock timeout"):
                await DEAD.replay_all(chancy)
            holder.rollback()
        assert await DEAD.replay_all(chancy) == 9


async def test_letters_and_keys_that_a_transaction_holds_keep_no_others_waiting(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = letters(dsn, 20)
    with psycopg.connect(dsn, autocommit=True) as free:
        for id in ids[1:4]:
            ask(free, "update chancy.dead_letters set unique_key = %s where id = %s", [str(id), id])
    async with Chancy(dsn) as chancy:
        with psycopg.connect(dsn) as holder:
            ask(holder, "select from chancy.dead_letters where id = %s for update", [ids[0]])
            ask(
                holder,
                "insert into chancy.jobs (id, pos, state, queue, func, unique_key)"
                " select id, nextval('chancy.positions'), 0, 'other', 'a.b', unique_key"
                " from chancy.dead_letters where unique_key is not null",
            )
            async with asyncio.timeout(30):
                assert await DEAD.replay_all(chancy, rate=0.1) == 16
            holder.rollback()
        delays = "select run_at - min(pushed_at) over () from chancy.jobs order by pos"
        seconds = [round(late.total_seconds()) if late else 0 for (late,) in ask(dsn, delays)]
        assert seconds == pytest.approx(range(0, 160, 10), abs=8)
        assert caplog.text.count("replay_blocked") == 4
        assert await DEAD.replay_all(chancy) == 4


async def test_letters_whose_keys_are_taken_do_not_count_towards_the_limit(dsn: str) -> None:
    ids = letters(dsn, 6)
    ask(dsn, "update chancy.dead_letters set unique_key = 'k' where id = any (%s)", [ids[:4]])
    async with Chancy(dsn) as chancy:
        assert await DEAD.replay_all(chancy, limit=1) == 1
        assert await DEAD.replay_all(chancy, limit=2) == 2
        assert await DEAD.replay_all(chancy, limit=2) == 0


async def test_large_jobs_are_replayed_a_few_at_a_time(dsn: str) -> None:
    """Plugins may get their arguments in this process."""
    # 900 KB each that the server cannot compress.
    letters(dsn, 12, arguments=json.dumps({"value": secrets.token_urlsafe(675_000)}))
    seen: list[int] = []
    async with Chancy(dsn, plugins=[DEAD]) as chancy:
        [group] = await DEAD.groups(chancy)
        until = datetime(9999, 1, 1, tzinfo=UTC)
        given = (group.fingerprint, datetime(1, 1, 2, tzinfo=UTC), UUID(int=0), until, BATCH, True)
        tables = SQL.on(chancy.broker)
        assert len(await tables.fetch("group_ids", *given, REPLAY_BYTES)) == 10
        assert len(await tables.fetch("group_ids", *given, None)) == 12
        assert await DEAD.replay_all(chancy, progress=seen.append) == 12
        assert seen == [10, 12]
        seen.clear()
        assert await DEAD.purge_all(chancy, LetterFilter(), progress=seen.append) == 12
    assert seen == [12]


async def test_a_replay_whose_answer_was_lost_is_reported_again(dsn: str) -> None:
    ids = letters(dsn, 2)
    terms: Any = {
        "queue": None,
        "max_attempts": None,
        "delay_s": 0.0,
        "gap_s": 0.0,
        "prepare": None,
    }
    async with Chancy(dsn) as chancy:
        store, new = Letters(chancy.broker), [uuid4(), uuid4()]
        first = await store.replay(ids, new, force=True, **terms)
        assert first == dict(zip(ids, new, strict=True))
        assert await store.replay(ids, new, force=True, **terms) == first
    assert ask(dsn, "select count(*) from chancy.jobs") == [(2,)]
