"""A list of plugins, checked and compiled."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.judge import judge
from chancy.attempt.outcome import Outcome, Raised, Returned
from chancy.attempt.settlement import Settlement
from chancy.broker.transaction import Transaction, TransactionHook
from chancy.broker.values import Capability
from chancy.context.context import JobContext
from chancy.errors import BrokerError, ConfigurationError
from chancy.job.definition import QueuedJob
from chancy.plugin.finding import Finding, Severity
from chancy.plugin.hooks import Hooks
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Application, Runtime
from chancy.queue.queue import Queue
from chancy.queue.rules import GlobalConcurrency
from chancy.states import State
from chancy.testing.memory import MemoryBroker
from tests.support.claims import claimed

OOPS = Raised(Failure.named("shop.Oops", "oops"))


class Idle(Plugin):
    """Overrides nothing."""


class Judge(Plugin):
    """Notes what it saw, and gives a result of its own."""

    def __init__(self, name: str, result: str) -> None:
        self.name = name
        self.result = result
        self.saw: list[Settlement] = []

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.name

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        self.saw.append(decision)
        return decision._replace(result=self.result)


class Server(Plugin):
    async def serve(self, runtime: Runtime) -> None: ...


class Needing(Plugin):
    def get_dependencies(self) -> Sequence[str]:
        return ("shop.Missing", "shop.Other")


def test_without_plugins_the_default_stands() -> None:
    claim = claimed()
    assert Hooks([]).judge(claim, OOPS) == judge(claim, OOPS)


def test_each_judges_what_the_one_before_it_said() -> None:
    first, second = Judge("first", "1"), Judge("second", "2")
    claim = claimed()
    decision = Hooks([first, second]).judge(claim, Returned("0"))
    assert [seen.result for seen in (*first.saw, *second.saw)] == ["0", "1"]
    assert decision == Settlement(claim.id, claim.lease, State.SUCCEEDED, result="2")


def test_only_what_is_overridden_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = Hooks([Idle()])

    def surprise(*args: object) -> Settlement:
        raise AssertionError("a hook that nobody overrides was called")

    monkeypatch.setattr(Plugin, "judging", surprise)
    hooks.judge(claimed(), OOPS)
    assert hooks.services == ()


class Around(Plugin):
    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        yield


def test_around_hooks_are_those_of_the_plugins_that_have_one() -> None:
    first, second = Around(), Around()
    second.get_identifier = lambda: "second"  # type: ignore[method-assign]
    assert Hooks([Idle()]).around == ()
    around = [hook.around for hook in Hooks([first, Idle(), second]).around]
    assert around == [first.around, second.around]


class Clerk(Plugin):
    settling_states = frozenset({State.FAILED})

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None: ...


class Broker(MemoryBroker):
    def __init__(self, *capabilities: Capability) -> None:
        super().__init__()
        self.offers = frozenset(capabilities)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.offers


def test_settling_hooks_are_for_brokers_that_settle_in_a_transaction() -> None:
    clerk = Clerk()
    hooks = Hooks([Idle(), clerk])
    assert hooks.inside(Broker()) == ()
    assert hooks.inside(Broker(Capability.SETTLING)) == (
        TransactionHook(
            "tests.unit.plugin.test_hooks.Clerk", frozenset({State.FAILED}), clerk.settling
        ),
    )
    assert Hooks([Idle()]).inside(Broker(Capability.SETTLING)) == ()


class Wanting(Plugin):
    def __init__(self, wanted: Capability) -> None:
        self.wanted = wanted

    def requires_for(self, queue: Queue) -> frozenset[Capability]:
        return frozenset({self.wanted})


@pytest.mark.parametrize("wanted", [Capability.SETTLING, Capability.SQL])
def test_only_the_control_broker_is_beside_the_tables_of_plugins(wanted: Capability) -> None:
    hooks, broker = Hooks([Wanting(wanted)]), Broker(*Capability)
    hooks.check_queue(Queue(name="near"), broker)
    with pytest.raises(ConfigurationError, match=f"requires a broker with {wanted}"):
        hooks.check_queue(Queue(name="far", broker="second"), broker)


class Choosy(Clerk):
    def settling_concerns(self, settlement: Settlement) -> bool:
        return settlement.result is not None


def test_a_plugin_names_which_settlements_concern_it() -> None:
    choosy = Choosy()
    (inside,) = Hooks([choosy]).inside(Broker(Capability.SETTLING))
    failed = Settlement(uuid.uuid4(), uuid.uuid4(), State.FAILED)
    given = failed._replace(result="1")
    assert inside.wanted([failed, given, given._replace(state=State.CANCELLED)]) == [given]


class Missing(Clerk):
    def __init__(self) -> None:
        self.missed: list[Settlement] = []

    def settling_failed(self, batch: Sequence[Settlement]) -> None:
        self.missed += batch
        if len(self.missed) > 1:
            raise ValueError("too many")


def test_a_plugin_learns_what_is_settled_without_its_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If it raises, the jobs are settled nevertheless."""
    missing = Missing()
    (inside,) = Hooks([missing]).inside(Broker(Capability.SETTLING))
    failed = Settlement(uuid.uuid4(), uuid.uuid4(), State.FAILED)
    assert inside.on_failed is not None
    for _ in range(2):
        inside.on_failed([failed])
    assert missing.missed == [failed, failed]
    hook = "plugin=tests.unit.plugin.test_hooks.Missing hook=settling_failed"
    assert f"hook_failed {hook} failures=1 settlements=1" in caplog.text


class Hearing(Plugin):
    def __init__(self) -> None:
        self.heard: list[Settlement] = []

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        self.heard += [*batch, *stale]


class HardOfHearing(Plugin):
    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        raise ValueError("what?")


def test_plugins_get_stored_and_stale_settlements_with_their_claims(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hearing = Hearing()
    hooks = Hooks([HardOfHearing(), hearing])
    assert Hooks([Idle()]).after is None
    assert hooks.after is not None
    outcome = Raised(Failure.named("oops", ""), error=ValueError())
    small, large = claimed(), claimed()._replace(arguments="1" * 10_001)
    batch = [hooks.judge(one, outcome) for one in (small, large)]
    hooks.after(batch[:1], batch[1:])
    assert hearing.heard == batch
    assert batch[0].claim is small
    assert batch[1].claim == large._replace(arguments=None, meta=None)
    assert [item.outcome for item in batch] == [replace(outcome, error=None)] * 2
    assert Hooks([Idle()]).judge(small, outcome).claim is None
    assert "hook_failed plugin=tests.unit.plugin.test_hooks.HardOfHearing" in caplog.text


class Emptying(Plugin):
    def settled(self, batch: Any, stale: Any) -> None:
        while batch:
            batch.pop()


def test_a_plugin_cannot_change_the_batch_of_the_settler_and_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hearing = Hearing()
    hooks = Hooks([Emptying(), hearing])
    assert hooks.after is not None
    settlement = hooks.judge(claimed(), Returned())
    batch = [settlement]
    hooks.after(batch, ())
    assert batch == hearing.heard == [settlement]
    assert "plugin=tests.unit.plugin.test_hooks.Emptying hook=settled" in caplog.text


class Writing(Plugin):
    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None: ...


def test_settlements_carry_their_claims_for_a_plugin_that_writes() -> None:
    claim = claimed()
    settlement = Hooks([Writing()]).judge(claim, OOPS)
    assert (settlement.claim, settlement.outcome) == (claim, OOPS)
    modest = Writing()
    modest.settling_claims = False
    assert Hooks([modest]).judge(claim, OOPS).claim is None
    assert Hooks([modest, Clerk()]).judge(claim, OOPS).claim == claim


def test_the_outcome_of_a_settlement_is_that_of_the_attempt_whatever_plugins_decide() -> None:
    claim, outcome = claimed(), Returned('"mine"', 0.5)
    for plugins, result in (([], '"mine"'), ([Judge("judge", "2")], "2")):
        settlement = Hooks([*plugins, Hearing()]).judge(claim, outcome)
        assert (settlement.result, settlement.elapsed_s) == (result, 0.5)
        assert (settlement.outcome, settlement.claim) == (outcome, claim)
        assert Hooks(plugins).judge(claim, outcome).outcome is None


class Unclaiming(Plugin):
    def claiming(self, queue: Queue, broker: Any, wake: Callable[[], None]) -> None:
        return None


def test_a_queue_with_rules_is_refused_if_no_plugin_claims_its_jobs() -> None:
    hooks, queue = Hooks([Unclaiming()]), Queue("q", executor="async")
    assert hooks.claiming(queue, MemoryBroker(), lambda: None) is None
    ruled = replace(queue, rules=(GlobalConcurrency(1),))
    with pytest.raises(ConfigurationError, match=r"'q' has rules, and no plugin .* enforces them"):
        hooks.claiming(ruled, MemoryBroker(), lambda: None)


class Forgetful(Unclaiming):
    def claiming(self, queue: Queue, broker: Any, wake: Callable[[], None]) -> Any:
        return broker  # which claims, but has no `waits`


def test_claims_without_a_word_on_whether_jobs_wait_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not None or an object with claim, waits"):
        Hooks([Forgetful()]).claiming(Queue("q"), MemoryBroker(), lambda: None)


class Failing(Unclaiming):
    waits = False

    def claiming(self, queue: Queue, broker: Any, wake: Callable[[], None]) -> Any:
        return self

    async def claim(self, queue: str, **given: Any) -> Any:
        raise SystemExit(3)


async def test_claims_that_fail_are_contained() -> None:
    claims = Hooks([Failing()]).claiming(Queue("q"), MemoryBroker(), lambda: None)
    assert claims is not None
    with pytest.raises(BrokerError, match="Failing' did not claim: SystemExit"):
        await claims.claim("q", worker_id=uuid.uuid4(), limit=1)


def test_services_are_the_plugins_that_serve() -> None:
    server = Server()
    [service] = Hooks([Idle(), server, Judge("judge", "1")]).services
    assert service.plugin is server


def test_two_plugins_of_one_name_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"two plugins have the identifier 'a': .* and .*; pass one"
    ):
        Hooks([Judge("a", "1"), Judge("a", "2")])


@pytest.mark.parametrize("identifier", ["", "a b", "a\nb", "a\0b"])
def test_an_identifier_with_blanks_is_refused(identifier: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'Judge' has the identifier .* without blanks"):
        Hooks([Judge(identifier, "1")])


def test_a_missing_dependency_is_refused_with_what_is_there() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Hooks([Needing(), Judge("shop.Other", "1")])
    assert str(caught.value) == (
        "the plugin 'tests.unit.plugin.test_hooks.Needing' needs 'shop.Missing', which is not "
        "among the plugins: shop.Other, tests.unit.plugin.test_hooks.Needing"
    )


def test_dependencies_may_stand_in_any_order() -> None:
    for names in (["shop.Other", "shop.Missing"], ["shop.Missing", "shop.Other"]):
        plugins = [Judge(name, "1") for name in names]
        assert len(Hooks([plugins[0], Needing(), plugins[1]]).plugins) == 3


class Dependent(Judge):
    """Judges after the plugins that it names."""

    def __init__(self, name: str, *needed: str) -> None:
        super().__init__(name, f'"{name}"')
        self.needed = needed

    def get_dependencies(self) -> Sequence[str]:
        return self.needed

    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        yield

    async def serve(self, runtime: Runtime) -> None: ...


@pytest.mark.parametrize(
    ("given", "called"),
    [
        (["a", "b", "c"], "abc"),
        (["b", "a", "c"], "bac"),
        (["a:b", "b", "c"], "bac"),
        (["a:b", "b:c", "c"], "cba"),
        (["c", "a:d", "b", "d"], "cbda"),
        (["d", "a:bc", "c", "b"], "dcba"),
    ],
)
def test_hooks_of_a_plugin_are_called_after_those_of_its_dependencies(
    given: list[str], called: str
) -> None:
    plugins = {}
    for one in given:
        name, _, needed = one.partition(":")
        plugins[name] = Dependent(name, *needed)
    hooks = Hooks(plugins.values())
    in_order = [plugins[name] for name in called]
    assert list(hooks.plugins) == in_order
    assert [service.plugin for service in hooks.services] == in_order
    assert [hook.around for hook in hooks.around] == [plugin.around for plugin in in_order]
    hooks.judge(claimed(), Returned("0"))
    saw = [plugin.saw[0].result for plugin in in_order]
    assert saw == ["0", *(f'"{name}"' for name in called[:-1])]


@pytest.mark.parametrize(
    ("given", "circle"),
    [
        (["a:a"], "'a' -> 'a'"),
        (["a:b", "b:a"], "'a' -> 'b' -> 'a'"),
        (["x", "a:b", "b:cx", "c:b"], "'b' -> 'c' -> 'b'"),
    ],
)
def test_plugins_that_depend_on_each_other_are_refused(given: list[str], circle: str) -> None:
    plugins = [Dependent(one[0], *one[2:]) for one in given]
    with pytest.raises(ConfigurationError, match=f"in a circle: {circle}; remove"):
        Hooks(plugins)


@pytest.mark.parametrize("thing", [Idle, "chancy.retry", None])
def test_a_value_that_is_no_plugin_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a Plugin: pass instances, not classes"):
        Hooks([thing])


def test_an_identifier_is_the_path_of_the_class() -> None:
    assert Idle.get_identifier() == "tests.unit.plugin.test_hooks.Idle"


class Holder(Plugin):
    """Says of a held job what it was told to, or raises it."""

    def __init__(self, name: str, answer: str | Exception | None) -> None:
        self.name = name
        self.answer = answer

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.name

    async def why_held(self, app: Application, job: QueuedJob) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_plugins_say_why_they_hold_a_job(caplog: pytest.LogCaptureFixture) -> None:
    app: Any = None
    job: Any = claimed(attempt=1)
    hooks = Hooks(
        [
            Idle(),
            Holder("shop.first", "two of user 7 run\x1b[31m"),
            Holder("shop.second", None),
            Holder("shop.third", OSError("away")),
            Holder("shop.long", "x" * 2_000),
        ]
    )
    first, third, long = await hooks.why_held(app, job)
    assert first == "two of user 7 run\\x1b[31m"
    assert third == "shop.third failed to report whether it holds the job: OSError: away"
    assert len(long) <= 500
    assert f"hook_failed plugin=shop.third hook=why_held failures=1 job={job.id}" in caplog.text
    assert await Hooks([Idle()]).why_held(app, job) == []


class Examining(Plugin):
    """Returns these findings, or raises this."""

    def __init__(self, name: str, answer: Any) -> None:
        self.name = name
        self.answer = answer

    def get_identifier(self) -> str:  # type: ignore[override]
        return self.name

    async def examine(self, app: Application) -> Sequence[Finding]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


async def test_plugins_examine_what_they_need(caplog: pytest.LogCaptureFixture) -> None:
    app: Any = None
    hooks = Hooks(
        [
            Idle(),
            Examining("shop.first", [Finding("rates", "old\x1b[31m", "x" * 2_000)] * 30),
            Examining("shop.second", OSError("away")),
            Examining("shop.third", ["text"]),
            Examining("shop.last", [Finding("stock", "fine")]),
        ]
    )
    *first, second, third, last = await hooks.examine(app)
    assert {one.found for one in first} == {"old\\x1b[31m"}
    assert (len(first), len(first[0].todo) <= 1_000) == (20, True)
    assert (second.severity, third.severity) == (Severity.UNKNOWN, Severity.UNKNOWN)
    assert (second.about, second.found) == ("shop.second", "its check failed: OSError: away")
    assert "examine() returned ['text']" in third.found
    assert last.ok
    assert "hook_failed plugin=shop.second hook=examine failures=1" in caplog.text
