"""Random workflows, many at once while workers are killed and frozen, compared with the model."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

from chancy import Chancy, PushError, WaitTimeout
from chancy.plugins.workflow import StepRecord, WorkflowReference, WorkflowState
from tests.faults import ledger
from tests.plugins.workflow import audit, model, run_worker
from tests.plugins.workflow.fleet import SEED, Fleet
from tests.plugins.workflow.random_workflows import (
    DEFAULT,
    DRAWING,
    Drawn,
    Kind,
    described,
    drawn,
    there,
)
from tests.plugins.workflow.running import sweep_of
from tests.support.sql import ask
from tests.support.waiting import eventually

logger = logging.getLogger("tests.plugins.workflow")

#: Seconds during which workers are killed and frozen, in one round and in total.
HARM_S, ALL_S = 5.0, 20.0
#: The payload of a signal.
SIGNALLED = 1_000
LEFT = "select id from chancy.jobs where meta #>> '{workflow,id}' = %s"
CLAIMS = "select count(*) from ledger.claims where id = %s"
FAILURES = "select id, errors from chancy.finished_jobs where id = any (%s) and errors is not null"
#: Of the whole database, in the end.
MISSING = """
select j.* from chancy.workflows_joins as j join chancy.workflows as w on w.id = j.workflow_id
where j.missing <> 0 and w.state = 4
"""
TWICE = "select id from chancy.finished_jobs group by id having count(*) > 1"
LATE = """
select a.* from public.audit as a join chancy.workflows as w on w.id = a.flow
where w.id = %s and a.what = 'pushed' and a.at > w.finished_at
"""


@dataclass
class Run:
    """A workflow that runs."""

    drawn: Drawn
    reference: WorkflowReference
    chance: random.Random
    dsn: str
    retried: int = 0
    was: set[WorkflowState] = field(default_factory=set[WorkflowState])

    async def follow(self) -> None:
        """Wait until it has succeeded or is compensated, and retry it as often as needed."""
        if self.drawn.cancelled:
            await asyncio.sleep(self.chance.uniform(0, 3))
            await self._cancel()
        signalling = asyncio.create_task(self._signal())
        while (state := await self._ended()) not in (
            WorkflowState.SUCCEEDED,
            WorkflowState.COMPENSATED,
        ):
            self.was.add(state)
            await signalling
            await self._retry()
            signalling = asyncio.create_task(self._signal())
        self.was.add(state)
        await signalling

    async def _ended(self) -> WorkflowState:
        """It is stuck when nothing has happened for a minute, however slow the machine is."""
        seen = -1
        while True:
            try:
                return await self.reference.wait(60)
            except WaitTimeout as error:
                before, seen = seen, audit.count(self.dsn)
                if before == seen:
                    error.add_note(f"{self.drawn}\n{audit.standing(self.dsn, self.reference.id)}")
                    raise

    async def _cancel(self) -> None:
        if await self.reference.cancel():
            assert await self.reference.wait(1) is WorkflowState.CANCELLED
            await eventually(lambda: not ask(self.dsn, LEFT, [str(self.reference.id)]))
            assert ask(self.dsn, LATE, [self.reference.id]) == []

    async def _signal(self) -> None:
        """Send each signal twice, in any order, before or after its step waits for it."""
        names = [*self.drawn.named(Kind.SIGNAL), *self.drawn.named(Kind.TIMED)[::2]] * 2
        self.chance.shuffle(names)
        for name in names:
            await asyncio.sleep(self.chance.uniform(0, 0.5))
            with suppress(PushError):  # it has ended, and is retried
                await self.reference.signal(name, SIGNALLED)

    async def _retry(self) -> None:
        self.retried += 1
        assert self.retried < 50

        async def retried() -> bool:
            with suppress(PushError):  # some of its steps still run
                await self.reference.retry()
                return True
            return False

        await eventually(retried)


@pytest.fixture(params=["postgres", "both"])
async def servers(flows_dsn: str, request: pytest.FixtureRequest) -> Sequence[str]:
    """The server of Postgres, and that of Redis for steps in both."""
    if request.param == "postgres":
        return [flows_dsn]
    redis_url: str = request.getfixturevalue("redis_url")
    async with run_worker.application(flows_dsn, redis_url) as chancy:
        await chancy.migrate()
        for queue in chancy.queues:
            await chancy.declare(queue)
    return [flows_dsn, redis_url]


@pytest.fixture
def fleet(servers: Sequence[str], chance: random.Random) -> Iterator[Fleet]:
    audit.begin(servers[0])
    ledger.open_ledger(servers[0])
    made = Fleet("tests.plugins.workflow.run_worker", servers, 3, chance, long=True)
    yield made
    made.stop()


async def all_told(dsn: str, chancy: Chancy) -> None:
    """Wait until no job is left and the sweep repairs nothing. No job has ended twice."""
    await eventually(lambda: not ask(dsn, "select id from chancy.jobs"), timeout=60)
    sweep = sweep_of(chancy)
    while await sweep.turn():
        pass
    assert ask(dsn, MISSING) == []
    assert ask(dsn, TWICE) == []


async def play(
    dsn: str,
    chancy: Chancy,
    book: Path,
    fleet: Fleet,
    chance: random.Random,
    drawings: Sequence[Drawn],
) -> list[Run]:
    runs: list[Run] = []
    queues = [queue.name for queue in chancy.queues]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fleet.harm(time.monotonic() + HARM_S))
        for one in drawings:
            reference = await chancy.push(described(one, str(book), queues))
            runs.append(Run(one, reference, random.Random(chance.random()), dsn))
            tasks.create_task(runs[-1].follow())
            await asyncio.sleep(chance.uniform(0, 2 * HARM_S / len(drawings)))
    await all_told(dsn, chancy)
    return runs


def expected(one: Drawn, steps: Mapping[str, StepRecord], place: int) -> int:
    """The result of a succeeded step."""
    before = [steps[one.name(other)] for other in one.before(place)]
    return place + 1 + sum(step.result or 0 for step in before)


def check_steps(one: Drawn, steps: Mapping[str, StepRecord]) -> int:
    """Each step returned its result, or failed as planned, or after three crashes; returns the
    number of the latter."""
    lost = 0
    for place, kind in enumerate(one.kinds):
        step = steps.get(one.name(place))
        if step is None:
            continue
        if step.error is not None and step.state.value != "cancelled":
            what, message = step.error["type"], step.error["message"]
            if what == "chancy.Lost":
                assert message.startswith("crash 3 of 3")
                lost += 1
            elif what == "builtins.ValueError":
                assert one.graph[place].fails
            else:
                assert (what, kind) == ("chancy.errors.PushError", Kind.ADDER)
        if step.state.value == "succeeded":
            match kind:
                case Kind.SIGNAL:
                    assert step.result == SIGNALLED
                case Kind.TIMED:
                    assert step.result in (SIGNALLED, DEFAULT)
                case Kind.JOB | Kind.ADDER | Kind.ADDED:
                    assert step.result == expected(one, steps, place)
    return lost


def check_model(run: Run, states: Mapping[str, str], graph: model.Graph, ran: list[str]) -> None:
    """The ended steps and their order match the model."""
    model.check_order(graph, [one for one in ran if not one.startswith("undo ")], states)
    if WorkflowState.COMPENSATED in run.was:
        assert model.end_of(graph, states) is WorkflowState.COMPENSATED
        model.check_undone(graph, ran, states)
    else:
        model.check_whole(graph, ran, states)


def check_book(lines: Sequence[list[str]], run: Run, steps: Mapping[str, StepRecord]) -> None:
    """In the records of the steps themselves, none began before the steps it waits for had ended,
    none more often than its job was claimed, and all succeeded steps ran."""
    over: set[str] = set()
    for what, _, _, name in lines:
        if what == "end":
            over.add(name)
        elif what == "begin":
            place = int(name.rpartition("n")[2])
            for other in run.drawn.before(place):
                step = steps[run.drawn.name(other)]
                lost = step.error is not None and step.error["type"] != "builtins.ValueError"
                assert step.func is None or lost or step.name in over, f"{name} before {step.name}"
    for name, step in steps.items():
        if step.state.value == "succeeded" and step.func is not None and step.undoes is None:
            assert ["end", str(run.reference.id), str(step.run), name] in lines
        elif step.state.value == "succeeded" and step.undoes is not None:
            given = str(steps[step.undoes].result)
            assert ["undo", str(run.reference.id), given, name] in lines
        if step.func is not None and step.job_id is not None and step.queue != "fast":
            ((claims,),) = ask(run.dsn, CLAIMS, [step.job_id])
            begun = ["begin", str(run.reference.id), str(step.run), name]
            assert lines.count(begun) <= claims, f"{name} began without a claim"


async def check(run: Run, dsn: str, lines: Sequence[list[str]]) -> int:
    """Raises AssertionError unless everything matches; returns the number of lost steps."""
    found = audit.entries(dsn, run.reference.id)
    steps = {step.name: step for step in await run.reference.steps()}
    try:
        check_run(run, steps, found)
        check_book(lines, run, steps)
        return check_steps(run.drawn, steps)
    except AssertionError as error:
        failures = ask(dsn, FAILURES, [[step.job_id for step in steps.values()]])
        error.add_note(f"{run.drawn}\n{found}\n{[*steps.values()]}\n{failures}")
        raise


def check_run(run: Run, steps: Mapping[str, StepRecord], found: Sequence[audit.Entry]) -> None:
    """Its events in the audit."""
    graph, called = there(run.drawn, steps)
    names = {number: name for name, number in called.items()}
    after = {
        names[model.name(at)]: [names[model.name(other)] for other in node.after]
        for at, node in enumerate(graph)
    }
    audit.check_once(found)
    audit.check_pushes(found, after)
    states = {called[name]: step.state.value for name, step in steps.items()}
    ran = [called[name] for name in audit.ended(found)]
    check_model(run, states, graph, ran)


def written_in(book: Path) -> list[list[str]]:
    return [line.split(" ", 3) for line in book.read_text().splitlines()]


async def examine(
    servers: Sequence[str],
    book: Path,
    fleet: Fleet,
    chance: random.Random,
    drawings: Sequence[Drawn],
) -> None:
    """Run workflows while workers are killed and frozen, and check their outcomes."""
    dsn = servers[0]
    async with run_worker.application(*servers) as chancy:
        runs = await play(dsn, chancy, book, fleet, chance, drawings)
        written = written_in(book)
        lines: dict[UUID, list[list[str]]] = {run.reference.id: [] for run in runs}
        for line in written:
            if (id := UUID(line[1])) in lines:
                lines[id].append(line)
        steps = 0
        lost = 0
        for run in runs:
            lost += await check(run, dsn, lines[run.reference.id])
            steps += len(run.drawn.graph)
    assert lost <= max(2, steps // 20)
    assert fleet.killed + fleet.frozen
    ended = Counter(state.label for run in runs for state in run.was)
    logger.info(
        "workflows=%d steps=%d lost=%d retried=%d killed=%d frozen=%d ended=%s",
        *(
            len(runs),
            steps,
            lost,
            sum(run.retried for run in runs),
            fleet.killed,
            fleet.frozen,
            dict(ended),
        ),
    )


@pytest.mark.chaos
@pytest.mark.timeout(240)
@seed(SEED)
@given(drawings=st.lists(drawn(), min_size=16, max_size=16))
@settings(DRAWING, max_examples=50)
async def test_random_workflows_match_the_model_despite_crashes(
    servers: Sequence[str],
    tmp_path: Path,
    fleet: Fleet,
    chance: random.Random,
    drawings: list[Drawn],
) -> None:
    if time.monotonic() > fleet.began + ALL_S:
        return
    # The first examples of a run are the simplest ones.
    assume(sum(node.fails for one in drawings for node in one.graph) >= 4)
    await examine(servers, tmp_path / "book", fleet, chance, drawings)
    if fleet.began + ALL_S < time.monotonic():
        assert fleet.killed
        assert fleet.frozen
