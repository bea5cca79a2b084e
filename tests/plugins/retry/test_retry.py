"""Which failed jobs are run again, and when."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chancy import Chancy, Queue, State, Worker, job
from chancy.app.default_plugins import make
from chancy.attempt import control
from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.judge import judge
from chancy.attempt.outcome import (
    Cancelled,
    Lost,
    MemoryExceeded,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    TimedOut,
)
from chancy.attempt.settlement import Settlement
from chancy.errors import ConfigurationError, InvalidCheckpoint
from chancy.plugins.retry import Custom, Retries, Rule
from chancy.retry import (
    MAX_DELAY_S,
    Constant,
    Exponential,
    Fennel,
    Jitter,
    Linear,
    Policy,
    PolicyOrFalse,
)
from tests.support.waiting import eventually


class Busy(Exception):
    """Somebody else is at it."""


class VeryBusy(Busy): ...


class Refused(Exception):
    """It will not get better."""


#: The errors that the attempts of a job raise, one after the other.
ahead: dict[str, list[Exception]] = {}


@job(queue="async", max_attempts=10)
async def attempt(name: str) -> str:
    if ahead[name]:
        raise ahead[name].pop(0)
    return name


def claim(attempt: int = 1, most: int = 3, meta: str | None = None) -> Claim:
    ids = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    return Claim(*ids, "q", "a.b", "{}", attempt, most, 0, 0, 1, meta)


def decision(retry: Retries, outcome: Outcome, one: Claim | None = None) -> Settlement:
    return Chancy("postgresql://nowhere/nothing", plugins=[retry]).hooks.judge(
        one or claim(), outcome
    )


def raised(error: BaseException) -> Raised:
    return Raised(Failure.of(error))


@pytest.mark.parametrize(
    ("outcome", "one", "state"),
    [
        (raised(ValueError()), claim(1), State.SCHEDULED),
        (raised(ValueError()), claim(2), State.SCHEDULED),
        (raised(ValueError()), claim(3), State.FAILED),
        (raised(ValueError()), claim(4), State.FAILED),
        (raised(ValueError()), claim(1, most=1), State.FAILED),
        (Raised(Failure.named("chancy.errors.InvalidArguments", "no")), claim(), State.FAILED),
        (Raised(Failure.named("chancy.errors.UnsupportedLimit", "no")), claim(), State.FAILED),
        (TimedOut(1.0), claim(), State.SCHEDULED),
        (MemoryExceeded(1), claim(), State.SCHEDULED),
        (Returned(), claim(), State.SUCCEEDED),
        (Cancelled("asked"), claim(), State.CANCELLED),
        (Lost("gone"), claim(), State.PENDING),
        (Lost("gone"), claim()._replace(crashes=2), State.FAILED),
    ],
)
def test_retried_errors(outcome: Outcome, one: Claim, state: State) -> None:
    assert decision(Retries(Constant(7)), outcome, one).state is state


def test_a_snooze_is_not_changed_by_the_retry_policy() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    found = decision(Retries(Constant(7)), Snoozed(until))
    assert (found.state, found.run_at, found.delay_s, found.refund) == (
        State.SCHEDULED,
        until,
        None,
        True,
    )


RULES = Retries(
    Constant(1),
    rules=[
        Rule("builtins.Exception", Constant(2)),
        Rule(Busy, Constant(3)),
        Rule("builtins.LookupError", False),
        Rule("chancy.TimedOut", Constant(4)),
    ],
)


@pytest.mark.parametrize(
    ("outcome", "delay_s"),
    [
        (raised(ValueError()), 2),
        (raised(Busy()), 3),
        (raised(VeryBusy()), 3),
        (raised(KeyError()), None),
        (raised(KeyboardInterrupt()), 1),  # no rule: the default
        (TimedOut(1.0), 4),
        (MemoryExceeded(1), 2),  # a limit counts as an exception
    ],
)
def test_the_rule_nearest_to_the_error_comes_first(outcome: Outcome, delay_s: float | None) -> None:
    found = decision(RULES, outcome)
    assert found.delay_s == delay_s
    assert found.state is (State.FAILED if delay_s is None else State.SCHEDULED)
    assert found.failure is not None


@pytest.mark.parametrize(
    "outcome",
    [raised(ValueError()), raised(Busy()), raised(KeyError()), TimedOut(1.0), MemoryExceeded(1)],
)
def test_the_policy_of_a_job_comes_before_the_rules_of_the_application(outcome: Outcome) -> None:
    own, never = (json.dumps({"retry": stored}) for stored in (Constant(5).as_json(), False))
    assert decision(RULES, outcome, claim(meta=own)).delay_s == 5
    assert decision(RULES, outcome, claim(meta=never)).state is State.FAILED


@pytest.mark.parametrize(
    ("outcome", "delay_s"),
    [
        (raised(VeryBusy()), 5),
        (raised(KeyError()), 6),
        (raised(ValueError()), 2),  # none of the job's: the rule of the application
        (raised(OSError()), None),  # attempt 1 of the 1 that its policy allows
        (Raised(Failure.named("chancy.errors.InvalidResult", "no")), None),
        (raised(InvalidCheckpoint("no")), None),
        (Raised(Failure.named("chancy.errors.PayloadTooLarge", "no")), None),
        (Raised(Failure.named("chancy.errors.InvalidArguments", "no")), 7),
    ],
)
def test_a_job_has_policies_by_the_type_of_the_error(
    outcome: Outcome, delay_s: float | None
) -> None:
    choice: dict[type[BaseException] | str, Policy] = {
        Busy: Constant(5),
        "builtins.LookupError": Constant(6),
        OSError: Constant(8, max_attempts=1),
        "chancy.errors.InvalidArguments": Constant(7),
    }
    meta = json.dumps(attempt.job.with_retry(choice)(name="x").meta)
    found = decision(RULES, outcome, claim(meta=meta))
    assert found.delay_s == delay_s
    assert found.state is (State.FAILED if delay_s is None else State.SCHEDULED)


@pytest.mark.parametrize("outcome", [raised(KeyError()), TimedOut(1.0), MemoryExceeded(1)])
def test_a_job_that_retries_one_kind_of_error_retries_nothing_else(outcome: Outcome) -> None:
    choice: dict[type[BaseException] | str, PolicyOrFalse] = {Busy: Constant(5), Exception: False}
    own = claim(meta=json.dumps(attempt.job.with_retry(choice)(name="x").meta))
    assert decision(Retries(), outcome, own).state is State.FAILED
    assert decision(Retries(), raised(VeryBusy()), own).delay_s == 5
    choice |= {"chancy.TimedOut": Constant(6), "chancy.MemoryExceeded": Constant(6)}
    limited = claim(meta=json.dumps(attempt.job.with_retry(choice)(name="x").meta))
    delay_s = None if isinstance(outcome, Raised) else 6
    assert decision(Retries(), outcome, limited).delay_s == delay_s


def test_the_rule_of_an_error_holds_if_the_policy_of_the_job_cannot_be_read() -> None:
    assert decision(RULES, raised(Busy()), claim(meta='{"retry": {"policy": "?"}}')).delay_s == 3


def test_the_policy_of_a_job_does_not_retry_what_is_hopeless() -> None:
    outcome = Raised(Failure.named("chancy.errors.InvalidArguments", "no"))
    own = claim(meta=json.dumps({"retry": Constant(5).as_json()}))
    assert decision(RULES, outcome, own).state is State.FAILED
    allowed = Retries(rules=[Rule("chancy.errors.InvalidArguments", Constant(6))])
    assert decision(allowed, outcome, own).delay_s == 5


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {"retry": Constant(5).as_json()},
        attempt.job.with_retry({Busy: Constant(6)})(name="x").meta,
    ],
)
def test_a_group_with_a_permanent_error_is_not_retried_whichever_comes_first(
    meta: Mapping[str, Any] | None,
) -> None:
    one = claim(meta=json.dumps(meta) if meta else None)
    busy, final = Busy(), InvalidCheckpoint()
    for errors in ([busy, final], [final, busy]):
        group = raised(ExceptionGroup("tasks", errors))
        assert decision(RULES, group, one).state is State.FAILED
        allowed = Retries(rules=[Rule(Busy, Constant(3)), Rule(InvalidCheckpoint, Constant(3))])
        assert decision(allowed, group, one).state is State.SCHEDULED
    assert decision(RULES, raised(ExceptionGroup("tasks", [busy])), one).state is State.SCHEDULED


@pytest.mark.parametrize(
    ("meta", "delay_s"),
    [
        (None, 1),
        ("{}", 1),
        ('{"other": 5}', 1),
        (json.dumps({"retry": Constant(6).as_json()}), 6),
        (json.dumps({"retry": False}), None),
    ],
)
def test_a_job_brings_its_policy_along(meta: str | None, delay_s: float | None) -> None:
    assert decision(Retries(Constant(1)), raised(ValueError()), claim(meta=meta)).delay_s == delay_s


@pytest.mark.parametrize(
    "stored",
    [
        '{"retry": null}',
        '{"retry": 5}',
        '{"retry": {}}',
        '{"retry": {"errors": {"builtins.ValueError": 5}}}',
        '{"retry": {"policy": ["constant"]}}',
        '{"retry": {"policy": "tomorrow"}}',
        '{"retry": {"policy": "constant"}}',
        '{"retry": {"policy": "constant", "delay_s": "5"}}',
        '{"retry": {"policy": "constant", "delay_s": 1e999}}',
        '{"retry": {"policy": "constant", "delay_s": NaN}}',
        '{"retry": {"policy": "constant", "delay_s": 5, "jitter": ["full"]}}',
        '{"retry": {"policy": "constant", "delay_s": 5, "new": 1}}',
        '"retry"',
        "[" * 100_000,
        "{",
    ],
)
def test_an_unreadable_policy_is_logged_and_the_application_policy_applies(
    stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = decision(Retries(Constant(1)), raised(ValueError()), claim(meta=stored))
    assert (found.state, found.delay_s) == (State.SCHEDULED, 1)
    assert "retry_policy_unreadable" in caplog.text
    assert "hook_failed" not in caplog.text


def test_a_function_decides() -> None:
    def after(one: Claim, outcome: Outcome) -> float | None:
        assert isinstance(outcome, Raised)
        wait = outcome.failure.message.partition("retry after ")[2]
        return float(wait) if wait else None

    for retry in (Retries(after), Retries(rules=[Rule(Busy, after)])):
        assert decision(retry, raised(Busy("retry after 12"))).delay_s == 12
        assert decision(retry, raised(Busy("no"))).state is State.FAILED
        assert decision(retry, raised(Busy("retry after -12"))).delay_s == 0
        assert decision(retry, raised(Busy("retry after 1e200"))).delay_s == MAX_DELAY_S


def _raises(one: Claim, outcome: Outcome) -> float:
    raise RuntimeError("broken")


def _exits(one: Claim, outcome: Outcome) -> float:
    raise SystemExit


@pytest.mark.parametrize(
    "custom",
    [_raises, _exits, lambda *_: float("nan"), lambda *_: float("inf"), lambda *_: "5", lambda: 5],
)
def test_a_function_that_fails_is_logged_and_the_default_holds(
    custom: Custom, caplog: pytest.LogCaptureFixture
) -> None:
    found = decision(Retries(custom), raised(ValueError()))
    assert found.state is State.SCHEDULED
    assert found.delay_s is not None
    assert 0.5 <= found.delay_s <= 1.5
    assert "retry_policy_failed" in caplog.text
    assert "hook_failed" not in caplog.text


def test_an_async_function_is_refused() -> None:
    async def after(one: Claim, outcome: Outcome) -> float:
        return 1.0

    with pytest.raises(ConfigurationError, match="sync function"):
        Retries(after)  # type: ignore[arg-type]


def from_file(**settings: Any) -> Retries:
    found = make("chancy.retry", settings, source="x.toml")
    assert isinstance(found, Retries)
    return found


def test_a_settings_file_names_policies_as_the_meta_of_a_job_does() -> None:
    found = from_file(
        policy={"policy": "fennel"},
        rules=[
            {"error": "shop.bank.Busy", "policy": {"policy": "constant", "delay_s": 5}},
            {"error": "shop.bank.Refused", "policy": False},
        ],
    )
    assert found.policy == Fennel()
    busy, refused = found.rules
    assert (busy.name, busy.policy) == ("shop.bank.Busy", Constant(5))
    assert refused.policy is False
    assert from_file(policy=False).policy is False
    for policy in (Linear(2), Exponential(base_s=9, jitter=Jitter.FULL)):
        assert from_file(policy=policy.as_json()).policy == policy


RULE = {"error": "shop.Busy", "policy": False}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"policy": {}},
            "'policy' is one of constant, linear, polynomial, exponential, fennel, .* or False",
        ),
        ({"policy": "fennel"}, "'fennel' is not a retry policy: pass a mapping whose key"),
        ({"policy": {"polcy": "fennel"}}, r"'polcy': .* a mapping whose key 'policy' is one of"),
        ({"policy": {"policy": "fenel"}}, r"'fenel'} is not .* is one of constant, linear"),
        ({"policy": {"policy": ["fennel"]}}, "is one of constant, linear"),
        ({"policy": {"cap_s": 5}}, "'cap_s': .* is one of constant, linear"),
        (
            {"policy": {"policy": "constant", "delay_s": 5, "jit": 1}},
            "'constant' has no setting 'jit': it takes delay_s, jitter",
        ),
        (
            {"policy": {"policy": "constant"}},
            "'constant' needs the setting 'delay_s': it takes delay_s, jitter",
        ),
        (
            {"policy": {"policy": "fennel", "cap_s": "5"}},
            "Fennel: cap_s='5' must be a number from 0",
        ),
        (
            {"policy": {"policy": "linear", "step_s": 1, "jitter": "x"}},
            "one of 'none', 'equal', 'full', 'around'",
        ),
        ({"rules": [RULE | {"delay": 1}]}, "a rule has no setting 'delay': it takes error, policy"),
        ({"rules": [RULE | {"policy": {"policy": "x"}}]}, "is one of constant, linear"),
        (
            {"rules": [{"error": "shop.Busy"}]},
            "a rule needs the setting 'policy': it takes error, policy",
        ),
        ({"rules": RULE}, "setting rules"),
    ],
)
def test_a_wrong_setting_of_a_file_is_refused_with_what_is_accepted(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        from_file(**settings)
    assert str(caught.value).startswith("x.toml: the plugin 'chancy.retry'")


@pytest.fixture
def errors() -> Iterator[dict[str, list[Exception]]]:
    ahead.clear()
    yield ahead
    ahead.clear()


def test_an_explicit_retry_time_is_not_changed() -> None:
    hopeless = Retries(False, rules=[Rule(control.Retry, False)])
    failure = Failure.of(control.Retry(5, "busy"))
    outcome = Raised(failure, again=timedelta(seconds=5))
    for attempt, state in ((1, State.SCHEDULED), (2, State.SCHEDULED), (3, State.FAILED)):
        one = claim(attempt)
        decision = judge(one, outcome)
        assert hopeless.judging(one, outcome, decision) is decision
        assert decision.state is state


async def test_jobs_run_again_when_they_should(
    dsn: str, errors: dict[str, list[Exception]]
) -> None:
    retry = Retries(Constant(3600), rules=[Rule(Busy, Constant(0.3)), Rule(Refused, False)])
    made = {
        "brings its own": attempt.job.with_retry(Constant(0.2, max_attempts=4)),
        "ruled": attempt.job,
        "refused": attempt.job,
        "neither": attempt.job,
    }
    errors["brings its own"] = [ValueError(), Refused("no")]
    errors["ruled"] = [VeryBusy(), Busy()]
    errors["refused"] = [Busy(), Refused("no"), ValueError()]
    errors["neither"] = [ValueError()]
    queue = Queue(name="async", executor="async")
    async with Chancy(dsn, queues=[queue], plugins=[retry]) as chancy:
        pushed = {name: await chancy.push(one(name=name)) for name, one in made.items()}
        async with Worker(chancy, queues=["async"]):
            own = await pushed["brings its own"].wait(20)
            ruled = await pushed["ruled"].wait(20)
            refused = await pushed["refused"].wait(20)
            await eventually(lambda: not errors["neither"])
        neither = await chancy.get_job(pushed["neither"].id)
    assert (own.state, own.attempt, len(own.errors)) == (State.SUCCEEDED, 3, 2)
    assert (ruled.state, ruled.attempt, len(ruled.errors)) == (State.SUCCEEDED, 3, 2)
    assert (refused.state, refused.attempt, len(refused.errors)) == (State.FAILED, 2, 2)
    for done, delay_s in ((own, 0.4), (ruled, 0.6), (refused, 0.3)):
        assert done.finished_at is not None
        assert delay_s <= (done.finished_at - done.pushed_at).total_seconds() < delay_s + 15
    assert neither is not None
    assert neither.run_at is not None
    assert (neither.state, neither.attempt) == (State.SCHEDULED, 1)
    # The next run can be seen.
    late = neither.run_at - neither.pushed_at
    assert timedelta(seconds=3600) <= late < timedelta(seconds=3620)


@pytest.mark.parametrize(
    ("attempt", "crashes", "state"),
    [(1, 0, State.PENDING), (4, 3, State.PENDING), (5, 0, State.FAILED), (5, 4, State.FAILED)],
)
def test_a_crash_may_cost_an_attempt(attempt: int, crashes: int, state: State) -> None:
    """However often it has crashed before: it is run again at once, until none is left."""
    one = claim(attempt, most=5)._replace(crashes=crashes)
    found = decision(Retries(Constant(60), crashes_cost_attempts=True), Lost("gone", host="a"), one)
    assert (found.state, found.refund, found.crashed, found.delay_s) == (state, False, True, None)
    assert found.failure is not None
    after = "no attempts left" if state is State.FAILED else "the job runs again"
    assert found.failure.message == f"crash in attempt {attempt} of 5: gone; {after}"
    assert (found.failure.is_a("chancy.Lost"), found.failure.host) == (True, "a")
    free = decision(Retries(Constant(60)), Lost("gone"), one)
    assert free.state is (State.FAILED if crashes >= 2 else State.PENDING)
