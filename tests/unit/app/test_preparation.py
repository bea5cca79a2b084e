"""From jobs to what is stored."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest

from chancy import Job, Limit, Queue, ThreadOptions, Unique
from chancy.app.preparation import JobPreparation, chunks
from chancy.errors import ConfigurationError, InvalidArguments, PayloadTooLarge, PushError
from chancy.job.registry import Registry
from tests.unit import jobs

NOW, MINUTE, HOUR = datetime.now(UTC), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def intake() -> JobPreparation:
    return JobPreparation(Registry(), max_payload=1_000)


def test_a_job_is_prepared(intake: JobPreparation) -> None:
    job_id = uuid.uuid4()
    made = jobs.registered.job(a=1).with_id(job_id).with_delay(90)
    assert intake.prepare(made, validate=True) == (
        job_id,
        "mail",
        3,
        "tests.unit.jobs.registered",
        '{"a":1}',
        None,
        90.0,
        7,
        '{"team":"shop"}',
        None,
        None,
        None,
    )


def test_a_job_without_an_id_gets_one(intake: JobPreparation) -> None:
    made = jobs.registered.job(a=1)
    first, second = intake.prepare_all([made, made], validate=True)
    assert first.id.version == 7
    assert first.id < second.id


def test_a_time_is_stored_in_utc(intake: JobPreparation) -> None:
    at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    prepared = intake.prepare(Job(func="shop.work", run_at=at), validate=False)
    assert prepared.run_at is not None
    assert (prepared.run_at.isoformat(), prepared.delay_s) == ("2030-01-01T10:00:00+00:00", None)


@pytest.mark.parametrize(
    "at",
    [
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-3))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=3))),
    ],
)
def test_a_time_outside_of_utc_is_refused(intake: JobPreparation, at: datetime) -> None:
    with pytest.raises(PushError, match="outside the years 1 to 9999 in UTC"):
        intake.prepare(Job(func="shop.work", run_at=at), validate=False)


@pytest.mark.parametrize(
    ("expires_at", "run_at"),
    [
        (MINUTE, NOW + 24 * HOUR),
        (NOW + MINUTE, HOUR),
        (NOW - HOUR, None),
        (NOW - MINUTE, NOW - HOUR),
        (MINUTE, MINUTE),
    ],
)
def test_an_expiry_before_a_job_is_due_is_refused(
    intake: JobPreparation, expires_at: datetime | timedelta, run_at: datetime | timedelta | None
) -> None:
    made = Job(func="shop.work", expires_at=expires_at, run_at=run_at)
    with pytest.raises(PushError, match="it could never start"):
        intake.prepare(made, validate=False)


def test_an_expiry_before_a_debounced_job_is_due_is_refused(intake: JobPreparation) -> None:
    waiting = Unique(debounce=HOUR, cap=HOUR)
    made = Job(func="shop.work", expires_at=MINUTE, unique=waiting)
    with pytest.raises(PushError, match="it could never start"):
        intake.prepare(made, validate=False)
    assert intake.prepare(made.with_expires_at(2 * HOUR), validate=False).expires == 7_200


def test_every_mapping_is_checked_like_a_dict(intake: JobPreparation) -> None:
    path = "tests.unit.jobs.registered"
    made = Job(func=path, arguments=MappingProxyType({"a": 1}), meta=MappingProxyType({"b": 2}))
    prepared = intake.prepare(made, validate=True)
    assert (prepared.arguments, prepared.meta) == ('{"a":1}', '{"b":2}')
    with pytest.raises(InvalidArguments, match=r"parameter 'a'.* not 'text'"):
        intake.prepare(Job(func=path, arguments=OrderedDict(a="text")), validate=True)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (jobs.registered, "is a function: push the job that its .job"),
        (jobs.registered.job, r"makes jobs: call it with the arguments, .job\(...\)"),
        (jobs.plain, "is not a Job"),
        (None, "None is not a Job"),
        ("shop.work", "'shop.work' is not a Job"),
    ],
)
def test_a_value_that_is_no_job_is_refused_with_advice(
    intake: JobPreparation, thing: Any, said: str
) -> None:
    with pytest.raises(PushError, match=said):
        intake.prepare(thing, validate=True)


def test_a_called_coroutine_function_is_refused_with_advice(intake: JobPreparation) -> None:
    async def send() -> None: ...

    called: Any = send()
    with pytest.raises(PushError, match=r"send\(...\) is a coroutine, .*: push send.job\(...\)"):
        intake.prepare(called, validate=True)


def test_configuration_errors_of_a_job_are_push_errors(intake: JobPreparation) -> None:
    for made in (Job(func="shop.work", queue="a b"), Job(func="work")):
        with pytest.raises(PushError, match=r"is not a valid queue name|is not the path"):
            intake.prepare(made, validate=False)


def test_a_function_that_is_not_there_is_refused_unless_asked_not_to(
    intake: JobPreparation,
) -> None:
    made = Job(func="tests.unit.jobs.missing")
    with pytest.raises(PushError, match=r"has no function 'missing'; .* pass validate=False"):
        intake.prepare(made, validate=True)
    assert intake.prepare(made, validate=False).func == made.func


def test_arguments_and_meta_are_held_to_json_and_the_limit(intake: JobPreparation) -> None:
    with pytest.raises(InvalidArguments, match=r"^the arguments of shop.work\['a'\] cannot"):
        intake.prepare(Job(func="shop.work", arguments={"a": object()}), validate=False)
    with pytest.raises(InvalidArguments, match=r"^the meta of shop.work\['a'\] cannot"):
        intake.prepare(Job(func="shop.work", meta={"a": "\0"}), validate=False)
    with pytest.raises(PayloadTooLarge, match=r"the arguments of shop.work must .*, not 1,008:"):
        intake.prepare(Job(func="shop.work", arguments={"a": "x" * 1_000}), validate=False)


def test_a_limit_that_fits_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_payload=1 "):
        JobPreparation(Registry(), max_payload=1)


def test_chunks() -> None:
    assert list(chunks([], 3)) == []
    assert list(chunks(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    taken = iter(range(10))
    assert next(chunks(taken, 3)) == [0, 1, 2]
    assert next(taken) == 3


def test_a_cached_check_does_not_accept_equal_values_of_another_type(
    intake: JobPreparation,
) -> None:
    good = Job(func="shop.work", priority=1, max_attempts=1)
    intake.prepare(good, validate=False)
    wrong: list[Any] = [True, 1.0]
    for value in wrong:
        with pytest.raises(PushError, match="priority"):
            intake.prepare(Job(func="shop.work", priority=value, max_attempts=1), validate=False)
        with pytest.raises(PushError, match="max_attempts"):
            intake.prepare(Job(func="shop.work", priority=1, max_attempts=value), validate=False)
    with pytest.raises(PushError, match="shop"):
        intake.prepare(good, validate=True)
    with pytest.raises(PushError, match="run_at"):
        intake.prepare(
            Job(func="shop.work", priority=1, max_attempts=1, run_at=datetime(2030, 1, 1)),  # noqa: DTZ001
            validate=False,
        )


def test_settings_that_cannot_be_hashed_are_refused(intake: JobPreparation) -> None:
    unhashable: Any = ["shop.work"]
    with pytest.raises(PushError, match="shop"):
        intake.prepare(Job(func=unhashable), validate=False)


LIMITS = '{"time_s": 5, "memory_bytes": 268435456}'


def test_limits_may_be_a_list(intake: JobPreparation) -> None:
    listed: Any = [Limit.time(5), Limit.memory(2**28)]
    passed: Any = iter(listed)
    for limits in (listed, passed):
        made = Job(func="shop.work", limits=limits)
        assert intake.prepare(made, validate=False).limits == LIMITS


def test_invalid_limits_are_refused(intake: JobPreparation) -> None:
    twice = (Limit.time(5), Limit.time(6))
    with pytest.raises(PushError, match=r"^job shop\.work: there are two limits of time"):
        intake.prepare(Job(func="shop.work", limits=twice), validate=False)


def test_a_limit_that_a_queue_of_the_application_cannot_keep_to_is_refused() -> None:
    queues = [
        Queue(name="threads", executor="thread"),
        Queue(name="polite", executor="thread", options=ThreadOptions(cooperative=True)),
        Queue(name="loop", executor="async"),
        Queue(name="loop", executor="process"),
    ]
    intake = JobPreparation(Registry(), max_payload=1_000, queues=queues)
    timed = Job(func="shop.work", limits=(Limit.time(5),))
    large = Job(func="shop.work", limits=(Limit.memory(2**28),))
    said = "^job shop.work: queue 'threads': a thread cannot be stopped"
    with pytest.raises(PushError, match=said):
        intake.prepare(timed.with_queue("threads"), validate=False)
    for name in ("polite", "loop"):
        assert intake.prepare(timed.with_queue(name), validate=False).limits
        with pytest.raises(PushError, match=f"queue '{name}': the jobs of .* share the memory"):
            intake.prepare_all([timed, large.with_queue(name)], validate=False)
    # Of a queue that the application does not declare nothing is known here.
    assert intake.prepare(large.with_queue("elsewhere"), validate=False).limits


def test_a_plain_function_with_a_time_limit_is_refused_for_an_async_queue() -> None:
    limited = (Limit.time(5),)
    queues = [
        Queue(name="loop", executor="async"),
        Queue(name="limited", executor="async", limits=limited),
        Queue(name="children", limits=limited),
    ]
    intake = JobPreparation(Registry(), max_payload=1_000, queues=queues)
    plain = jobs.registered.job(a=1)
    refused = [plain.with_queue("loop").with_limits(*limited), plain.with_queue("limited")]
    for job in refused * 2:  # also where the settings have been met before
        with pytest.raises(PushError, match=f"queue '{job.queue}': tests.unit.jobs.registered is"):
            intake.prepare(job, validate=True)
        # Of a function of another codebase nothing is known here.
        assert intake.prepare(job, validate=False)
    coroutine = jobs.registered_async.job(a=1)
    for name in ("loop", "limited", "children"):
        intake.prepare(coroutine.with_queue(name).with_limits(*limited), validate=True)
    for job in (plain.with_queue("loop"), plain.with_queue("children").with_limits(*limited)):
        intake.prepare(job, validate=True)


def test_another_thread_may_empty_the_cache_of_checks(intake: JobPreparation) -> None:
    class Emptied(dict[Any, Any]):
        """Another thread empties it after each lookup."""

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    made = Job(func="shop.work", arguments={"a": 1})
    intake.prepare(made, validate=False)
    intake._passed = Emptied(intake._passed)
    assert intake.prepare(made, validate=False).arguments == '{"a":1}'
