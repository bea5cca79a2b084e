"""The backend of ``django.tasks``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from cryptography.fernet import Fernet
from django.db import connections
from django.test import override_settings
from django_tasks import TaskResultStatus, default_task_backend
from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued, task_finished

from chancy import DuplicateJob, Job, JobError, JobFailed, State, Unique, WaitTimeout
from chancy.django import app
from chancy.django.current import calls
from chancy.django.testing import run_jobs
from chancy.plugins.workflow import chain
from chancy.postgres.schema import grants
from chancy.postgres.schema.component import RoleKind
from tests.integration.django_app import tasks
from tests.support import django_project
from tests.support.roles import roles
from tests.support.sql import ask, count

pytestmark = pytest.mark.usefixtures("database")


Transaction: Any = import_module("django.db.transaction")


def transaction() -> Any:
    return Transaction.atomic()


def test_a_task_is_enqueued_in_the_transaction_and_read_in_it(dsn: str) -> None:
    with transaction():
        result = tasks.add.using(priority=-3).enqueue(1, b=2)
        assert count(dsn) == 0
        assert tasks.add.get_result(result.id).status == TaskResultStatus.READY
    assert count(dsn) == 1
    with transaction():
        tasks.add.enqueue(1)
        Transaction.set_rollback(True)
    assert count(dsn) == 1
    [done] = run_jobs()
    assert (done.func, done.priority) == ("tests.integration.django_app.tasks.add", -3)
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert (result.args, result.kwargs, result.attempts) == ([1], {"b": 2}, 1)
    assert None not in (result.enqueued_at, result.started_at, result.finished_at)
    found = tasks.add.get_result(result.id)
    assert (found.task.func, found.task.priority) == (tasks.add.func, -3)


def test_a_workflow_is_pushed_in_the_transaction(dsn: str) -> None:
    flow = chain("flow", tasks.note.job("a"), tasks.note.job("b"))
    with transaction():
        app().sync_push(flow)
        Transaction.set_rollback(True)
    assert count(dsn) == 0
    with transaction():
        reference = app().sync_push(flow)
        assert count(dsn) == 0
        assert reference.sync_get() is not None
    assert (count(dsn), reference.id) == (1, flow.id)
    try:
        with pytest.raises(WaitTimeout, match="is running after"):
            reference.sync_wait(0.05)
    finally:
        calls().close()


def test_an_error_of_a_push_leaves_the_transaction_to_the_caller(dsn: str) -> None:
    once = tasks.note.job(text="a").with_unique(Unique(key="a", on_conflict="raise"))

    def jobs() -> Iterator[Job[None]]:
        yield from (tasks.note.job(text="b") for _ in range(1_200))
        raise LookupError

    with transaction():
        app().sync_push(once)
        with pytest.raises(DuplicateJob):
            app().sync_push(once)
        with pytest.raises(LookupError):
            app().sync_push_many(jobs())
        app().sync_push(tasks.note.job(text="c"))
    assert [text for (text,) in ask(dsn, "select arguments ->> 'text' from chancy.jobs")] == [
        "a",
        "c",
    ]


def test_a_push_outside_of_a_transaction_is_stored_when_it_returns() -> None:
    def pushed() -> list[Any]:
        flow: Any = chain("flow", tasks.note.job("a"))
        many = app().sync_push_many([tasks.note.job("a")])
        return [app().sync_push(tasks.note.job("a")), app().sync_push(flow), *many]

    assert all(reference.stored for reference in pushed())
    with transaction():
        assert not any(reference.stored for reference in pushed())


def test_a_role_that_may_not_read_queues_pushes_to_an_undeclared_one(dsn: str) -> None:
    name = f"producer_{secrets.token_hex(4)}"
    with roles(dsn, [name]):
        grants.apply(dsn, "chancy", grants.statements(RoleKind.PRODUCER, name))
        with transaction():
            with connections["default"].cursor() as cursor:
                cursor.execute(f"set local role {name}")
            app().sync_push(tasks.note.job(text="a").with_queue(name))
        assert count(dsn) == 1


def test_a_bulk_push_of_several_brokers_is_one_transaction(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs(number: int) -> Iterator[Job[None]]:
        yield from (tasks.note.job(text="a") for _ in range(number))
        if number > 1_000:
            raise LookupError

    monkeypatch.setenv("CHANCY_DSN", dsn)
    with override_settings(CHANCY={"app": "tests.support.two_brokers:make"}):
        try:
            with pytest.raises(LookupError):
                app().sync_push_many(jobs(1_200))
            assert count(dsn) == 0
            app().sync_push_many(jobs(2))
            assert count(dsn) == 2
        finally:
            calls().close()


def test_encrypted_tasks_run_and_are_read(dsn: str) -> None:
    encryption = {"chancy.encryption": {"keys": {"k1": Fernet.generate_key().decode()}}}
    with override_settings(CHANCY={"plugins": encryption}):
        result = tasks.add.enqueue(1, b=2)
        app().sync_push(tasks.count.job(words=["tea"]))
        assert count(dsn, "chancy.jobs where arguments ? '$chancy'") == 2
        assert [done.result for done in run_jobs()] == [3, [3]]
        result.refresh()
        assert (result.args, result.kwargs, result.return_value) == ([1], {"b": 2}, 3)


def test_arguments_that_do_not_fit_the_function_are_refused(dsn: str) -> None:
    enqueue: Any
    for enqueue in (tasks.greet.enqueue, tasks.describe.enqueue):
        with pytest.raises(TypeError, match=r"django_app\.tasks\.\w+: missing a required arg"):
            enqueue()
    with pytest.raises(TypeError, match="unexpected keyword argument 'of'"):
        enqueue("tea", of="china")
    assert count(dsn) == 0


def test_a_task_that_fails_is_tried_again_and_keeps_its_errors() -> None:
    told: list[str] = []

    def tell(*, task_result: object, **_: object) -> None:
        told.append(str(getattr(task_result, "status", None)))

    task_finished.connect(tell)
    try:
        result = tasks.fail.enqueue()
        run_jobs()
        result.refresh()
        assert (result.status, len(result.errors)) == (TaskResultStatus.READY, 1)
        assert told == []
        with pytest.raises(JobFailed, match="no luck"):
            run_jobs(scheduled=True)
    finally:
        task_finished.disconnect(tell)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 25)
    assert {error.exception_class for error in result.errors} == {ValueError}
    assert "no luck" in result.errors[-1].traceback
    assert told == ["FAILED"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tuple", ["SUCCESSFUL", [1, 2]]),
        ("object", ["FAILED", "chancy.errors.InvalidResult"]),
        ("cancel", ["FAILED", "chancy.errors.JobCancelled"]),
        ("snooze", []),
    ],
)
def test_the_signal_has_the_result_that_is_stored(value: str, expected: list[object]) -> None:
    told: list[object] = []

    def tell(*, task_result: Any, **_: object) -> None:
        told.append(task_result.status)
        paths = [error.exception_class_path for error in task_result.errors]
        told.extend(paths or [task_result.return_value])

    task_finished.connect(tell)
    try:
        result: Any = tasks.answer.enqueue(value)
        run_jobs(raises=False)
    finally:
        task_finished.disconnect(tell)
    assert told == expected
    result.refresh()
    if result.is_finished:
        paths = [error.exception_class_path for error in result.errors]
        assert told == [result.status, *(paths or [result.return_value])]


def test_the_signal_reports_a_group_that_is_not_retried() -> None:
    told: list[str] = []

    def tell(*, task_result: Any, **_: object) -> None:
        told.append(task_result.status)

    task_finished.connect(tell)
    try:
        result: Any = tasks.fail_in_group.enqueue()
        run_jobs(raises=False)
    finally:
        task_finished.disconnect(tell)
    result.refresh()
    assert [result.status] == told == ["FAILED"]


@pytest.mark.parametrize(
    ("name", "kind"), [("chancy.TimedOut", TimeoutError), ("chancy.Lost", JobError)]
)
def test_the_class_of_an_error_that_a_worker_records_can_be_imported(
    dsn: str, name: str, kind: type[Exception]
) -> None:
    result = tasks.fail.enqueue()
    run_jobs()
    ask(
        dsn,
        "update chancy.jobs set errors = "
        f"replace(errors::text, 'builtins.ValueError', '{name}')::jsonb",
    )
    result.refresh()
    assert [error.exception_class for error in result.errors] == [kind]


async def test_a_coroutine_is_enqueued_and_runs_from_async_code() -> None:
    result = await tasks.greet.aenqueue("ann")
    await sync_to_async(run_jobs)()
    found = await tasks.greet.aget_result(result.id)
    value: object = found.return_value
    assert value == "hello ann"
    with pytest.raises(TaskResultMismatch):
        await tasks.add.aget_result(result.id)
    await sync_to_async(django_project.forget)()


def test_a_task_waits_for_its_time() -> None:
    result = tasks.add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)
    assert run_jobs() == []
    assert result.status == TaskResultStatus.READY
    [done] = run_jobs(scheduled=True)
    assert (done.state, done.result) == (State.SUCCEEDED, 2)


def test_a_task_gets_its_context() -> None:
    heard: list[object] = []

    def hear(*, task_result: object, **_: object) -> None:
        heard.append(task_result)

    task_enqueued.connect(hear)
    try:
        result = tasks.describe.enqueue("tea")
    finally:
        task_enqueued.disconnect(hear)
    assert heard == [result]
    [done] = run_jobs()
    assert done.result == [1, result.id, "tea"]


@pytest.mark.parametrize("id", ["nonsense", "0190a5a0-0000-7000-8000-000000000000"])
def test_there_is_no_result_of_an_id_that_is_unknown(id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(id)
