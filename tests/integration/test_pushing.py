"""Pushing: what exists when a push returns, and what is refused before anything is written."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from chancy import (
    Chancy,
    InvalidArguments,
    Job,
    JobFilter,
    PayloadTooLarge,
    PushError,
    Queue,
    State,
    Unique,
    Worker,
)
from chancy.broker.values import CHUNK
from chancy.errors import ConfigurationError
from chancy.postgres.push.bulk import KEPT
from chancy.postgres.schema import migrate as schema
from tests.support import jobs
from tests.support.presence import present
from tests.support.sql import ask, count

#: More jobs than the chunks that a bulk push keeps to send them again.
MANY = (KEPT + 1) * CHUNK + 1


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, pool_size=3) as made:
        yield made


async def test_a_pushed_job_is_there_when_push_returns(chancy: Chancy, dsn: str) -> None:
    reference = await chancy.push(jobs.note.job(value=[1, "ü", None, {"a": 1.5}]))
    assert count(dsn) == 1
    job = present(await reference.get())
    assert job.id == reference.id
    assert job.id.version == 7
    assert job.arguments == {"value": [1, "ü", None, {"a": 1.5}]}
    assert (job.state, job.queue, job.func) == (State.PENDING, "async", "tests.support.jobs.note")
    assert (job.attempt, job.max_attempts, job.priority) == (0, 25, 0)


def test_the_same_without_an_event_loop(dsn: str) -> None:
    with Chancy(dsn, pool_size=2) as chancy:
        reference = chancy.sync_push(jobs.note.job(value=1).with_priority(5))
        many = chancy.sync_push_many(jobs.note.job(value=n) for n in range(MANY))
        found = present(chancy.sync_get_job(reference.id))
        assert found.priority == 5
        assert len(many) == MANY
        last = present(chancy.sync_get_job(many[-1].id))
        assert last.arguments == {"value": MANY - 1}
    assert count(dsn) == MANY + 1


async def test_push_many_keeps_order_across_chunks(chancy: Chancy, dsn: str) -> None:
    references = await chancy.push_many(jobs.note.job(value=n) for n in range(MANY))
    assert len(references) == MANY
    rows = ask(dsn, "select id, arguments->>'value' from chancy.jobs order by pos")
    assert [int(value) for _, value in rows] == list(range(MANY))
    assert [id for id, _ in rows] == [reference.id for reference in references]
    assert references[5:7] == [references[5], references[6]]
    assert len(await chancy.push_many([])) == 0


async def test_commit_every_shows_jobs_before_the_push_ends(chancy: Chancy, dsn: str) -> None:
    seen = list[int]()

    def some() -> Iterator[Job[object]]:
        for n in range(25):
            # What precedes a job of the next transaction has been committed.
            seen.append(count(dsn))
            yield jobs.note.job(value=n)

    references = await chancy.push_many(some(), commit_every=10)
    assert [seen[0], seen[10], seen[20]] == [0, 10, 20]
    found = await chancy.get_jobs([reference.id for reference in references])
    stored = [found[reference.id].arguments for reference in references]
    assert stored == [{"value": n} for n in range(25)]


async def test_commit_every_keeps_the_parts_before_an_error(chancy: Chancy, dsn: str) -> None:
    some = [jobs.note.job(value=n) for n in range(25)]
    some[22] = Job(func="no.such.function")
    with pytest.raises(PushError) as failed:
        await chancy.push_many(some, commit_every=10)
    assert failed.value.__notes__ == ["20 earlier jobs of this push are committed (commit_every)"]
    assert count(dsn) == 20
    async with chancy.transaction() as transaction:
        with pytest.raises(PushError, match="cannot be combined with within"):
            await chancy.push_many(some, commit_every=10, within=transaction)
    with pytest.raises(ConfigurationError, match="commit_every=0 must be a whole number"):
        await chancy.push_many(some, commit_every=0)
    assert count(dsn) == 20


async def test_commit_every_finds_the_keys_of_each_part(chancy: Chancy, dsn: str) -> None:
    one = jobs.note.job(value=1).with_unique(Unique(key="one"))
    first = await chancy.push(one)
    found = await chancy.push_many(
        [jobs.note.job(value=0), one, one, jobs.note.job(value=2)], commit_every=2
    )
    assert [reference.created for reference in found] == [True, False, False, True]
    assert found[1].id == found[2].id == first.id
    assert count(dsn) == 3


@pytest.mark.chaos
def test_a_million_jobs_need_little_memory(dsn: str) -> None:
    """Measured in a process of its own; a tenth of the million, above what it starts with."""
    program = f"""
import asyncio, resource
from chancy import Chancy, Job
async def main():
    async with Chancy({dsn!r}) as chancy:
        await chancy.push_many([Job(func="a.b")] * 5_000, validate=False)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        jobs = (Job(func="a.b", arguments={{"i": i}}) for i in range(100_000))
        references = await chancy.push_many(jobs, validate=False)
        assert len(references) == 100_000
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )
    grown_kib = int(done.stdout)
    # 16 bytes for each reference, and a chunk or two in flight.
    assert grown_kib < 20_000, f"{grown_kib} KiB for 100,000 jobs"
    assert resource.getpagesize() > 0


#: One of each check: of arguments, of meta, of settings and of the function.
REFUSED: list[tuple[Job, type[Exception], str]] = [
    (jobs.note.job(value={"a": ["b\x00"]}), InvalidArguments, r"\['value'\]\['a'\]\[0\].*NUL"),
    (jobs.note.job(value="x" * 1_100_000), PayloadTooLarge, "1,048,576 bytes.*1,100,0.."),
    (jobs.note.job(value=1).with_queue('"; drop table jobs; --'), PushError, "valid queue name"),
    (jobs.note.job(value=1).with_priority(101), PushError, "priority=101.*-100 to 100"),
    (jobs.note.job(value=1).with_meta(a="\x00"), InvalidArguments, "meta.*NUL"),
    (Job(func="tests.support.jobs.missing"), PushError, "no function 'missing'"),
]


async def test_bad_input_is_refused_before_anything_is_written(chancy: Chancy, dsn: str) -> None:
    for job, error, message in REFUSED:
        with pytest.raises(error, match=message):
            await chancy.push_many([jobs.note.job(value=1), job])
    assert count(dsn) == 0


async def test_a_function_of_another_codebase(chancy: Chancy) -> None:
    reference = await chancy.push(Job(func="elsewhere.jobs.run"), validate=False)
    assert await reference.status() is State.PENDING
    plain = await chancy.push(Job.from_func(jobs.undecorated, value=1))
    assert await plain.status() is State.PENDING


async def test_max_payload_is_a_setting(dsn: str) -> None:
    async with Chancy(dsn, max_payload=3_000_000) as chancy:
        await chancy.push(jobs.note.job(value="x" * 2_000_000))
    assert count(dsn) == 1


async def test_two_schemas_do_not_see_each_other(dsn: str) -> None:
    await asyncio.to_thread(schema.upgrade, dsn, "other")
    async with Chancy(dsn) as one, Chancy(dsn, schema="other") as two:
        reference = await one.push(jobs.note.job(value=1))
        assert await two.get_job(reference.id) is None
        assert await two.find_jobs(JobFilter()) == []
    assert (count(dsn), count(dsn, "other.jobs")) == (1, 0)


async def open_blocking(chancy: Chancy) -> None:
    with chancy:
        raise AssertionError("opened without a DSN")


async def migrate_blocking(chancy: Chancy) -> None:
    chancy.sync_migrate()


async def read_dsn(chancy: Chancy) -> str:
    return chancy.dsn


@pytest.mark.parametrize(
    "use",
    [
        Chancy.__aenter__,
        Chancy.get_workers,
        Chancy.check_tables,
        Chancy.migrate,
        migrate_blocking,
        open_blocking,
        read_dsn,
        lambda chancy: chancy.push(jobs.note.job(value=1)),
        lambda chancy: chancy.control.orphans(heartbeat_age_s=1, limit=1),
    ],
)
async def test_an_application_without_a_dsn_raises_at_its_first_use(
    use: Callable[[Chancy], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHANCY_DSN", raising=False)
    chancy = Chancy(queues=[Queue(name="mail")])
    assert "no DSN" in repr(chancy.broker)
    with pytest.raises(ConfigurationError, match=r"no DSN: pass Chancy\(.*, or set CHANCY_DSN"):
        await use(chancy)


async def test_the_dsn_of_the_environment_may_be_set_after_the_application_is_made(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHANCY_DSN", raising=False)
    chancy = Chancy(pool_size=2, queues=[Queue(name="async", executor="async")])
    monkeypatch.setenv("CHANCY_DSN", dsn)
    async with chancy:
        # All sessions go to one database, whenever they are opened.
        monkeypatch.setenv("CHANCY_DSN", "postgresql://127.0.0.1:1/other")
        reference = await chancy.push(jobs.note.job(value=1))
        async with Worker(chancy, queues=["async"]):
            assert (await reference.wait(60)).state is State.SUCCEEDED
    with chancy:
        assert chancy.sync_get_job(reference.id) is not None
    assert chancy.dsn == dsn
