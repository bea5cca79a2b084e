"""Many hands on the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from chancy import Chancy, State
from chancy.job.ids import new_id
from tests.faults import contender, jobs
from tests.faults.book import Book
from tests.faults.worker_process import ROOT
from tests.support.sql import Where, ask

PROCESSES = 8
JOBS = 100
ROUNDS = int(os.environ.get("CHANCY_ROUNDS", "150"))


class Contenders:
    """Processes of `tests.faults.contender`, told what to do side by side."""

    def __init__(self, dsn: str, count: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.contender", dsn],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]

    def do(self, orders: Sequence[dict[str, Any]]) -> list[Any]:
        """Give each process an order, and wait for all answers."""
        for process, order in zip(self._processes, orders, strict=True):
            assert process.stdin is not None
            process.stdin.write(f"{json.dumps(order)}\n")
            process.stdin.flush()
        return [self._answer(process) for process in self._processes]

    def _answer(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"a contender ended with status {process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        for process in self._processes:
            process.communicate()


@pytest.fixture
def contenders(dsn: str, request: pytest.FixtureRequest) -> Iterator[Contenders]:
    made = Contenders(dsn, request.param)
    yield made
    made.close()


def deadlocks(dsn: str) -> int:
    ((count,),) = ask(
        dsn, "select deadlocks from pg_stat_database where datname = current_database()"
    )
    return int(count)


@dataclass(slots=True)
class Ledger:
    """What eight processes say of one job."""

    claimed: set[str] = field(default_factory=set[str])
    accepted: set[str] = field(default_factory=set[str])


def check_ledger(ledger: Ledger, row: tuple[Any, ...]) -> None:
    """A job has exactly the history that its claims and their settlements give it."""
    state, attempt, crashes, lease, errors = row
    settled = [UUID(one["message"]) for one in errors or ()]
    accepted = {UUID(one) for one in ledger.accepted}
    claimed = {UUID(one) for one in ledger.claimed}
    assert len(set(settled)) == len(settled), "an attempt was settled twice"
    assert claimed == accepted | ({lease} if state == State.RUNNING else set()), "a claim is lost"
    assert set(settled) == accepted or len(settled) == 25, "a settlement is lost"
    assert attempt == len(claimed) - sum(map(contender.refunds, accepted))
    assert crashes == sum(map(contender.crashes, accepted))
    if settled and state != State.RUNNING:
        assert settled[-1] == lease, "the last settlement was not by the last lease"


@pytest.mark.chaos
@pytest.mark.parametrize("contenders", [PROCESSES], indirect=True)
def test_eight_processes_on_the_same_hundred_jobs(
    dsn: str, book: Book, contenders: Contenders
) -> None:
    ids = [new_id() for _ in range(JOBS)]
    with Chancy(dsn) as chancy:
        chancy.sync_push_many(
            jobs.work.job(book=str(book), number=n).with_id(id) for n, id in enumerate(ids)
        )
    order = {"do": "brawl", "ids": [str(id) for id in ids], "seconds": 2.5}
    answers = contenders.do([order] * PROCESSES)
    counts = sum((Counter[str](answer["counts"]) for answer in answers), Counter[str]())
    assert counts["stale"] > 100, "nobody was late"
    assert counts["rescued"] > 100, "nobody was declared dead"
    assert min(counts["noted"], counts["noted late"]) > 100, "nobody said anything of a job"
    ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
    for answer in answers:
        for id, lease in answer["claimed"]:
            ledgers[id].claimed.add(lease)
        for id, lease in answer["accepted"]:
            ledgers[id].accepted.add(lease)
    rows = ask(
        dsn,
        "select id, state, attempt, crashes, lease, errors, meta from chancy.jobs union all"
        " select id, state, attempt, crashes, lease, errors, meta from chancy.finished_jobs",
    )
    assert sorted(row[0] for row in rows) == sorted(ids), "jobs are lost, or there twice"
    for id, *row, meta in rows:
        check_ledger(ledgers[str(id)], tuple(row))
        assert meta is None or meta["noted"] in ledgers[str(id)].claimed
    # Rows are locked in one order. What is left: a job that is asked to stop and is put back
    # and finished by two at the same moment, together with another one. Settlements mostly give up
    # (55P03) when the server would find a deadlock (40P01): after a second.
    assert counts["40P01"] == deadlocks(dsn)
    assert counts["40P01"] + counts["55P03"] <= 1


def check_duel(where: Where, id: UUID, lease: UUID, answers: Sequence[Any]) -> str:
    """One of the three settlements counts, and the cancellation says what it met."""
    *settled, cancelled = answers
    assert all(settled), "an attempt was not recognised as settled"
    (row,) = ask(
        where,
        "select state, attempt, crashes, lease, errors, stop_asked_at is not null"
        " from chancy.jobs where id = %(id)s union all"
        " select state, attempt, crashes, lease, errors, stop_asked_at is not null"
        " from chancy.finished_jobs where id = %(id)s",
        {"id": id},
    )
    state, attempt, crashes, kept, errors, stopped = row
    assert kept == lease
    assert attempt == 1 - contender.refunds(lease)
    assert crashes == contender.crashes(lease)
    assert [one["message"] for one in errors] == [str(lease)]
    match cancelled:
        case "cancelled" | "asked":
            # Whoever puts a job back that was asked to stop has cancelled it.
            legal = {State.CANCELLED} if cancelled == "cancelled" else {4, 6}
            assert stopped
        case "finished":
            legal = {State.SUCCEEDED}
        case _:
            legal = set()
    assert state in legal, f"{State(state).label} after a cancellation that said {cancelled}"
    return f"{cancelled} {State(state).label}"


@pytest.mark.chaos
@pytest.mark.parametrize("contenders", [4], indirect=True)
def test_finish_retry_rescue_and_cancel_at_the_same_time(
    dsn: str, book: Book, contenders: Contenders
) -> None:
    seen = Counter[str]()
    with psycopg.connect(dsn, autocommit=True) as session, Chancy(dsn) as chancy:
        for number in range(ROUNDS):
            id, lease = new_id(), uuid4()
            chancy.sync_push(jobs.work.job(book=str(book), number=number).with_id(id))
            ask(
                session,
                "update chancy.jobs set state = 1, attempt = 1, lease = %s, worker_id = %s"
                " where id = %s",
                [lease, uuid4(), id],
            )
            attempt = {"do": "settle", "id": str(id), "lease": str(lease)}
            orders = [{**attempt, "state": state} for state in (4, 2, 0)]
            answers = contenders.do([*orders, {"do": "cancel", "id": str(id)}])
            seen[check_duel(session, id, lease, answers)] += 1
            ask(session, "delete from chancy.jobs")
    assert len(seen) > 1, f"there was only one order of events: {seen}"
