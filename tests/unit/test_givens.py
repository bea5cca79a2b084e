"""What callers give and cannot be: the error names it and says what to give."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chancy import Chancy, Job, Queue, State
from chancy.broker.values import JobFilter
from chancy.errors import ConfigurationError, PushError
from chancy.plugins.retry import Retry
from chancy.testing.memory import MemoryBroker
from chancy.worker.worker import Worker

MAIL: Any = Queue(name="mail")
LIST: Any = [5]
Asked = Callable[[Chancy], Coroutine[Any, Any, object]]


def app(**given: Any) -> Chancy:
    return Chancy(broker=MemoryBroker(), **given)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: app(queues=["mail"]), "queues: 'mail' is not a Queue: give Queue(name=...)"),
        (lambda: app(queues="mail"), "queues='mail' must be a list of Queue: give Queue("),
        (lambda: app(queues=MAIL), "queues=Queue(name='mail'"),
        (lambda: app(plugins=[object()]), "is not a Plugin: pass instances"),
        (lambda: app(plugins=[Retry]), "is not a Plugin: pass instances"),
        (lambda: app(plugins=Retry()), "must be a list of Plugin: pass instances"),
        (lambda: app(allow="shop.*"), "allow='shop.*' must be a list of str: give patterns"),
        (lambda: app(allow=[1]), "allow: 1 is not a str: give patterns"),
        (lambda: app(max_payload="1"), "max_payload='1' must be a whole number"),
        (lambda: app(dsn=b"secret"), "dsn is of the type bytes: give a text"),
        (lambda: Chancy("postgresql://a", pool_size=True), "pool_size=True must be a whole number"),
        (lambda: JobFilter(states={"failed"}), "states: 'failed' is not a State: use any of State"),  # type: ignore[arg-type]
        (lambda: JobFilter(states="failed"), "State.SUCCEEDED, State.FAILED, State.CANCELLED"),  # type: ignore[arg-type]
        (lambda: JobFilter(states=State.FAILED), "must be a list of State: use any of"),  # type: ignore[arg-type]
        (lambda: JobFilter(queue=MAIL), "is not a str: give its name"),
        (lambda: JobFilter(func=len), "is not a str: give its name"),  # type: ignore[arg-type]
        (lambda: JobFilter(before="1"), "before='1' is not a UUID: give the id of a job"),  # type: ignore[arg-type]
        (lambda: JobFilter(limit="5"), "limit='5' must be a whole number"),  # type: ignore[arg-type]
        (lambda: Queue(name="mail", resume_at="now"), "resume_at='now' must be an aware datetime"),  # type: ignore[arg-type]
        (lambda: Queue(name="mail", keep_finished="no"), "keep_finished='no' must be True or Fal"),  # type: ignore[arg-type]
        (lambda: Queue(name="mail", paused=1), "paused=1 must be True or False"),  # type: ignore[arg-type]
        (lambda: Worker("shop:app"), "'shop:app' is not a Chancy: give the application"),  # type: ignore[arg-type]
        (lambda: Worker(app(), queues=[MAIL]), "is not a str: give the names of queues"),
        (lambda: Worker(app(), queues="mail"), "queues='mail' must be a list of str: give the"),
        (lambda: Worker(app(), tags="gpu"), "tags='gpu' must be a list of str"),
        (lambda: Worker(app(), tags=[1]), "tags: 1 is not a str"),  # type: ignore[list-item]
        (lambda: Worker(app(), heartbeat_s="5"), "heartbeat_s='5' must be a number"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_named(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("ask", "kind", "told"),
    [
        (lambda a: a.declare("mail"), ConfigurationError, "queue='mail' is not a Queue: give"),
        (lambda a: a.find_jobs("mail"), ConfigurationError, "wanted='mail' is not a JobFilter"),
        (lambda a: a.pause_queue(MAIL), ConfigurationError, "is not a str: give the name of a que"),
        (lambda a: a.resume_queue(5), ConfigurationError, "name=5 is not a str: give the name"),
        (lambda a: a.delete_queue(5), ConfigurationError, "name=5 is not a str: give the name"),
        (
            lambda a: a.pause_queue("mail", resume_at="now"),
            ConfigurationError,
            "queue 'mail': resume_at='now' must be an aware datetime",
        ),
        (lambda a: a.push("x"), PushError, "'x' is not a Job"),
        (lambda a: a.push_many([Job(func="a.b"), "x"], validate=False), PushError, "'x' is not a"),
        (lambda a: a.push_many(Job(func="a.b")), PushError, "is not a list of jobs: push what is"),
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
async def test_what_cannot_be_done_names_what_was_given(
    ask: Asked, kind: type[Exception], told: str
) -> None:
    async with app() as chancy:
        with pytest.raises(kind) as refused:
            await ask(chancy)
        assert told in str(refused.value)
        assert await chancy.find_jobs(JobFilter()) == []


def test_states_may_be_in_any_collection() -> None:
    assert JobFilter(states=[State.FAILED]).states == frozenset({State.FAILED})  # type: ignore[arg-type]
