"""Jobs that have not started by their time are cancelled."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import pytest

from chancy import (
    Chancy,
    Job,
    JobCancelled,
    PushError,
    Queue,
    Sequential,
    State,
    Unique,
    Worker,
    job,
)
from chancy.app.diagnosis import Why
from tests.faults import tables
from tests.support import jobs
from tests.support.command import inside
from tests.support.sql import ask
from tests.support.two_brokers import TwoBrokers
from tests.support.waiting import eventually

MINUTE = timedelta(minutes=1)
#: Makes jobs expire that were pushed to expire later.
LAPSE = "update chancy.jobs set expires_at = now() - interval '1 s' where expires_at is not null"


@job(expires_at=MINUTE)
def brief() -> None: ...


async def test_each_push_stores_when_the_job_expires(dsn: str) -> None:
    at = datetime(2099, 1, 1, tzinfo=UTC)
    some = jobs.note.job(value=1)
    async with Chancy(dsn) as chancy:
        pushed = [
            await chancy.push(some.with_expires_at(at)),
            *await chancy.push_many([some.with_expires_at(at), some.with_priority(1)]),
            await chancy.push(some.with_expires_at(at).with_unique(Unique(key="a"))),
            await chancy.push(brief.job()),
            await chancy.push(some.with_expires_at(90)),
        ]
        found = await chancy.get_jobs([one.id for one in pushed])
        times = [found[one.id].expires_at for one in pushed]
    assert times[:4] == [at, at, None, at]
    left = [one - datetime.now(UTC) for one in times[4:] if one is not None]
    assert timedelta(50) < left[0] * 86_400 < MINUTE * 86_400 < left[1] * 86_400


def test_sql_and_the_command_line_push_jobs_that_expire(dsn: str) -> None:
    with_sql = "select chancy.push('async', 'a.b', expires_in => interval '1 min')"
    by_command = inside("push", "a.b", "--no-validate", "--expires-in", "60", dsn=dsn).out.strip()
    ids = [ask(dsn, with_sql)[0][0], by_command]
    for id in ids:
        seconds = "select extract(epoch from expires_at - pushed_at)::float8 from chancy.jobs"
        assert ask(dsn, f"{seconds} where id = '{id}'")[0][0] == pytest.approx(60, abs=20)


async def test_expired_jobs_are_cancelled_and_the_others_run(dsn: str) -> None:
    queues = [Queue(name="async", executor="async"), Queue(name="gone", executor="async")]
    jobs.noted.clear()
    async with Chancy(dsn, queues=queues) as chancy:
        await chancy.declare(queues[1])
        note = jobs.note.job.with_expires_at(MINUTE)
        late = await chancy.push(note(value="late"))
        ahead = await chancy.push(note.with_delay(30)(value="ahead"))
        held = await chancy.push(note(value="held"))
        retried = await chancy.push(note(value="retried"))
        pending = {reason.why for reason in await chancy.why(late.id)}
        assert Why.EXPIRES in pending
        set_aside = "state = 3, meta = '{\"unknown_function\": 1}'"
        ask(dsn, f"update chancy.jobs set {set_aside} where id = '{held.id}'")
        ask(dsn, f"update chancy.jobs set attempt = 1 where id = '{retried.id}'")
        ask(dsn, LAPSE)
        good = await chancy.push(note(value="good"))
        async with Worker(chancy):
            for reference in (late, ahead, held):
                with pytest.raises(JobCancelled, match="expired: it had not started by 20"):
                    await reference.result(30)
            assert [await good.result(30), await retried.result(30)] == ["good", "retried"]
        assert "expired" in (await chancy.why(late.id))[1].text
    assert sorted(map(str, jobs.noted)) == ["good", "retried"]


async def test_no_claim_takes_an_expired_job(dsn: str) -> None:
    """Without the promoter, which cancels them."""
    worker = "11111111-0000-4000-8000-000000000000"
    claim = f"claim('{worker}', gen_random_uuid(), 'ruled', 10, 1000, '{{0}}', '{{0}}')"
    ruled = f"limits_claim('{worker}', gen_random_uuid(), 'ruled', 10)"
    rules = (Sequential(by="value"),)
    async with Chancy(dsn) as chancy:
        ask(dsn, f"insert into chancy.workers (id, host, pid) values ('{worker}', 'h', 1)")
        await chancy.declare(Queue("ruled", executor="async", rules=rules))
        note = jobs.note.job.with_queue("ruled").with_expires_at(MINUTE)
        await chancy.push_many([note(value=n // 3) for n in range(6)])
        taken = ask(dsn, f"select id from chancy.{ruled}")
        assert len(taken) == 2, "and the others are held"
        ask(dsn, LAPSE)
        ask(dsn, "delete from chancy.jobs where state = 1")
        await chancy.push(note(value=9))
        await chancy.push(note(value=9).with_expires_at(MINUTE).with_priority(2))
        ask(dsn, "update chancy.jobs set expires_at = now() where priority = 2")
        assert len(ask(dsn, f"select id from chancy.{ruled}")) == 1
        ask(dsn, "update chancy.jobs set state = 0 where state = 3")
        assert ask(dsn, f"select id from chancy.{claim}") == []
        assert ask(dsn, "select chancy.expire(3), chancy.expire(10)") == [(3, 2)]
        counts = "select state, count(*) from chancy.finished_jobs group by 1"
        assert ask(dsn, counts) == [(6, 5)]


async def test_more_jobs_expire_than_one_batch_takes(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.worker.promoter.BATCH", 10)
    async with Chancy(dsn) as chancy:
        pushed = await chancy.push_many(
            jobs.note.job(value=n).with_expires_at(MINUTE) for n in range(95)
        )
        ask(dsn, LAPSE)
        async with Worker(chancy, queues=["default"]):
            await eventually(lambda: tables.live(dsn) == 0)
        assert (await pushed[94].wait(30)).state is State.CANCELLED


async def test_large_jobs_expire_a_few_at_a_time(dsn: str) -> None:
    """Due jobs become pending in the same transaction."""
    async with Chancy(dsn) as chancy:
        # 900 KB each that the server cannot compress.
        await chancy.push_many(
            jobs.note.job(value=secrets.token_urlsafe(675_000)).with_expires_at(MINUTE)
            for _ in range(12)
        )
        ask(dsn, LAPSE)
        left = []
        for _ in range(2):
            promotion = await chancy.broker.promote(100)
            left.append((tables.live(dsn), promotion.next_due_s))
    assert left == [(2, 0), (0, None)]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (jobs.note.job(value=1).with_expires_at(0), "it could never start"),
        (jobs.note.job(value=1).with_delay(60).with_expires_at(60), "it could never start"),
        (jobs.note.job(value=1).with_expires_at(datetime(2099, 1, 1)), "has no time zone"),  # noqa: DTZ001
        (Job(func="a.b", expires_at="soon"), "must be an aware datetime"),  # type: ignore[arg-type]
        (jobs.note.job(value=1).with_queue("far").with_expires_at(60), "does not offer jobs that"),
    ],
)
async def test_invalid_expiries_are_refused(dsn: str, made: Job, message: str) -> None:
    far = Queue("far", executor="async", broker="memory")
    two = TwoBrokers()
    two.offers = frozenset()
    async with Chancy(dsn, queues=[far], plugins=[two]) as chancy:
        await chancy.declare(far)
        with pytest.raises(PushError, match=message):
            await chancy.push(made, validate=False)
