"""A project of Django for the tests of this process: configured once, on the database of a test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_SETTINGS: dict[str, Any] = {
    "USE_TZ": True,
    "SECRET_KEY": "of no use elsewhere",
    "ALLOWED_HOSTS": ["testserver"],
    "ROOT_URLCONF": "tests.support.django_urls",
    "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    "INSTALLED_APPS": [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "chancy.django",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "TASKS": {"default": {"BACKEND": "chancy.django.tasks.ChancyBackend", "QUEUES": []}},
}


def configure() -> None:
    """Set Django up in this process, unless it is."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(**_SETTINGS)
        django.setup()


@contextmanager
def databases(dsn: str) -> Generator[None]:
    """Has Django's ``default`` and ``other`` be this database."""
    configure()
    from django.db import connections

    forget()
    found = conninfo_to_dict(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found["dbname"],
        "USER": found["user"],
        "PASSWORD": found.get("password", ""),
        "HOST": found["host"],
        "PORT": found["port"],
    }
    connections.settings = connections.configure_settings(
        {
            "default": dict(database),
            "other": dict(database),
            "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        }
    )
    try:
        yield
    finally:
        forget()


def forget() -> None:
    """Close the connections of this thread, and make new ones from the settings."""
    from django.db import connections

    for connection in connections.all(initialized_only=True):
        connection.close()
        del connections[connection.alias]
