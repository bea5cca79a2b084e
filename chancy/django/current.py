"""The application of a process of Django: `app`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import module_has_submodule

from chancy.app import default_plugins
from chancy.app.app import Chancy
from chancy.app.sync import SyncBroker
from chancy.cli import application
from chancy.django.connection_broker import ConnectionCalls
from chancy.django.settings import SOURCE, DjangoSettings, queue_from, read, session_dsn
from chancy.errors import ConfigurationError
from chancy.fork_lock import ForkLock

#: Closes old connections around each job.
WRAPPER = "chancy.django.hygiene.with_connections"

_lock = ForkLock()
_made: _Made | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    """The application and its setting, which tests change.

    :param given: the value of ``CHANCY``.
    """

    given: object
    chancy: Chancy
    calls: ConnectionCalls


def app() -> Chancy:
    """The application that ``CHANCY`` describes: one for each process, made by the first call.

    Its ``sync_…`` calls need no ``with``: they use Django's connection of the calling thread, in
    its transaction if one is open, and raise the errors of ``django.db``. Waiting for results
    takes a session of its own. The first call also imports the modules of jobs.

    For programs without Django's commands, such as ``chancy --app chancy.django:app``, it sets up
    Django, which ``DJANGO_SETTINGS_MODULE`` names.

    :raises ConfigurationError: the settings are invalid, or the database is not PostgreSQL.
    """
    return _current().chancy


def calls() -> ConnectionCalls:
    """The calls of `app` on Django's connection."""
    return _current().calls


def _current() -> _Made:
    if not apps.models_ready:
        django.setup()
    if (made := _unchanged()) is not None:
        return made
    with _lock:
        return _unchanged() or _make()


def _unchanged() -> _Made | None:
    """The application that was made, unless its setting has changed."""
    made = _made
    return made if made is not None and made.given is _given() else None


def _make() -> _Made:
    global _made
    found = read()
    if _made is not None:
        _made.calls.close()
    dsn = session_dsn(found.dsn, found.database)
    chancy = _imported(found, dsn) if found.app else make(found, dsn)
    # At each opening: modules keep the application while a test run replaces the database.
    chancy.bind_dsn(lambda own: session_dsn(own if found.app else found.dsn, found.database))
    chancy.registry.wrapper = WRAPPER
    bound: list[ConnectionCalls] = []

    def bind(open_: Callable[[], SyncBroker]) -> ConnectionCalls:
        bound.append(ConnectionCalls(chancy, found.database, open_))
        return bound[0]

    chancy.bind_sync(bind)
    _made = _Made(_given(), chancy, bound[0])
    made = _made
    try:
        # Last: a module of jobs may call `app`.
        _import_jobs(found)
    except BaseException:
        _made = None
        raise
    return made


def _import_jobs(found: DjangoSettings) -> None:
    for config in apps.get_app_configs():
        for name in found.autodiscover:
            # The modules of this app are no modules of jobs.
            if config.name != "chancy.django" and module_has_submodule(config.module, name):
                application.load(f"{config.name}.{name}", what=f"{SOURCE}: autodiscover")
    for module in found.imports:
        application.load(module, what=f"{SOURCE}: imports")


def _given() -> object:
    return getattr(settings, "CHANCY", None)


def make(found: DjangoSettings, dsn: str) -> Chancy:
    """Make the application of settings that name none."""
    return Chancy(
        dsn,
        schema=found.tables,
        queues=map(queue_from, found.queues),
        listen_dsn=found.listen_dsn,
        driver=found.driver or "asyncpg",
        allow=found.allow,
        plugins=[
            default_plugins.make(name, values, source=f"{SOURCE}: plugins")
            for name, values in found.plugins.items()
        ],
    )


def _imported(found: DjangoSettings, dsn: str) -> Chancy:
    assert found.app is not None
    # For an application without a DSN, as the commands of chancy do it.
    os.environ.setdefault("CHANCY_DSN", dsn)
    chancy = application.find(found.app)
    if chancy.schema != found.tables:
        raise ConfigurationError(
            f"{SOURCE}: the application {found.app} has the schema {chancy.schema!r}: set "
            f"schema to it, for the admin"
        )
    return chancy
