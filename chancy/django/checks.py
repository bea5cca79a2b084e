"""The system checks of the Django app, for ``manage.py check``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.db import connections

from chancy.django.current import app, calls, make
from chancy.django.settings import database_dsn, read
from chancy.errors import ChancyError, SchemaMismatch
from chancy.postgres.dsn import parse
from chancy.postgres.schema import status
from chancy.postgres.schema.component import read_revisions
from chancy.postgres.within import bind_sync


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check ``CHANCY`` without connecting to the database or importing the project."""
    try:
        found = read()
        dsn = found.dsn or database_dsn(found.database)
        parse(dsn)
        if not found.app:
            make(found, dsn)
    except ChancyError as error:
        return [Error(str(error), id="chancy.E001")]
    pool = connections[found.database].settings_dict.get("OPTIONS", {}).get("pool")
    kept = connections[found.database].settings_dict
    if not pool and kept.get("CONN_MAX_AGE") != 0 and not kept.get("CONN_HEALTH_CHECKS"):
        return [
            CheckWarning(
                f"DATABASES[{found.database!r}] keeps connections (CONN_MAX_AGE) without "
                "CONN_HEALTH_CHECKS: a job fails on each one that the server has ended",
                hint="Set CONN_HEALTH_CHECKS to True.",
                id="chancy.W001",
            )
        ]
    return []


def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that the application can be created; for ``manage.py check --database default``."""
    if not _concerned(databases):
        return []
    try:
        app()
    except ChancyError as error:
        return [Error(str(error), id="chancy.E002")]
    return []


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check that the tables are at the revisions of this version; with ``--deploy`` as well.

    Not a check of every ``manage.py migrate``, which creates the tables.
    """
    if not _concerned(databases):
        return []
    try:
        mismatch = outdated()
    except ChancyError:
        return []  # `check_database` reports it
    if mismatch is None:
        return []
    hint = "Run `manage.py migrate`, or `manage.py chancy migrate upgrade`."
    return [Error(str(mismatch), hint=hint, id="chancy.E003")]


def outdated() -> SchemaMismatch | None:
    """The mismatch between the tables and this version; None if there is none."""
    chancy = app()
    components = chancy.hooks.components
    fetch = bind_sync(connections[calls().broker.alias])
    found = read_revisions(fetch, chancy.schema)
    try:
        status.check(found, chancy.schema, components)
    except SchemaMismatch as mismatch:
        return mismatch
    return None


def _concerned(databases: Sequence[str] | None) -> bool:
    """Whether a command checks the database of the jobs."""
    try:
        return read().database in (databases or ())
    except ChancyError:
        return False
