"""The failure rule: a hook that fails, in whatever way, fails alone."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from chancy import Chancy, Claim, Outcome, Plugin, Queue, Runtime, Settlement, State, Worker
from chancy import containment as rule
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Returned
from chancy.broker.contract import Broker
from chancy.broker.notices import NoticeKind
from chancy.broker.transaction import Transaction
from chancy.broker.values import Capability
from chancy.containment import Containment
from chancy.context.context import JobContext
from chancy.errors import BrokerUnavailable, ConfigurationError, PushError
from chancy.job.definition import QueuedJob
from chancy.plugin import hooks as hooks_module
from chancy.plugin.hooks import Hooks
from chancy.plugin.leader import LeaderGate, Unelected
from chancy.plugin.runtime import Application, BrokerContext
from chancy.postgres.broker import PostgresBroker
from chancy.testing.clock import RealTime
from chancy.testing.conformance.bench import Bench, settlement
from chancy.testing.memory import MemoryBroker
from chancy.testing.store import MemoryStore
from chancy.worker import middleware
from chancy.worker import worker as worker_module
from tests.support import jobs
from tests.support.claims import claimed
from tests.support.waiting import eventually

#: One queue in Postgres, one in memory, a broker that has no transaction for `settling`.
QUEUES = [
    Queue(name="near", executor="async"),
    Queue(name="far", executor="async", broker="memory"),
]
FAULTY = "shop.faulty"


@pytest.fixture(autouse=True)
def logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes."""
    monkeypatch.setattr(rule, "LOG_EVERY_S", 3_600.0)


class Exit(BaseException):
    """What a plugin raises past `except Exception`."""


class Silent(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


Fault = Callable[[], BaseException] | int | str

FAULTS: Mapping[str, Fault] = {
    "exception": lambda: ValueError("oops"),
    "base-exception": lambda: Exit("oops"),
    "cancelled": asyncio.CancelledError,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "timeout": TimeoutError,
    "unavailable": lambda: BrokerUnavailable("away"),
    "unprintable": Silent,
    "wrong-type": 7,
    "coroutine": "coroutine",
}


async def _endless() -> None:
    await asyncio.Event().wait()


class Named(Plugin):
    def __init__(self, name: str) -> None:
        self.name = name

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.name


class Memory(Named):
    """Supplies the broker of the queue ``far``."""

    def __init__(self) -> None:
        super().__init__("shop.memory")
        self.store = MemoryStore(RealTime())

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        return {"memory": lambda: MemoryBroker(store=self.store)}


class Sound(Named):
    """Records each call of a hook."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.judged: set[UUID] = set()
        self.around_jobs: set[UUID] = set()
        self.written: set[UUID] = set()
        self.after: set[UUID] = set()
        self.serving = 0

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        self.judged.add(claim.id)
        return decision

    @asynccontextmanager
    async def around(self, context: JobContext) -> AsyncGenerator[None]:
        self.around_jobs.add(context.id)
        yield

    def settling_concerns(self, settlement: Settlement) -> bool:
        return True

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await tx.fetch("select 1")
        self.written |= {settlement.id for settlement in batch}

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        self.after |= {settlement.id for settlement in batch}

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        return f"{self.name} holds it"

    async def serve(self, runtime: Runtime) -> None:
        self.serving += 1
        await asyncio.Event().wait()


class Faulty(Sound):
    """Fails in one hook, for the jobs that are marked, with one fault after the other."""

    def __init__(self, hook: str, *faults: Fault) -> None:
        super().__init__(FAULTY)
        self.hook = hook
        self.faults = faults
        self.marked: set[UUID] = set()
        self.failed = 0

    def act(self, hook: str, usual: Any, job: UUID | None = None) -> Any:
        if hook != self.hook or (job is not None and job not in self.marked):
            return usual
        fault = self.faults[self.failed % len(self.faults)]
        self.failed += 1
        if callable(fault):
            raise fault()
        return _endless() if fault == "coroutine" else fault

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        judged: Settlement = self.act("judging", decision, claim.id)
        return judged

    def around(self, context: JobContext) -> Any:
        @asynccontextmanager
        async def hooked() -> AsyncGenerator[None]:
            self.act("entering", None, context.id)
            yield
            self.act("leaving", None, context.id)

        return self.act("around", hooked(), context.id)

    def settling_concerns(self, settlement: Settlement) -> bool:
        concerned: bool = self.act("settling_concerns", True, settlement.id)
        return concerned

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        self.act("settling", None)

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        returned: None = self.act("settled", None)
        return returned

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        reason: str | None = self.act("why_held", None)
        return reason

    async def serve(self, runtime: Runtime) -> None:
        await super().serve(runtime) if self.hook != "serve" else self.act("serve", None)

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        return Gate(self)

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        found: frozenset[Capability] = frozenset()
        return self.act("requires_for", found) if queue.name == "bad" else found


class Gate(Unelected):
    def __init__(self, plugin: Faulty) -> None:
        self.plugin = plugin

    def vacant(self) -> None:
        self.plugin.act("gate", None)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    assert not [one for one in messages if one.startswith(("worker_loop_failed", "executor_"))]
    return [message for message in messages if message.startswith("hook_failed")]


#: The hooks whose failure fails the attempt, and those that may return anything.
AROUND = {"around", "entering", "leaving"}
IGNORED = {"entering", "leaving", "settling", "serve", "gate"}


@pytest.mark.parametrize(
    "hook",
    ["judging", "settling_concerns", "settling", "settled", "serve", "gate", *sorted(AROUND)],
)
async def test_jobs_plugins_and_loops_continue(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr("chancy.worker.services._LONGEST_S", 0.01)
    returned = ("wrong-type", "coroutine")
    faults = [fault for name, fault in FAULTS.items() if not (hook in IGNORED and name in returned)]
    memory, faulty = Memory(), Faulty(hook, *faults)
    before, after = Sound("shop.before"), Sound("shop.after")
    plugins = [memory, before, faulty, after]
    async with Chancy(dsn, queues=QUEUES, plugins=plugins, no_default_plugins=True) as chancy:
        good = {
            queue.name: [
                *await chancy.push_many(
                    jobs.note.job(value=n).with_queue(queue.name) for n in range(2 * len(faults))
                )
            ]
            for queue in QUEUES
        }
        bad = [await chancy.push(jobs.fail.job().with_queue(queue.name)) for queue in QUEUES]
        faulty.marked = {one.id for references in good.values() for one in references[::2]}
        async with Worker(chancy):
            pushed = [*good["near"], *good["far"], *bad]
            done = {one.id: await one.wait(60) for one in pushed}
            # Every loop works, also after each of the faults.
            while faulty.failed < len(faults) or len(done) == len(pushed):
                memory.store.notify(NoticeKind.LEADER)
                for queue in QUEUES:
                    more = await chancy.push(jobs.note.job(value=1).with_queue(queue.name))
                    good[queue.name].append(more)
                    done[more.id] = await more.wait(60)
            assert (before.serving, after.serving) == (1, 1)
    failing = faulty.marked if hook in AROUND else set[UUID]()
    for references in good.values():
        results = [(done[one.id].state, done[one.id].result) for one in references]
        assert results == [
            (State.FAILED, None)
            if one.id in failing
            else (State.SUCCEEDED, n if n < 2 * len(faults) else 1)
            for n, one in enumerate(references)
        ]
    assert {done[one.id].state for one in bad} == {State.FAILED}
    near = {one.id for one in (*good["near"], bad[0])}
    for sound in (before, after):
        assert sound.judged == set(done)
        assert sound.written == near
        assert sound.after == set(done)
    assert before.around_jobs == set(done)
    assert after.around_jobs == (set(done) if hook == "leaving" else set(done) - failing)
    [entry] = logged(caplog)
    name = "around" if hook in AROUND else hook
    assert entry.startswith(f"hook_failed plugin={FAULTY} hook={name} failures=1")


async def test_a_queue_whose_plugin_fails_is_left_out(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = Faulty("none", *FAULTS.values())
    bad = Queue(name="bad", executor="async", broker="memory")
    plugins: list[Plugin] = [Memory(), faulty]
    async with Chancy(dsn, queues=QUEUES, plugins=plugins, no_default_plugins=True) as chancy:
        await chancy.declare(bad)
        faulty.hook = "requires_for"
        for fault in FAULTS.values():
            faulty.faults = (fault,)
            with pytest.raises(ConfigurationError, match=f"'{FAULTY}'.*requires_for"):
                await chancy.declare(bad, upsert=True)
        faulty.faults = (lambda: SystemExit(3),)
        async with Worker(chancy) as worker:
            assert worker.queues == ("default", "far", "near")
            assert await (await chancy.push(jobs.note.job(1).with_queue("far"))).result(60) == 1
    [entry] = [one for one in caplog.messages if one.startswith("queue_failed")]
    assert "queue=bad" in entry
    assert FAULTY in entry


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_the_other_plugins_explain_a_held_job(
    caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    plugins = [Sound("shop.before"), Faulty("why_held", fault), Sound("shop.after")]
    chancy = Chancy("postgresql://nowhere.invalid/x", plugins=plugins, no_default_plugins=True)
    job: Any = Settlement(uuid.uuid4(), uuid.uuid4(), State.HELD)
    first, failed, last = await chancy.hooks.why_held(chancy, job)
    assert (first, last) == ("shop.before holds it", "shop.after holds it")
    assert failed.startswith(f"{FAULTY} failed to report whether it holds the job: ")
    assert len(logged(caplog)) == 1


# What takes too long


class Hanging(Sound):
    """Does not return from one hook until it is let go."""

    def __init__(self, hook: str, *, swallowing: bool) -> None:
        super().__init__(FAULTY)
        self.hook = hook
        self.swallowing = swallowing
        self.let_go = asyncio.Event()
        self.waits = self.cancelled = 0
        self.left = 0

    async def act(self, hook: str) -> None:
        while hook == self.hook and not self.let_go.is_set():
            self.waits += 1
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.swallowing:
                    raise
        self.left += hook == self.hook

    @asynccontextmanager
    async def around(self, context: JobContext) -> AsyncGenerator[None]:
        await self.act("entering")
        yield
        await self.act("leaving")

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await self.act("settling")
        if self.hook == "settling":
            # Late, this must not get into the transaction of another batch.
            await tx.fetch("delete from chancy.finished_jobs")

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        await self.act("why_held")
        return None

    async def serve(self, runtime: Runtime) -> None:
        self.serving += 1
        await self.act("serve")
        await asyncio.Event().wait()


#: Seconds that a hook may take: enough for the others on a busy machine.
BRIEF_S = 0.4


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the limits."""
    run: Any = Containment.run

    async def bounded(contained: Containment, *given: Any, **limits: Any) -> Any:
        """The other hooks of a settlement have as long as a busy machine takes."""
        if (contained.plugin, contained.hook) == (FAULTY, "settling"):
            limits["limit_s"] = BRIEF_S
        return await run(contained, *given, **limits)

    monkeypatch.setattr(Containment, "run", bounded)
    monkeypatch.setattr(middleware, "LEAVE_S", BRIEF_S)
    monkeypatch.setattr(middleware, "_SWALLOWED_S", BRIEF_S)
    monkeypatch.setattr(worker_module, "_LEAVE_S", BRIEF_S)
    monkeypatch.setattr(hooks_module, "_EXPLAIN_S", BRIEF_S)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("swallowing", [False, True], ids=["plain", "swallowing"])
@pytest.mark.parametrize("hook", ["entering", "leaving", "settling"])
async def test_a_hook_that_hangs_is_given_up(
    dsn: str, caplog: pytest.LogCaptureFixture, hook: str, swallowing: bool
) -> None:
    before, after = Sound("shop.before"), Sound("shop.after")
    hanging = Hanging(hook, swallowing=swallowing)
    plugins = [before, hanging, after]
    async with Chancy(dsn, queues=QUEUES[:1], plugins=plugins, no_default_plugins=True) as chancy:
        worker = Worker(chancy, shutdown_timeout_s=0.1)
        await worker.start()
        references = [
            await chancy.push(jobs.note.job(value=n).with_queue("near")) for n in range(2)
        ]
        done = [await one.wait(60) for one in references]
        await worker.stop()
        hanging.let_go.set()
        if swallowing:
            await eventually(lambda: hanging.left)
        assert hanging.cancelled
        kept = [await one.get() for one in references]
    around = hook in ("entering", "leaving")
    state = State.FAILED if around else State.SUCCEEDED
    assert [one.state for one in done] == [one.state for one in kept if one] == [state] * 2
    ids = {one.id for one in references}
    for sound in (before, after):
        assert sound.judged == sound.written == ids
    [entry] = logged(caplog)
    name = "around" if around else hook
    assert entry.startswith(f"hook_failed plugin={FAULTY} hook={name} failures=1")


@pytest.mark.usefixtures("brief")
async def test_a_service_that_does_not_stop_delays_no_others(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what other tests have left may be logged, too
    caplog.clear()
    given_up: list[bool] = []

    class Noting(Sound):
        async def serve(self, runtime: Runtime) -> None:
            try:
                await super().serve(runtime)
            finally:
                given_up.append("ignored its cancellation" in caplog.text)

    hanging = Hanging("serve", swallowing=True)
    plugins = [Noting("shop.before"), hanging, Noting("shop.after")]
    async with Chancy(dsn, queues=QUEUES[:1], plugins=plugins, no_default_plugins=True) as chancy:
        async with Worker(chancy, shutdown_timeout_s=0.1):
            await eventually(lambda: hanging.waits)
        hanging.let_go.set()
        await eventually(lambda: hanging.left)
    assert given_up == [False, False]
    [entry] = logged(caplog)
    assert entry.startswith(f"hook_failed plugin={FAULTY} hook=serve failures=1")
    assert "ignored its cancellation" in entry
    # It was reported; asyncio does not report it once more, when its task is collected.
    gc.collect()
    assert "destroyed" not in caplog.text


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("swallowing", [False, True], ids=["plain", "swallowing"])
async def test_an_explanation_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, swallowing: bool
) -> None:
    hanging = Hanging("why_held", swallowing=swallowing)
    plugins = [hanging, Sound("shop.after")]
    chancy = Chancy("postgresql://nowhere.invalid/x", plugins=plugins, no_default_plugins=True)
    job: Any = Settlement(uuid.uuid4(), uuid.uuid4(), State.HELD)
    failed, last = await chancy.hooks.why_held(chancy, job)
    assert last == "shop.after holds it"
    assert f"TimeoutError: it did not return within {BRIEF_S} s" in failed
    assert ("ignored its cancellation" in failed) is swallowing
    hanging.let_go.set()


async def test_a_cancellation_of_the_caller_passes_through_a_hook(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = Hanging("why_held", swallowing=False)
    chancy = Chancy("postgresql://nowhere.invalid/x", plugins=[hanging], no_default_plugins=True)
    job: Any = Settlement(uuid.uuid4(), uuid.uuid4(), State.HELD)
    calling = asyncio.create_task(chancy.hooks.why_held(chancy, job))
    for _ in range(5):
        await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert calling.cancelled()
    assert hanging.cancelled == 1
    assert logged(caplog) == []


async def test_a_cancelled_settlement_cancels_its_hook_and_can_be_repeated(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = Hanging("settling", swallowing=False)
    bench = Bench(PostgresBroker(dsn))
    await bench.broker.open()
    try:
        await bench.prepare()
        [claim] = await bench.running()
        [inside] = Hooks([hanging]).inside(bench.broker)
        done = settlement(claim, State.SUCCEEDED)
        settling = asyncio.create_task(bench.broker.settle([done], inside=[inside]))
        await eventually(lambda: hanging.waits)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        assert hanging.cancelled == 1
        assert await bench.state(claim.id) is State.RUNNING
        assert await bench.broker.settle([done]) == frozenset()
        assert await bench.state(claim.id) is State.SUCCEEDED
    finally:
        await bench.broker.close()
    assert logged(caplog) == []


def test_a_hook_that_keeps_failing_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    contained = Containment(FAULTY, "judging")

    def fail() -> int:
        raise ValueError("oops")

    for _ in range(5):
        assert [contained.call(n, None, fail) for n in range(1_000)] == list(range(1_000))
        now += rule.LOG_EVERY_S
    # asyncio may log a task that another test has left, as it is collected.
    records = [record for record in caplog.records if record.name == "chancy.hooks"]
    counts = [record.getMessage().partition("failures=")[2] for record in records]
    assert counts == [f"{n} error=ValueError: oops" for n in (1, 1_001, 2_001, 3_001, 4_001)]
    assert {record.levelno for record in records} == {logging.ERROR}


BAD_FIELDS: Mapping[str, Sequence[object]] = {
    "state": [1, State.RUNNING, "failed", None],
    "delay_s": [float("nan"), float("inf"), 1e300, "1", True],
    "run_at": [datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None), 5],
    "failure": [ValueError("oops"), "oops", Failure(types=("a.B",), message="\x00")],
    "result": [42, "not json", "NaN", '"\\u0000"', '"\ud800"', "[" * 100_000],
    "refund": [1, None],
    "crashed": [1, None],
    "resets_crashes": [1, None],
    "meta": [{}, "7", "not json", '{"a": NaN}'],
    "id": [uuid.uuid4(), None],
    "lease": [uuid.uuid4(), None],
}


def test_every_field_of_a_decision_is_checked() -> None:
    assert BAD_FIELDS.keys() == set(Settlement._fields) - {"claim", "elapsed_s", "unusual"}


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(f, v, id=f"{f}-{n}") for f, bad in BAD_FIELDS.items() for n, v in enumerate(bad)],
)
def test_a_decision_that_cannot_be_stored_is_refused(
    caplog: pytest.LogCaptureFixture, field: str, value: Any
) -> None:
    class Wrong(Plugin):
        def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
            return decision._replace(**{field: value})

    claim = claimed()
    settlement = Hooks([Wrong()]).judge(claim, Returned("42"))
    assert settlement == Settlement(claim.id, claim.lease, State.SUCCEEDED, result="42")
    [entry] = logged(caplog)
    assert str(claim.id) in entry


def test_a_decision_that_can_be_stored_stands(caplog: pytest.LogCaptureFixture) -> None:
    changes: dict[str, Any] = {
        "state": State.SCHEDULED,
        "delay_s": -0.5,
        "run_at": datetime(2030, 1, 1, tzinfo=UTC),
        "failure": Failure.of(ValueError("oops")),
        "result": '{"a": [1, null]}',
        "refund": True,
        "crashed": True,
        "resets_crashes": True,
        "meta": '{"retry": 1}',
    }

    class Right(Plugin):
        def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
            return decision._replace(**changes)

    claim = claimed()
    decision = Hooks([Right()]).judge(claim, Returned("42"))
    assert decision == Settlement(claim.id, claim.lease, **changes)
    assert logged(caplog) == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(
    "hook",
    [
        "get_dependencies",
        "requires",
        "migrations",
        "panels",
        "payload_tables",
        "codec",
        "brokers",
        "gate",
        "claiming",
        "settling_states",
    ],
)
def test_the_start_fails_with_the_name_of_the_plugin(hook: str, fault: Fault) -> None:
    def act(self: Plugin, *given: Any) -> Any:
        if callable(fault):
            raise fault()
        return _endless() if fault == "coroutine" else fault

    made = type("Made", (Sound,), {hook: property(act) if "states" in hook else act})
    anything: Any = None

    def start() -> None:
        hooks, broker = Hooks([made(FAULTY)]), MemoryBroker()
        hooks.check_broker(broker)
        hooks.brokers(anything)
        hooks.claiming(Queue("near"), broker, lambda: None)
        hooks.gate(anything)

    with pytest.raises(ConfigurationError, match=FAULTY):
        start()


@pytest.mark.parametrize("hook", ["get_dependencies", "requires", "panels", "payload_tables"])
def test_a_list_of_other_things_fails_the_start(hook: str) -> None:
    made = type("Made", (Sound,), {hook: lambda self: [7]})
    with pytest.raises(
        ConfigurationError, match=rf"'{FAULTY}' failed in {hook}: .* returned \[7\]"
    ):
        Hooks([made(FAULTY)]).check_broker(MemoryBroker())


def test_an_identifier_that_is_no_string_fails_the_start() -> None:
    name: Any = 7
    with pytest.raises(ConfigurationError, match="'Sound' failed in get_identifier"):
        Hooks([Sound(name)])


@pytest.mark.parametrize("value", [7, "text"])
def test_a_push_that_a_plugin_prepares_wrongly_fails(value: object) -> None:
    made = type("Made", (Sound,), {"prepare_push": lambda self, app, pushed, **more: value})
    hooks, anything = Hooks([made(FAULTY)]), dict[str, Any](app=None, value=None)
    with pytest.raises(PushError, match=rf"'{FAULTY}': prepare_push\(\) returned"):
        hooks.prepare_push(**anything, within=False, validate=True)
