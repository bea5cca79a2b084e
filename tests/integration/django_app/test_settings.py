"""The setting ``CHANCY``, the system checks, and the tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.test import override_settings

from chancy import Queue
from chancy.django import app, current, database_dsn
from chancy.django.apps import _upgrade
from chancy.plugins.pruner import Pruner
from chancy.postgres.dsn import parse
from tests.support import django_project
from tests.support.waiting import eventually_sync


def checked() -> list[str]:
    """The messages of ``manage.py check --deploy --database default`` that are chancy's."""
    found = run_checks(include_deployment_checks=True, databases=["default"])
    return [one.msg for one in found if str(one.id).startswith("chancy.")]


WRONG: list[tuple[Any, str]] = [
    ({"quues": []}, "did you mean 'queues'"),
    ({"database": "elsewhere"}, "'elsewhere' is not in DATABASES"),
    ({"database": "lite"}, "needs PostgreSQL"),
    ({"schema": "No Name"}, "not a valid schema name"),
    ({"queues": [{"name": "a", "exector": "async"}]}, "did you mean 'executor'"),
    ({"plugins": {"chancy.corn": {}}}, "did you mean 'chancy.cron'"),
    ({"app": "shop.jobs:chancy", "queues": ["a"]}, "queues cannot be combined with app"),
    ({"dsn": 7}, "dsn"),
    ({"imports": ["no_such_module"]}, "there is no module 'no_such_module'"),
    ("nonsense", "must be a dict"),
]


@pytest.mark.usefixtures("database")
def test_wrong_settings_are_named_by_the_system_checks() -> None:
    for given, message in WRONG:
        with override_settings(CHANCY=given):
            assert message in checked()[0], given


@pytest.mark.usefixtures("database")
def test_the_application_is_that_of_the_settings(dsn: str) -> None:
    queues = ["a", {"name": "b", "executor": "thread", "concurrency": 3}, Queue("c")]
    given = {"queues": queues, "plugins": {"chancy.pruner": {"every_s": 7.0}}}
    with override_settings(CHANCY=given):
        assert checked() == []
        found = app()
        assert app() is found
        assert found.queues == (
            Queue("a"),
            Queue("b", executor="thread", concurrency=3),
            Queue("c"),
        )
        assert parse(found.dsn).parameters["dbname"] == parse(dsn).parameters["dbname"]
        assert any(isinstance(one, Pruner) and one.every_s == 7.0 for one in found.hooks.plugins)
    assert app() is not found


@pytest.mark.parametrize("own", [False, True], ids=["of_the_settings", "of_its_own"])
def test_a_test_run_replaces_the_database_of_an_application(
    dsn: str, empty_dsn: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules keep the application that they got before."""
    with override_settings(CHANCY={"dsn": f"{dsn}?application_name=own"} if own else {}):
        with django_project.databases(dsn):
            names = {"default": connections["default"].settings_dict["NAME"]}
            monkeypatch.setattr("chancy.django.settings._NAMES", names)
            kept = app()
            assert parse(kept.dsn).parameters["dbname"] == names["default"]
        with django_project.databases(empty_dsn):
            assert app() is kept
            found = parse(kept.dsn).parameters
            assert found["dbname"] == parse(empty_dsn).parameters["dbname"] != names["default"]
            assert found.get("application_name") == ("own" if own else None)


@pytest.mark.usefixtures("database")
def test_threads_that_call_it_first_get_one_application(monkeypatch: pytest.MonkeyPatch) -> None:
    app()
    given, asked = current._given, list[int]()

    def noted() -> object:
        asked.append(get_ident())
        return given()

    monkeypatch.setattr(current, "_given", noted)
    with override_settings(CHANCY={"queues": ["a"]}), ThreadPoolExecutor(2) as threads:
        with current._lock:
            calls = [threads.submit(app) for _ in range(2)]
            eventually_sync(lambda: len(set(asked)) == 2)
        one, other = (call.result() for call in calls)
    assert one is other


def test_the_dsn_inherits_libpq_defaults(dsn: str) -> None:
    with django_project.databases(dsn):
        own = connections["default"].settings_dict
        own["PASSWORD"] = "it's @ secret"
        own["OPTIONS"] = {"sslmode": "disable", "isolation_level": None, "connect_timeout": 3}
        found = parse(database_dsn()).parameters
    assert found["password"] == "it's @ secret"
    assert (found["sslmode"], found["connect_timeout"]) == ("disable", "3")
    assert "isolation_level" not in found


def migrated(**settings: Any) -> None:
    """What ``manage.py migrate`` does at its end."""
    with override_settings(CHANCY=settings):
        _upgrade(using="default", verbosity=0)


def test_migrate_creates_the_tables_unless_it_must_not(empty_dsn: str) -> None:
    with django_project.databases(empty_dsn):
        migrated(migrate=False)
        assert "has no tables of chancy" in checked()[0]
        migrated()
        assert checked() == []


@pytest.mark.usefixtures("database")
def test_kept_connections_need_health_checks() -> None:
    own = connections["default"].settings_dict
    own["CONN_MAX_AGE"] = None
    assert "CONN_HEALTH_CHECKS" in checked()[0]
    own["CONN_HEALTH_CHECKS"] = True
    assert checked() == []
