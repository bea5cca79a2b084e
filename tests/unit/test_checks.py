"""What callers give and cannot be: the error names it and says what to give."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy import Chancy, Job, Queue, State
from chancy.broker.values import JobFilter
from chancy.checks import check_function_path, check_number, check_queue_name, check_schema_name
from chancy.errors import ConfigurationError, PushError
from chancy.plugins.retry import Retries
from chancy.testing.memory import MemoryBroker
from chancy.text import shown
from chancy.worker.worker import Worker

MAIL: Any = Queue(name="mail")
LIST: Any = [5]
Asked = Callable[[Chancy], Coroutine[Any, Any, object]]


def app(**given: Any) -> Chancy:
    return Chancy(broker=MemoryBroker(), **given)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: app(queues=["mail"]), "queues: 'mail' is not a Queue: pass a list of Q"),
        (lambda: app(queues="mail"), "queues='mail' must be a list of Queue: pass a list"),
        (lambda: app(queues=MAIL), "queues=Queue(name='mail'"),
        (lambda: app(plugins=[object()]), "is not a Plugin: pass instances"),
        (lambda: app(plugins=[Retries]), "is not a Plugin: pass instances"),
        (lambda: app(plugins=Retries()), "must be a list of Plugin: pass instances"),
        (lambda: app(allow="shop.*"), "allow='shop.*' must be a list of str: pass patterns"),
        (lambda: app(allow=[1]), "allow: 1 is not a str: pass patterns"),
        (lambda: app(max_payload="1"), "max_payload='1' must be a whole number"),
        (lambda: app(dsn=b"secret"), "dsn must be a string, not bytes"),
        (lambda: Chancy("postgresql://a", schema="pg_own"), "is not a valid schema name"),
        (lambda: Chancy("postgresql://a", pool_size=True), "pool_size=True must be a whole number"),
        (lambda: JobFilter(states={"failed"}), "states: 'failed' is not a State: use any of State"),  # type: ignore[arg-type]
        (lambda: JobFilter(states="failed"), "State.SUCCEEDED, State.FAILED, State.CANCELLED"),  # type: ignore[arg-type]
        (lambda: JobFilter(states=State.FAILED), "must be a list of State: use any of"),  # type: ignore[arg-type]
        (lambda: JobFilter(queue=MAIL), "is not a str: pass its name"),
        (lambda: JobFilter(func=len), "is not a str: pass its name"),  # type: ignore[arg-type]
        (lambda: JobFilter(before="1"), "before='1' is not a UUID: pass the id of a job"),  # type: ignore[arg-type]
        (lambda: JobFilter(limit="5"), "limit='5' must be a whole number"),  # type: ignore[arg-type]
        (lambda: Queue(name="mail", resume_at="now"), "resume_at='now' must be an aware datetime"),  # type: ignore[arg-type]
        (lambda: Queue(name="mail", keep_finished="no"), "keep_finished='no' must be True or Fal"),  # type: ignore[arg-type]
        (lambda: Queue(name="mail", paused=1), "paused=1 must be True or False"),  # type: ignore[arg-type]
        (lambda: Worker("shop:app"), "'shop:app' is not a Chancy: pass the application"),  # type: ignore[arg-type]
        (lambda: Worker(app(), queues=[MAIL]), "is not a str: pass names of queues"),
        (lambda: Worker(app(), queues="mail"), "queues='mail' must be a list of str: pass na"),
        (lambda: Worker(app(), tags="gpu"), "tags='gpu' must be a list of str"),
        (lambda: Worker(app(), tags=[1]), "tags: 1 is not a str"),  # type: ignore[list-item]
        (lambda: Worker(app(), heartbeat_s="5"), "heartbeat_s='5' must be a number"),  # type: ignore[arg-type]
        (lambda: Worker(app(), heartbeat_s=0), "heartbeat_s=0 must be"),
        (lambda: Worker(app(), heartbeat_s=math.nan), "heartbeat_s=nan must be"),
        (lambda: Worker(app(), heartbeat_timeout_s=math.inf), "heartbeat_timeout_s=inf must be"),
        (lambda: Worker(app(), heartbeat_s=10, heartbeat_timeout_s=15), "at least twice"),
        (lambda: Worker(app(), shutdown_timeout_s=-1), "shutdown_timeout_s=-1 must be"),
        (lambda: Worker(app(), concurrency=0), "this worker: concurrency=0"),
        (lambda: Worker(app(), concurrency=True), "this worker: concurrency=True"),
        (lambda: Worker(app(), prefetch_limit=-1), "this worker: prefetch_limit=-1"),
        (lambda: Worker(app(), prefetch_limit=1.5), "this worker: prefetch_limit=1.5"),  # type: ignore[arg-type]
        (lambda: Worker(app(), children=0), "this worker: children=0"),
    ],
)
def test_invalid_settings_are_named(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("ask", "kind", "told"),
    [
        (lambda a: a.declare("mail"), ConfigurationError, "queue='mail' is not a Queue: pass"),
        (lambda a: a.find_jobs("mail"), ConfigurationError, "wanted='mail' is not a JobFilter"),
        (lambda a: a.pause_queue(MAIL), ConfigurationError, "is not a str: pass the name of a que"),
        (lambda a: a.resume_queue(5), ConfigurationError, "name=5 is not a str: pass the name"),
        (lambda a: a.delete_queue(5), ConfigurationError, "name=5 is not a str: pass the name"),
        (
            lambda a: a.pause_queue("mail", resume_at="now"),
            ConfigurationError,
            "queue 'mail': resume_at='now' must be an aware datetime",
        ),
        (lambda a: a.push("x"), PushError, "'x' is not a Job"),
        (lambda a: a.push_many([Job(func="a.b"), "x"], validate=False), PushError, "'x' is not a"),
        (
            lambda a: a.push_many(Job(func="a.b")),
            PushError,
            "is not a list of jobs: push one with push",
        ),
        (
            lambda a: a.push(Job(func="a.b", arguments=LIST), validate=False),
            PushError,
            "job a.b: arguments=[5] must be a dict",
        ),
        (
            lambda a: a.push(Job(func="a.b", meta=LIST), validate=False),
            PushError,
            "job a.b: meta=[5] must be a dict",
        ),
    ],
)
async def test_refusals_name_the_given_value(ask: Asked, kind: type[Exception], told: str) -> None:
    async with app() as chancy:
        with pytest.raises(kind) as refused:
            await ask(chancy)
        assert told in str(refused.value)
        assert await chancy.find_jobs(JobFilter()) == []


def test_states_may_be_in_any_collection() -> None:
    assert JobFilter(states=[State.FAILED]).states == frozenset({State.FAILED})  # type: ignore[arg-type]


#: What no name may be: SQL, shell, terminal, path, format and markup tricks, and wrong types.
HOSTILE: tuple[object, ...] = (
    "",
    " ",
    "a b",
    "a\n",
    "\na",
    "a\0b",
    "a;b",
    "a'b",
    'a"b',
    "a`b",
    "a\\b",
    "a,b",
    "'; drop table jobs; --",
    '"; drop schema chancy cascade; --',
    "%s",
    "{schema}",
    "{0.__class__}",
    "$1",
    "$(id)",
    "<script>",
    "a&b",
    "\x1b[31m",
    "\u202eabc",
    "a\u200bb",
    "\ufeffa",
    "café☕",
    "\ud800",
    "＿ａ",
    "x" * 10_000,
    "a" * 129 + "!",
    None,
    b"default",
    1,
    ["default"],
    object(),
)
CHECKS: tuple[Callable[[object], str], ...] = (
    check_queue_name,
    check_schema_name,
    check_function_path,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
def test_hostile_names_are_refused_harmlessly(check: Callable[[object], str], name: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(name)
    said = str(caught.value)
    assert said.isprintable(), "an error must not carry the trick to the terminal"
    assert len(said) < 400


@pytest.mark.parametrize("name", ["default", "a", "0", "-", "..", "a.b:c/d-e_F", "x" * 128])
def test_names_of_queues(name: str) -> None:
    assert check_queue_name(name) == name


def test_a_queue_name_of_129_characters_is_refused_with_the_limit() -> None:
    with pytest.raises(ConfigurationError, match="1 to 128 of the characters"):
        check_queue_name("x" * 129)


@pytest.mark.parametrize("name", ["chancy", "_", "a1", "x" * 48, "public", "tenant_7"])
def test_names_of_schemas(name: str) -> None:
    assert check_schema_name(name) == name


@pytest.mark.parametrize("name", ["x" * 49, "1a", "pg_chancy", "pg_", "A", "a-b", "a.b", "ü"])
def test_names_that_no_schema_has(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid schema name"):
        check_schema_name(name)


@pytest.mark.parametrize("path", ["a.b", "shop.jobs._work", "shop.Class.method", "módulo.función"])
def test_paths_of_functions(path: str) -> None:
    assert check_function_path(path) == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("shop.jobs.<lambda>", "a lambda or is defined inside another function"),
        ("shop.jobs.make.<locals>.work", "a lambda or is defined inside another function"),
        ("__main__.work", "in the main script"),
        ("a." + "x" * 254, "has 256 characters: the path of a function may have at most 255"),
        ("work", "write package.module.function"),
        ("a..b", "write package.module.function"),
        (".a.b", "write package.module.function"),
        ("a.b.", "write package.module.function"),
        ("a.1b", "write package.module.function"),
        ("a/b.c", "write package.module.function"),
        ("a.b()", "write package.module.function"),
    ],
)
def test_a_path_that_names_no_function_is_refused_with_the_reason(path: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_function_path(path)


@given(st.text())
def test_an_accepted_name_is_only_made_of_allowed_characters(name: str) -> None:
    try:
        check_queue_name(name)
    except ConfigurationError:
        return
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/-")


@given(st.from_regex(r"[A-Za-z0-9_.:/-]{1,128}", fullmatch=True))
def test_every_name_of_the_list_is_accepted(name: str) -> None:
    assert check_queue_name(name) == name


@given(st.text() | st.binary() | st.integers() | st.lists(st.text()))
def test_shown_values_fit_a_line(value: object) -> None:
    text = shown(value)
    assert len(text) <= 80
    assert text.isprintable()


@pytest.mark.parametrize(
    ("value", "bounds", "whole", "message"),
    [
        (0, (1, None), True, "n=0 must be a whole number of at least 1 jobs"),
        (1.0, (1, 9), True, "n=1.0 must be a whole number from 1 to 9 jobs"),
        (True, (1, 9), True, "n=True must be a whole number from 1 to 9 jobs"),
        ("5", (0.5, 86_400.0), False, "n='5' must be a number from 0.5 to 86,400 jobs"),
        (math.nan, (0, None), False, "n=nan must be a number of at least 0 jobs"),
        (10**400, (0, 2**62), False, "must be a number from 0 to 4,611,686,018,427,387,904 jobs"),
        (None, (None, None), False, "n=None must be a number jobs"),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_the_bounds(
    value: object, bounds: tuple[float | None, float | None], whole: bool, message: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_number(value, "n", *bounds, whole=whole, unit="jobs")
    assert message in str(refused.value)


def test_a_number_within_bounds_is_accepted() -> None:
    check_number(1, "n", 1, 1)
    check_number(0.5, "n", 0.5, whole=False)
    check_number(10**400, "n", 0, whole=False)
