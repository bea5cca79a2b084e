"""Connections around jobs, and jobs in the transaction of a test."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings

from chancy import JobFailed, Reference, State, WaitTimeout
from chancy.django import app
from chancy.django.current import calls
from chancy.django.hygiene import with_connections
from chancy.django.management.commands.chancy_worker import WorkerCommand
from chancy.django.models import FiledLetter, UnfinishedJob
from chancy.django.testing import delete_jobs, run_jobs
from chancy.errors import StatementFailed
from chancy.testing.sandbox import Sandbox
from tests.integration.django_app import tasks
from tests.support import django_project
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.usefixtures("database")

atomic: Any = import_module("django.db.transaction").atomic


def ask() -> int:
    """A process of the server."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        found: int = cursor.fetchone()[0]
    return found


def is_open() -> bool:
    return connections["default"].connection is not None


def test_old_connections_are_closed_around_a_job() -> None:
    assert with_connections(ask)()
    assert not is_open()
    connections["default"].settings_dict["CONN_MAX_AGE"] = None
    kept = with_connections(ask)()
    assert is_open()
    assert with_connections(ask)() == kept
    connections["default"].close_at = 0.0
    assert with_connections(ask)() != kept


def test_a_connection_in_a_transaction_is_left_alone() -> None:
    with atomic():
        before = ask()
        assert with_connections(ask)() == before


async def test_old_connections_of_coroutines_are_closed() -> None:
    @with_connections
    async def job() -> bool:
        await sync_to_async(ask)()
        return await sync_to_async(is_open)()

    assert await job()
    assert not await sync_to_async(is_open)()
    await sync_to_async(django_project.forget)()


def notes() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("select text from notes order by text")
        return [row[0] for row in cursor.fetchall()]


def test_jobs_run_in_the_transaction_of_a_test_and_end_it_for_no_other() -> None:
    with atomic():
        with connection.cursor() as cursor:
            cursor.execute("create table notes (text text)")
        pushed = app().sync_push_many(
            [tasks.note.job(text="a"), tasks.break_off.job(text="b"), tasks.note.job(text="c")]
        )
        with pytest.raises(JobFailed, match="no_such_column"):
            run_jobs()
        assert [one.state for one in run_jobs()] == [State.SUCCEEDED]
        assert notes() == ["a", "c"]
        states = [app().sync_get_job(one.id) for one in pushed]
        assert [one.state for one in states if one] == [
            State.SUCCEEDED,
            State.FAILED,
            State.SUCCEEDED,
        ]
        import_module("django.db.transaction").set_rollback(True)
    assert app().sync_get_job(pushed[0].id) is None


def test_a_job_that_breaks_the_transaction_of_another_database_is_undone() -> None:
    with override_settings(CHANCY={"database": "other"}), atomic(), atomic(using="lite"):
        with connection.cursor() as cursor:
            cursor.execute("create table notes (text text)")
        app().sync_push(tasks.break_off.job(text="b"))
        [done] = run_jobs(raises=False)
        assert done.state is State.FAILED
        assert notes() == []
        import_module("django.db.transaction").set_rollback(True)


def test_jobs_of_a_batch_function_have_an_outcome_each() -> None:
    app().sync_push_many([tasks.count.job(words=[word]) for word in ("tea", "")])
    done = {job.state: job for job in run_jobs(raises=False)}
    assert done[State.SUCCEEDED].result == [3]
    assert done[State.FAILED].errors[0]["message"] == "empty"


def test_an_interrupt_ends_the_test_and_not_the_job() -> None:
    app().sync_push_many([tasks.interrupt.job(), tasks.note.job(text="never")])
    with pytest.raises(KeyboardInterrupt):
        run_jobs(raises=False)
    assert FiledLetter.objects.count() == 0
    assert set(UnfinishedJob.objects.values_list("func", "attempt")) == {
        (tasks.interrupt.job().func, 1),
        (tasks.note.job(text="").func, 0),
    }


def test_jobs_are_deleted_between_tests() -> None:
    pushed = app().sync_push_many(
        [tasks.break_off.job(text="b"), tasks.note.job(text="a").with_delay(60)]
    )
    run_jobs(raises=False)
    assert len(FiledLetter.objects.all()) == 1
    delete_jobs()
    assert [app().sync_get_job(one.id) for one in pushed] == [None, None]
    assert not FiledLetter.objects.exists()


def test_a_result_is_waited_for_on_a_session_of_its_own() -> None:
    reference: Reference[Any] = app().sync_push(tasks.note.job(text="never"))
    waiting = app().sync_begin_wait(reference.id, timeout_s=60)
    run_jobs(scheduled=True, raises=False)
    try:
        assert waiting.result(60).state is State.FAILED
    finally:
        calls().close()


def test_sessions_that_wait_are_closed_before_a_test_database_is_dropped(
    dsn: str, empty_dsn: str
) -> None:
    reference: Reference[Any] = app().sync_push(tasks.note.job(text="never"))
    with pytest.raises(WaitTimeout):
        app().sync_wait_for(reference.id, timeout_s=0)
    name = connection.settings_dict["NAME"]
    asked = (
        "select count(*) from pg_stat_activity"
        " where datname = %s and starts_with(application_name, 'chancy')"
    )

    def own_sessions() -> int:
        with psycopg.connect(empty_dsn) as session:
            row = session.execute(asked, [name]).fetchone()
        assert row is not None
        return int(row[0])

    eventually_sync(lambda: own_sessions() > 0)
    with connection._nodb_cursor():
        eventually_sync(lambda: own_sessions() == 0)


def test_a_wait_follows_the_database(empty_dsn: str) -> None:
    """As if a test run replaced it: the tables of the other one are missing."""
    chancy = app()
    reference: Reference[Any] = chancy.sync_push(tasks.note.job(text="never"))
    with pytest.raises(WaitTimeout):
        chancy.sync_wait_for(reference.id, timeout_s=0)
    try:
        with (
            django_project.databases(empty_dsn),
            pytest.raises(StatementFailed, match="does not exist"),
        ):
            chancy.sync_wait_for(reference.id, timeout_s=20)
    finally:
        calls().close()


def test_commands_of_chancy_take_the_application(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("chancy", "migrate", "check")
    assert "is up to date" in capsys.readouterr().out
    call_command("chancy", "migrate", "current", "--json")
    assert '"component": "core"' in capsys.readouterr().out


def test_a_wrong_command_line_is_an_error_of_the_command() -> None:
    with pytest.raises(CommandError, match="No such option") as refused:
        call_command("chancy", "queue", "list", "--nonsense")
    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("options", "path"),
    [
        (["--settings", "shop.settings"], ["/project"]),
        (["--pythonpath", "apps"], ["/apps", "/project"]),
        (["--settings=shop.settings", "--pythonpath=apps"], ["/apps", "/project"]),
    ],
)
def test_options_of_django_are_not_those_of_chancy_and_reach_worker_processes(
    monkeypatch: pytest.MonkeyPatch, options: list[str], path: list[str]
) -> None:
    """Django has inserted the path of the option before that of the project."""
    argv = ["manage.py", "chancy_worker", "--queues", "a", *options, "--burst"]
    monkeypatch.setattr(sys, "path", [*path, "/other"])
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    monkeypatch.setenv("CHANCY_APP", "shop:app")
    monkeypatch.setattr("chancy.cli.main.main", lambda: None)
    WorkerCommand().run_from_argv(argv)
    assert sys.argv == ["chancy", "worker", "--queues", "a", "--burst"]
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [*path, "/inherited"]


def test_a_sandbox_replaces_the_database() -> None:
    with Sandbox(app()) as sandbox:
        result = tasks.add.enqueue(1, b=2)
        sandbox.assert_pushed(tasks.add, a=1, b=2)
        sandbox.assert_pushed(tasks.add.module_path, a=1, times=1)
        sandbox.assert_not_pushed(tasks.add, a=2)
        sandbox.sync_drain()
        result.refresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", 3)
    assert app().sync_get_job(UUID(result.id)) is None


def test_a_sandbox_finds_tasks_with_a_context_by_their_arguments() -> None:
    with Sandbox(app()) as sandbox:
        tasks.describe.enqueue("tea")
        sandbox.assert_pushed(tasks.describe, item="tea")
