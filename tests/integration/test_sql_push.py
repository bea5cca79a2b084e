"""The function ``push`` of the schema, as other programs call it."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.embedded.binaries import find_programs
from chancy.worker.surveyor import Surveyor
from tests.support import jobs
from tests.support.command import environment
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

#: Nobody looks by itself for so long: what comes sooner was told.
SELDOM = Queue(name="async", executor="async", poll_interval_s=60)
PSQL = find_programs(16, None, given=None) / "psql"


@pytest.fixture
def without_surveys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run what notifications have told them of, and nothing else."""
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    async with Chancy(dsn, queues=[SELDOM], pool_size=2) as made:
        await made.delete_queue("default")
        yield made


def psql(dsn: str, script: str) -> str:
    done = subprocess.run(
        [PSQL, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", dsn],
        input=script,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def listening(worker: Worker) -> None:
    await eventually(lambda: worker.listening)


@pytest.mark.usefixtures("without_surveys")
async def test_a_worker_runs_at_once_what_psql_pushes(chancy: Chancy, dsn: str) -> None:
    async with Worker(chancy) as worker:
        await listening(worker)
        said = psql(
            dsn, "select chancy.push('async', 'tests.support.jobs.note', '{\"value\": [1, null]}')"
        )
        done = await chancy.wait_for(uuid.UUID(said.strip()), 30)
    assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, [1, None], 1)
    assert jobs.noted == [[1, None]]


TRIGGER = """
create table orders (id int primary key);
create function placed() returns trigger language plpgsql as $$
begin
  perform chancy.push('async', 'tests.support.jobs.note', jsonb_build_object('value', new.id),
    unique_key => 'order ' || new.id);
  return null;
end
$$;
create trigger placed after insert on orders for each row execute function placed();
"""


@pytest.mark.usefixtures("without_surveys")
async def test_a_trigger_pushes_with_the_rows_or_not_at_all(chancy: Chancy, dsn: str) -> None:
    psql(dsn, TRIGGER)
    async with Worker(chancy) as worker:
        await listening(worker)
        psql(dsn, "begin; insert into orders select generate_series(1000, 1100); rollback")
        psql(dsn, "insert into orders select generate_series(1, 100)")
        await eventually(lambda: len(jobs.noted) == 100)
    assert sorted(map(str, jobs.noted)) == sorted(map(str, range(1, 101)))
    assert ask(dsn, "select count(*) from chancy.jobs") == [(0,)]
    assert ask(dsn, "select count(*) from chancy.finished_jobs") == [(100,)]


def test_a_commit_of_many_rows_sends_one_notice(dsn: str) -> None:
    psql(dsn, TRIGGER)
    with psycopg.connect(dsn, autocommit=True) as listener:
        [(channel,)] = listener.execute("select chancy.channel()").fetchall()
        listener.execute(f'listen "{channel}"'.encode())
        ask(dsn, "insert into orders select generate_series(1, 1000) returning id")
        # Those of one commit come together.
        (notice,) = listener.notifies(timeout=30, stop_after=1)
        assert notice.payload.startswith("w:async ")


# The contract

CONTRACT = (
    "queue text, func text, arguments jsonb DEFAULT '{}'::jsonb, priority integer DEFAULT 0,"
    " run_at timestamp with time zone DEFAULT NULL::timestamp with time zone,"
    " delay interval DEFAULT NULL::interval, max_attempts integer DEFAULT 25,"
    " meta jsonb DEFAULT NULL::jsonb, id uuid DEFAULT NULL::uuid,"
    " unique_key text DEFAULT NULL::text, unique_scope text DEFAULT 'function'::text,"
    " unique_until text DEFAULT 'finished'::text,"
    " unique_period interval DEFAULT NULL::interval, on_conflict text DEFAULT 'skip'::text"
)


def test_the_parameters_stay_as_they_are(dsn: str) -> None:
    """Programs that nobody here knows call it: what is added comes behind these."""
    [(parameters, result)] = ask(
        dsn,
        "select pg_get_function_arguments(oid), pg_get_function_result(oid) from pg_proc"
        " where pronamespace = 'chancy'::regnamespace and proname = 'push'",
    )
    assert parameters.startswith(CONTRACT)
    assert result == "uuid"


async def test_every_parameter_does_what_it_says(chancy: Chancy, dsn: str) -> None:
    own = uuid.uuid4()
    [(id,)] = ask(
        dsn,
        "select chancy.push(queue => 'async', func => 'pkg.mod.f', arguments => '{\"a\": \"é\"}',"
        " priority => -100, delay => '1 hour', max_attempts => 10000, meta => '{\"team\": 1}',"
        " id => %s)",
        [own],
    )
    found = present(await chancy.get_job(id))
    assert id == own
    assert (found.queue, found.func, found.arguments) == ("async", "pkg.mod.f", {"a": "é"})
    assert (found.priority, found.max_attempts, found.meta) == (-100, 10_000, {"team": 1})
    assert found.state is State.SCHEDULED
    assert found.run_at is not None
    assert abs(found.run_at - found.pushed_at - timedelta(hours=1)) < timedelta(seconds=5)
    [(plain,)] = ask(dsn, "select chancy.push('async', 'pkg.mod.f')")
    least = present(await chancy.get_job(plain))
    assert (least.arguments, least.priority, least.max_attempts) == ({}, 0, 25)
    assert (least.state, least.meta, plain.version) == (State.PENDING, {}, 7)
    # The same id again is no other job, and a moment gone by is now.
    assert ask(dsn, "select chancy.push('other', 'x.y', id => %s)", [own]) == [(own,)]
    [(late,)] = ask(dsn, "select chancy.push('async', 'a.b', run_at => '2001-01-01T00:00Z')")
    assert await state(chancy, late) is State.PENDING


async def state(chancy: Chancy, id: uuid.UUID) -> State | None:
    found = await chancy.get_job(id)
    return None if found is None else found.state


async def test_times_that_python_does_not_have_delay_no_caller(chancy: Chancy, dsn: str) -> None:
    """Postgres has 'infinity', and years behind 9999."""
    far = [
        ask(
            dsn,
            f"select chancy.push('async', 'tests.support.jobs.note', '{{\"value\": 1}}', {when})",
        )[0][0]
        for when in ("run_at => 'infinity'", "run_at => '11000-01-01'", "delay => '9000 years'")
    ]
    ago = [
        ask(
            dsn,
            f"select chancy.push('async', 'tests.support.jobs.note', '{{\"value\": 2}}', {when})",
        )[0][0]
        for when in ("run_at => '-infinity'", "delay => '-6000 years'")
    ]
    for id in far:
        assert "the job is scheduled in" in (await chancy.why(id))[0].text
    async with Worker(chancy):
        for id in ago:
            assert (await chancy.wait_for(id, 30)).state is State.SUCCEEDED
        assert {await state(chancy, id) for id in far} == {State.SCHEDULED}
        assert await chancy.run_now(*far) == {*far}
        for id in far:
            assert (await chancy.wait_for(id, 30)).state is State.SUCCEEDED


def test_ids_of_one_session_are_in_their_order(dsn: str) -> None:
    with psycopg.connect(dsn) as session:
        ids = [
            session.execute("select chancy.push('q', 'a.b')").fetchone()[0]  # type: ignore[index]
            for _ in range(200)
        ]
    assert len({*ids}) == 200
    assert ids == sorted(ids)


WRONG = {
    "queue => ''": "queue '' cannot be the name of a queue",
    "queue => null": "cannot be the name of a queue",
    "queue => 'a b'": "queue 'a b' cannot be the name",
    "queue => E'a\\n'": "cannot be the name of a queue",
    "queue => repeat('q', 129)": "1 to 128 of the characters",
    "func => 'f'": "func 'f' is not the path of a function",
    "func => null": "is not the path of a function",
    "func => '__main__.f'": "is not the path of a function",
    "func => 'a.b; drop'": "is not the path of a function",
    "func => E'a.b\\n'": "is not the path of a function",
    "func => 'a.' || repeat('f', 254)": "of 255 characters at most",
    "arguments => '[1]'": "arguments must be a JSON object of keyword arguments, not array",
    "arguments => null": "not null",
    "arguments => jsonb_build_object('a', repeat('x', 1048576))": "the limit is 1048576",
    "priority => 101": "priority 101 must be a whole number from -100 to 100",
    "priority => null": "priority null must be",
    "max_attempts => 0": "max_attempts 0 must be a whole number from 1 to 10000",
    "meta => '3'": "meta must be a JSON object, not number",
    "run_at => now(), delay => '1 s'": "give run_at or delay, not both",
    "expires_at => now()": "it could never start",
    "run_at => now() + interval '1 h', expires_in => '1 min'": "it could never start",
    "unique_period => '1 s'": "need a unique_key",
    "on_conflict => 'raise'": "need a unique_key",
    "unique_key => ''": "unique_key has 0 characters: it may have 1 to 255",
    "unique_key => repeat('k', 256)": "unique_key has 256 characters",
    "unique_key => 'k', unique_scope => 'table'": "must be function, queue or global",
    "unique_key => 'k', unique_until => 'never'": "must be finished or started",
    "unique_key => 'k', on_conflict => 'ignore'": "must be skip, replace or raise",
    "unique_key => 'k', on_conflict => 'replace', unique_scope => 'queue'": "needs unique_scope",
    "unique_key => 'k', unique_period => '0 s'": "must be over 0 and at most 3660 days",
}


def test_jobs_that_could_not_run_are_refused_by_name(dsn: str) -> None:
    for parameters, message in WRONG.items():
        given = {"queue": "'q'", "func": "'a.b'"}
        named = "".join(
            f"{name} => {value}, "
            for name, value in given.items()
            if not parameters.startswith(name)
        )
        with pytest.raises(psycopg.DataError) as caught:
            ask(dsn, f"select chancy.push({named}{parameters})")
        assert caught.value.sqlstate == "22023"
        assert message in str(caught.value)
        assert ask(dsn, "select count(*) from chancy.jobs") == [(0,)]


def test_a_duplicate_names_the_job_that_is_there(dsn: str) -> None:
    [(held,)] = ask(dsn, "select chancy.push('q', 'a.b', unique_key => 'k')")
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        ask(dsn, "select chancy.push('q', 'a.b', unique_key => 'k', on_conflict => 'raise')")
    assert caught.value.diag.message_detail == str(held)
    [(same,)] = ask(
        dsn,
        "select chancy.push('q', 'a.b', '{\"n\": 2}', unique_key => 'k', on_conflict => 'replace')",
    )
    assert same == held
    assert ask(dsn, "select arguments from chancy.jobs") == [({"n": 2},)]


async def test_hostile_text_is_data(chancy: Chancy, dsn: str) -> None:
    evil = {"value": "'; drop schema chancy cascade; --\\ $$ \u202e\x1b[2J"}
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        [(id,)] = ask(
            dsn,
            "select chancy.push('async', 'tests.support.jobs.note', %s, unique_key => %s)",
            [json.dumps(evil), evil["value"]],
        )
        assert (await chancy.wait_for(id, 30)).result == evil["value"]
