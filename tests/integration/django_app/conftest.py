"""A project of Django on the database of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import django_project

django_project.configure()


@pytest.fixture
def database(dsn: str) -> Iterator[None]:
    """Django's connections lead to a migrated database."""
    with django_project.databases(dsn):
        yield
