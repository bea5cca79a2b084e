"""Failures, arguments and names that were made to break things: refused, or harmless."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, ConfigurationError, Job, PushError, Queue, State
from chancy.job.definition import JobFunction
from tests.faults import jobs, outbursts, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

NEIGHBOURS = 20
#: What the record of one failure may take, in bytes of JSON.
MOST_RECORDED = 64 * 1024


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("executor", "function"),
    [
        ("process", outbursts.burst_later),
        ("thread", outbursts.burst),
        ("async", outbursts.burst_at_once),
    ],
)
async def test_a_hostile_failure_is_recorded_and_retried_like_any(
    chancy: Chancy,
    dsn: str,
    book: Book,
    start_worker: StartWorker,
    executor: str,
    function: JobFunction[[str], Any],
) -> None:
    worker = start_worker(dsn, executor=executor, concurrency=4, retry_base_s=0.02)
    worker.wait_until_ready()
    neighbour = (jobs.work if executor == "async" else jobs.toil).job
    await chancy.push_many(neighbour(book=str(book), number=n) for n in range(NEIGHBOURS))
    references = {kind: await chancy.push(function.job(kind)) for kind in outbursts.OUTBURSTS}
    await eventually(lambda: tables.live(dsn) == 0)
    report = worker.stop()
    for kind, reference in references.items():
        found = present(await reference.get())
        assert (kind, found.state, found.attempt) == (kind, State.FAILED, 2)
        assert len(found.errors) == 2, kind
        text = json.dumps(found.errors[-1], ensure_ascii=False)
        assert len(text.encode()) < MOST_RECORDED, kind
        assert "\x1b" not in text, kind
        assert "\u202e" not in text, kind
    assert tables.states(dsn) == {State.SUCCEEDED: NEIGHBOURS, State.FAILED: len(references)}
    assert report.stale == 0
    assert "worker_loop_failed" not in worker.said()


@pytest.fixture
def closed() -> Chancy:
    """An application that cannot write anything: it was not opened."""
    return Chancy("postgresql://nobody@127.0.0.1:1/nowhere")


async def test_nothing_is_kept_of_a_bulk_push_that_ends_with_a_hostile_argument(
    chancy: Chancy, dsn: str, book: Book
) -> None:
    good = jobs.work.job(book=str(book), number=0)
    bad = good.with_arguments(seconds=math.nan)
    # Refused in the third statement, when two have been made.
    with pytest.raises(PushError):
        await chancy.push_many([*[good] * 10_001, bad])
    with Chancy(dsn) as other, pytest.raises(PushError):
        other.sync_push_many([*[good] * 10_001, bad])
    assert tables.states(dsn) == {}
    async with chancy.transaction() as transaction:
        await chancy.push(good, within=transaction)
        with pytest.raises(PushError):
            await chancy.push(bad, within=transaction)
    assert tables.states(dsn) == {State.PENDING: 1}


#: JSON that ``jsonb`` takes from whoever may write to the table, and that no job can run on.
WRITTEN_BY_HAND: Mapping[str, str | None] = {
    "nothing": None,
    "null": "null",
    "an array": "[1, 2]",
    "a text": '"text"',
    "a number": "17",
    "a float beyond floats": '{"book": "BOOK", "number": 1, "x": -1e400}',
    "too many digits": f'{{"book": "BOOK", "number": 1{"0" * 5_000}}}',
    "too deep": f'{{"a": {"[" * 5_000}{"]" * 5_000}}}',
    "a missing argument": '{"book": "BOOK"}',
    "another argument": '{"book": "BOOK", "number": 1, "__class__": 2}',
    "an argument called self": '{"book": "BOOK", "number": 1, "self": 2}',
    "a wrong type": '{"book": ["BOOK"], "number": {}}',
    "an empty key": '{"book": "BOOK", "number": 1, "": 2}',
    "a large value": f'{{"book": "BOOK", "number": 1, "x": "{"x" * 3_000_000}"}}',
}


@pytest.mark.chaos
@pytest.mark.parametrize("executor", ["process", "async"])
async def test_hostile_arguments_in_a_row_fail_alone(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker, executor: str
) -> None:
    neighbour = (jobs.work if executor == "async" else jobs.toil).job
    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        insert(dsn, neighbour.template.func, '{"book": "\\u0000"}')
    names: dict[UUID, str] = {}
    for number, (name, arguments) in enumerate(WRITTEN_BY_HAND.items()):
        text = arguments and arguments.replace("BOOK", str(book))
        names[insert(dsn, neighbour.template.func, text)] = name
        await chancy.push(neighbour(book=str(book), number=number))
    worker = start_worker(dsn, executor=executor, concurrency=2, retry_base_s=0.01)
    await eventually(lambda: tables.live(dsn) == 0)
    for id, found in (await chancy.get_jobs(list(names))).items():
        assert (names[id], found.state) == (names[id], State.FAILED)
        assert found.errors, names[id]
    assert tables.states(dsn) == {State.SUCCEEDED: len(names), State.FAILED: len(names)}
    worker.stop()
    assert "worker_loop_failed" not in worker.said()


def insert(dsn: str, func: str, arguments: str | None, queue: str = "load") -> UUID:
    """A row by somebody who asks nobody."""
    ((id,),) = ask(
        dsn,
        "insert into chancy.jobs (id, pos, state, queue, func, arguments, max_attempts) values"
        " (gen_random_uuid(), nextval('chancy.positions'), 0, %s, %s, %s, 3) returning id",
        [queue, func, arguments],
    )
    assert isinstance(id, UUID)
    return id


#: Names for whatever they may end up in: SQL, a format, a path, a log, a terminal, a page.
HOSTILE_NAMES = [
    "",
    " ",
    "'; drop table chancy.jobs; --",
    'a"b',
    "%s %(x)s %%",
    "{0} {schema}",
    "../../etc/passwd",
    "a\nlevel=error",
    "\x1b[31mred",
    "nul\x00",
    "\ud800",
    "\u202eevil",
    "<script>alert(1)</script>",
    "É",
    "x" * 10_000,
    "__import__('os').system('true')",
    "pg_catalog",
]
HARMLESS_FOR_QUEUES = {"../../etc/passwd", "pg_catalog"}


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
async def test_hostile_names_are_refused_before_anything_is_written(
    closed: Chancy, name: str
) -> None:
    good = jobs.work.job(book="", number=0)
    with pytest.raises(ConfigurationError):
        Chancy("postgresql://nobody@127.0.0.1:1/nowhere", schema=name)
    with pytest.raises(PushError):
        await closed.push(Job(func=name))
    with pytest.raises(PushError):
        await closed.push(Job(func=name), validate=False)
    with pytest.raises(ConfigurationError):
        Chancy("postgresql://nobody@127.0.0.1:1/nowhere", queues=[Queue("a", executor=name)])
    if name in HARMLESS_FOR_QUEUES:
        return
    with pytest.raises(ConfigurationError):
        Queue(name=name)
    with pytest.raises(PushError):
        await closed.push(good.with_queue(name))
    for refused in (closed.pause_queue, closed.resume_queue, closed.delete_queue):
        with pytest.raises(ConfigurationError):
            await refused(name)


async def test_hostile_names_in_rows_are_inert(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    arguments = json.dumps({"command": f"touch {trap}"})
    texts = [name for name in HOSTILE_NAMES if "\x00" not in name and "\ud800" not in name]
    functions = [*texts, "os.system", "posix.system", "subprocess.getoutput", "builtins.eval"]
    named = [insert(dsn, function, arguments) for function in functions]
    for name in texts:
        insert(dsn, jobs.work.job.template.func, "{}", queue=name)
        if name not in HARMLESS_FOR_QUEUES:
            with pytest.raises(psycopg.errors.CheckViolation):
                ask(dsn, "insert into chancy.queues (name) values (%s)", [name])
    ask(
        dsn,
        "insert into chancy.queues (name, executor, concurrency, tags, poll_interval_s)"
        " values ('odd', 'os.system', -5, '{(,NULL,\x1b[31m}', 'NaN')",
    )
    worker = start_worker(dsn, heartbeat_timeout_s=30.0)
    worker.wait_until_ready()
    await chancy.push(jobs.work.job(book=str(book), number=1))
    await eventually(lambda: tables.states(dsn)[State.SUCCEEDED] == 1)
    live = {State.SCHEDULED, State.PENDING, State.RUNNING, State.HELD}
    assert {job.state for job in (await chancy.get_jobs(named)).values()} <= live
    assert (await chancy.counts())["'; drop table chancy.jobs; --"].pending == 1
    assert "odd" in [queue.name for queue in await chancy.get_queues()]
    worker.stop()
    assert not trap.exists()
    said = worker.said()
    assert "worker_loop_failed" not in said
    assert "\x1b" not in said
    assert "\nlevel=error" not in said
