"""Jobs: what may be set, and what is refused before anything is written."""

from __future__ import annotations

import functools
import math
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from chancy import Job, job
from chancy.attempt.control import MAX_DELAY
from chancy.errors import ConfigurationError, InvalidArguments, PushError
from chancy.job.definition import DECORATED, path_of
from chancy.job.fields import check_job
from chancy.results.reference import Reference
from tests.unit import jobs

AT = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_job_of_a_function_calls_it_with_keywords() -> None:
    made = Job.from_func(jobs.plain, a=2)
    assert made == Job(func="tests.unit.jobs.plain", arguments={"a": 2})
    check_job(made)


def test_any_name_of_a_parameter_is_an_argument() -> None:
    @job
    def greet(self: str, func: str = "") -> None: ...

    assert greet.job(self="ann", func="hi").arguments == {"self": "ann", "func": "hi"}
    assert Job.from_func(greet, self="ann").with_arguments(self="bob").arguments == {"self": "bob"}
    assert greet.job.with_meta(self=1)("ann").with_meta(func=2).meta == {"self": 1, "func": 2}


def test_a_decorated_function_is_still_the_function() -> None:
    assert jobs.registered(a=4) == 4
    assert jobs.registered.__name__ == "registered"
    assert DECORATED["tests.unit.jobs.registered"] is jobs.registered


def test_a_decorated_function_makes_jobs_with_its_settings() -> None:
    expected = Job(
        func="tests.unit.jobs.registered",
        arguments={"a": 1},
        queue="mail",
        priority=3,
        run_at=timedelta(seconds=60),
        max_attempts=7,
        meta={"team": "shop"},
    )
    assert jobs.registered.job(1) == expected
    assert jobs.registered.job(a=1) == expected
    assert Job.from_func(jobs.registered, a=1) == expected


def test_jobs_and_references_may_be_made_with_the_type_they_return() -> None:
    assert Job[int](func="shop.work") == Job(func="shop.work")
    made = Reference[int](uuid.uuid4(), cast("Any", None))
    assert made == Reference[str](made.id, cast("Any", None))


def test_arguments_become_keywords_kept_flat_and_those_left_out_stay_out() -> None:
    made = jobs.registered_async.job
    assert made(1, b=3).arguments == {"a": 1, "b": 3}
    assert made(a=1).arguments == {"a": 1}
    assert made(a=1, x=5, rest=6).arguments == {"a": 1, "x": 5, "rest": 6}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing a required argument: 'a'"),
        ({"a": 1, "z": 2}, "got an unexpected keyword argument 'z'"),
    ],
)
def test_arguments_that_the_function_does_not_take(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArguments, match=rf"tests\.unit\.jobs\.plain: {said}"):
        Job.from_func(jobs.plain, **arguments)


def test_too_many_positional_arguments() -> None:
    make = cast("Callable[..., Job]", jobs.registered.job)
    with pytest.raises(InvalidArguments, match="too many positional arguments"):
        make(1, 2)


@pytest.mark.parametrize(
    "function",
    [eval("lambda a, /: a"), eval("lambda *a: a")],  # the syntax is what is tested
    ids=["positional-only", "variadic"],
)
def test_parameters_without_a_usable_name_are_refused(function: Callable[..., object]) -> None:
    with pytest.raises(InvalidArguments, match="by position only: jobs are called with keyword"):
        Job.from_func(function)


def test_making_variants_leaves_the_original() -> None:
    plain = Job(func="shop.work", arguments={"a": 1}, meta={"m": 1})
    job_id = uuid.uuid4()
    varied = (
        plain.with_arguments(b=2)
        .with_queue("q")
        .with_priority(5)
        .with_run_at(AT)
        .with_max_attempts(1)
        .with_meta(n=2)
        .with_id(job_id)
    )
    assert varied == Job(
        func="shop.work",
        arguments={"a": 1, "b": 2},
        queue="q",
        priority=5,
        run_at=AT,
        max_attempts=1,
        meta={"m": 1, "n": 2},
        id=job_id,
    )
    assert plain == Job(func="shop.work", arguments={"a": 1}, meta={"m": 1})
    with pytest.raises(FrozenInstanceError):
        plain.queue = "other"  # type: ignore[misc]


def test_factories_vary_like_jobs() -> None:
    made = (
        jobs.registered.job.with_queue("q")
        .with_priority(-1)
        .with_run_at(None)
        .with_max_attempts(2)
        .with_meta(n=1)(a=9)
    )
    assert made == Job(
        func="tests.unit.jobs.registered",
        arguments={"a": 9},
        queue="q",
        priority=-1,
        max_attempts=2,
        meta={"team": "shop", "n": 1},
    )
    assert jobs.registered.job(a=9).queue == "mail"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (timedelta(minutes=1), timedelta(minutes=1)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (-5, timedelta(seconds=-5)),
    ],
)
def test_a_job_is_due_after_a_delay(given: Any, kept: Any) -> None:
    made = Job(func="shop.work").with_run_at(AT).with_delay(given)
    assert made.run_at == kept
    assert jobs.registered.job.with_delay(given)(a=1).run_at == kept
    check_job(made)


@pytest.mark.parametrize(
    "seconds", [math.inf, -math.inf, math.nan, 1e300, 10**30, pytest.param(10**5_000, id="huge")]
)
def test_seconds_that_are_no_delay(seconds: float) -> None:
    with pytest.raises(PushError, match=r"delay=.* seconds is not a delay"):
        Job(func="shop.work").with_delay(seconds)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "naive": ({"run_at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    "too-far": ({"run_at": MAX_DELAY + timedelta(1)}, "is more than 365,000 days"),
    "too-far-back": ({"run_at": timedelta.min}, "is more than 365,000 days"),
    "when-text": ({"run_at": "tomorrow"}, "must be an aware datetime or a timedelta"),
    "when-date": ({"run_at": AT.date()}, "must be an aware datetime or a timedelta"),
    "priority-101": ({"priority": 101}, "priority=101 must be a whole number from -100 to 100"),
    "priority-bool": ({"priority": True}, "priority=True must be"),
    "attempts-0": ({"max_attempts": 0}, "max_attempts=0 must be a whole number from 1 to 10,000"),
    "attempts-text": ({"max_attempts": "3"}, "max_attempts='3' must be"),
    "id-text": ({"id": str(uuid.uuid4())}, "must be a uuid.UUID"),
}


@pytest.mark.parametrize(("settings", "said"), BAD.values(), ids=BAD)
def test_unstorable_values_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PushError, match=f"^job shop.work: .*{re.escape(said)}"):
        check_job(Job(func="shop.work", **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"priority": -100, "max_attempts": 1},
        {"priority": 100, "max_attempts": 10_000},
        {"run_at": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)},
        {"run_at": datetime(1, 1, 1, tzinfo=UTC)},
        {"run_at": -MAX_DELAY},
        {"id": uuid.UUID(int=0)},
    ],
)
def test_the_extremes_are_allowed(settings: dict[str, Any]) -> None:
    check_job(Job(func="shop.work", **settings))


def _of_the_script() -> None: ...


_of_the_script.__module__ = "__main__"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: None, "a lambda or is defined inside another function"),
        (jobs.make_local(), "a lambda or is defined inside another function"),
        (_of_the_script, "in the main script"),
    ],
)
def test_a_function_that_no_worker_finds_is_refused_with_the_reason(
    function: Callable[..., object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_job(Job.from_func(function))


@pytest.mark.parametrize("thing", [functools.partial(print), 5, None, "shop.work"])
def test_only_functions_have_a_path(thing: object) -> None:
    with pytest.raises(InvalidArguments, match="is not a function that a worker could import"):
        path_of(thing)


class Numbers:
    def next(self) -> int:
        return 1


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (numbers, "numbers is a generator function: calling it would run none of it"),
        ([].append, "is not a function that a worker could import"),
        (math.fsum, "math.fsum is a class or built-in function"),
        (Numbers().next, "Numbers.next is a method, which cannot be a job"),
        (int, "builtins.int is a class or built-in function, which cannot be a job"),
    ],
)
def test_a_decorator_refuses_what_cannot_run(func: Callable[..., object], message: str) -> None:
    with pytest.raises(InvalidArguments, match=message):
        job(func)


def test_a_decorator_refuses_a_delay_that_is_none() -> None:
    with pytest.raises(PushError, match="seconds is not a delay"):
        job(delay=math.inf)(jobs.plain)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"queue": "a b"}, "is not a valid queue name"),
        ({"priority": 101}, "priority=101 must be a whole number"),
        ({"max_attempts": 0}, "max_attempts=0 must be a whole number"),
        ({"unique": "once"}, "unique='once' is not a Unique"),
    ],
)
def test_a_decorator_refuses_settings_that_every_push_would_refuse(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        job(**settings)(jobs.plain)


class Shop:
    def visit(self) -> None:
        """Not a job."""

    @staticmethod
    def open() -> None:
        """Not a job."""

    @classmethod
    def close(cls) -> None:
        """Not a job."""


@pytest.mark.parametrize("func", [Shop.open, Shop.close, Shop().visit, Shop.visit])
def test_a_function_of_a_class_cannot_be_a_job(func: Callable[..., Any]) -> None:
    with pytest.raises(InvalidArguments, match="is defined in the class Shop: a method"):
        Job.from_func(func)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("open", "is a static method below @job, so there would be no Shop.open.job: make @static"),
        ("close", "is a method, which cannot be a job"),
    ],
)
def test_a_decorator_above_that_of_a_method_refuses_it(name: str, message: str) -> None:
    with pytest.raises(InvalidArguments, match=f"Shop.{name} {message}"):
        job(vars(Shop)[name])


def test_a_delay_that_is_no_time_is_named() -> None:
    wrong: Any = "60"
    with pytest.raises(PushError, match="delay='60' must be a timedelta or a number of seconds"):
        Job(func="a.b").with_delay(wrong)
