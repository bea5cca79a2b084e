"""Tasks and jobs of the tests."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django_tasks import TaskContext

from chancy import Cancel, Snooze, job
from chancy.django.tasks import task
from chancy.errors import InvalidCheckpoint


@task(priority=7)
def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def greet(name: str) -> str:
    return f"hello {name}"


@task
def fail() -> None:
    raise ValueError("no luck")


@task(takes_context=True)
def describe(context: TaskContext, item: str) -> list[Any]:
    return [context.attempt, context.task_result.id, item]


@job
def note(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("insert into notes values (%s)", [text])


@job(max_attempts=1)
def break_off(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("insert into notes values (%s)", [text])
        cursor.execute("select no_such_column")


@job
def interrupt() -> None:
    raise KeyboardInterrupt


@job(batch=10, max_attempts=1)
def count(words: list[str]) -> list[object]:
    return [len(word) if word else ValueError("empty") for word in words]


@task
def answer(value: str) -> object:
    """Returns what JSON changes, cannot hold, or chancy takes as a control result."""
    return {"tuple": (1, 2), "object": object(), "snooze": Snooze(60), "cancel": Cancel("no")}[
        value
    ]


@task
def fail_in_group() -> None:
    raise ExceptionGroup("tasks", [ValueError("no luck"), InvalidCheckpoint("no value")])
