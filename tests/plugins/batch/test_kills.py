"""Batches whose workers are killed and frozen: each ends once, with the right counts."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

import pytest

from chancy import State
from chancy.plugins.batch import Batch, BatchRecord
from tests.plugins.batch.run_worker import BATCHES, act, add, application, called, fail
from tests.plugins.workflow.fleet import Fleet
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

logger = logging.getLogger("tests.workflow")

#: A worker is killed or frozen in each of them.
SECONDS = 45.0

OUTCOMES = """
select meta -> 'batch' ->> 'id', state, count(*)
from chancy.finished_jobs where meta -> 'batch' ? 'id' group by 1, 2
"""
CALLED = """
select meta -> 'batch' ->> 'of', meta -> 'batch' ->> 'on', count(*), count(distinct id)
from chancy.finished_jobs where meta -> 'batch' ? 'of' group by 1, 2
"""
#: Jobs that failed although they were not told to and have not worn out three workers.
UNDUE = """
select id, func, state, crashes, errors from chancy.finished_jobs
where state <> 4 and func not like '%%.fail' and crashes < 3
"""


@pytest.fixture
def fleet(batches_dsn: str, chance: random.Random) -> Iterator[Fleet]:
    made = Fleet("tests.plugins.batch.run_worker", [batches_dsn], 3, chance)
    yield made
    made.stop()


def described() -> Batch:
    to = called.job()
    return Batch(name="chaos", on_success=to, on_failure=to, on_finish=to)


def check(found: BatchRecord, outcomes: Counter[State], told: dict[str, int]) -> None:
    """Its counts match the history, and each callback was pushed once."""
    progress = found.progress
    assert progress.pending == 0
    assert progress.succeeded == outcomes[State.SUCCEEDED]
    assert progress.failed == outcomes[State.FAILED]
    assert progress.cancelled == outcomes[State.CANCELLED]
    wanted = {"finish": 1}
    wanted |= {"failure": 1} if progress.failed else {}
    wanted |= {"success": 1} if progress.succeeded == progress.total else {}
    assert told == wanted


@pytest.mark.chaos
@pytest.mark.timeout(240)
async def test_each_batch_ends_once_despite_crashes(
    batches_dsn: str, chance: random.Random, fleet: Fleet
) -> None:
    ids: list[UUID] = []
    until = time.monotonic() + SECONDS
    async with application(batches_dsn) as chancy:
        harming = asyncio.create_task(fleet.harm(until))
        while time.monotonic() < until:
            jobs = [act.job() for _ in range(chance.randint(0, 200))]
            jobs += [fail.job() for _ in range(chance.choice([0, 0, 3]))]
            jobs += [add.job(chance.randint(1, 20)) for _ in range(chance.choice([0, 2]))]
            chance.shuffle(jobs)
            ids.append((await BATCHES.push(chancy, described(), jobs)).id)
            await asyncio.sleep(0.15)
        await harming
        outcomes: dict[str, Counter[State]] = {str(id): Counter() for id in ids}
        told: dict[str, dict[str, int]] = {str(id): {} for id in ids}
        found: list[BatchRecord] = []
        for id in ids:
            reference = BATCHES.reference(chancy, id)
            await reference.wait(90)
            record = present(await reference.get())
            found.append(record)
        left = "select id from chancy.jobs limit 1"
        await eventually(lambda: not ask(batches_dsn, left), timeout=60)
    for of, state, count in ask(batches_dsn, OUTCOMES):
        outcomes[of][State(state)] = count
    for of, on, count, distinct in ask(batches_dsn, CALLED):
        assert distinct == count
        told[of][on] = count
    for one in found:
        check(one, outcomes[str(one.id)], told[str(one.id)])
    assert ask(batches_dsn, "select * from chancy.batches_jobs where state = 0") == []
    assert ask(batches_dsn, UNDUE) == []
    logger.info("batches=%d killed=%d frozen=%d", len(ids), fleet.killed, fleet.frozen)
