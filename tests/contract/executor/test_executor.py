"""What every executor does."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from chancy.attempt.outcome import Raised, Returned
from chancy.executors.base import Executor
from chancy.queue.executor_kind import executor_kind
from tests.contract.executor import jobs as executor_jobs
from tests.contract.executor import worker_scripts as executor_scripts
from tests.contract.executor.calls import (
    DEADLINE_S,
    JOBS,
    MAX_PAYLOAD,
    Place,
    claim_with,
    result,
    run,
    started,
)
from tests.support.clusters import ON_RAY_TOO

VALUE = {"text": "ünï – 🙂 \\u0000", "numbers": [1, -2.5, 1e300, True, None], "deep": {"": []}}


@pytest.fixture
def name(anywhere: str) -> str:
    return anywhere


@ON_RAY_TOO
async def test_gives_what_the_function_returns(one: Executor) -> None:
    for arguments in (None, "{}", " {} "):
        outcome = await one.run(claim_with(f"{JOBS}.nothing", arguments))
        assert isinstance(outcome, Returned)
        assert outcome.result is None
    for function in ("echo", "echo_async", "echo_later", "echo_awaitable", "echo_wrapped"):
        assert await result(one, function, value=VALUE) == VALUE
        assert await result(one, function, value=None) is None

    assert executor_jobs.Shop.price.job(2).func == f"{JOBS}.Shop.price"
    assert await result(one, "Shop.price", value=2) == 4


DEEP = "[" * 200_000

NOT_STORABLE = r"\ud800 \x00 \u202e"
RAISED_BY_NAME: list[tuple[str, dict[str, object], str, str]] = [
    (function, {"name": type_name.rpartition(".")[2]}, type_name, "the reason")
    for function in ("raise_builtin", "raise_builtin_async", "raise_builtin_later")
    for type_name in (
        "builtins.SystemExit",
        "builtins.KeyboardInterrupt",
        "builtins.GeneratorExit",
        "asyncio.exceptions.CancelledError",
    )
]
FAILURES: list[tuple[str, dict[str, object], str, str]] = [
    ("raise_plain", {}, "builtins.ValueError", "the reason"),
    ("raise_async", {}, "builtins.ValueError", "the reason"),
    ("raise_later", {}, "builtins.ValueError", "the reason"),
    ("raise_two_part", {}, f"{JOBS}.TwoPartError", "one and two"),
    ("raise_speechless", {}, f"{JOBS}.SpeechlessError", "ValueError"),
    ("raise_spiteful", {}, f"{JOBS}.SpitefulError", "SystemExit"),
    ("raise_text", {"text": "long ", "times": 200_000}, "builtins.ValueError", "left out"),
    ("raise_text", {"text": "\ud800 \x00 \u202e", "times": 1}, "builtins.ValueError", NOT_STORABLE),
    *RAISED_BY_NAME,
    ("recurse", {}, "builtins.RecursionError", "recursion"),
    ("recurse_async", {}, "builtins.RecursionError", "recursion"),
    ("type_error_inside", {"value": 1}, "builtins.TypeError", "unsupported operand"),
    ("type_error_inside_wrapped", {"value": 1}, "builtins.TypeError", "unsupported operand"),
    ("raise_builtin", {"name": "StopIteration"}, "builtins.StopIteration", "the reason"),
    ("raise_builtin_later", {"name": "StopIteration"}, "builtins.RuntimeError", "StopIteration"),
    ("echo", {"val": 1}, "chancy.errors.InvalidArguments", "echo: missing a required argument"),
    ("echo_async", {}, "chancy.errors.InvalidArguments", "echo_async: missing a required"),
    ("echo_wrapped", {"value": 1, "x": 2}, "chancy.errors.InvalidArguments", "'x'"),
    ("generator", {}, "chancy.errors.InvalidArguments", "is a generator function"),
    ("async_generator", {}, "chancy.errors.InvalidArguments", "is an async generator function"),
    ("return_nan", {}, "chancy.errors.InvalidResult", "nan is not a JSON number"),
    ("return_object", {}, "chancy.errors.InvalidResult", "no type for object"),
    ("return_nul", {}, "chancy.errors.InvalidResult", "[0]"),
    ("return_deep", {}, "chancy.errors.InvalidResult", "nested"),
    ("return_future", {}, "chancy.errors.InvalidResult", "Future"),
    ("return_much", {"size": 5_000_000}, "chancy.errors.PayloadTooLarge", "not 5,000,002"),
    ("return_much_async", {"size": 5_000_000}, "chancy.errors.PayloadTooLarge", "not 5,000,002"),
    ("missing", {}, "chancy.errors.UnknownFunction", "no function 'missing'"),
    ("dumps", {}, "chancy.errors.UnknownFunction", "is defined in 'json'"),
    ("tenant", {}, "chancy.errors.UnknownFunction", "no function 'tenant'"),
]


async def test_turns_whatever_goes_wrong_into_an_outcome(one: Executor) -> None:
    """One executor for all, so that each failure also shows to have left it whole."""
    wrong: list[object] = []
    for function, arguments, type_name, message in FAILURES:
        outcome = await run(one, function, **arguments)
        if not (
            isinstance(outcome, Raised)
            and outcome.failure.is_a(type_name)
            and message in outcome.failure.message
            and "xxxxx" not in outcome.failure.trace
        ):
            wrong.append((function, arguments, outcome))
        json.dumps(outcome.failure.as_json() if isinstance(outcome, Raised) else None).encode()
    assert not wrong
    assert await result(one, "echo", value="still here") == "still here"
    outcome = await run(one, "raise_later")
    assert isinstance(outcome, Raised)
    assert "jobs.py" in outcome.failure.trace
    assert "in raise_later" in outcome.failure.trace


async def test_refuses_what_it_cannot_call(one: Executor) -> None:
    for arguments in ("[1]", "{", "", "1", '{"value": 1} {}', DEEP, '{"a b": 1}'):
        outcome = await one.run(claim_with(f"{JOBS}.echo", arguments))
        assert isinstance(outcome, Raised)
        assert outcome.failure.is_a("chancy.errors.InvalidArguments"), outcome
    for path in ("os.getpid", "nodots", "", f"{JOBS}.", f"{JOBS}.x.y"):
        outcome = await one.run(claim_with(path, None))
        assert isinstance(outcome, Raised), path
        assert outcome.failure.is_a("chancy.errors.UnknownFunction"), path


@ON_RAY_TOO
async def test_what_is_large_crosses_and_what_is_printed_disturbs_nothing(one: Executor) -> None:
    value = "ü" * (MAX_PAYLOAD // 2 - 10)
    assert await result(one, "echo", value=value) == value
    outcome = await run(one, "echo", value="x" * 2_000_000)
    assert isinstance(outcome, Raised)
    assert outcome.failure.is_a("chancy.errors.PayloadTooLarge")
    assert await result(one, "print_much", size=1_000_000) == 1_000_000
    assert await result(one, "from_threads", value=1) == [1, 1, 1]


async def test_jobs_share_no_context(one: Executor) -> None:
    for function in ("say_tenant", "say_tenant_async"):
        assert await result(one, function, new="a") == "nobody"
        assert await result(one, function, new="b") == "nobody"
    assert await result(one, "say_tenant_later", new="a") == ["nobody", "a"]
    assert await result(one, "say_tenant_later", new="b") == ["nobody", "b"]
    assert executor_jobs.tenant.get() == "nobody"


async def test_a_coroutine_has_one_task_all_its_life(one: Executor) -> None:
    assert await result(one, "same_task") is True
    assert await result(one, "timeout_of_its_own") == "timed out"
    assert await result(one, "failing_group") == "caught"
    assert await result(one, "same_task") is True


@ON_RAY_TOO
async def test_runs_as_many_at_a_time_as_it_has_slots(name: str, tmp_path: Path) -> None:
    places = [Place(tmp_path / str(number)) for number in range(3)]
    for place in places:
        place.started.parent.mkdir()
    async with started(name, concurrency=3) as it:
        assert it.slots == 3
        running = [asyncio.create_task(it.run(place.waiting())) for place in places]
        for place in places:
            await place.has_started()
        for place in places:
            place.until.touch()
        outcomes = await asyncio.gather(*running)
    assert [isinstance(outcome, Returned) for outcome in outcomes] == [True] * 3


def test_default_concurrency() -> None:
    assert executor_kind("process").concurrency() == len(os.sched_getaffinity(0))
    assert executor_kind("thread").concurrency() == 16
    assert executor_kind("async").concurrency() == 256


async def test_runs_many_short_jobs() -> None:
    """Every outcome goes to the run that asked for it, of 3,000."""
    async with started("process", concurrency=2) as it:
        numbers = iter(range(3_000))
        found: dict[int, object] = {}

        async def consume() -> None:
            for number in numbers:
                function = "nothing" if number % 10 else "echo"
                arguments = {} if number % 10 else {"value": number}
                found[number] = await result(it, function, **arguments)

        await asyncio.gather(*(consume() for _ in range(4)))
    assert found == {number: None if number % 10 else number for number in range(3_000)}


async def test_a_job_that_forks_answers_once(one: Executor) -> None:
    """The copy of the process ends where the job does: it would work on as the worker."""
    for _ in range(3):
        assert await result(one, "fork_and_return") == "the original"
        assert await result(one, "fork_and_return_async", later=False) == "the original"
        assert await result(one, "fork_and_return_async", later=True) == "the original"


@pytest.mark.parametrize("name", ["async", "thread"])
@pytest.mark.parametrize(("function", "status"), [("exit_at_once", 3), ("segfault", -11)])
def test_a_job_that_kills_its_process_kills_a_worker_in_it(
    name: str, function: str, status: int, tmp_path: Path
) -> None:
    """Only children can be lost alone; others take the worker along, and its jobs are rescued."""
    with executor_scripts.start(f"die-{name}-{function}", tmp_path) as worker:
        said, _ = worker.communicate(timeout=DEADLINE_S)
    assert worker.returncode == status
    assert said == ""
