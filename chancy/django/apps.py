"""The Django app ``chancy.django``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class ChancyConfig(AppConfig):
    """Registers the system checks, and has ``manage.py migrate`` migrate chancy's tables."""

    name = "chancy.django"
    label = "chancy"
    verbose_name = "Chancy"

    def ready(self) -> None:
        from chancy.django.checks import check_database, check_settings, check_tables
        from chancy.django.settings import note_names

        note_names()
        checks.register(check_settings)
        checks.register(check_database, checks.Tags.database)
        checks.register(check_tables, checks.Tags.database, deploy=True)
        post_migrate.connect(_upgrade, sender=self, dispatch_uid="chancy.django.migrate")


def _upgrade(*, using: str, verbosity: int = 1, **_: Any) -> None:
    """Create or upgrade the tables of chancy, unless they are at their revisions."""
    from chancy.django.checks import outdated
    from chancy.django.current import app
    from chancy.django.settings import database_dsn, read
    from chancy.postgres.schema import migrate

    found = read()
    if using != found.database or not found.migrate or outdated() is None:
        return
    chancy = app()
    migrate.upgrade(database_dsn(using), chancy.schema, chancy.hooks.components)
    if verbosity >= 1:
        print(f"  Chancy: upgraded the tables in schema {chancy.schema}")  # noqa: T201
