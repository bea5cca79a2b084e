"""The setting ``CHANCY`` of a Django project, validated, and the DSN of its databases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from django.conf import settings
from django.db import connections
from pydantic import Field

from chancy.cli.settings import Settings
from chancy.errors import ConfigurationError
from chancy.queue.queue import Queue
from chancy.text import choices, shown

SOURCE = "settings.CHANCY"
#: The name of each database when Django was set up; a test run replaces them.
_NAMES: dict[str, object] = {}
#: Keys that cannot be combined with ``app``.
_OF_APPLICATION = ("dsn", "listen_dsn", "driver", "allow", "plugins", "queues")
#: The names of Django for parameters of libpq.
_PARAMETERS = {
    "NAME": "dbname",
    "USER": "user",
    "PASSWORD": "password",
    "HOST": "host",
    "PORT": "port",
}


class DjangoSettings(Settings):
    """The keys of ``CHANCY``: those of ``[tool.chancy]``, and some more."""

    #: The alias of the database in ``DATABASES`` that has the tables.
    database: str = "default"
    queues: tuple[Any, ...] = ()
    #: Whether ``manage.py migrate`` creates and upgrades the tables.
    migrate: bool = True
    #: Names of the modules of each installed app that workers import.
    autodiscover: tuple[str, ...] = Field(default=("jobs", "tasks"))

    @property
    def tables(self) -> str:
        """The schema of the tables."""
        return self.schema_name or "chancy"


def read() -> DjangoSettings:
    """Read and validate the setting.

    :raises ConfigurationError: a key is unknown, a value is wrong, or keys exclude each other.
    """
    given: object = getattr(settings, "CHANCY", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{SOURCE}={shown(given)} must be a dict")
    found = DjangoSettings.of(given, source=SOURCE)
    if found.database not in connections:
        names = ", ".join(map(repr, connections))
        raise ConfigurationError(
            f"{SOURCE}: database={found.database!r} is not in DATABASES, which has {names}"
        )
    both = [key for key in _OF_APPLICATION if key in found.model_fields_set]
    if found.app and both:
        raise ConfigurationError(
            f"{SOURCE}: {', '.join(both)} cannot be combined with app={found.app!r}: pass them to "
            "the Chancy that it names"
        )
    return found


def queue_from(given: object) -> Queue:
    """One of ``CHANCY["queues"]``: a name, a dict of the fields of a `Queue`, or a queue.

    :raises ConfigurationError: it is none of these, or has an unknown field.
    """
    if isinstance(given, Queue):
        return given
    if isinstance(given, str):
        return Queue(given)
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{SOURCE}: queues has {shown(given)}: write a name, a dict or a Queue"
        )
    names = [field.name for field in fields(Queue) if field.init and field.name != "_"]
    for key in given:
        if key not in names:
            raise ConfigurationError(
                f"{SOURCE}: queues: unknown key {key!r}; {choices(key, names, 'Known keys')}"
            )
    if "name" not in given:
        raise ConfigurationError(f"{SOURCE}: queues: {shown(dict(given))} has no name")
    return Queue(**given)


def note_names() -> None:
    """Remember the names of the databases, before a test run replaces them."""
    databases: Any = connections.settings
    _NAMES.update({alias: databases[alias].get("NAME") for alias in databases})


def session_dsn(given: str | None, alias: str) -> str:
    """The DSN for sessions beside Django's: ``given``, or that of a database in ``DATABASES``.

    During a test run it leads to the test database, whatever ``given`` names.

    :raises ConfigurationError: nothing is given, and the database is not PostgreSQL.
    """
    from psycopg.conninfo import make_conninfo

    if not given:
        return database_dsn(alias)
    name = connections[alias].settings_dict["NAME"]
    return given if name == _NAMES.get(alias, name) else make_conninfo(given, dbname=name)


def database_dsn(alias: str = "default") -> str:
    """The DSN of a database in ``DATABASES``, as ``key=value`` pairs.

    It contains the name, user, password, host and port, and the parameters of libpq in ``OPTIONS``,
    such as ``sslmode``. During a test run it is the DSN of the test database.

    :raises ConfigurationError: it is not PostgreSQL.
    """
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import Conninfo

    wrapper = connections[alias]
    if wrapper.vendor != "postgresql":
        raise ConfigurationError(
            f"the database {alias!r} in DATABASES is {wrapper.display_name}: chancy needs "
            "PostgreSQL; name another one with CHANCY = {'database': …}"
        )
    own: Mapping[str, Any] = wrapper.settings_dict
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    options = {name: value for name, value in own.get("OPTIONS", {}).items() if name in known}
    named = {name: own.get(key) for key, name in _PARAMETERS.items() if own.get(key)}
    parameters = {**options, **named}
    return make_conninfo("", **{name: str(value) for name, value in parameters.items()})
